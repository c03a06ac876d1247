//! The library in the executor: writers, gates, and the session with the node's shuffle server.
#![forbid(unsafe_code)]

mod attach;
mod consumer;
mod producer;

pub use attach::{AttachOptions, SOCKET_VARIABLE, Session};
pub use consumer::{
    Buffer, BufferOrEvent, ChannelSpec, EndOfSubpartition, Event, Gate, GateSpec, GateStats, Record, RecordOrEvent,
};
pub use producer::{
    FinishReport, FlushInterval, PartitionSpec, RECORD_PREFIX_BYTES, SelectFn, Selector, WriteBuffer, Writer,
    encode_record, hash_key, subpartition_of,
};
pub use shuffle_protocol as protocol;
