//! What the process itself uses, read from `/proc/self`.

use std::fs::File;
use std::io::{self, Read as _};

/// Gauges that only the driver can know, with their peaks.
#[derive(Debug, Default)]
pub(crate) struct ProcessGauges {
    private: u64,
    private_peak: u64,
    arena: u64,
    arena_peak: u64,
    open_files: u64,
    connections: u64,
    connections_peak: u64,
}

impl ProcessGauges {
    /// Looks at the process; `arena_bytes` = blocks allocated in all of the pool's memfds, if they could be counted.
    pub(crate) fn sample(&mut self, arena_bytes: Option<u64>) {
        // A reading that fails leaves the last one standing: it is a gauge, not a decision.
        self.private = private_bytes().unwrap_or(self.private);
        self.private_peak = self.private_peak.max(self.private);
        self.arena = arena_bytes.unwrap_or(self.arena);
        self.arena_peak = self.arena_peak.max(self.arena);
        self.open_files = open_files().unwrap_or(self.open_files);
    }

    /// One more or one fewer connection to another server.
    pub(crate) fn set_connections(&mut self, connections: usize) {
        self.connections = u64::try_from(connections).unwrap_or(u64::MAX);
        self.connections_peak = self.connections_peak.max(self.connections);
    }

    /// By metric name.
    pub(crate) fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("server_private_bytes", self.private),
            ("server_peak_private_bytes", self.private_peak),
            ("server_arena_bytes", self.arena),
            ("server_peak_arena_bytes", self.arena_peak),
            ("server_open_files", self.open_files),
            ("peer_connections", self.connections),
            ("peer_connections_peak", self.connections_peak),
        ]
    }
}

/// `VmRSS - RssShmem` of this process in bytes.
fn private_bytes() -> io::Result<u64> {
    let mut text = [0; 4096];
    let length = File::open("/proc/self/status")?.read(&mut text)?;
    let text = String::from_utf8_lossy(&text[..length]);
    let kib = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok())
            .ok_or(io::ErrorKind::InvalidData)
    };
    Ok((kib("VmRSS:")?.saturating_sub(kib("RssShmem:")?)) * 1024)
}

fn open_files() -> io::Result<u64> {
    let count = std::fs::read_dir("/proc/self/fd")?.count();
    // The directory that was just read is one of them.
    Ok(u64::try_from(count).unwrap_or(u64::MAX).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::{ProcessGauges, private_bytes};

    #[test]
    fn peaks_stay() {
        assert!(private_bytes().is_ok_and(|bytes| bytes > 100_000));
        let mut gauges = ProcessGauges::default();
        gauges.sample(Some(10));
        gauges.sample(Some(4));
        gauges.set_connections(2);
        gauges.set_connections(1);
        let named = std::collections::BTreeMap::from(gauges.named());
        assert_eq!((named["server_arena_bytes"], named["server_peak_arena_bytes"]), (4, 10));
        assert_eq!((named["peer_connections"], named["peer_connections_peak"]), (1, 2));
        assert!(named["server_open_files"] > 0);
    }
}
