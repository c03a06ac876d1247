//! What must hold between the values, and the one file that is read while loading: the secret.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use shuffle_protocol::limits;
use shuffle_protocol::session::Secret;

use super::problem::{Problem, Problems};
use super::units::format_duration;
use super::{Config, KEYS};

const MAX_SECRET_FILE_BYTES: u64 = 64 << 10;
const PAGE_BYTES: u32 = 4096;
const SOCKET_PATH_BYTES: usize = 107;

pub(super) fn check(config: &mut Config, problems: &mut Problems) {
    let mut found = Vec::new();
    node(config, &mut found);
    executor(config, &mut found);
    pool(config, &mut found);
    limit(config, &mut found);
    timeouts(config, &mut found);
    storage(config, &mut found);
    match config.security.secret_file.as_deref().map(read_secret).transpose() {
        Ok(secret) => config.security.secret = secret,
        Err(remedy) => found.push(("security.secret_file", remedy)),
    }
    if config.security.secret.is_some() {
        config.warnings.push(
            "security.secret_file: executors must bring a job token, but other servers are not asked for the secret; \
             keep node.listen on a trusted network"
                .to_owned(),
        );
    }
    if config.executor.tcp && config.security.secret.is_some() {
        config.warnings.push(
            "executor.tcp with security.secret_file: job tokens cross the network in clear; use it only on a trusted network".to_owned(),
        );
    }
    for (key, remedy) in found {
        // A value that could not be parsed is reported as such only.
        if problems.0.iter().any(|problem| problem.key == key) {
            continue;
        }
        let value = KEYS
            .iter()
            .find(|known| known.name == key)
            .and_then(|known| (known.show)(config))
            .map(|value| value.to_string().trim_matches('"').to_owned())
            .unwrap_or_default();
        problems.0.push(Problem {
            key: key.to_owned(),
            value,
            source: config.source(key),
            remedy,
        });
    }
}

