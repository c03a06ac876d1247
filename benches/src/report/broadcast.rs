//! The report of `broadcast`.

use serde::Serialize;

use super::table::{Table, bytes};

/// Medians over the rounds, with so many consumers on each node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BroadcastSide {
    /// Consumers on each node.
    pub slots: u32,
    /// From the start of all to the end of the last, where consumers only count and nothing has a checksum.
    pub seconds: f64,
    /// The same, where every consumer checks and sums every byte.
    pub seconds_verified: f64,
    /// What the producing node's server has sent over TCP in a round that only counts, as the kernel counts (`TCP_INFO`).
    pub wire_bytes: u64,
    /// What the producing node holds of it: payload taken into its queue; of a persistent one, payload on its disk.
    pub stored_bytes: u64,
    /// Copies that other nodes have fetched.
    pub relays: u64,
    /// Processor seconds of all processes for 10^9 bytes that arrived at consumers, where they only count.
    pub cpu_s_per_gb: f64,
}

/// What `broadcast` found. Names and units are stable; more may be added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BroadcastReport {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Whether every consumer got every byte in each round.
    pub verified: bool,
    /// Nodes with consumers.
    pub nodes: u32,
    /// Executor processes on each node, where all slots are used.
    pub executors: u32,
    /// Bytes that are broadcast.
    pub bytes: u64,
    /// How often it was measured.
    pub rounds: u32,
    /// Of all slots.
    pub wire_bytes: u64,
    /// Of all slots.
    pub stored_bytes: u64,
    /// Wire bytes of all slots by those of one.
    pub wire_ratio: f64,
    /// Seconds of all slots by those of one: the median of the rounds' ratios.
    pub ratio: f64,
    /// The smallest and the largest of a round.
    pub ratio_range: (f64, f64),
    /// With one slot, and with all.
    pub sides: Vec<BroadcastSide>,
}

impl BroadcastReport {
    /// The table that ends a run.
    pub fn table(&self) -> Table {
        let title = format!(
            "shuffle-bench {}: {} to {} nodes, {} executors on each, {} rounds",
            self.scenario,
            bytes(self.bytes),
            self.nodes,
            self.executors,
            self.rounds
        );
        let columns = ["seconds", "verified s", "wire", "stored", "relays", "CPU s/GB"];
        let line = |values: [String; 6]| values.map(|value| format!("{value:<10}")).join(" ");
        let heads = Table::new(title)
            .row("verified", if self.verified { "yes" } else { "NO" })
            .row("slots", line(columns.map(str::to_owned)));
        let sides = self.sides.iter().fold(heads, |table, side| {
            let values = [
                format!("{:.3}", side.seconds),
                format!("{:.3}", side.seconds_verified),
                bytes(side.wire_bytes),
                bytes(side.stored_bytes),
                side.relays.to_string(),
                format!("{:.3}", side.cpu_s_per_gb),
            ];
            table.row(side.slots.to_string(), line(values))
        });
        sides
            .row("wire", format!("{:.4} times that of one slot", self.wire_ratio))
            .row(
                "seconds",
                format!(
                    "{:.2} times those of one slot ({:.2} to {:.2})",
                    self.ratio, self.ratio_range.0, self.ratio_range.1
                ),
            )
    }
}
