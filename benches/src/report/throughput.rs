//! The report of `throughput`.

use serde::Serialize;

use super::table::{Table, bytes};

/// What `throughput` found. Names and units are stable; more may be added. A GB is 10^9 bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThroughputReport {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Whether in every round what was read is what was filled, and came by the path that was asked for.
    pub verified: bool,
    /// `local` or `remote`.
    pub path: &'static str,
    /// `buffers` or `records`.
    pub layer: &'static str,
    /// Whether checksums were made and checked.
    pub checksums: bool,
    /// Producer processes.
    pub producers: u32,
    /// Consumer processes.
    pub consumers: u32,
    /// Subpartitions of each producer's partition.
    pub subpartitions: u32,
    /// Bytes of a buffer.
    pub buffer_size: u32,
    /// Buffers in circulation for each writer.
    pub buffers: u32,
    /// Bytes of a record, 0 in the layer of buffers.
    pub record_size: u32,
    /// How the servers sent to each other, if they say so.
    pub strategy: Option<&'static str>,
    /// Of the payload sent to another node, the share that the kernel copied; 0 if there was none. Of `io_uring` all counts
    /// as copied that the kernel has not reported as sent without a copy.
    pub copied_ratio: f64,
    /// Bytes that arrived in one round.
    pub bytes: u64,
    /// How often it was measured.
    pub rounds: usize,
    /// From the start to the end of the last worker.
    pub gb_per_s_median: f64,
    /// The slowest round.
    pub gb_per_s_min: f64,
    /// The fastest round.
    pub gb_per_s_max: f64,
    /// Processor seconds of all processes for 10^9 bytes, median.
    pub cpu_s_per_gb: f64,
    /// Of these, the producers'.
    pub producers_cpu_s_per_gb: f64,
    /// Of these, the consumers'.
    pub consumers_cpu_s_per_gb: f64,
    /// Of these, the servers'.
    pub servers_cpu_s_per_gb: f64,
}

impl ThroughputReport {
    /// The table that ends a run.
    pub fn table(&self) -> Table {
        Table::new(format!("shuffle-bench {}", self.scenario))
            .row("verified", if self.verified { "yes" } else { "NO" })
            .row("path", self.path)
            .row(
                "who",
                format!(
                    "{} producers, {} consumers, {} subpartitions each",
                    self.producers, self.consumers, self.subpartitions
                ),
            )
            .row(
                "what",
                format!(
                    "{} a round in {}, {} buffers of {} bytes, checksums {}",
                    bytes(self.bytes),
                    if self.record_size == 0 {
                        "whole buffers".to_owned()
                    } else {
                        format!("records of {} bytes", self.record_size)
                    },
                    self.buffers,
                    self.buffer_size,
                    if self.checksums { "on" } else { "off" }
                ),
            )
            .row(
                "throughput",
                format!(
                    "{:.3} GB/s (median of {}; {:.3} to {:.3})",
                    self.gb_per_s_median, self.rounds, self.gb_per_s_min, self.gb_per_s_max
                ),
            )
            .row("sent by", self.strategy.unwrap_or("not reported"))
            .row("processor time", format!("{:.3} s for each GB", self.cpu_s_per_gb))
            .row(
                "of this",
                format!(
                    "producers {:.3}, servers {:.3}, consumers {:.3}",
                    self.producers_cpu_s_per_gb, self.servers_cpu_s_per_gb, self.consumers_cpu_s_per_gb
                ),
            )
    }
}
