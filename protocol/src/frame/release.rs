//! Release: a slot goes back to the server.

use bytes::{BufMut, BytesMut};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Arena, Entry, EntryError};
use crate::ids::{StreamId, WriterId};

/// A view that a reader dropped, or a granted slot that a writer does not need. 12 bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReleaseEntry {
    /// Read arena, or a local view: the channel. A granted slot: the writer, see [`ReleaseEntry::writer`].
    pub stream: StreamId,
    /// The slot of the arena.
    pub slot: u32,
    /// The arena of the slot.
    pub arena: Arena,
}

impl ReleaseEntry {
    /// The writer to which it was granted, where the entry is of one.
    pub fn writer(&self) -> WriterId {
        self.stream.into()
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireRelease {
    stream: U32,
    slot: U32,
    arena: u8,
    reserved: [u8; 3],
}

const _: () = assert!(size_of::<WireRelease>() == ReleaseEntry::BYTES as usize);

impl Entry for ReleaseEntry {
    const BYTES: u32 = 12;

    fn put(&self, out: &mut BytesMut) {
        let wire = WireRelease {
            stream: self.stream.value().into(),
            slot: self.slot.into(),
            arena: self.arena.to_wire(),
            reserved: [0; 3],
        };
        out.put_slice(wire.as_bytes());
    }

    fn get(bytes: &[u8]) -> Result<Self, EntryError> {
        let wire = WireRelease::ref_from_bytes(bytes).expect("invariant: an entry has its length");
        if wire.reserved != [0; 3] {
            return Err(EntryError::Reserved);
        }
        Ok(Self {
            stream: StreamId::new(wire.stream.get()),
            slot: wire.slot.get(),
            arena: Arena::from_wire(wire.arena)?,
        })
    }
}