type Found = Vec<(&'static str, String)>;

fn node(config: &Config, found: &mut Found) {
    if config.node.listen.ip().is_unspecified() && config.node.advertise.is_none() {
        found.push((
            "node.advertise",
            format!(
                "needed because node.listen is {}, which no other node can dial; give this node's HOST:PORT",
                config.node.listen
            ),
        ));
    }
    range(found, "node.stripes", config.node.stripes, 1, limits::MAX_STRIPES);
}

fn executor(config: &Config, found: &mut Found) {
    if config.executor.mode & 0o600 != 0o600 {
        found.push((
            "executor.mode",
            "the server's own user must be able to connect; give 0600, 0660 or 0666".to_owned(),
        ));
    }
    let socket = &config.executor.socket;
    // Room for the temporary name under which the socket is bound.
    if socket.as_os_str().len() + 8 > SOCKET_PATH_BYTES {
        found.push((
            "executor.socket",
            format!(
                "longer than {} bytes, which a Unix socket cannot have; give a shorter path",
                SOCKET_PATH_BYTES - 8
            ),
        ));
    }
    if socket.file_name().is_none() {
        found.push((
            "executor.socket",
            "names no file; give the path of the socket itself".to_owned(),
        ));
    }
}

fn pool(config: &Config, found: &mut Found) {
    let pool = &config.pool;
    let bytes = pool.buffer_bytes;
    let (low, high) = (u64::from(limits::MIN_BUFFER_BYTES), u64::from(limits::MAX_BUFFER_BYTES));
    if !(low..=high).contains(&u64::from(bytes)) || !bytes.is_multiple_of(PAGE_BYTES) {
        found.push((
            "pool.buffer_size",
            format!("must be a multiple of {PAGE_BYTES} from {low} to {high} bytes; 32KiB is a good value"),
        ));
    }
    if pool.extent_buffers == 0 || pool.extent_buffers > pool.buffers {
        found.push((
            "pool.extent_buffers",
            "must be from 1 to pool.buffers; 8 is a good value".to_owned(),
        ));
    } else if pool.buffers < 2 * pool.extent_buffers || !pool.buffers.is_multiple_of(pool.extent_buffers) {
        found.push((
            "pool.buffers",
            format!(
                "must be a multiple of pool.extent_buffers ({}) and at least twice it",
                pool.extent_buffers
            ),
        ));
    }
    let most = pool.buffers.saturating_sub(pool.extent_buffers);
    if pool.read_reserve.is_some_and(|reserve| reserve > most) {
        found.push((
            "pool.read_reserve",
            format!("leaves writers no whole extent; give at most {most} (pool.buffers less pool.extent_buffers)"),
        ));
    }
}

fn limit(config: &Config, found: &mut Found) {
    let limits = &config.limits;
    range(
        found,
        "limits.max_queued_per_subpartition",
        limits.max_queued_per_subpartition,
        1,
        1 << 20,
    );
    range(
        found,
        "limits.partitions_per_job",
        limits.partitions_per_job,
        1,
        u32::MAX,
    );
    range(found, "limits.channels_per_job", limits.channels_per_job, 1, u32::MAX);
    range(
        found,
        "limits.requests_per_session",
        limits.requests_per_session,
        1,
        u32::MAX,
    );
    range(found, "limits.half_open", limits.half_open, 1, 65_536);
    if limits.max_record_bytes == 0 {
        found.push((
            "limits.max_record",
            "no record could be written; give a size such as 1GiB".to_owned(),
        ));
    }
}

fn timeouts(config: &Config, found: &mut Found) {
    let timeouts = &config.timeouts;
    for (key, value) in [
        ("timeouts.request", timeouts.request),
        ("timeouts.dead_peer", timeouts.dead_peer),
        ("timeouts.keepalive", timeouts.keepalive),
        ("timeouts.handshake", timeouts.handshake),
        ("timeouts.group_verdict", timeouts.group_verdict),
        ("timeouts.unread_expiry", timeouts.unread_expiry),
        ("storage.timeout", config.storage.timeout),
    ] {
        if value < Duration::from_millis(10) {
            found.push((key, "too short; give at least 10ms".to_owned()));
        } else if value > Duration::from_secs(24 * 3600) {
            found.push((key, "too long; give at most 24h".to_owned()));
        }
    }
    if timeouts.keepalive * 2 > timeouts.dead_peer {
        found.push((
            "timeouts.keepalive",
            format!(
                "a peer must miss two pings before it is dead; give at most half of timeouts.dead_peer ({})",
                format_duration(timeouts.dead_peer)
            ),
        ));
    }
}

fn storage(config: &Config, found: &mut Found) {
    range(found, "storage.threads", config.storage.threads, 1, 64);
    let directories = &config.storage.directories;
    let twice = directories
        .iter()
        .enumerate()
        .find(|(at, path)| directories[..*at].contains(path));
    if let Some((_, path)) = twice {
        let remedy = format!("{} is listed twice; give each directory once", path.display());
        found.push(("storage.directories", remedy));
    }
}

fn range(found: &mut Found, key: &'static str, value: u32, low: u32, high: u32) {
    if !(low..=high).contains(&value) {
        found.push((key, format!("must be from {low} to {high}")));
    }
}

fn read_secret(path: &Path) -> Result<Secret, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}; give a file with the cluster secret");
    let metadata = path.metadata().map_err(unreadable)?;
    if metadata.mode() & 0o007 != 0 {
        return Err(format!(
            "others may read or write it (mode {:04o}); run chmod o-rwx on it",
            metadata.mode() & 0o7777
        ));
    }
    if metadata.len() > MAX_SECRET_FILE_BYTES {
        return Err(format!(
            "holds {} bytes; give a file with nothing but the cluster secret",
            metadata.len()
        ));
    }
    let mut bytes = std::fs::read(path).map_err(unreadable)?;
    // A trailing newline is an editor's, not the secret's.
    bytes.truncate(bytes.trim_ascii_end().len());
    Secret::new(bytes).map_err(|error| format!("cannot be used: {}", error.message()))
}
