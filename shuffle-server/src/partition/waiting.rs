//! The buffers that wait in a subpartition. Of 100 000 subpartitions most have none and many have one, so what is there takes
//! the room of what is there:
//!
//! ```text
//!   nothing    one                  up to four              any number
//!              32 bytes             144                     96 + 24 each, as a deque grows
//! ```

use std::collections::VecDeque;

use shuffle_protocol::partition::{BufferKind, Codec};

use super::{Buffered, Place};

/// Where the words of a [`Packed`] say that it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Lies {
    #[default]
    Memory,
    Received,
    Disk,
}

const CONTINUES: u8 = 1;
const PARTIAL_START: u8 = 2;
const UNCHECKED: u8 = 4;

/// A [`Buffered`] as it waits: in 24 bytes. What is loaded does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Packed {
    /// Slot and offset, or the two halves of a position on disk, the lower first.
    place: [u32; 2],
    length: u32,
    checksum: u32,
    records: u32,
    lies: Lies,
    kind: BufferKind,
    codec: Codec,
    flags: u8,
}

const _: () = assert!(size_of::<Packed>() == 24 && size_of::<Entries>() == 24 && size_of::<Waiting>() == 8);

impl Packed {
    fn new(buffer: Buffered) -> Self {
        let (lies, place) = match buffer.place {
            Place::Memory(slot) => (Lies::Memory, [slot, buffer.offset]),
            Place::Received(slot) => (Lies::Received, [slot, buffer.offset]),
            Place::Disk(at) => (Lies::Disk, halves(at)),
            Place::Loaded { .. } => unreachable!("what is loaded is on its way to its reader"),
        };
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        Self {
            place,
            length: buffer.length,
            checksum: buffer.checksum,
            records: buffer.records,
            lies,
            kind: buffer.kind,
            codec: buffer.codec,
            flags: flag(buffer.continues, CONTINUES)
                | flag(buffer.partial_start, PARTIAL_START)
                | flag(buffer.unchecked, UNCHECKED),
        }
    }

    fn unpack(self) -> Buffered {
        let [first, second] = self.place;
        let (place, offset) = match self.lies {
            Lies::Memory => (Place::Memory(first), second),
            Lies::Received => (Place::Received(first), second),
            Lies::Disk => (Place::Disk(u64::from(second) << 32 | u64::from(first)), 0),
        };
        Buffered {
            place,
            offset,
            length: self.length,
            checksum: self.checksum,
            records: self.records,
            kind: self.kind,
            continues: self.flags & CONTINUES != 0,
            partial_start: self.flags & PARTIAL_START != 0,
            unchecked: self.flags & UNCHECKED != 0,
            codec: self.codec,
        }
    }
}

/// The lower first.
pub(super) fn halves(at: u64) -> [u32; 2] {
    [at, at >> 32].map(|half| u32::try_from(half & u64::from(u32::MAX)).expect("invariant: 32 bits"))
}

/// Up to four, in a ring.
#[derive(Debug, Default)]
struct Few {
    ring: [Packed; Few::ROOM],
    first: u8,
    count: u8,
}

impl Few {
    const ROOM: usize = 4;

    fn place(&self, index: usize) -> usize {
        (usize::from(self.first) + index) % Self::ROOM
    }

    /// False: there is no room.
    fn push_back(&mut self, buffer: Packed) -> bool {
        let has_room = usize::from(self.count) < Self::ROOM;
        if has_room {
            self.ring[self.place(self.count.into())] = buffer;
            self.count += 1;
        }
        has_room
    }

    fn pop_front(&mut self) -> Option<Packed> {
        let left = self.count.checked_sub(1)?;
        let first = self.ring[usize::from(self.first)];
        (self.first, self.count) = ((self.first + 1) % 4, left);
        Some(first)
    }
}

/// What is known of a subpartition that has had very much, or holds much.
#[derive(Debug, Default)]
pub(super) struct Many {
    buffers: VecDeque<Packed>,
    /// Everything below that still waits, but for a head that was kept in memory, is on disk, as ordinals.
    pub(super) written: u64,
    /// The upper halves of what the queue counts: buffers, records, bytes.
    pub(super) carried: [u32; 3],
}

