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

mod acked;
mod broadcast;
mod channel;
mod group;
mod kept;
mod lifecycle;
mod listening;
mod loading;
mod outlet;
mod packing;
mod queue;
mod queues;
mod readers;
mod reading;
mod registry;
mod relay;
mod serving;
mod spool;
mod spooling;
mod straggler;
#[cfg(test)]
mod tests;
mod trace;
mod waiting;

pub(crate) use broadcast::Audience;
pub(crate) use channel::{OutletPlace, SinkRef, locate};
pub(crate) use group::{Groups, MemberRef, judges};
pub(crate) use kept::Kept;
pub(crate) use lifecycle::{Partition, PartitionOrigin, PartitionState};
pub(crate) use listening::Listener;
pub(crate) use outlet::{Item, Outlet, OutletState, Pull, Turn};
pub(crate) use queue::{Buffered, Place, Queue};
pub(crate) use reading::Reading;
pub(crate) use registry::{Lookup, Registry, Tombstone};
pub(crate) use relay::Relay;
pub(crate) use spool::{RUN_BYTES, Spool};
pub(crate) use spooling::Spoolers;
pub(crate) use straggler::{Adopting, Moved};
pub(crate) use trace::{Tracing, mismatch};

slotmap::new_key_type! {
    /// One registered partition.
    pub(crate) struct PartitionNo;
    /// One reader's channel as the producing node sees it.
    pub(crate) struct OutletNo;
}
