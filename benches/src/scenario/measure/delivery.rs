//! What one round gave.

use std::collections::BTreeMap;

use super::stage::Performance;
use super::stats::rounded;
use crate::load::{Done, Totals};

/// What was delivered in one round, and how.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) performance: Performance,
    pub(crate) bytes: u64,
    /// What keeps it from being verified.
    pub(crate) problems: Vec<String>,
    /// Processor time of all producers, all consumers, all servers.
    pub(crate) cpu: [f64; 3],
    /// The counters of each server at the end.
    pub(crate) counters: Vec<BTreeMap<String, u64>>,
}

impl Delivery {
    /// Holds what was read against what was filled, by so many readings of all of it.
    pub(super) fn new(performance: Performance, filled: &[Done], read: &[Done], readings: u32) -> Self {
        let sum = |done: &[Done]| {
            let mut totals = Totals::default();
            done.iter().for_each(|done| totals.merge(done.totals));
            totals
        };
        let (made, arrived) = (sum(filled).times(readings), sum(read));
        let mut problems = Vec::new();
        if made != arrived {
            problems.push(format!("filled {made:?}, read {arrived:?}"));
        }
        let seconds = |done: &[Done]| done.iter().map(|done| done.cpu_seconds).sum();
        Self {
            bytes: arrived.bytes,
            problems,
            cpu: [seconds(filled), seconds(read), performance.server_cpu.iter().sum()],
            performance,
            counters: Vec::new(),
        }
    }

    /// A counter of all servers together.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.counters.iter().filter_map(|server| server.get(name)).sum()
    }

    /// How the servers sent to each other; none on one node.
    pub(crate) fn strategy(&self) -> Option<&'static str> {
        let connections = |name: &&&str| self.counter(&format!("peer_connections_{name}"));
        let used = STRATEGIES.iter().filter(|name| connections(name) > 0);
        used.max_by_key(connections).copied()
    }

    /// Payload that was sent to another node and copied by the kernel, and payload that was sent by reference. What went
    /// through `io_uring` counts as copied, unless the kernel has reported that it was not.
    pub(crate) fn sent_bytes(&self) -> (u64, u64) {
        let ring = self.counter("send_bytes_uring");
        let ring_uncopied = self.counter("send_bytes_uring_uncopied");
        (
            self.counter("send_bytes_copied") + ring.saturating_sub(ring_uncopied),
            self.counter("send_bytes_uncopied") + ring_uncopied,
        )
    }

    /// 10^9 bytes a second.
    pub(crate) fn gb_per_s(&self) -> f64 {
        rounded(self.bytes as f64 / 1e9 / self.performance.seconds.max(1e-9))
    }

    /// Processor seconds of all processes for 10^9 bytes.
    pub(crate) fn cpu_s_per_gb(&self) -> f64 {
        self.per_gb(self.performance.cpu_seconds())
    }

    pub(crate) fn per_gb(&self, seconds: f64) -> f64 {
        rounded(seconds / (self.bytes as f64 / 1e9).max(1e-9))
    }
}

const STRATEGIES: [&str; 3] = ["copy", "sendfile", "uring"];

#[cfg(test)]
mod tests {
    use super::{Delivery, Done, Performance, Totals};
    use crate::clock::Moment;

    fn done(bytes: u64, sum: u64, cpu_seconds: f64) -> Done {
        Done {
            totals: Totals { bytes, sum },
            finished: Moment::now(),
            cpu_seconds,
            local_bytes: 0,
            remote_bytes: 0,
            latencies: Vec::new(),
        }
    }

    #[test]
    fn what_a_ring_sent_is_copied_unless_the_kernel_reports_otherwise() {
        let performance = Performance {
            seconds: 1.0,
            done: Vec::new(),
            server_cpu: Vec::new(),
        };
        let mut delivery = Delivery::new(performance, &[], &[], 1);
        let server = |counters: [(&str, u64); 2]| counters.map(|(name, value)| (name.to_owned(), value)).into();
        delivery.counters = vec![
            server([("send_bytes_uring", 100), ("send_bytes_uring_uncopied", 30)]),
            server([("send_bytes_copied", 5), ("send_bytes_uncopied", 7)]),
        ];
        assert_eq!(delivery.sent_bytes(), (75, 37));
    }

    #[test]
    fn what_was_lost_is_a_problem_and_everyone_costs() {
        let performance = Performance {
            seconds: 2.0,
            done: vec![done(4_000_000_000, 7, 1.0), done(4_000_000_000, 7, 2.0)],
            server_cpu: vec![0.5, 0.5],
        };
        let (filled, read) = performance.done.split_at(1);
        let good = Delivery::new(performance.clone(), filled, read, 1);
        assert!(good.problems.is_empty());
        assert!((good.gb_per_s() - 2.0).abs() < 1e-9);
        assert!((good.cpu_s_per_gb() - 1.0).abs() < 1e-9);
        let bad = Delivery::new(performance.clone(), filled, &[done(4_000_000_000, 8, 2.0)], 1);
        assert_eq!(bad.problems.len(), 1);
        let once = Delivery::new(performance.clone(), filled, read, 2);
        assert_eq!(once.problems.len(), 1, "all of it was to be read twice");
        let twice = Delivery::new(performance.clone(), filled, &[read, read].concat(), 2);
        assert!(twice.problems.is_empty());
    }
}
