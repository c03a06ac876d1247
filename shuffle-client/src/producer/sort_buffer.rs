//! Records of many subpartitions in few buffers. Pure.
//!
//! ```text
//!  write      slot 0 | r5 | r1 | r5 | r3 |     slot 1 | r1 | r3 | r5 | ...    in order of arrival, whole in a slot
//!             index    (5,0,0) (1,0,n) ...
//!  sort       index    by subpartition, stable: a radix sort, linear
//!  gather     | r1 r1 | r3 r3 | r5 r5 r5 |                                    one slice for each subpartition
//! ```
//!
//! Staging lies in granted buffers too, so that a writer's memory is its share of the pool; beside it there are 12 bytes for
//! each record and as many while they are sorted, together at most twice the staged bytes. A record is copied twice: into
//! its place in a slice it could only be written at once if all that go before it were known.

use super::core::Space;
use super::record::RECORD_PREFIX_BYTES;

/// Bytes of staging for which there is one entry in the index.
const BYTES_PER_ENTRY: usize = size_of::<Entry>();

/// Fewer entries are sorted by comparison.
const SMALL: usize = 256;

/// Bits of one pass of the radix sort.
const RADIX_BITS: u32 = 9;

/// Where a staged record lies.
#[derive(Clone, Copy, Default)]
struct Entry {
    subpartition: u32,
    slot: u32,
    offset: u32,
}

/// What [`SortBuffer::gather`] has copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Gathered {
    pub(crate) bytes: usize,
    pub(crate) records: u32,
}

/// Staged records, either being written or, once sorted, leaving.
pub(crate) struct SortBuffer<B> {
    capacity: usize,
    /// Passes of the radix sort that the number of subpartitions takes.
    passes: u32,
    staged: Vec<B>,
    /// Bytes used in the last of them.
    used: usize,
    index: Vec<Entry>,
    scratch: Vec<Entry>,
    /// Entries that have left, while they are leaving.
    left: Option<usize>,
}

impl<B: Space> SortBuffer<B> {
    /// For so many subpartitions, in slots of `capacity` bytes.
    pub(crate) fn new(subpartitions: u32, capacity: usize) -> Self {
        let bits = u32::BITS - subpartitions.saturating_sub(1).leading_zeros();
        Self {
            capacity,
            passes: bits.div_ceil(RADIX_BITS),
            staged: Vec::new(),
            used: 0,
            index: Vec::new(),
            scratch: Vec::new(),
            left: None,
        }
    }

    /// Slots that hold records.
    pub(crate) fn slots(&self) -> usize {
        self.staged.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Whether its records are leaving, so that none can be added.
    pub(crate) fn is_leaving(&self) -> bool {
        self.left.is_some()
    }

    /// Another slot for what comes.
    pub(crate) fn add_slot(&mut self, slot: B) {
        debug_assert!(!self.is_leaving());
        self.staged.push(slot);
        self.used = 0;
    }

    /// Room for the next record of a subpartition, of so many bytes with its prefix; the caller fills it. `None`: it takes
    /// another slot.
    #[inline]
    pub(crate) fn reserve(&mut self, subpartition: u32, bytes: usize) -> Option<&mut [u8]> {
        let indexed = self.index.len() < self.staged.len() * (self.capacity / BYTES_PER_ENTRY).max(1);
        if self.left.is_some() || !indexed || bytes > self.capacity - self.used {
            return None;
        }
        let slot = self.staged.len() - 1;
        let offset = self.used;
        self.index.push(Entry {
            subpartition,
            slot: to_u32(slot),
            offset: to_u32(offset),
        });
        self.used += bytes;
        Some(&mut self.staged[slot].space()[offset..offset + bytes])
    }

    /// Orders what is staged; it leaves from now on.
    pub(crate) fn start_leaving(&mut self) {
        debug_assert!(!self.is_leaving() && !self.is_empty());
        if self.index.len() < SMALL {
            self.index.sort_by_key(|entry| entry.subpartition);
        } else {
            for pass in 0..self.passes {
                self.sort_by_digit(pass * RADIX_BITS);
            }
        }
        self.left = Some(0);
    }

    /// The subpartition of the next record to leave, and its bytes.
    pub(crate) fn next(&self) -> Option<(u32, usize)> {
        let entry = self.index.get(self.left?)?;
        Some((entry.subpartition, self.record(entry).len()))
    }

    /// Copies the next records of one subpartition to the start of `space`, as many as fit.
    pub(crate) fn gather(&mut self, space: &mut [u8]) -> Gathered {
        let mut gathered = Gathered::default();
        let Some(first) = self.left else { return gathered };
        let subpartition = self.index.get(first).map(|entry| entry.subpartition);
        for entry in self.index[first..]
            .iter()
            .take_while(|entry| Some(entry.subpartition) == subpartition)
        {
            let record = self.record(entry);
            let Some(to) = space.get_mut(gathered.bytes..gathered.bytes + record.len()) else {
                break;
            };
            to.copy_from_slice(record);
            gathered.bytes += record.len();
            gathered.records += 1;
        }
        self.left = Some(first + gathered.records as usize);
        gathered
    }

    /// Its slots, when everything has left, or what is there is given up.
    pub(crate) fn take_slots(&mut self) -> std::vec::Drain<'_, B> {
        self.index.clear();
        self.left = None;
        self.used = 0;
        self.staged.drain(..)
    }

