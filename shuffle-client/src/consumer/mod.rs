//! The consumer's side: channels into one gate, buffers into records.
//!
//! ```text
//!   driver -> inbox -> demux (channel: sequence, checksum, counts) -> gate -> buffers
//!                                                                       \---> record, event -> records
//! ```

mod channel;
mod demux;
mod event;
mod gate;
mod inbox;
mod item;
mod mismatch;
mod open;
mod record;
mod shared;
mod spec;

#[cfg(test)]
mod tests;

pub use gate::Gate;
pub use item::{Buffer, BufferOrEvent, EndOfSubpartition, Event, GateStats, Record, RecordOrEvent};
pub use shared::SharedValue;
pub use spec::{ChannelSpec, GateSpec};

pub(crate) use demux::Arrival;
pub(crate) use inbox::Inbox;
pub(crate) use mismatch::Payload;
pub(crate) use open::open;
#[cfg(test)]
pub(crate) use record::{Assembly, Cursor};
