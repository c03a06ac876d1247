//! What the kernel says about a process: memory, descriptors, threads, time, connections.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// State letter of `/proc/PID/stat`, `None` if there is no such process.
#[must_use]
pub fn state(pid: u32) -> Option<char> {
    stat_fields(pid)?.first()?.chars().next()
}

/// True while the process runs, sleeps or is stopped; false if it is gone or a zombie.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// Open descriptors.
#[must_use]
pub fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Soft limit of open descriptors.
#[must_use]
pub fn open_files_limit(pid: u32) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Threads.
#[must_use]
pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// `VmRSS - RssShmem` in bytes.
#[must_use]
pub fn private_bytes(pid: u32) -> Option<u64> {
    Some(status_bytes(pid, "VmRSS:")?.saturating_sub(status_bytes(pid, "RssShmem:")?))
}

/// Time on a core so far, user and system.
#[must_use]
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let fields = stat_fields(pid)?;
    // Fields 14 and 15 of stat(5); the vector begins with field 3.
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis(ticks * 1000 / per_second))
}

/// Allocated bytes of the process's memfds whose name contains `name`, each file once. Memory that moves from one to another
/// while they are looked at is not counted in both: they are looked at until two looks in a row see the same.
#[must_use]
pub fn memfd_bytes(pid: u32, name: &str) -> u64 {
    const MOST_LOOKS: u32 = 100;
    let mut before = memfds(pid, name);
    for _ in 0..MOST_LOOKS {
        let now = memfds(pid, name);
        if now == before {
            break;
        }
        before = now;
    }
    before.values().sum()
}

/// Allocated bytes of each of them, by inode.
fn memfds(pid: u32, name: &str) -> BTreeMap<u64, u64> {
    use std::os::unix::fs::MetadataExt;
    descriptors(pid)
        .into_iter()
        .filter(|(_, target)| target.starts_with("/memfd:") && target.contains(name))
        .filter_map(|(path, _)| fs::metadata(path).ok())
        .map(|meta| (meta.ino(), meta.blocks() * 512))
        .collect()
}

/// Addresses on which the process listens (IPv4).
#[must_use]
pub fn listening(pid: u32) -> Vec<SocketAddr> {
    const LISTEN: &str = "0A";
    tcp(pid)
        .into_iter()
        .filter(|one| one.state == LISTEN)
        .map(|one| one.local)
        .collect()
}

/// Established TCP connections of the process (IPv4): (local, remote).
#[must_use]
pub fn established(pid: u32) -> Vec<(SocketAddr, SocketAddr)> {
    const ESTABLISHED: &str = "01";
    let mine = tcp(pid).into_iter().filter(|one| one.state == ESTABLISHED);
    mine.map(|one| (one.local, one.remote)).collect()
}

/// Living children of a process.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for task in tasks.flatten() {
        let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|one| one.parse::<u32>().ok()));
    }
    found.retain(|child| is_alive(*child));
    found
}

struct Tcp {
    local: SocketAddr,
    remote: SocketAddr,
    state: String,
}

fn tcp(pid: u32) -> Vec<Tcp> {
    let inodes: BTreeSet<String> = descriptors(pid)
        .into_iter()
        .filter_map(|(_, target)| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ours = inodes.contains(*fields.get(9)?);
        let (local, remote) = (address(fields.get(1)?)?, address(fields.get(2)?)?);
        ours.then(|| Tcp {
            local,
            remote,
            state: fields[3].to_owned(),
        })
    };
    table.lines().skip(1).filter_map(parse).collect()
}

/// `0100007F:1F90` is 127.0.0.1:8080: the address in host order of a little-endian machine.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let ip = u32::from_str_radix(ip, 16).ok()?.swap_bytes();
    Some(SocketAddr::from((
        Ipv4Addr::from(ip),
        u16::from_str_radix(port, 16).ok()?,
    )))
}

fn descriptors(pid: u32) -> Vec<(std::path::PathBuf, String)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    let target = |path: &std::path::Path| Some(fs::read_link(path).ok()?.to_string_lossy().into_owned());
    entries
        .flatten()
        .filter_map(|entry| target(&entry.path()).map(|target| (entry.path(), target)))
        .collect()
}

/// The fields after the command's name, which may hold spaces and brackets.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn status_bytes(pid: u32, key: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::{address, cpu_time, is_alive, listening, memfd_bytes, open_files, private_bytes, threads};

    #[test]
    fn addresses_are_read_as_the_kernel_writes_them() {
        assert_eq!(address("0100007F:1F90"), "127.0.0.1:8080".parse().ok());
    }

    #[test]
    fn this_process_is_seen() {
        let pid = std::process::id();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let local = listener.local_addr().expect("an address");
        assert!(is_alive(pid) && open_files(pid) > 2 && threads(pid) >= 1);
        assert!(private_bytes(pid).is_some_and(|bytes| bytes > 100_000));
        assert!(cpu_time(pid).is_some());
        assert!(listening(pid).contains(&local));
        assert_eq!(memfd_bytes(pid, "no such name"), 0);
    }
}
