//! Header, groups and entries as they lie in the file.

use shuffle_protocol::limits::{MAX_BUFFER_BYTES, MAX_SUBPARTITIONS};
use shuffle_protocol::partition::{BufferKind, Codec, Lifetime, PartitionKind, Pressure, Readiness};
use shuffle_protocol::{JobId, PartitionId, ResultId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::blocks::{CRC_BYTES, checked_section_bytes, checksum, count, narrow, too_many, wide};
use super::{Index, IndexEntry, IndexError, IndexGroup};

/// The version that is written, and the only one that is read.
pub const INDEX_VERSION: u32 = 1;
/// Bytes of the header with its checksum.
pub const HEADER_BYTES: usize = size_of::<Header>();
/// Bytes of one buffer's entry, without its part of the block's checksum.
pub const ENTRY_BYTES: usize = size_of::<WireEntry>();

const MAGIC: [u8; 8] = *b"shufidx\n";

const FLAG_EVENT: u16 = 1;
const FLAG_CONTINUES: u16 = 2;
const FLAG_PARTIAL_START: u16 = 4;
const FLAG_UNCHECKED: u16 = 8;
const FLAGS: u16 = FLAG_EVENT | FLAG_CONTINUES | FLAG_PARTIAL_START | FLAG_UNCHECKED;

const _: () = assert!(HEADER_BYTES == 96 && ENTRY_BYTES == 24 && size_of::<WireGroup>() == 8);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    magic: [u8; 8],
    version: U32,
    lifetime: u8,
    readiness: u8,
    pressure: u8,
    broadcast: u8,
    job: U64,
    result: U64,
    partition: U32,
    attempt: U32,
    buffer_bytes: U32,
    subpartitions: U32,
    data_bytes: U64,
    entries: U64,
    groups: U32,
    reserved_tail: [u8; 24],
    checksum: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct WireGroup {
    pub(super) subpartition: U32,
    pub(super) entries: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct WireEntry {
    at: U64,
    length: U32,
    checksum: U32,
    records: U32,
    flags: U16,
    codec: U16,
}

impl Header {
    /// The header of that index, with its checksum.
    pub(super) fn of(index: &Index) -> Self {
        let entries = index.groups.iter().map(|group| wide(group.entries.len())).sum::<u64>();
        let mut header = Header {
            magic: MAGIC,
            version: INDEX_VERSION.into(),
            lifetime: u8::from(index.kind.lifetime == Lifetime::Persistent),
            readiness: u8::from(index.kind.readiness == Readiness::Blocking),
            pressure: u8::from(index.kind.pressure == Pressure::Spilling),
            broadcast: u8::from(index.is_broadcast),
            job: index.job.value().into(),
            result: index.partition.result.value().into(),
            partition: index.partition.index.into(),
            attempt: index.partition.attempt.into(),
            buffer_bytes: index.buffer_bytes.into(),
            subpartitions: index.subpartitions.into(),
            data_bytes: index.data_bytes.into(),
            entries: entries.into(),
            groups: count(index.groups.len()).into(),
            reserved_tail: [0; 24],
            checksum: 0.into(),
        };
        header.checksum = header.computed().into();
        header
    }

    /// The header at the start of these bytes, if it is one.
    pub(super) fn check(bytes: &[u8]) -> Result<Self, IndexError> {
        let Ok((header, _)) = Self::read_from_prefix(bytes) else {
            return Err(IndexError::Length {
                expected: wide(HEADER_BYTES),
                got: wide(bytes.len()),
            });
        };
        if header.magic != MAGIC {
            return Err(IndexError::Magic);
        }
        let (expected, got) = (header.checksum.get(), header.computed());
        if expected != got {
            let what = "the header".to_owned();
            return Err(IndexError::Checksum { what, expected, got });
        }
        match header.version.get() {
            INDEX_VERSION => Ok(header),
            got => Err(IndexError::Version { got }),
        }
    }

    fn computed(&self) -> u32 {
        checksum(&[&self.as_bytes()[..HEADER_BYTES - CRC_BYTES]])
    }

    /// What every block's checksum begins with.
    pub(super) fn checksum(&self) -> u32 {
        self.checksum.get()
    }

    pub(super) fn data_bytes(&self) -> u64 {
        self.data_bytes.get()
    }

    pub(super) fn groups(&self) -> Result<usize, IndexError> {
        narrow(self.groups.get().into())
    }

    /// Length of the whole index.
    pub(super) fn index_bytes(&self) -> Result<u64, IndexError> {
        let (groups, entries) = (self.groups()?, narrow(self.entries.get())?);
        let parts = [
            Some(HEADER_BYTES),
            checked_section_bytes::<WireGroup>(groups),
            checked_section_bytes::<WireEntry>(entries),
        ];
        parts
            .into_iter()
            .try_fold(0_usize, |sum, part| sum.checked_add(part?))
            .map(wide)
            .ok_or_else(too_many)
    }

    /// The index of these groups and entries.
    pub(super) fn assemble(&self, groups: &[WireGroup], entries: &[WireEntry]) -> Result<Index, IndexError> {
        let flag = |value: u8| match value {
            0 | 1 => Ok(value == 1),
            other => contradiction(format!("{other} is neither side of a choice")),
        };
        let kind = PartitionKind {
            lifetime: if flag(self.lifetime)? {
                Lifetime::Persistent
            } else {
                Lifetime::Ephemeral
            },
            readiness: if flag(self.readiness)? {
                Readiness::Blocking
            } else {
                Readiness::Pipelined
            },
            pressure: if flag(self.pressure)? {
                Pressure::Spilling
            } else {
                Pressure::Bounded
            },
        };
        if self.reserved_tail != [0; 24] {
            return contradiction("reserved bytes are in use".to_owned());
        }
        let (subpartitions, buffer_bytes) = (self.subpartitions.get(), self.buffer_bytes.get());
        if subpartitions > MAX_SUBPARTITIONS || buffer_bytes > MAX_BUFFER_BYTES {
            return contradiction(format!(
                "{subpartitions} subpartitions and buffers of {buffer_bytes} bytes are beyond the limits"
            ));
        }
        let (mut next, mut left) = (0, entries);
        let mut decoded = Vec::with_capacity(groups.len());
        for group in groups {
            let subpartition = group.subpartition.get();
            let entries = narrow(group.entries.get().into())?;
            if subpartition < next || subpartition >= subpartitions || entries == 0 || entries > left.len() {
                return contradiction(format!(
                    "{entries} of {} buffers left for subpartition {subpartition}, of {subpartitions}, where one from {next} on comes",
                    left.len()
                ));
            }
            next = subpartition + 1;
            let (own, others) = left.split_at(entries);
            left = others;
            let entries = own.iter().map(|entry| entry.decode(self)).collect::<Result<_, _>>()?;
            decoded.push(IndexGroup { subpartition, entries });
        }
        if !left.is_empty() {
            return contradiction(format!("{} buffers are of no subpartition", left.len()));
        }
        Ok(Index {
            job: JobId::new(self.job.get()),
            partition: PartitionId {
                result: ResultId::new(self.result.get()),
                index: self.partition.get(),
                attempt: self.attempt.get(),
            },
            kind,
            is_broadcast: flag(self.broadcast)?,
            buffer_bytes,
            subpartitions,
            data_bytes: self.data_bytes.get(),
            groups: decoded,
        })
    }
}

impl From<&IndexEntry> for WireEntry {
    fn from(entry: &IndexEntry) -> Self {
        let flags = [
            (entry.kind == BufferKind::Event, FLAG_EVENT),
            (entry.continues, FLAG_CONTINUES),
            (entry.partial_start, FLAG_PARTIAL_START),
            (entry.unchecked, FLAG_UNCHECKED),
        ];
        let flags = flags
            .into_iter()
            .filter(|(set, _)| *set)
            .fold(0, |all, (_, flag)| all | flag);
        Self {
            at: entry.at.into(),
            length: entry.length.into(),
            checksum: entry.checksum.into(),
            records: entry.records.into(),
            flags: flags.into(),
            codec: entry.codec.to_wire().into(),
        }
    }
}

impl WireEntry {
    fn decode(&self, header: &Header) -> Result<IndexEntry, IndexError> {
        let (at, length, flags) = (self.at.get(), self.length.get(), self.flags.get());
        let end = at.checked_add(u64::from(length));
        let lies_within = end.is_some_and(|end| end <= header.data_bytes.get());
        if !lies_within || length > header.buffer_bytes.get() {
            return contradiction(format!("no buffer has {length} bytes at {at}"));
        }
        let Some(codec) = Codec::from_wire(self.codec.get()).filter(|_| flags & !FLAGS == 0) else {
            return contradiction(format!("a buffer has codec {} and flags {flags:x}", self.codec.get()));
        };
        let has = |flag| flags & flag != 0;
        Ok(IndexEntry {
            at,
            length,
            checksum: self.checksum.get(),
            records: self.records.get(),
            kind: if has(FLAG_EVENT) {
                BufferKind::Event
            } else {
                BufferKind::Data
            },
            continues: has(FLAG_CONTINUES),
            partial_start: has(FLAG_PARTIAL_START),
            unchecked: has(FLAG_UNCHECKED),
            codec,
        })
    }
}

fn contradiction<T>(what: String) -> Result<T, IndexError> {
    Err(IndexError::Contradiction(what))
}
