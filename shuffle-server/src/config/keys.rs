//! The table of keys. Adding one here gives it a TOML name, a flag, an environment variable, a line
//! in `--help` and a line in `--print-config`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use shuffle_protocol::NodeAddress;
use toml::Value;
use tracing_subscriber::EnvFilter;

use super::units::{format_duration, format_size, parse_duration, parse_size};
use super::{Config, LogFormat, SendMode};

/// One thing that can be configured.
pub struct Key {
    /// TOML name, `section.name`.
    pub name: &'static str,
    /// Long flag without dashes; upper-cased behind `SHUFFLE_` it is the environment variable.
    pub flag: &'static str,
    /// What stands for the value in the help text.
    pub metavar: &'static str,
    /// Help text.
    pub help: &'static str,
    /// Parses a value into the configuration; an error is a sentence with a remedy.
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
    /// The current value; `None` when there is none.
    pub(super) show: fn(&Config) -> Option<Value>,
}

impl Key {
    /// Name of the environment variable.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("SHUFFLE_{}", self.flag.replace('-', "_").to_uppercase())
    }
}

macro_rules! key {
    ($name:literal, $flag:literal, $metavar:literal, $help:literal, $($field:ident).+, $parse:expr, $show:expr) => {
        Key {
            name: $name,
            flag: $flag,
            metavar: $metavar,
            help: $help,
            set: |config, text| {
                config.$($field).+ = $parse(text)?;
                Ok(())
            },
            show: |config| $show(&config.$($field).+),
        }
    };
}

