//! What comes out of a gate.

use bytes::Bytes;
use shuffle_protocol::ids::SubpartitionIndex;
use shuffle_protocol::partition::Totals;

/// Something from a gate, in the layer of buffers.
#[derive(Clone, Debug)]
pub enum BufferOrEvent {
    /// Bytes of a producer.
    Buffer(Buffer),
    /// A user event, whole.
    Event(Event),
    /// A subpartition is complete: everything its producer counted came out, once and in order.
    EndOfSubpartition(EndOfSubpartition),
    /// All subpartitions of a channel are complete.
    EndOfChannel {
        /// Number of the channel in its gate.
        channel: u32,
    },
}

/// Something from a gate, in the layer of records.
#[derive(Clone, Debug)]
pub enum RecordOrEvent {
    /// A record.
    Record(Record),
    /// A user event, whole.
    Event(Event),
    /// A subpartition is complete: everything its producer counted came out, once and in order.
    EndOfSubpartition(EndOfSubpartition),
    /// All subpartitions of a channel are complete.
    EndOfChannel {
        /// Number of the channel in its gate.
        channel: u32,
    },
}

/// One buffer, as its producer handed it over.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Number of the channel in its gate.
    pub channel: u32,
    /// The subpartition.
    pub subpartition: SubpartitionIndex,
    /// The bytes, in place. The buffer goes back to the server when the last clone or slice is dropped.
    pub bytes: Bytes,
    /// Records that start in it.
    pub records: u32,
    /// It begins in the middle of a record.
    pub partial_start: bool,
}

/// One record.
#[derive(Clone, Debug)]
pub struct Record {
    /// Number of the channel in its gate.
    pub channel: u32,
    /// The subpartition.
    pub subpartition: SubpartitionIndex,
    /// The bytes: in place if the record lies in one buffer, which goes back to the server when the last record in it
    /// is dropped.
    pub bytes: Bytes,
}

/// One user event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Number of the channel in its gate.
    pub channel: u32,
    /// The subpartition.
    pub subpartition: SubpartitionIndex,
    /// What the producer said.
    pub bytes: Bytes,
}

/// The end of one subpartition.
#[derive(Clone, Copy, Debug)]
pub struct EndOfSubpartition {
    /// Number of the channel in its gate.
    pub channel: u32,
    /// The subpartition.
    pub subpartition: SubpartitionIndex,
    /// What it held.
    pub totals: Totals,
}

/// What a gate has delivered so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateStats {
    /// Buffers, data and event.
    pub buffers: u64,
    /// Payload bytes that came from producers on the server's own node.
    pub local_bytes: u64,
    /// Payload bytes that came from other nodes.
    pub remote_bytes: u64,
    /// Payload bytes as their writers filled them: more than came, where they were packed.
    pub unpacked_bytes: u64,
    /// Buffers that did not have their checksum and were fetched once more.
    pub refetched_buffers: u64,
}
