//! Looking at servers from outside, through `/proc`: memory and connections as the kernel counts them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The most that was seen of any server of a run, and the connections between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Peaks {
    /// Most `VmRSS - RssShmem` of one server, in bytes.
    pub(crate) private_bytes: u64,
    /// Most blocks allocated in the memfds of one server, in bytes.
    pub(crate) arena_bytes: u64,
    /// Established connections to the servers' ports when last looked at and there were any.
    pub(crate) connections: u64,
    /// Most of them at one time.
    pub(crate) connections_peak: u64,
    samples: u64,
    /// The memfds of each server when last looked for.
    memfds: Vec<Vec<PathBuf>>,
}

impl Peaks {
    /// Looks at the memory of all servers, and every now and then at their connections. A server that has ended is passed
    /// over.
    pub(crate) fn sample(&mut self, servers: &[(u32, u16)]) {
        // To go through all descriptors, and through all connections of the machine, is too dear for each time.
        if self.samples.is_multiple_of(SAMPLES_PER_THOROUGH_LOOK) {
            self.memfds = servers
                .iter()
                .map(|(pid, _)| memfds(*pid).unwrap_or_default())
                .collect();
            self.look_at_connections(servers);
        }
        for ((pid, _), memfds) in servers.iter().zip(&self.memfds) {
            if let Ok(bytes) = private_bytes(*pid) {
                self.private_bytes = self.private_bytes.max(bytes);
            }
            if let Some(bytes) = steady_bytes(memfds) {
                self.arena_bytes = self.arena_bytes.max(bytes);
            }
        }
        self.samples += 1;
    }

    /// Counts the established connections to the servers' ports.
    pub(crate) fn look_at_connections(&mut self, servers: &[(u32, u16)]) {
        let ports: Vec<u16> = servers.iter().map(|(_, port)| *port).collect();
        if let Ok(table) = fs::read_to_string("/proc/net/tcp") {
            let connections = established(&table, &ports);
            if connections > 0 {
                self.connections = connections;
            }
            self.connections_peak = self.connections_peak.max(connections);
        }
    }
}

/// `VmRSS - RssShmem` of a process.
pub(crate) fn private_bytes(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let resident = kibibytes(&status, "VmRSS:")?;
    let shared = kibibytes(&status, "RssShmem:")?;
    Ok(resident.saturating_sub(shared) * 1024)
}

fn kibibytes(status: &str, name: &str) -> io::Result<u64> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no {name}")))
}

/// Blocks allocated in some memfds, in bytes. Memory may move from one to another between two looks and be seen twice, so a
/// look counts only if the next one finds the same in every file; `None`: nothing stood still.
fn steady_bytes(memfds: &[PathBuf]) -> Option<u64> {
    let mut last = blocks(memfds);
    for _ in 0..LOOKS {
        let now = blocks(memfds);
        if now == last {
            return Some(now.values().sum());
        }
        last = now;
    }
    None
}

/// The files behind some descriptors, each once, with the bytes of their blocks.
fn blocks(memfds: &[PathBuf]) -> BTreeMap<(u64, u64), u64> {
    let files = memfds.iter().filter_map(|path| fs::metadata(path).ok());
    files
        .map(|file| ((file.dev(), file.ino()), file.blocks() * 512))
        .collect()
}

/// The descriptors of memfds that a process holds.
fn memfds(pid: u32) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        if fs::read_link(&path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:")) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Established connections whose accepting side has one of the ports, from the text of `/proc/net/tcp`. The kernel may show one
/// twice where others come and go while the table is read.
fn established(table: &str, ports: &[u16]) -> u64 {
    let accepted = table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        let (_, port) = local.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (state == ESTABLISHED && ports.contains(&port)).then_some((local, remote))
    });
    let accepted: BTreeSet<_> = accepted.collect();
    u64::try_from(accepted.len()).expect("invariant: a count fits 64 bits")
}

const ESTABLISHED: &str = "01";
const LOOKS: u32 = 5;
const SAMPLES_PER_THOROUGH_LOOK: u64 = 20;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::{Peaks, established, kibibytes};

    #[test]
    fn only_accepted_and_established_connections_count() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 0100007F:1CA9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0
   1: 0100007F:1CA9 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0
   2: 0100007F:D431 0100007F:1CA9 01 00000000:00000000 00:00000000 00000000     0
   3: 0100007F:1CA9 0100007F:D432 06 00000000:00000000 00:00000000 00000000     0
   3: 0100007F:1CA9 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0
   4: 0100007F:1CAA 0100007F:D433 01 00000000:00000000 00:00000000 00000000     0";
        assert_eq!(established(table, &[0x1CA9]), 1);
        assert_eq!(established(table, &[0x1CA9, 0x1CAA]), 2);
        assert_eq!(established(table, &[1]), 0);
    }

    #[test]
    fn memory_is_read_from_the_status() {
        let status = "Name:\tx\nVmRSS:\t   123 kB\nRssShmem:\t     23 kB\n";
        assert_eq!(kibibytes(status, "VmRSS:").ok(), Some(123));
        assert!(kibibytes(status, "VmSwap:").is_err());
    }

    #[test]
    fn a_real_process_and_a_real_connection_are_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        let _ours = TcpStream::connect(address).expect("connected");
        let _theirs = listener.accept().expect("accepted");
        let mut peaks = Peaks::default();
        peaks.sample(&[(std::process::id(), address.port())]);
        assert!(peaks.private_bytes > 100_000, "{peaks:?}");
        assert_eq!((peaks.connections, peaks.connections_peak), (1, 1));
    }
}