/// Every key, by section.
#[rustfmt::skip] // a table
pub const KEYS: &[Key] = &[
    key!("node.listen", "listen", "ADDR", "Address and port for other nodes; port 0 picks a free one", node.listen, address, shown),
    key!("node.advertise", "advertise", "HOST:PORT", "Name under which other nodes reach this one [default: the listen address]", node.advertise, node, shown_option),
    key!("node.stripes", "stripes", "N", "TCP connections per pair of nodes", node.stripes, count, number),
    key!("node.cores", "cores", "N,..", "Processor cores the server stays on; its pool lies in the memory nearest to them [default: any]", node.cores, ids, shown_ids),
    key!("executor.socket", "socket", "PATH", "Unix socket for the executors of this node", executor.socket, path, shown_path),
    key!("executor.mode", "socket-mode", "OCTAL", "Permission bits of the socket, whatever the umask", executor.mode, octal, shown_octal),
    key!("executor.allowed_uids", "allowed-uids", "UID,..", "Users who may attach beside the server's own and root", executor.allowed_uids, ids, shown_ids),
    key!("executor.allowed_gids", "allowed-gids", "GID,..", "Groups whose processes may attach", executor.allowed_gids, ids, shown_ids),
    key!("executor.tcp", "executor-tcp", "BOOL", "Let executors without a local server attach over TCP", executor.tcp, boolean, shown_bool),
    key!("security.secret_file", "secret-file", "PATH", "File with the cluster secret; when set, job tokens are verified", security.secret_file, optional_path, shown_optional_path),
    key!("pool.buffers", "buffers", "N", "Buffers in the network buffer pool", pool.buffers, count, number),
    key!("pool.buffer_size", "buffer-size", "SIZE", "Bytes per buffer, a multiple of 4 KiB, the same on all nodes", pool.buffer_bytes, size32, shown_size32),
    key!("pool.extent_buffers", "extent-buffers", "N", "Buffers that move between bank and arena at once", pool.extent_buffers, count, number),
    key!("pool.read_reserve", "read-reserve", "N", "Buffers that writers may not borrow [default: a quarter of the pool]", pool.read_reserve, optional_count, shown_count),
    key!("limits.max_queued_per_subpartition", "max-queued", "N", "Buffers a subpartition may queue before it is blocked", limits.max_queued_per_subpartition, count, number),
    key!("limits.max_record", "max-record", "SIZE", "Largest record", limits.max_record_bytes, parse_size, shown_size),
    key!("limits.partitions_per_job", "max-partitions", "N", "Open result partitions per job", limits.partitions_per_job, count, number),
    key!("limits.channels_per_job", "max-channels", "N", "Open input channels per job", limits.channels_per_job, count, number),
    key!("limits.requests_per_session", "max-requests", "N", "Unanswered requests per executor", limits.requests_per_session, count, number),
    key!("limits.disk_bytes_per_job", "max-disk", "SIZE", "Payload that one job may have on disk, 0 for as much as there is room for", limits.disk_bytes_per_job, parse_size, shown_size),
    key!("limits.half_open", "max-half-open", "N", "Connections in their handshake, per listening socket", limits.half_open, count, number),
    key!("timeouts.request", "request-timeout", "DURATION", "How long a request waits for a partition or for buffers", timeouts.request, parse_duration, shown_duration),
    key!("timeouts.dead_peer", "dead-peer-timeout", "DURATION", "A peer that has been silent for this long is dead", timeouts.dead_peer, parse_duration, shown_duration),
    key!("timeouts.keepalive", "keepalive", "DURATION", "A ping leaves after this long without traffic", timeouts.keepalive, parse_duration, shown_duration),
    key!("timeouts.handshake", "handshake-timeout", "DURATION", "Deadline of connect and handshake", timeouts.handshake, parse_duration, shown_duration),
    key!("timeouts.drain", "drain-timeout", "DURATION", "How long SIGTERM waits for readers to finish", timeouts.drain, parse_duration, shown_duration),
    key!("timeouts.refused_grace", "refused-grace", "DURATION", "How long a node that refuses connections may still be starting", timeouts.refused_grace, parse_duration, shown_duration),
    key!("timeouts.group_verdict", "group-verdict-timeout", "DURATION", "How long a failed group waits for its home server's verdict", timeouts.group_verdict, parse_duration, shown_duration),
    key!("timeouts.unread_expiry", "unread-expiry", "DURATION", "How long a finished partition waits for its readers", timeouts.unread_expiry, parse_duration, shown_duration),
    key!("transport.send", "transport-send", "HOW", "How bytes are sent to other nodes: auto, copy, sendfile or uring", transport.send, send_mode, shown_send_mode),
    key!("transport.send_buffer", "send-buffer", "SIZE", "Kernel send buffer between nodes, 0 for the kernel's choice", transport.send_buffer_bytes, size32, shown_size32),
    key!("transport.receive_buffer", "receive-buffer", "SIZE", "Kernel receive buffer between nodes, 0 for the kernel's choice", transport.receive_buffer_bytes, size32, shown_size32),
    key!("transport.unsent", "transport-unsent", "SIZE", "Unsent bytes in the kernel up to which more are given to it, 0 for the kernel's choice", transport.unsent_bytes, size32, shown_size32),
    key!("storage.directories", "storage-directories", "PATH,..", "Directories of this server alone for spilled and persistent partitions [default: none, nothing is spilled or persistent]", storage.directories, paths, shown_paths),
    key!("storage.limit", "storage-limit", "SIZE", "Bytes used in each directory at most, 0 for whatever is free", storage.limit, parse_size, shown_size),
    key!("storage.threads", "storage-threads", "N", "Threads for each directory", storage.threads, count, number),
    key!("storage.timeout", "storage-timeout", "DURATION", "A directory in which one operation takes longer is taken out", storage.timeout, parse_duration, shown_duration),
    key!("log.filter", "log", "FILTER", "Log filter, such as info or shuffle_server=debug", log.filter, filter, shown),
    key!("log.format", "log-format", "FORMAT", "How log lines look: text or json", log.format, format, shown_format),
];

// ---------------------------------------------------------------- parsers

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "not an address; give IP:PORT, such as 0.0.0.0:7337 or [::]:7337".to_owned())
}

fn node(text: &str) -> Result<Option<NodeAddress>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    NodeAddress::parse(text)
        .map(Some)
        .map_err(|error| format!("not a node address ({error}); give HOST:PORT"))
}

