//! What all processes of a run said, held against each other.

use std::collections::BTreeMap;

use crate::clock::Moment;
use crate::cluster::Peaks;
use crate::executor::{ConsumerResult, ProducerResult};
use crate::report::ShuffleReport;
use crate::rows::RowDigest;

/// Everything that is known after a run that came to its end.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) start: Moment,
    pub(super) producers: Vec<ProducerResult>,
    pub(super) consumers: Vec<ConsumerResult>,
    pub(super) peaks: Peaks,
    /// The counters of each server at the end.
    pub(super) counters: Vec<BTreeMap<String, u64>>,
    /// What went wrong when the servers were stopped.
    pub(super) stops: Vec<String>,
}

impl Outcome {
    /// Everything that keeps the run from being verified.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = self.lost_or_repeated();
        for (index, consumer) in self.consumers.iter().enumerate() {
            problems.extend(wrong_path(index, consumer));
        }
        for name in [COPIED, READ] {
            if !self.counters.iter().all(|server| server.contains_key(name)) {
                problems.push(format!("a server does not report {name}"));
            }
        }
        problems.extend(self.stops.iter().cloned());
        problems
    }

    /// What is worth a remark.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let own = self.counters.iter().filter_map(|server| server.get(CONNECTIONS)).max();
        if own.is_some_and(|own| *own != self.peaks.connections) {
            notes.push(format!(
                "the servers count {} connections between them, /proc/net/tcp {}",
                own.unwrap_or(&0),
                self.peaks.connections
            ));
        }
        if self.peaks.connections_peak > self.peaks.connections {
            notes.push(format!(
                "{} connections between the nodes existed at one time",
                self.peaks.connections_peak
            ));
        }
        notes
    }

    /// The report of the run.
    pub(super) fn report(&self, scenario: &'static str, pool_bytes: u64, verified: bool) -> ShuffleReport {
        let mut arrived = RowDigest::default();
        for digest in self.consumers.iter().flat_map(|consumer| &consumer.digests) {
            arrived.merge(digest);
        }
        let since_start = |moment: Moment| rounded(moment.milliseconds_since(self.start));
        let ends = self.consumers.iter().map(|consumer| consumer.finished);
        let finished = ends
            .chain(self.producers.iter().map(|producer| producer.finished))
            .max();
        let seconds = finished.map_or(0.0, |finished| finished.seconds_since(self.start));
        let first_row = self.consumers.iter().filter_map(|consumer| consumer.first_row).min();
        let last_producer = self.producers.iter().map(|producer| producer.finished).max();
        ShuffleReport {
            scenario,
            verified,
            rows: arrived.rows,
            bytes: arrived.bytes,
            seconds: rounded(seconds),
            gb_per_s: rounded(arrived.bytes as f64 / 1e9 / seconds.max(1e-9)),
            local_bytes: self.consumers.iter().map(|consumer| consumer.local_bytes).sum(),
            remote_bytes: self.consumers.iter().map(|consumer| consumer.remote_bytes).sum(),
            first_row_ms: first_row.map(since_start),
            last_producer_finished_ms: last_producer.map_or(0.0, since_start),
            server_peak_private_bytes: self.peaks.private_bytes,
            server_peak_arena_bytes: self.peaks.arena_bytes,
            pool_bytes,
            payload_bytes_copied_by_servers: self.counter(COPIED),
            payload_bytes_read_by_servers: self.counter(READ),
            tcp_connections_between_nodes: self.peaks.connections,
        }
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters.iter().filter_map(|server| server.get(name)).sum()
    }

    /// Subpartitions whose consumer did not see exactly what the producers made for it.
    fn lost_or_repeated(&self) -> Vec<String> {
        let arrived: Vec<&RowDigest> = self.consumers.iter().flat_map(|consumer| &consumer.digests).collect();
        let subpartitions = self.producers.iter().map(|producer| producer.digests.len());
        if subpartitions.clone().any(|count| count != arrived.len()) {
            return vec![format!(
                "producers made rows for {:?} subpartitions, consumers read {}",
                subpartitions.collect::<Vec<_>>(),
                arrived.len()
            )];
        }
        let mut problems = Vec::new();
        for (index, arrived) in arrived.into_iter().enumerate() {
            let mut made = RowDigest::default();
            for producer in &self.producers {
                made.merge(&producer.digests[index]);
            }
            if made != *arrived {
                problems.push(format!(
                    "subpartition {index}: expected {}, arrived {}",
                    describe(&made),
                    describe(arrived)
                ));
            }
        }
        problems
    }
}

