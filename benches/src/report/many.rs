//! The report of `many`.

use serde::Serialize;

use super::table::{Table, bytes, grouped};

/// What `many` found. Names and units are stable; more may be added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ManyReport {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Every record was read once, whole, and in the order of its subpartition.
    pub verified: bool,
    /// Writers.
    pub producers: u32,
    /// Of each writer.
    pub subpartitions: u32,
    /// Consumer processes.
    pub consumers: u32,
    /// Servers.
    pub nodes: u16,
    /// Records that were read.
    pub records: u64,
    /// Bytes of records that were read.
    pub bytes: u64,
    /// From "go" to the end of the last process.
    pub seconds: f64,
    /// 10^9 bytes a second.
    pub gb_per_s: f64,
    /// Processor time of all processes for 10^9 bytes.
    pub cpu_s_per_gb: f64,
    /// Bytes that servers sent over TCP, as the kernel counts them.
    pub wire_bytes: u64,
    /// Slices that writers handed over.
    pub slices: u64,
    /// Bytes of each server's pool.
    pub pool_bytes: u64,
    /// What a subpartition costs its servers while nothing waits in it, at most: private memory by which they grew while the
    /// partitions were created and their readers opened, and what the books of subpartitions took beyond that later.
    pub metadata_bytes_per_subpartition: f64,
    /// Most `VmRSS - RssShmem` of one server.
    pub server_private_bytes: u64,
    /// 32 MiB, and that metadata for each subpartition of that server.
    pub server_private_bytes_allowed: u64,
}

impl ManyReport {
    /// The table that ends a run.
    pub fn table(&self) -> Table {
        Table::new(format!("shuffle-bench {}", self.scenario))
            .row("verified", if self.verified { "yes" } else { "NO" })
            .row(
                "what",
                format!(
                    "{} writers with {} subpartitions each, {} consumers on {} nodes, pools of {}",
                    grouped(self.producers.into()),
                    grouped(self.subpartitions.into()),
                    self.consumers,
                    self.nodes,
                    bytes(self.pool_bytes)
                ),
            )
            .row(
                "records",
                format!(
                    "{}, {}, in {} slices",
                    grouped(self.records),
                    bytes(self.bytes),
                    grouped(self.slices)
                ),
            )
            .row(
                "time",
                format!(
                    "{:.2} s, {:.3} GB/s, {:.1} s of processor time for each GB",
                    self.seconds, self.gb_per_s, self.cpu_s_per_gb
                ),
            )
            .row("on the wire", bytes(self.wire_bytes))
            .row(
                "books",
                format!(
                    "{:.1} bytes for each subpartition",
                    self.metadata_bytes_per_subpartition
                ),
            )
            .row(
                "private",
                format!(
                    "{} of a server at most; allowed {}",
                    bytes(self.server_private_bytes),
                    bytes(self.server_private_bytes_allowed)
                ),
            )
    }
}
