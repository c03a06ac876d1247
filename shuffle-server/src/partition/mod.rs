//! What a node holds of its jobs' intermediate results: partitions, their subpartition queues, who
//! reads them, and the groups that fail as one. Pure.
//!
//! ```text
//!  CreatePartition            hand-over                     credit              acknowledgement
//!  ──────────────▶ Partition ──────────▶ Queue (waiting) ──────────▶ Outlet (sent) ──────────▶ gone
//!                     │                    ≤ max_queued, counted until gone
//!                     └── lifecycle: producing ─▶ finished ─▶ released
//!                                        └──────▶ failed (first cause)
//! ```

mod group;
mod lifecycle;
mod outlet;
mod queue;
mod registry;
mod serving;

pub(crate) use group::{Groups, MemberRef, judges};
pub(crate) use lifecycle::{Partition, PartitionOrigin, PartitionState};
pub(crate) use outlet::{Item, Outlet, OutletPlace, OutletState, Pull, SinkRef, Turn, locate};
pub(crate) use queue::{Buffered, Queue};
pub(crate) use registry::{Lookup, Registry, Tombstone};

slotmap::new_key_type! {
    /// One registered partition.
    pub(crate) struct PartitionNo;
    /// One reader's channel as the producing node sees it.
    pub(crate) struct OutletNo;
}
