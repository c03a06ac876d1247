//! Slot: where in which arena the bytes of a buffer lie, and what they are.

use bytes::{BufMut, BytesMut};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Entry, EntryError};
use crate::ids::{Sequence, StreamId, SubpartitionIndex, WriterId};
use crate::limits::MAX_BUFFER_BYTES;
use crate::partition::{BufferKind, Codec};

/// Which of the two arenas of a job a slot belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Arena {
    /// What the job's writers write.
    #[default]
    Write,
    /// What came from peers and disk.
    Read,
}

/// A buffer on its way: handed over by a writer, or given to a reader. 48 bytes on the wire.
///
/// Both checksum and digest are of the payload only. `records` counts the records that start in the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotEntry {
    /// To a reader: the channel. From a writer: the writer, see [`SlotEntry::writer`].
    pub stream: StreamId,
    /// The subpartition it belongs to.
    pub subpartition: SubpartitionIndex,
    /// To a reader: its sequence in the channel. From a writer: its ordinal in the subpartition.
    pub sequence: Sequence,
    /// The slot of the arena. Where payload travels inline to another server it means nothing there.
    pub slot: u32,
    /// Where the payload begins in the slot, in bytes.
    pub offset: u32,
    /// Length of the payload, in bytes.
    pub length: u32,
    /// crc32 of the payload, made by its writer; 0 where `unchecked`.
    pub checksum: u32,
    /// Records that start in it.
    pub records: u32,
    /// To a reader: buffers that wait behind it. From a writer: 0.
    pub backlog: u32,
    /// The arena of the slot.
    pub arena: Arena,
    /// Records or an event.
    pub kind: BufferKind,
    /// An event that goes on in the next event buffer of its subpartition.
    pub continues: bool,
    /// It begins in the middle of a record.
    pub partial_start: bool,
    /// Its writer makes no checksums: there is none to check it against.
    pub unchecked: bool,
    /// From a writer: a slice of its slot, and another one follows. To a reader: never.
    pub more_slices: bool,
    /// How its writer packed the payload.
    pub codec: Codec,
}

impl SlotEntry {
    /// The writer that hands it over, where the entry comes from one.
    pub fn writer(&self) -> WriterId {
        self.stream.into()
    }
}

const CONTINUES: u16 = 1;
const PARTIAL_START: u16 = 2;
const UNCHECKED: u16 = 4;
const CODEC_SHIFT: u32 = 3;
const CODEC: u16 = 3 << CODEC_SHIFT;
const MORE_SLICES: u16 = 32;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireSlot {
    stream: U32,
    subpartition: U32,
    sequence: U64,
    slot: U32,
    offset: U32,
    length: U32,
    checksum: U32,
    records: U32,
    backlog: U32,
    arena: u8,
    kind: u8,
    flags: U16,
    reserved: U32,
}

const _: () = assert!(size_of::<WireSlot>() == SlotEntry::BYTES as usize);

impl Entry for SlotEntry {
    const BYTES: u32 = 48;

    fn put(&self, out: &mut BytesMut) {
        let continues = if self.continues { CONTINUES } else { 0 };
        let partial_start = if self.partial_start { PARTIAL_START } else { 0 };
        let unchecked = if self.unchecked { UNCHECKED } else { 0 };
        let more_slices = if self.more_slices { MORE_SLICES } else { 0 };
        let wire = WireSlot {
            stream: self.stream.value().into(),
            subpartition: self.subpartition.value().into(),
            sequence: self.sequence.value().into(),
            slot: self.slot.into(),
            offset: self.offset.into(),
            length: self.length.into(),
            checksum: self.checksum.into(),
            records: self.records.into(),
            backlog: self.backlog.into(),
            arena: self.arena.to_wire(),
            kind: match self.kind {
                BufferKind::Data => 0,
                BufferKind::Event => 1,
            },
            flags: (continues | partial_start | unchecked | more_slices | (self.codec.to_wire() << CODEC_SHIFT)).into(),
            reserved: U32::new(0),
        };
        out.put_slice(wire.as_bytes());
    }

    fn get(bytes: &[u8]) -> Result<Self, EntryError> {
        let wire = WireSlot::ref_from_bytes(bytes).expect("invariant: an entry has its length");
        let (offset, length) = (wire.offset.get(), wire.length.get());
        if offset.checked_add(length).is_none_or(|end| end > MAX_BUFFER_BYTES) {
            return Err(EntryError::Range { offset, length });
        }
        let flags = wire.flags.get();
        let codec = Codec::from_wire((flags & CODEC) >> CODEC_SHIFT);
        let known = flags & !(CONTINUES | PARTIAL_START | UNCHECKED | CODEC | MORE_SLICES) == 0;
        let Some(codec) = codec.filter(|_| known) else {
            return Err(EntryError::Flags(flags.into()));
        };
        if wire.reserved.get() != 0 {
            return Err(EntryError::Reserved);
        }
        Ok(Self {
            stream: StreamId::new(wire.stream.get()),
            subpartition: SubpartitionIndex::new(wire.subpartition.get()),
            sequence: Sequence::new(wire.sequence.get()),
            slot: wire.slot.get(),
            offset,
            length,
            checksum: wire.checksum.get(),
            records: wire.records.get(),
            backlog: wire.backlog.get(),
            arena: Arena::from_wire(wire.arena)?,
            kind: match wire.kind {
                0 => BufferKind::Data,
                1 => BufferKind::Event,
                kind => return Err(EntryError::BufferKind(kind)),
            },
            continues: flags & CONTINUES != 0,
            partial_start: flags & PARTIAL_START != 0,
            unchecked: flags & UNCHECKED != 0,
            more_slices: flags & MORE_SLICES != 0,
            codec,
        })
    }
}

impl Arena {
    pub(super) const fn to_wire(self) -> u8 {
        match self {
            Self::Write => 0,
            Self::Read => 1,
        }
    }

    pub(super) const fn from_wire(arena: u8) -> Result<Self, EntryError> {
        match arena {
            0 => Ok(Self::Write),
            1 => Ok(Self::Read),
            _ => Err(EntryError::Arena(arena)),
        }
    }
}
