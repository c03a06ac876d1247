//! Ack, credit, backlog and demand: one number for one channel or writer.

use bytes::{BufMut, BytesMut};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Entry, EntryError};
use crate::ids::{StreamId, SubpartitionIndex, WriterId};

/// One number. 16 bytes on the wire.
///
/// All but backlog are absolute, so that repeating one changes nothing: an ack is the sequence below which everything
/// was checked; a credit is how many buffers may be sent (or, to a writer, handed over for a subpartition) in all; a
/// demand is how many buffers a writer wants granted in all. A backlog is how many buffers wait just now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NumberEntry {
    /// The channel, or the writer: see [`NumberEntry::writer`].
    pub stream: StreamId,
    /// Credit to a writer: the subpartition. Else 0.
    pub subpartition: SubpartitionIndex,
    /// The number.
    pub number: u64,
}

impl NumberEntry {
    /// The writer, where the number is of one.
    pub fn writer(&self) -> WriterId {
        self.stream.into()
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireNumber {
    stream: U32,
    subpartition: U32,
    number: U64,
}

const _: () = assert!(size_of::<WireNumber>() == NumberEntry::BYTES as usize);

impl Entry for NumberEntry {
    const BYTES: u32 = 16;

    fn put(&self, out: &mut BytesMut) {
        let wire = WireNumber {
            stream: self.stream.value().into(),
            subpartition: self.subpartition.value().into(),
            number: self.number.into(),
        };
        out.put_slice(wire.as_bytes());
    }

    fn get(bytes: &[u8]) -> Result<Self, EntryError> {
        let wire = WireNumber::ref_from_bytes(bytes).expect("invariant: an entry has its length");
        Ok(Self {
            stream: StreamId::new(wire.stream.get()),
            subpartition: SubpartitionIndex::new(wire.subpartition.get()),
            number: wire.number.get(),
        })
    }
}