fn number_of<T: FromStr>(text: &str) -> Option<T> {
    text.replace('_', "").parse().ok()
}

fn count(text: &str) -> Result<u32, String> {
    number_of(text).ok_or_else(|| "not a count; give a whole number below 2^32".to_owned())
}

fn optional_count(text: &str) -> Result<Option<u32>, String> {
    count(text).map(Some)
}

fn size32(text: &str) -> Result<u32, String> {
    u32::try_from(parse_size(text)?).map_err(|_| "too large; give less than 4GiB".to_owned())
}

fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("an empty path; give the path of a file".to_owned());
    }
    Ok(PathBuf::from(text))
}

fn optional_path(text: &str) -> Result<Option<PathBuf>, String> {
    Ok((!text.is_empty()).then(|| PathBuf::from(text)))
}

fn paths(text: &str) -> Result<Vec<PathBuf>, String> {
    Ok(text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(PathBuf::from)
        .collect())
}

fn octal(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    u32::from_str_radix(digits, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "not permission bits; give up to three octal digits as a string, such as \"0660\"".to_owned())
}

fn ids(text: &str) -> Result<Vec<u32>, String> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| {
            number_of(part).ok_or_else(|| format!("{part:?} is not a numeric id; give numbers such as 1000,1001"))
        })
        .collect()
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err("not a truth value; give true or false".to_owned()),
    }
}

fn filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| {
        format!("not a log filter ({error}); give a level or target=level, such as shuffle_server=debug")
    })
}

fn format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("no such format; give text or json".to_owned()),
    }
}

fn send_mode(text: &str) -> Result<SendMode, String> {
    SEND_MODES
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, mode)| *mode)
        .ok_or_else(|| "no such way to send; give auto, copy, sendfile or uring".to_owned())
}

const SEND_MODES: [(&str, SendMode); 4] = [
    ("auto", SendMode::Auto),
    ("copy", SendMode::Copy),
    ("sendfile", SendMode::Sendfile),
    ("uring", SendMode::Uring),
];

// ---------------------------------------------------------------- printers

fn shown(value: &impl ToString) -> Option<Value> {
    Some(Value::String(value.to_string()))
}

fn shown_option(value: &Option<NodeAddress>) -> Option<Value> {
    value.as_ref().and_then(shown)
}

fn number(value: &u32) -> Option<Value> {
    Some(Value::Integer(i64::from(*value)))
}

fn shown_count(value: &Option<u32>) -> Option<Value> {
    value.as_ref().and_then(number)
}

fn shown_path(value: &std::path::Path) -> Option<Value> {
    Some(Value::String(value.display().to_string()))
}

fn shown_optional_path(value: &Option<PathBuf>) -> Option<Value> {
    value.as_deref().and_then(shown_path)
}

fn shown_paths(value: &[PathBuf]) -> Option<Value> {
    Some(Value::Array(value.iter().filter_map(|path| shown_path(path)).collect()))
}

fn shown_octal(value: &u32) -> Option<Value> {
    Some(Value::String(format!("{value:04o}")))
}

fn shown_ids(value: &[u32]) -> Option<Value> {
    Some(Value::Array(
        value.iter().map(|id| Value::Integer(i64::from(*id))).collect(),
    ))
}

fn shown_bool(value: &bool) -> Option<Value> {
    Some(Value::Boolean(*value))
}

fn shown_size(value: &u64) -> Option<Value> {
    Some(Value::String(format_size(*value)))
}

fn shown_size32(value: &u32) -> Option<Value> {
    shown_size(&u64::from(*value))
}

fn shown_duration(value: &std::time::Duration) -> Option<Value> {
    Some(Value::String(format_duration(*value)))
}

fn shown_format(value: &LogFormat) -> Option<Value> {
    let text = match value {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    };
    Some(Value::String(text.to_owned()))
}

fn shown_send_mode(value: &SendMode) -> Option<Value> {
    let (name, _) = SEND_MODES.iter().find(|(_, mode)| mode == value)?;
    Some(Value::String((*name).to_owned()))
}
