//! Buffers, and slices of them, that are described and leave.

use std::ops::Range;

use shuffle_protocol::frame::SlotEntry;
use shuffle_protocol::ids::{Sequence, SubpartitionIndex};
use shuffle_protocol::partition::BufferKind;

use super::state::{Core, Space, to_index};

/// A buffer that leaves, with its descriptor; or a slice of it, and the buffer with its last one.
pub(crate) struct HandOver<B> {
    pub(crate) entry: SlotEntry,
    pub(crate) buffer: Option<B>,
    /// Bytes of the buffer that hold something.
    pub(crate) used: usize,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Shape {
    pub(super) kind: BufferKind,
    pub(super) continues: bool,
    pub(super) partial_start: bool,
}

impl<B: Space> Core<B> {
    /// Hands the open buffer of a subpartition over, if there is one and the limit allows.
    pub(super) fn hand_over_open(&mut self, index: u32) -> bool {
        let Some(place) = self.subpartitions[to_index(index)].open else {
            return false;
        };
        if !self.has_limit(index) {
            return false;
        }
        let open = self.open.swap_remove(to_index(place));
        self.subpartitions[to_index(index)].open = None;
        if let Some(moved) = self.open.get(to_index(place)) {
            self.subpartitions[to_index(moved.subpartition)].open = Some(place);
        }
        let shape = Shape {
            partial_start: open.partial_start,
            ..Shape::default()
        };
        self.hand_over(index, open.buffer, open.used, open.records, shape);
        true
    }

    pub(super) fn hand_over(&mut self, index: u32, mut buffer: B, filled: usize, records: u32, shape: Shape) {
        let entry = self.describe(index, &mut buffer, 0..filled, records, shape);
        self.leaving.push(HandOver {
            entry,
            used: to_index(entry.length),
            buffer: Some(buffer),
        });
    }

    /// Packs what lies there in a buffer and counts it as handed over. Packed it begins where it began.
    pub(super) fn describe(
        &mut self,
        index: u32,
        buffer: &mut B,
        place: Range<usize>,
        records: u32,
        shape: Shape,
    ) -> SlotEntry {
        let window = u64::from(self.config.max_queued);
        let offset = place.start;
        let filled = place.len();
        let (used, codec) = self.packer.pack(&mut buffer.space()[place]);
        self.unpacked_bytes += u64::try_from(filled).unwrap_or(u64::MAX);
        let sub = &mut self.subpartitions[to_index(index)];
        debug_assert!(sub.handed < sub.limit);
        let checksum = if self.config.checksums {
            crc32fast::hash(&buffer.bytes()[offset..offset + used])
        } else {
            0
        };
        let length = u32::try_from(used).expect("invariant: a buffer is at most 16 MiB");
        sub.totals.add_buffer(length, checksum, records, shape.kind);
        let entry = SlotEntry {
            stream: self.config.writer.into(),
            subpartition: SubpartitionIndex::new(index),
            sequence: Sequence::new(sub.handed),
            slot: buffer.slot(),
            offset: u32::try_from(offset).expect("invariant: a buffer is at most 16 MiB"),
            length,
            checksum,
            records,
            kind: shape.kind,
            continues: shape.continues,
            partial_start: shape.partial_start,
            unchecked: !self.config.checksums,
            codec,
            ..SlotEntry::default()
        };
        let before = sub.queued(window);
        sub.handed += 1;
        self.in_flight += sub.queued(window) - before;
        entry
    }
}
