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
use shuffle_protocol::partition::{BufferKind, Codec, Digest, Totals};
use shuffle_protocol::{Sequence, StreamId, SubpartitionIndex};

use super::spool::HEAD;
use super::waiting::{Waiting, halves};
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

/// A filled buffer: a description, no payload. It waits in 24 bytes.
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

/// The queue of one subpartition: 32 bytes, and what waits.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Waiting,
    digest: Digest,
    /// The lower halves of what is counted, as many buffers as were handed over; the upper ones, where there are any, lie with
    /// what waits.
    buffers: u32,
    records: u32,
    bytes: u32,
    standing: Standing,
}

// Beside them a subpartition costs its part of the table of pages, far below a byte.
const _: () = assert!(size_of::<Queue>() == 32);

/// Buffers that are not gone, and in which lists a queue stands.
#[derive(Debug, Clone, Copy, Default)]
struct Standing(u32);

impl Standing {
    /// In its reader's list of subpartitions with data.
    const LISTED: u32 = 1;
    /// In its writer's list of raised limits.
    const LIMIT_RAISED: u32 = 2;
    const FLAGS: u32 = 2;

    fn is(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    fn set(&mut self, flag: u32, is: bool) {
        self.0 = if is { self.0 | flag } else { self.0 & !flag };
    }

    fn held(self) -> u32 {
        self.0 >> Self::FLAGS
    }

    fn set_held(&mut self, held: u32) {
        assert!(
            held < 1 << (u32::BITS - Self::FLAGS),
            "descriptions of so many buffers fit no memory"
        );
        self.0 = held << Self::FLAGS | self.0 & (Self::LISTED | Self::LIMIT_RAISED);
    }
}

impl Queue {
    /// The queue of a finished partition that is on disk.
    pub(crate) fn recovered(buffers: impl Iterator<Item = Buffered>) -> Self {
        let mut queue = Self::default();
        buffers.for_each(|buffer| queue.push(buffer, false));
        let end = queue.handed_over();
        if let Some(many) = queue.waiting.as_many_mut() {
            many.written = end;
        }
        queue.standing.set_held(0);
        queue
    }

    /// One that begins with this buffer.
    pub(crate) fn resumed(from: u64) -> Self {
        let mut queue = Self::default();
        queue.set_totals(&Totals {
            buffers: from,
            ..Totals::default()
        });
        queue
    }

    /// What its producer says of all of it, of which not all came here.
    pub(crate) fn set_totals(&mut self, totals: &Totals) {
        let all = [totals.buffers, totals.records, totals.bytes].map(halves);
        [self.buffers, self.records, self.bytes] = all.map(|[lower, _]| lower);
        self.waiting.many().carried = all.map(|[_, upper]| upper);
        self.digest = totals.digest;
    }

    /// Takes a buffer from the writer; the caller has checked the limit.
    /// `keeps_room`: see [`Queue::pop`].
    pub(crate) fn push(&mut self, buffer: Buffered, keeps_room: bool) {
        let written = self.written();
        let were_few = self.waiting.as_many().is_none();
        self.waiting.push_back(buffer, keeps_room);
        self.digest = self.digest.mix(buffer.checksum, buffer.length, buffer.kind);
        self.standing.set_held(self.standing.held() + 1);
        let [buffers, records, bytes] = [
            count(&mut self.buffers, 1),
            count(&mut self.records, buffer.records),
            count(&mut self.bytes, buffer.length),
        ];
        if buffers || records || bytes {
            let carried = &mut self.waiting.many().carried;
            for (carried, carry) in carried.iter_mut().zip([buffers, records, bytes]) {
                *carried += u32::from(carry);
            }
        }
        if let Some(many) = self.waiting.as_many_mut().filter(|_| were_few) {
            many.written = written;
        }
    }

    /// The next buffer for the reader; it counts against the limit until [`Queue::handle_gone`].
    /// `keeps_room`: so that no memory is made for the one after it.
    pub(crate) fn pop(&mut self, keeps_room: bool) -> Option<Buffered> {
        self.waiting.pop_front(keeps_room)
    }

    /// A buffer was acknowledged, or thrown away for want of a reader.
    pub(crate) fn handle_gone(&mut self) {
        let left = self.standing.held().checked_sub(1);
        self.standing
            .set_held(left.expect("invariant: a buffer leaves a subpartition once"));
    }