#[derive(Debug)]
enum Entries {
    One(Packed),
    Few(Box<Few>),
    Many(Box<Many>),
}

#[derive(Debug, Default)]
pub(super) struct Waiting(Option<Box<Entries>>);

impl Waiting {
    /// `keeps_room`: what comes next finds the room of what was there.
    pub(super) fn push_back(&mut self, buffer: Buffered, keeps_room: bool) {
        let buffer = Packed::new(buffer);
        if keeps_room {
            return self.many().buffers.push_back(buffer);
        }
        let Some(entries) = self.0.as_deref_mut() else {
            self.0 = Some(Box::new(Entries::One(buffer)));
            return;
        };
        match entries {
            Entries::One(first) => {
                let mut few = Few::default();
                assert!(few.push_back(*first) && few.push_back(buffer));
                *entries = Entries::Few(Box::new(few));
            }
            Entries::Few(few) => {
                if !few.push_back(buffer) {
                    self.many().buffers.push_back(buffer);
                }
            }
            Entries::Many(many) => many.buffers.push_back(buffer),
        }
    }

    pub(super) fn pop_front(&mut self, keeps_room: bool) -> Option<Buffered> {
        let (first, left) = match self.0.as_deref_mut()? {
            Entries::One(first) => (Some(*first), false),
            Entries::Few(few) => (few.pop_front(), few.count > 0),
            Entries::Many(many) => {
                let stays = keeps_room || many.carried != [0; 3];
                (many.buffers.pop_front(), stays || !many.buffers.is_empty())
            }
        };
        if !left {
            self.0 = None;
        }
        first.map(Packed::unpack)
    }

    pub(super) fn get(&self, index: usize) -> Option<Buffered> {
        let packed = match self.0.as_deref()? {
            Entries::One(first) => (index == 0).then_some(first),
            Entries::Few(few) => (index < few.count.into()).then(|| &few.ring[few.place(index)]),
            Entries::Many(many) => many.buffers.get(index),
        };
        packed.copied().map(Packed::unpack)
    }

    /// That buffer lies somewhere else now. Gives where it lay.
    pub(super) fn move_to(&mut self, index: usize, place: Place) -> Option<Place> {
        let packed = match self.0.as_deref_mut()? {
            Entries::One(first) => (index == 0).then_some(first),
            Entries::Few(few) => {
                let place = few.place(index);
                (index < few.count.into()).then_some(&mut few.ring[place])
            }
            Entries::Many(many) => many.buffers.get_mut(index),
        }?;
        let before = packed.unpack();
        *packed = Packed::new(Buffered { place, ..before });
        Some(before.place)
    }

    pub(super) fn len(&self) -> usize {
        match self.0.as_deref() {
            None => 0,
            Some(Entries::One(_)) => 1,
            Some(Entries::Few(few)) => few.count.into(),
            Some(Entries::Many(many)) => many.buffers.len(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Buffered> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// The place, from 1, of the last of them that is on disk; 0: none is.
    pub(super) fn on_disk(&self) -> u64 {
        let is_on_disk = |index: usize| {
            matches!(
                self.get(index),
                Some(Buffered {
                    place: Place::Disk(_),
                    ..
                })
            )
        };
        let last = (0..self.len()).rev().find(|index| is_on_disk(*index));
        last.map_or(0, |index| index as u64 + 1)
    }

    pub(super) fn as_many(&self) -> Option<&Many> {
        match self.0.as_deref()? {
            Entries::Many(many) => Some(many),
            Entries::One(_) | Entries::Few(_) => None,
        }
    }

    pub(super) fn as_many_mut(&mut self) -> Option<&mut Many> {
        match self.0.as_deref_mut()? {
            Entries::Many(many) => Some(many),
            Entries::One(_) | Entries::Few(_) => None,
        }
    }

    /// With room for what only very few need.
    pub(super) fn many(&mut self) -> &mut Many {
        if self.as_many().is_none() {
            let buffers = self.iter().map(Packed::new).collect();
            let many = Many {
                buffers,
                ..Many::default()
            };
            self.0 = Some(Box::new(Entries::Many(Box::new(many))));
        }
        self.as_many_mut().expect("invariant: made above")
    }
}