/// To six digits after the point: what is beyond them is noise of the conversion.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn describe(digest: &RowDigest) -> String {
    format!(
        "{} rows of {} bytes (digest {:016x}{:016x})",
        digest.rows, digest.bytes, digest.sum, digest.xor
    )
}

/// Bytes of a consumer that did not come the way they should: from producers on its node through the
/// write arena and from others through the read arena, each row behind a length of 4 bytes.
fn wrong_path(index: usize, consumer: &ConsumerResult) -> Option<String> {
    let rows: u64 = consumer.digests.iter().map(|digest| digest.rows).sum();
    let expected = (
        consumer.local_bytes + LENGTH_BYTES * consumer.local_rows,
        consumer.remote_bytes + LENGTH_BYTES * (rows - consumer.local_rows),
    );
    let seen = (consumer.write_arena_bytes, consumer.read_arena_bytes);
    (expected != seen).then(|| {
        format!(
            "consumer-{index}: rows and their lengths make {} bytes from this node and {} from others, \
             but {} came through the write arena and {} through the read arena",
            expected.0, expected.1, seen.0, seen.1
        )
    })
}

const COPIED: &str = "payload_bytes_copied";
const READ: &str = "payload_bytes_read";
const CONNECTIONS: &str = "peer_connections";
const LENGTH_BYTES: u64 = 4;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{COPIED, Outcome, READ};
    use crate::clock::Moment;
    use crate::cluster::Peaks;
    use crate::executor::{ConsumerResult, ProducerResult};
    use crate::rows::RowDigest;

    fn digest(rows: &[&str]) -> RowDigest {
        let mut digest = RowDigest::default();
        for row in rows {
            digest.add(row.as_bytes());
        }
        digest
    }

    fn consumer(local: &[&str], remote: &[&str]) -> ConsumerResult {
        let mut all = digest(local);
        all.merge(&digest(remote));
        ConsumerResult {
            digests: vec![all],
            first_row: Some(Moment::now()),
            finished: Moment::now(),
            local_rows: digest(local).rows,
            local_bytes: digest(local).bytes,
            remote_bytes: digest(remote).bytes,
            write_arena_bytes: digest(local).bytes + 4 * digest(local).rows,
            read_arena_bytes: digest(remote).bytes + 4 * digest(remote).rows,
        }
    }

    fn outcome(consumers: Vec<ConsumerResult>) -> Outcome {
        let producer = |zero: &[&str], one: &[&str]| ProducerResult {
            digests: vec![digest(zero), digest(one)],
            finished: Moment::now(),
        };
        let counters = [COPIED, READ].map(|name| (name.to_owned(), 0));
        Outcome {
            start: Moment::now(),
            producers: vec![producer(&["aa", "b"], &["c"]), producer(&["d"], &["e", "f"])],
            consumers,
            peaks: Peaks::default(),
            counters: vec![BTreeMap::from(counters)],
            stops: Vec::new(),
        }
    }

    #[test]
    fn rows_that_all_arrive_are_verified_and_added_up() {
        let good = outcome(vec![consumer(&["d"], &["b", "aa"]), consumer(&["f", "c"], &["e"])]);
        assert_eq!(good.problems(), Vec::<String>::new());
        let report = good.report("demo", 64, true);
        assert_eq!((report.rows, report.bytes), (6, 7));
        assert_eq!(report.bytes, report.local_bytes + report.remote_bytes);
    }

    #[test]
    fn rows_that_swap_their_consumers_are_noticed() {
        let swapped = outcome(vec![consumer(&["d"], &["c", "aa"]), consumer(&["f", "b"], &["e"])]);
        assert_eq!(swapped.problems().len(), 2, "{:?}", swapped.problems());
    }

    #[test]
    fn a_missing_consumer_a_lost_counter_and_a_wrong_path_are_noticed() {
        assert_eq!(outcome(vec![consumer(&["d"], &["b", "aa"])]).problems().len(), 1);
        let mut bad = outcome(vec![consumer(&["d"], &["b", "aa"]), consumer(&["f", "c"], &["e"])]);
        bad.counters[0].remove(COPIED);
        bad.consumers[1].write_arena_bytes += 5;
        bad.consumers[1].read_arena_bytes -= 5;
        let problems = bad.problems();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("write arena"), "{problems:?}");
    }
}
