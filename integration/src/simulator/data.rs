//! What every buffer of every partition must be, and what lies in the simulated memory.
//!
//! A buffer's *content* is one number that follows from (job, partition, subpartition, ordinal); its checksum, length and
//! records follow from the content. So a reader that knows where it stands knows what must come, and whatever is lost,
//! repeated, reordered or foreign shows, as does a buffer that was given to somebody else too early.

use std::collections::{BTreeMap, HashMap};

use buffer_pool::SlotRef;
use shuffle_protocol::frame::SlotEntry;
use shuffle_protocol::partition::{BufferKind, Totals};
use shuffle_protocol::{JobId, PartitionId, Sequence, SubpartitionIndex};

use super::random::mix;

/// Size of every simulated buffer, in bytes.
pub(super) const BUFFER_BYTES: u32 = 4096;

/// What lies in one buffer.
pub(super) type Content = u64;

/// What a stopped process writes where it must not matter any more.
pub(super) const GARBAGE: Content = 0xDEAD_BEEF_DEAD_BEEF;

/// The content of one buffer.
pub(super) fn content(job: JobId, id: PartitionId, subpartition: u32, ordinal: u64) -> Content {
    let parts = [
        job.value(),
        id.result.value(),
        u64::from(id.index) << 32 | u64::from(id.attempt),
        u64::from(subpartition),
        ordinal,
    ];
    parts
        .iter()
        .fold(0x0DD0_C0DE, |key, part| mix(key ^ part).wrapping_add(1))
}

/// The descriptor of a buffer with this content; where it lies and on which channel it travels is left out.
pub(super) fn describe(content: Content, subpartition: u32, ordinal: u64) -> SlotEntry {
    let low = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).expect("invariant: masked to 32 bits");
    let is_event = content.is_multiple_of(17);
    SlotEntry {
        subpartition: SubpartitionIndex::new(subpartition),
        sequence: Sequence::new(ordinal),
        length: 1 + low(content >> 13) % BUFFER_BYTES,
        checksum: low(content >> 32),
        records: if is_event { 0 } else { low(content >> 7) % 6 },
        kind: if is_event { BufferKind::Event } else { BufferKind::Data },
        continues: is_event && content.is_multiple_of(34),
        partial_start: !is_event && content.is_multiple_of(5),
        unchecked: content.is_multiple_of(11),
        ..SlotEntry::default()
    }
}

/// What the first `count` buffers of a subpartition add up to.
pub(super) fn totals(job: JobId, id: PartitionId, subpartition: u32, count: u64) -> Totals {
    let mut totals = Totals::default();
    for ordinal in 0..count {
        let entry = describe(content(job, id, subpartition, ordinal), subpartition, ordinal);
        totals.add_buffer(entry.length, entry.checksum, entry.records, entry.kind);
    }
    totals
}

/// What lies in the arenas of one server: of each slot, the content of a buffer or of slices, by offset.
#[derive(Debug, Default)]
pub(super) struct Memory(HashMap<SlotRef, BTreeMap<u32, Content>>);

impl Memory {
    /// Writes a slot from its first byte on; what was there is gone.
    pub(super) fn write(&mut self, slot: SlotRef, content: Content) {
        self.0.insert(slot, BTreeMap::from([(0, content)]));
    }

    /// Writes behind what is there.
    pub(super) fn write_behind(&mut self, slot: SlotRef, offset: u32, content: Content) {
        self.0.entry(slot).or_default().insert(offset, content);
    }

    pub(super) fn read(&self, slot: SlotRef, offset: u32) -> Content {
        let there = self.0.get(&slot).and_then(|slot| slot.get(&offset));
        there.copied().unwrap_or(0)
    }
}
