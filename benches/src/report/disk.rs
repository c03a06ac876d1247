//! The reports of `kinds` and `spill`.

use serde::Serialize;

use super::table::{Table, bytes};

/// What became of one kind of partition.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindOutcome {
    /// Its three choices in words.
    pub kind: String,
    /// Why a server does not create it; absent for the kinds that there are.
    pub refusal: Option<String>,
    /// Everything was read as it was written, or the refusal is the one that is meant.
    pub verified: bool,
    /// How often all of it was read.
    pub readings: u32,
    /// Bytes that arrived.
    pub bytes: u64,
    /// 10^9 bytes a second.
    pub gb_per_s: f64,
    /// Bytes that went to disk.
    pub disk_bytes_written: u64,
    /// Bytes that came from disk.
    pub disk_bytes_read: u64,
}

/// What `kinds` found. Names and units are stable; more may be added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindsReport {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Whether all eight are verified.
    pub verified: bool,
    /// Producer processes.
    pub producers: u32,
    /// Consumer processes.
    pub consumers: u32,
    /// All eight combinations.
    pub kinds: Vec<KindOutcome>,
    /// Of all kinds together.
    pub disk_bytes_written: u64,
    /// Of all kinds together.
    pub disk_bytes_read: u64,
}

impl KindsReport {
    /// The table that ends a run.
    pub fn table(&self) -> Table {
        let title = format!(
            "shuffle-bench {}: {} producers, {} consumers, two nodes",
            self.scenario, self.producers, self.consumers
        );
        let columns = ["verified", "read", "GB/s", "to disk", "from disk"];
        let heads = Table::new(title).row("kind", columns.map(|name| format!("{name:<10}")).join(" "));
        self.kinds.iter().fold(heads, |table, kind| {
            let verified = if kind.verified { "yes" } else { "NO" };
            let values = match &kind.refusal {
                Some(why) => format!("{verified:<10} refused: {why}"),
                None => [
                    verified.to_owned(),
                    bytes(kind.bytes),
                    format!("{:.3}", kind.gb_per_s),
                    bytes(kind.disk_bytes_written),
                    bytes(kind.disk_bytes_read),
                ]
                .map(|value| format!("{value:<10}"))
                .join(" "),
            };
            table.row(kind.kind.clone(), values)
        })
    }
}

/// One direction of `spill`, medians over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpillDirection {
    /// 10^9 bytes a second through the service.
    pub gb_per_s: f64,
    /// The same by a plain program, with a file.
    pub baseline_gb_per_s: f64,
    /// The former by the latter: the median of the rounds' ratios.
    pub ratio: f64,
    /// The smallest and the largest ratio of a round.
    pub ratio_range: (f64, f64),
}

/// What `spill` found. Names and units are stable; more may be added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpillReport {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Whether what was read is what was written, on both sides, in each round.
    pub verified: bool,
    /// Bytes of a round.
    pub bytes: u64,
    /// How often it was measured.
    pub rounds: u32,
    /// Bytes of the server's pool.
    pub pool_bytes: u64,
    /// The page cache was dropped before reading.
    pub caches_dropped: bool,
    /// Fill, checksum, write, sync.
    pub write: SpillDirection,
    /// Read, check, sum.
    pub read: SpillDirection,
    /// Of one round.
    pub disk_bytes_written: u64,
    /// Of one round.
    pub disk_bytes_read: u64,
}

impl SpillReport {
    /// The table that ends a run.
    pub fn table(&self) -> Table {
        let direction = |of: &SpillDirection| {
            format!(
                "{:.3} GB/s, a plain file {:.3}: {:.2} ({:.2} to {:.2})",
                of.gb_per_s, of.baseline_gb_per_s, of.ratio, of.ratio_range.0, of.ratio_range.1
            )
        };
        Table::new(format!("shuffle-bench {}", self.scenario))
            .row("verified", if self.verified { "yes" } else { "NO" })
            .row(
                "what",
                format!(
                    "{} through a pool of {}, {} rounds by turns, caches {}",
                    bytes(self.bytes),
                    bytes(self.pool_bytes),
                    self.rounds,
                    if self.caches_dropped {
                        "dropped"
                    } else {
                        "NOT dropped: this needs root"
                    }
                ),
            )
            .row("written", direction(&self.write))
            .row("read back", direction(&self.read))
    }
}