    /// Everything below was passed by its readers and is on disk: it counts against the limit no more.
    pub(crate) fn handle_passed(&mut self, below: u64) {
        let left = self.handed_over().checked_sub(below);
        let left = left.expect("invariant: readers pass what is there");
        let held = self.standing.held();
        self.standing.set_held(u32::try_from(left).unwrap_or(held).min(held));
    }

    /// The buffer of that ordinal, if it waits or is kept.
    pub(crate) fn get(&self, ordinal: u64) -> Option<Buffered> {
        let index = ordinal.checked_sub(self.base())?;
        self.waiting.get(usize::try_from(index).ok()?)
    }

    /// The ordinal of the first that waits.
    pub(crate) fn base(&self) -> u64 {
        self.handed_over() - u64::from(self.waiting_len())
    }

    /// Everything below is on disk, or was in memory when it was read.
    pub(crate) fn written(&self) -> u64 {
        match self.waiting.as_many() {
            Some(many) => many.written,
            None => self.base() + self.waiting.on_disk(),
        }
    }

    /// What may be in memory only and could go to disk, but for the first `keep`, as ordinals. Below what is written only a head
    /// of [`HEAD`] buffers was ever left out.
    pub(crate) fn unwritten(&self, keep: u64) -> impl Iterator<Item = u64> + use<> {
        let (base, end) = (self.base(), self.handed_over());
        let from = self.written().max(base + keep).min(end);
        let head = if keep == 0 { base..(base + HEAD).min(from) } else { 0..0 };
        head.chain(from..end)
    }

    /// The buffer of this ordinal now lies there in the data file. Gives the slot that it leaves, unless its reader has it.
    pub(crate) fn handle_written(&mut self, ordinal: u64, at: u64) -> Option<u32> {
        if let Some(many) = self.waiting.as_many_mut() {
            many.written = many.written.max(ordinal + 1);
        }
        let index = usize::try_from(ordinal.checked_sub(self.base())?).ok()?;
        match self.waiting.move_to(index, Place::Disk(at))? {
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

    pub(crate) fn waiting(&self) -> impl Iterator<Item = Buffered> {
        self.waiting.iter()
    }

    /// How many buffers were handed over, ever: the ordinal of the next one.
    pub(crate) fn handed_over(&self) -> u64 {
        self.total(self.buffers, |[buffers, _, _]| buffers)
    }

    fn total(&self, lower: u32, upper: impl Fn([u32; 3]) -> u32) -> u64 {
        let upper = self.waiting.as_many().map_or(0, |many| upper(many.carried));
        u64::from(upper) << 32 | u64::from(lower)
    }

    fn gone(&self) -> u64 {
        self.handed_over() - u64::from(self.standing.held())
    }

    /// Whether it stands in its reader's list of subpartitions with data.
    pub(crate) fn is_listed(&self) -> bool {
        self.standing.is(Standing::LISTED)
    }

    pub(crate) fn set_listed(&mut self, listed: bool) {
        self.standing.set(Standing::LISTED, listed);
    }

    /// Puts it into its writer's list of raised limits, or takes it out. False: it was so already.
    pub(crate) fn set_limit_raised(&mut self, raised: bool) -> bool {
        let was = self.standing.is(Standing::LIMIT_RAISED);
        self.standing.set(Standing::LIMIT_RAISED, raised);
        was != raised
    }

    /// How many buffers may be handed over, ever.
    pub(crate) fn limit(&self, max_queued: u32) -> u64 {
        self.gone() + u64::from(max_queued)
    }

    pub(crate) fn totals(&self) -> Totals {
        Totals {
            buffers: self.handed_over(),
            records: self.total(self.records, |[_, records, _]| records),
            bytes: self.total(self.bytes, |[_, _, bytes]| bytes),
            digest: self.digest,
        }
    }

    pub(crate) fn check_invariants(&self, max_queued: Option<u32>) {
        let held = u64::from(self.standing.held());
        assert!(self.handed_over() >= held && self.handed_over() >= self.written());
        if let Some(limit) = max_queued {
            assert!(
                held <= u64::from(limit),
                "a subpartition holds {held} buffers, its limit is {limit}"
            );
        }
    }
}

/// Counts on; whether it begins anew at 0.
fn count(lower: &mut u32, more: u32) -> bool {
    let carry;
    (*lower, carry) = lower.overflowing_add(more);
    carry
}
