//! The report of the scenarios that shuffle rows between nodes (`demo`, `repartition`).

use serde::Serialize;

use super::table::{Table, bytes, grouped};
use crate::error::BenchError;

/// What a shuffle of rows found. Names and units are stable; more may be added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShuffleReport {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Whether every row arrived exactly once and every other check of the run held.
    pub verified: bool,
    /// Rows that arrived.
    pub rows: u64,
    /// Bytes of these rows, without framing; `local_bytes + remote_bytes`.
    pub bytes: u64,
    /// From the moment all executors were told to start to the end of the last of them.
    pub seconds: f64,
    /// `bytes / seconds`, 10^9 bytes per second.
    pub gb_per_s: f64,
    /// Bytes of rows that were read in the memory in which their producer wrote them.
    pub local_bytes: u64,
    /// Bytes of rows that came over the connection between the nodes.
    pub remote_bytes: u64,
    /// From the start to the first row at any consumer; absent if there was no row.
    pub first_row_ms: Option<f64>,
    /// From the start to the end of the last producer's last write, its finish included.
    pub last_producer_finished_ms: f64,
    /// The most that `VmRSS - RssShmem` of any server came to.
    pub server_peak_private_bytes: u64,
    /// The most that the blocks allocated in all memfds of any one server came to.
    pub server_peak_arena_bytes: u64,
    /// The buffer pool of each server.
    pub pool_bytes: u64,
    /// Payload bytes copied by server code, all servers together.
    pub payload_bytes_copied_by_servers: u64,
    /// Payload bytes read by server code, all servers together.
    pub payload_bytes_read_by_servers: u64,
    /// Established connections between the servers at the end of the run, counted in `/proc/net/tcp`.
    pub tcp_connections_between_nodes: u64,
}

impl ShuffleReport {
    /// The table that ends a run.
    pub fn table(&self) -> Table {
        let share = |part: u64| {
            let share = 100.0 * part as f64 / self.bytes.max(1) as f64;
            format!("{} ({share:.1} %)", bytes(part))
        };
        let first = self.first_row_ms.map_or_else(
            || "none came".to_owned(),
            |first| format!("{first:.1} ms after the start"),
        );
        Table::new(format!("shuffle-bench {}", self.scenario))
            .row("verified", if self.verified { "yes" } else { "NO" })
            .row("rows", grouped(self.rows))
            .row("bytes", bytes(self.bytes))
            .row("time", format!("{:.3} s", self.seconds))
            .row("throughput", format!("{:.3} GB/s", self.gb_per_s))
            .row("over shared memory", share(self.local_bytes))
            .row("over TCP", share(self.remote_bytes))
            .row("first row arrived", first)
            .row(
                "last producer finished",
                format!("{:.1} ms after the start", self.last_producer_finished_ms),
            )
            .row(
                "server memory, private",
                format!("{} at most", bytes(self.server_peak_private_bytes)),
            )
            .row(
                "server memory, shared",
                format!(
                    "{} at most, of a pool of {}",
                    bytes(self.server_peak_arena_bytes),
                    bytes(self.pool_bytes)
                ),
            )
            .row("payload copied by servers", bytes(self.payload_bytes_copied_by_servers))
            .row("payload read by servers", bytes(self.payload_bytes_read_by_servers))
            .row(
                "TCP connections between nodes",
                self.tcp_connections_between_nodes.to_string(),
            )
    }
}

/// The object that takes the report's place when a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureReport {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Always false.
    pub verified: bool,
    /// What went wrong, as printed.
    pub error: String,
    /// The first cause that all who named one agree on.
    pub first_cause: Option<String>,
}

impl FailureReport {
    /// The object for a failed run.
    pub fn new(scenario: &'static str, error: &BenchError) -> Self {
        Self {
            scenario,
            verified: false,
            error: error.to_string(),
            first_cause: match error {
                BenchError::Run(failure) => failure.common_cause().map(str::to_owned),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BenchError, FailureReport, ShuffleReport};

    fn report() -> ShuffleReport {
        ShuffleReport {
            scenario: "demo",
            verified: true,
            rows: 600_572,
            bytes: 73_000_000,
            seconds: 0.5,
            gb_per_s: 0.146,
            local_bytes: 36_500_000,
            remote_bytes: 36_500_000,
            first_row_ms: Some(12.5),
            last_producer_finished_ms: 480.25,
            server_peak_private_bytes: 9_000_000,
            server_peak_arena_bytes: 67_108_864,
            pool_bytes: 67_108_864,
            payload_bytes_copied_by_servers: 0,
            payload_bytes_read_by_servers: 0,
            tcp_connections_between_nodes: 1,
        }
    }

    #[test]
    fn names_are_stable() {
        let text = serde_json::to_string(&report()).expect("serialised");
        let names: Vec<&str> = text
            .trim_matches(['{', '}'])
            .split(',')
            .filter_map(|field| field.split(':').next())
            .map(|name| name.trim_matches('"'))
            .collect();
        assert_eq!(
            names,
            [
                "scenario",
                "verified",
                "rows",
                "bytes",
                "seconds",
                "gb_per_s",
                "local_bytes",
                "remote_bytes",
                "first_row_ms",
                "last_producer_finished_ms",
                "server_peak_private_bytes",
                "server_peak_arena_bytes",
                "pool_bytes",
                "payload_bytes_copied_by_servers",
                "payload_bytes_read_by_servers",
                "tcp_connections_between_nodes",
            ]
        );
    }

    #[test]
    fn a_failure_has_scenario_and_verified_too() {
        let error = BenchError::Usage("a \"cause\"".to_owned());
        let text = serde_json::to_string(&FailureReport::new("demo", &error));
        assert_eq!(
            text.expect("serialised"),
            r#"{"scenario":"demo","verified":false,"error":"a \"cause\"","first_cause":null}"#
        );
    }

    #[test]
    fn the_table_says_what_people_look_for() {
        let table = report().table().to_string();
        for part in [
            "600 572",
            "73.0 MB",
            "0.146 GB/s",
            "50.0 %",
            "12.5 ms",
            "480.2 ms",
            "verified",
        ] {
            assert!(table.contains(part), "{part:?} is not in\n{table}");
        }
    }
}
