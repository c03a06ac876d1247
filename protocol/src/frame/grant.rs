//! Grant: a slot that a writer may fill.

use bytes::{BufMut, BytesMut};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Entry, EntryError};
use crate::ids::WriterId;

/// A slot of the write arena, granted to a writer. 8 bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GrantEntry {
    /// Who may fill it.
    pub writer: WriterId,
    /// The slot of the write arena.
    pub slot: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireGrant {
    writer: U32,
    slot: U32,
}

const _: () = assert!(size_of::<WireGrant>() == GrantEntry::BYTES as usize);

impl Entry for GrantEntry {
    const BYTES: u32 = 8;

    fn put(&self, out: &mut BytesMut) {
        let wire = WireGrant {
            writer: self.writer.value().into(),
            slot: self.slot.into(),
        };
        out.put_slice(wire.as_bytes());
    }

    fn get(bytes: &[u8]) -> Result<Self, EntryError> {
        let wire = WireGrant::ref_from_bytes(bytes).expect("invariant: an entry has its length");
        Ok(Self {
            writer: WriterId::new(wire.writer.get()),
            slot: wire.slot.get(),
        })
    }
}