    fn record(&self, entry: &Entry) -> &[u8] {
        let bytes = &self.staged[entry.slot as usize].bytes()[entry.offset as usize..];
        let prefix = bytes.first_chunk::<RECORD_PREFIX_BYTES>();
        let length = u32::from_le_bytes(*prefix.expect("invariant: a staged record is whole"));
        &bytes[..RECORD_PREFIX_BYTES + length as usize]
    }

    /// One stable pass, from `index` to `index` by way of `scratch`.
    fn sort_by_digit(&mut self, shift: u32) {
        const DIGITS: usize = 1 << RADIX_BITS;
        let digit = |entry: &Entry| (entry.subpartition >> shift) as usize % DIGITS;
        let mut places = [0usize; DIGITS];
        for entry in &self.index {
            places[digit(entry)] += 1;
        }
        let mut next = 0;
        for place in &mut places {
            next += std::mem::replace(place, next);
        }
        self.scratch.resize(self.index.len(), Entry::default());
        for entry in &self.index {
            let place = &mut places[digit(entry)];
            self.scratch[*place] = *entry;
            *place += 1;
        }
        std::mem::swap(&mut self.index, &mut self.scratch);
    }
}

fn to_u32(value: usize) -> u32 {
    u32::try_from(value).expect("invariant: there are fewer slots, and bytes in a slot, than that")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::producer::encode_record;

    struct Memory(Vec<u8>);

    impl Space for Memory {
        fn slot(&self) -> u32 {
            0
        }

        fn space(&mut self) -> &mut [u8] {
            &mut self.0
        }

        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }

    /// Any sequence of records comes out by subpartition, in each in order, whole and once; with few and with many.
    fn sorts(subpartitions: u32, capacity: usize, records: &[(u32, Vec<u8>)], room: usize) {
        let mut sorter = SortBuffer::new(subpartitions, capacity);
        for (subpartition, record) in records {
            let bytes = record.len() + RECORD_PREFIX_BYTES;
            let space = match sorter.reserve(*subpartition, bytes) {
                Some(space) => space,
                None => {
                    sorter.add_slot(Memory(vec![0xEE; capacity]));
                    sorter.reserve(*subpartition, bytes).expect("a fresh slot has room")
                }
            };
            assert_eq!(encode_record(space, record), Some(bytes));
        }
        let mut expected: Vec<(u32, &[u8])> = records.iter().map(|(of, record)| (*of, &record[..])).collect();
        expected.sort_by_key(|(of, _)| *of);
        let mut expected = expected.into_iter();
        if !sorter.is_empty() {
            sorter.start_leaving();
        }
        while let Some((subpartition, least)) = sorter.next() {
            let mut space = vec![0; room.max(least)];
            let gathered = sorter.gather(&mut space);
            assert!(gathered.records > 0);
            let mut bytes = &space[..gathered.bytes];
            for _ in 0..gathered.records {
                let (of, record) = expected.next().expect("no more than were written");
                assert_eq!(of, subpartition);
                let (prefix, rest) = bytes.split_first_chunk().expect("a prefix");
                assert_eq!(u32::from_le_bytes(*prefix) as usize, record.len());
                assert_eq!(&rest[..record.len()], record);
                bytes = &rest[record.len()..];
            }
            assert!(bytes.is_empty());
        }
        assert_eq!(expected.next(), None);
        assert!(sorter.take_slots().count() <= records.len());
        assert!(sorter.is_empty() && !sorter.is_leaving());
    }

    proptest! {
        #[test]
        fn records_come_out_by_subpartition_and_in_order(
            records in prop::collection::vec((0u32..5, prop::collection::vec(any::<u8>(), 0..28)), 0..60),
            room in 4usize..80,
        ) {
            sorts(5, 32, &records, room);
        }

        #[test]
        fn many_of_many_subpartitions_too(seed: u64, count in 0usize..3000, bits in 0u32..17) {
            let subpartitions = 1 << bits;
            let records: Vec<(u32, Vec<u8>)> = (0u64..)
                .take(count)
                .map(|at| {
                    let mixed = (seed ^ at).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    let of = u32::try_from((mixed >> 33) % u64::from(subpartitions)).unwrap();
                    (of, at.to_le_bytes()[..(mixed % 9) as usize].to_vec())
                })
                .collect();
            sorts(subpartitions, 4096, &records, 4096);
        }
    }
}
