//! One subpartition: the buffers that wait to be sent, or that are kept.
//!
//! ```text
//!   handed_over ≥ gone
//!   handed_over - gone ≤ max_queued      (else: blocked, and the writer knows; what may spill is never blocked)
//!   waiting.len() ≤ handed_over - gone   (the rest is sent and not yet acknowledged)
//!
//!   ordinal    base                written            handed_over
//!              | head, in memory ... | tail, in memory     |      what lies on disk ends at `written`
//! ```

use buffer_pool::{ArenaKind, SlotRef};
use shuffle_protocol::frame::{Arena, SlotEntry};
use shuffle_protocol::partition::{BufferKind, Codec, Totals};
use shuffle_protocol::{Sequence, StreamId, SubpartitionIndex};

use super::OutletNo;
use super::spool::HEAD;
use super::waiting::Waiting;
use crate::spill::IndexEntry;

/// Where the bytes of a buffer lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In this slot of the job's write arena, where their writer put them.
    Memory(u32),
    /// Of a relay: in this slot of the job's read arena, as it came from the producing node.
    Received(u32),
    /// There in the partition's data file.
    Disk(u64),
    /// There, and for one reader in this slot of the job's read arena.
    Loaded { slot: u32, at: u64 },
}

/// A filled buffer in a queue: 40 bytes of description, no payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffered {
    pub(crate) place: Place,
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
            place: Place::Memory(entry.slot),
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

    /// As it came from another node.
    pub(crate) fn received(slot: u32, entry: &SlotEntry) -> Self {
        Self {
            place: Place::Received(slot),
            offset: 0,
            ..Self::from_entry(entry)
        }
    }

    /// As it is described to a reader.
    pub(crate) fn to_entry(
        self,
        stream: StreamId,
        subpartition: u32,
        sequence: Sequence,
        slot: SlotRef,
        backlog: u32,
    ) -> SlotEntry {
        SlotEntry {
            stream,
            subpartition: SubpartitionIndex::new(subpartition),
            sequence,
            slot: slot.slot,
            offset: self.offset,
            length: self.length,
            checksum: self.checksum,
            records: self.records,
            backlog,
            arena: match slot.arena {
                ArenaKind::Write => Arena::Write,
                ArenaKind::Read => Arena::Read,
            },
            kind: self.kind,
            continues: self.continues,
            partial_start: self.partial_start,
            unchecked: self.unchecked,
            codec: self.codec,
            more_slices: false,
        }
    }

    /// As the index of a data file describes it.
    pub(crate) fn recovered(entry: &IndexEntry) -> Self {
        Self {
            place: Place::Disk(entry.at),
            offset: 0,
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
    waiting: Waiting,
    /// As many buffers as were handed over.
    totals: Totals,
    /// Those of them that are not gone.
    held: u32,
    /// Everything below that still waits, but for a head that was kept in memory, is on disk.
    written: u64,
    /// Who reads it, once somebody does.
    pub(crate) reader: Option<OutletNo>,
    /// Stands in its reader's list of subpartitions with data.
    pub(crate) listed: bool,
    /// Stands in its writer's list of raised limits.
    pub(crate) limit_raised: bool,
}

// With its place in the partition and what the allocator adds, a subpartition that is empty costs at most 100 bytes.
const _: () = assert!(size_of::<Queue>() <= 72);

impl Queue {
    pub(crate) fn new(reader: Option<OutletNo>) -> Self {
        Self {
            waiting: Waiting::default(),
            totals: Totals::default(),
            held: 0,
            written: 0,
            reader,
            listed: false,
            limit_raised: false,
        }
    }

    /// The queue of a finished partition that is on disk.
    pub(crate) fn recovered(buffers: impl Iterator<Item = Buffered>) -> Self {
        let mut queue = Self::new(None);
        buffers.for_each(|buffer| queue.push(buffer, false));
        queue.written = queue.totals.buffers;
        queue.held = 0;
        queue
    }

    /// Takes a buffer from the writer; the caller has checked the limit.
    /// `keeps_room`: see [`Queue::pop`].
    pub(crate) fn push(&mut self, buffer: Buffered, keeps_room: bool) {
        self.totals
            .add_buffer(buffer.length, buffer.checksum, buffer.records, buffer.kind);
        self.held += 1;
        self.waiting.push_back(buffer, keeps_room);
    }

    /// The next buffer for the reader; it counts against the limit until [`Queue::handle_gone`].
    /// `keeps_room`: so that no memory is made for the one after it.
    pub(crate) fn pop(&mut self, keeps_room: bool) -> Option<Buffered> {
        self.waiting.pop_front(keeps_room)
    }

    /// A buffer was acknowledged, or thrown away for want of a reader.
    pub(crate) fn handle_gone(&mut self) {
        let left = self.held.checked_sub(1);
        self.held = left.expect("invariant: a buffer leaves a subpartition once");
    }

    /// Everything below was passed by its readers and is on disk: it counts against the limit no more.
    pub(crate) fn handle_passed(&mut self, below: u64) {
        let left = self.totals.buffers.checked_sub(below);
        let left = left.expect("invariant: readers pass what is there");
        self.held = self.held.min(u32::try_from(left).unwrap_or(u32::MAX));
    }

    /// The buffer of that ordinal, if it waits or is kept.
    pub(crate) fn get(&self, ordinal: u64) -> Option<&Buffered> {
        let index = ordinal.checked_sub(self.base())?;
        self.waiting.get(usize::try_from(index).ok()?)
    }

    /// The ordinal of the first that waits.
    pub(crate) fn base(&self) -> u64 {
        self.totals.buffers - u64::from(self.waiting_len())
    }

    /// Everything below is on disk, or was in memory when it was read.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// What may be in memory only and could go to disk, but for the first `keep`, as ordinals. Below what is written only a head
    /// of [`HEAD`] buffers was ever left out.
    pub(crate) fn unwritten(&self, keep: u64) -> impl Iterator<Item = u64> + use<> {
        let (base, end) = (self.base(), self.totals.buffers);
        let from = self.written.max(base + keep).min(end);
        let head = if keep == 0 { base..(base + HEAD).min(from) } else { 0..0 };
        head.chain(from..end)
    }

    /// The buffer of this ordinal now lies there in the data file. Gives the slot that it leaves, unless its reader has it.
    pub(crate) fn handle_written(&mut self, ordinal: u64, at: u64) -> Option<u32> {
        self.written = self.written.max(ordinal + 1);
        let index = usize::try_from(ordinal.checked_sub(self.base())?).ok()?;
        let place = &mut self.waiting.get_mut(index)?.place;
        match std::mem::replace(place, Place::Disk(at)) {
            Place::Memory(slot) => Some(slot),
            Place::Disk(_) | Place::Loaded { .. } | Place::Received(_) => {
                unreachable!("only what a writer has put into memory is written")
            }
        }
    }

    pub(crate) fn is_waiting_empty(&self) -> bool {
        self.waiting.len() == 0
    }

    pub(crate) fn waiting_len(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Buffered> {
        self.waiting.iter()
    }

    /// How many buffers were handed over, ever: the ordinal of the next one.
    pub(crate) fn handed_over(&self) -> u64 {
        self.totals.buffers
    }

    fn gone(&self) -> u64 {
        self.totals.buffers - u64::from(self.held)
    }

    /// How many buffers may be handed over, ever.
    pub(crate) fn limit(&self, max_queued: u32) -> u64 {
        self.gone() + u64::from(max_queued)
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    pub(crate) fn check_invariants(&self, max_queued: Option<u32>) {
        assert!(self.totals.buffers >= u64::from(self.held) && self.totals.buffers >= self.written);
        let held = u64::from(self.held);
        if let Some(limit) = max_queued {
            assert!(
                held <= u64::from(limit),
                "a subpartition holds {held} buffers, its limit is {limit}"
            );
        }
    }
}
