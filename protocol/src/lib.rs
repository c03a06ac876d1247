//! What the two sides of a shuffle say to each other.
//!
//! ```text
//!  executor <---- Unix socket or TCP ----> shuffle-server <---- TCP ----> shuffle-server
//!                      the same frames on every connection
//!
//!    bytes --> frame::Deframer --> Frame --> the caller's state machine --> encode_* --> bytes
//!                                             session::Keepalive, stream::{Sender, Receiver}
//! ```
//!
//! The crate is pure: it knows no socket, no file, no clock and no runtime. Bytes and [`Instant`]s are passed in,
//! values and bytes come out, so everything that two sides can say to each other can be tried in one thread and
//! in virtual time. What is once per partition, gate or channel is a protobuf message ([`control`], published as
//! `control.proto`); what is once per buffer is a fixed little-endian entry in a batch ([`frame`]).
//! `docs/protocol.md` describes the wire byte by byte.
//!
//! Input from the other side never panics: it is checked when it is decoded and refused with a typed error.
//! [`frame::FrameError`], [`stream::StreamError`] and everything else turn into one [`error::ShuffleError`], which
//! crosses the wire and comes out as the same type, with its first cause.
//!
//! [`Instant`]: std::time::Instant
#![forbid(unsafe_code)]

pub mod control;
pub mod error;
pub mod frame;
pub mod ids;
pub mod limits;
pub mod notify;
pub mod partition;
pub mod session;
pub mod stream;

pub use error::ShuffleError;
pub use ids::{
    GateId, Generation, GroupId, Incarnation, JobId, NodeAddress, PartitionId, PartitionKey, RequestId, ResultId,
    Sequence, StreamId, SubpartitionIndex, SubpartitionRange, WriterId,
};
pub use partition::GroupRef;
