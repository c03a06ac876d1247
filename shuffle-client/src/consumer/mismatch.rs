//! A buffer that does not have its checksum: what its server is told, and what becomes of it. Pure.
//!
//! ```text
//!   comes out of the queue, does not match ──▶ back to its head; the channel is silent, the others go on
//!                                               │ reported
//!   comes once more, same sequence ◀────────────┤
//!     └─▶ comes out of the queue                └──▶ the channel has failed: the gate fails, with the verdict
//! ```

use shuffle_protocol::control::ReportMismatch;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::frame::{Arena, SlotEntry};
use shuffle_protocol::ids::StreamId;

/// The payload of a buffer.
pub(crate) trait Payload: AsRef<[u8]> {
    /// The buffer came once more: `repeated` is it, or another look at it. It is to be given back once.
    fn renew(&mut self, repeated: Self);
}

/// What the server is to be told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mismatch {
    pub(super) stream: StreamId,
    pub(super) entry: SlotEntry,
    /// What was computed here.
    pub(super) got: u32,
}

impl Mismatch {
    pub(super) fn to_message(self) -> Message {
        let Self { stream, entry, got } = self;
        Message::ReportMismatch(ReportMismatch {
            stream: stream.value(),
            sequence: entry.sequence.value(),
            subpartition: entry.subpartition.value(),
            slot: entry.slot,
            write_arena: entry.arena == Arena::Write,
            length: entry.length,
            expected: entry.checksum,
            got,
            offset: entry.offset,
        })
    }
}
