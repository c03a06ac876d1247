//! One subpartition: the buffers that wait to be sent.
//!
//! ```text
//!   handed_over ≥ gone
//!   handed_over - gone ≤ max_queued      (else: blocked, and the writer knows)
//!   waiting.len() ≤ handed_over - gone   (the rest is sent and not yet acknowledged)
//! ```

use std::collections::VecDeque;

use shuffle_protocol::frame::SlotEntry;
use shuffle_protocol::partition::{BufferKind, Codec, Totals};

use super::OutletNo;

/// A filled buffer in a queue: 28 bytes of description, no payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffered {
    pub(crate) slot: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    pub(crate) checksum: u32,
    pub(crate) records: u32,
    pub(crate) kind: BufferKind,
    pub(crate) continues: bool,
    pub(crate) partial_start: bool,
    pub(crate) unchecked: bool,
    pub(crate) codec: Codec,
}

impl Buffered {
    pub(crate) fn from_entry(entry: &SlotEntry) -> Self {
        Self {
            slot: entry.slot,
            offset: entry.offset,
            length: entry.length,
            checksum: entry.checksum,
            records: entry.records,
            kind: entry.kind,
            continues: entry.continues,
            partial_start: entry.partial_start,
            unchecked: entry.unchecked,
            codec: entry.codec,
        }
    }
}

/// The queue of one subpartition. It exists from the first buffer on.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: VecDeque<Buffered>,
    totals: Totals,
    handed_over: u64,
    gone: u64,
    /// Who reads it, once somebody does.
    pub(crate) reader: Option<OutletNo>,
    /// Stands in its reader's list of subpartitions with data.
    pub(crate) listed: bool,
    /// Stands in its writer's list of raised limits.
    pub(crate) limit_raised: bool,
}

impl Queue {
    pub(crate) fn new(reader: Option<OutletNo>) -> Self {
        Self {
            waiting: VecDeque::new(),
            totals: Totals::default(),
            handed_over: 0,
            gone: 0,
            reader,
            listed: false,
            limit_raised: false,
        }
    }

    /// Takes a buffer from the writer; the caller has checked the limit.
    pub(crate) fn push(&mut self, buffer: Buffered) {
        self.totals
            .add_buffer(buffer.length, buffer.checksum, buffer.records, buffer.kind);
        self.handed_over += 1;
        self.waiting.push_back(buffer);
    }

    /// The next buffer for the reader; it counts against the limit until [`Queue::handle_gone`].
    pub(crate) fn pop(&mut self) -> Option<Buffered> {
        self.waiting.pop_front()
    }

    /// A buffer was acknowledged, or thrown away for want of a reader.
    pub(crate) fn handle_gone(&mut self) {
        self.gone += 1;
        assert!(self.gone <= self.handed_over, "a buffer left a subpartition twice");
    }

    pub(crate) fn is_waiting_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn waiting_len(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Buffered> {
        self.waiting.iter()
    }

    /// How many buffers were handed over, ever: the ordinal of the next one.
    pub(crate) fn handed_over(&self) -> u64 {
        self.handed_over
    }

    /// How many buffers may be handed over, ever.
    pub(crate) fn limit(&self, max_queued: u32) -> u64 {
        self.gone + u64::from(max_queued)
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    pub(crate) fn check_invariants(&self, max_queued: u32) {
        assert!(self.handed_over >= self.gone);
        let held = self.handed_over - self.gone;
        assert!(
            held <= u64::from(max_queued),
            "a subpartition holds {held} buffers, its limit is {max_queued}"
        );
        assert!(u64::from(self.waiting_len()) <= held);
        assert_eq!(self.totals.buffers, self.handed_over);
    }
}
