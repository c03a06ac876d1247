//! End: a subpartition of a channel is complete, with what its writer counted.

use bytes::{BufMut, BytesMut};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Entry, EntryError};
use crate::ids::{Sequence, StreamId, SubpartitionIndex};
use crate::partition::{Digest, Totals};

/// An end marker. It takes a sequence number of its channel, but no credit. 56 bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EndEntry {
    /// The channel.
    pub stream: StreamId,
    /// The subpartition that is complete.
    pub subpartition: SubpartitionIndex,
    /// Its sequence in the channel.
    pub sequence: Sequence,
    /// What the writer counted.
    pub totals: Totals,
    /// No more follows in this channel.
    pub last: bool,
}

const LAST: u32 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireEnd {
    stream: U32,
    subpartition: U32,
    sequence: U64,
    buffers: U64,
    records: U64,
    bytes: U64,
    digest: U64,
    flags: U32,
    reserved: U32,
}

const _: () = assert!(size_of::<WireEnd>() == EndEntry::BYTES as usize);

impl Entry for EndEntry {
    const BYTES: u32 = 56;

    fn put(&self, out: &mut BytesMut) {
        let wire = WireEnd {
            stream: self.stream.value().into(),
            subpartition: self.subpartition.value().into(),
            sequence: self.sequence.value().into(),
            buffers: self.totals.buffers.into(),
            records: self.totals.records.into(),
            bytes: self.totals.bytes.into(),
            digest: self.totals.digest.value().into(),
            flags: U32::new(if self.last { LAST } else { 0 }),
            reserved: U32::new(0),
        };
        out.put_slice(wire.as_bytes());
    }

    fn get(bytes: &[u8]) -> Result<Self, EntryError> {
        let wire = WireEnd::ref_from_bytes(bytes).expect("invariant: an entry has its length");
        let flags = wire.flags.get();
        if flags & !LAST != 0 {
            return Err(EntryError::Flags(flags));
        }
        if wire.reserved.get() != 0 {
            return Err(EntryError::Reserved);
        }
        Ok(Self {
            stream: StreamId::new(wire.stream.get()),
            subpartition: SubpartitionIndex::new(wire.subpartition.get()),
            sequence: Sequence::new(wire.sequence.get()),
            totals: Totals {
                buffers: wire.buffers.get(),
                records: wire.records.get(),
                bytes: wire.bytes.get(),
                digest: Digest::new(wire.digest.get()),
            },
            last: flags & LAST != 0,
        })
    }
}
