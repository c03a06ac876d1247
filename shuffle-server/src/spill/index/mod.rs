//! The index of a data file: which buffer of which subpartition lies where. Pure.
//!
//! ```text
//!  0         88        96                                                                     end
//!  | header  | crc     | groups, in blocks             | entries, in blocks                   |
//!                        {subpartition, entries} x n     {at, length, checksum, ...} x m
//!                        each block: up to 256 items, then the CRC-32 of header, number and items
//! ```
//!
//! All numbers are little-endian. A subpartition without buffers takes no byte. The length of the whole follows from the
//! header, and is compared with what there is before anything is allocated: memory stays within a constant factor of the
//! input. A block's checksum begins with the header's and with its number, so that neither a block of another index nor a
//! block in the wrong place passes.

mod blocks;
#[cfg(test)]
mod tests;
mod wire;

use shuffle_protocol::partition::{BufferKind, Codec, PartitionKind};
use shuffle_protocol::{JobId, PartitionId};

use blocks::{Blocks, count, section_bytes, wide};
pub use wire::{ENTRY_BYTES, HEADER_BYTES, INDEX_VERSION};
use wire::{Header, WireEntry, WireGroup};
use zerocopy::IntoBytes as _;

/// One buffer in the data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// Where its payload begins, in bytes from the start of the data file.
    pub at: u64,
    /// Bytes of payload.
    pub length: u32,
    /// CRC-32 of the payload, made by its writer.
    pub checksum: u32,
    /// Records that start in it.
    pub records: u32,
    /// Records or an event.
    pub kind: BufferKind,
    /// Its last record goes on in the next buffer.
    pub continues: bool,
    /// It begins inside of a record.
    pub partial_start: bool,
    /// Its writer made no checksum.
    pub unchecked: bool,
    /// How it is packed.
    pub codec: Codec,
}

/// The buffers of one subpartition, in their order; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexGroup {
    /// The subpartition.
    pub subpartition: u32,
    /// Its buffers.
    pub entries: Vec<IndexEntry>,
}

/// What an index file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// The job.
    pub job: JobId,
    /// The partition and its attempt.
    pub partition: PartitionId,
    /// The three choices.
    pub kind: PartitionKind,
    /// One queue that every consumer reads whole.
    pub is_broadcast: bool,
    /// Most bytes of one buffer.
    pub buffer_bytes: u32,
    /// Subpartitions, those without a buffer included.
    pub subpartitions: u32,
    /// Length of the data file.
    pub data_bytes: u64,
    /// Subpartitions that have buffers, in rising order.
    pub groups: Vec<IndexGroup>,
}

/// Why bytes are not an index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// It has another length than its header says, or none.
    #[error("the index has {got} bytes where {expected} are needed")]
    Length {
        /// By the header; the header's own if there is not even that.
        expected: u64,
        /// There are.
        got: u64,
    },
    /// It does not begin as an index does.
    #[error("this is not an index: it does not begin with its magic number")]
    Magic,
    /// Another version wrote it.
    #[error("the index has version {got}, this server reads version {INDEX_VERSION}")]
    Version {
        /// As written.
        got: u32,
    },
    /// Bytes have changed since they were written.
    #[error("the checksum of {what} is {got:08x}, not {expected:08x}")]
    Checksum {
        /// Which part.
        what: String,
        /// As written.
        expected: u32,
        /// Of what is there.
        got: u32,
    },
    /// The checksums are right and the numbers make no sense: who wrote it was wrong.
    #[error("the index contradicts itself: {0}")]
    Contradiction(String),
}

/// What the first [`HEADER_BYTES`] of an index say of the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexSummary {
    /// Length of the index.
    pub index_bytes: u64,
    /// Length of the data file.
    pub data_bytes: u64,
}

impl IndexSummary {
    /// Reads the header; nothing behind it is looked at.
    ///
    /// # Errors
    /// [`IndexError`], if these are not the first bytes of an index.
    pub fn of(bytes: &[u8]) -> Result<Self, IndexError> {
        let header = Header::check(bytes)?;
        Ok(Self {
            index_bytes: header.index_bytes()?,
            data_bytes: header.data_bytes(),
        })
    }
}

impl Index {
    /// The whole index as its file holds it.
    ///
    /// # Panics
    /// If a subpartition has 2^32 buffers, or more subpartitions have some than there are.
    pub fn encode(&self) -> Vec<u8> {
        let header = Header::of(self);
        let groups: Vec<WireGroup> = self
            .groups
            .iter()
            .map(|group| WireGroup {
                subpartition: group.subpartition.into(),
                entries: count(group.entries.len()).into(),
            })
            .collect();
        let entries: Vec<WireEntry> = self
            .groups
            .iter()
            .flat_map(|group| &group.entries)
            .map(WireEntry::from)
            .collect();
        let rest = section_bytes::<WireGroup>(groups.len()) + section_bytes::<WireEntry>(entries.len());
        let mut out = Vec::with_capacity(HEADER_BYTES + rest);
        out.extend(header.as_bytes());
        let mut blocks = Blocks::new(header.checksum());
        blocks.encode(&groups, &mut out);
        blocks.encode(&entries, &mut out);
        out
    }

    /// Reads a whole index file. Memory stays within a constant factor of `bytes`.
    ///
    /// # Errors
    /// [`IndexError`] says what is wrong; every changed bit is found.
    pub fn decode(bytes: &[u8]) -> Result<Self, IndexError> {
        let header = Header::check(bytes)?;
        let (expected, got) = (header.index_bytes()?, wide(bytes.len()));
        if expected != got {
            return Err(IndexError::Length { expected, got });
        }
        let (groups, entries) = bytes[HEADER_BYTES..].split_at(section_bytes::<WireGroup>(header.groups()?));
        let mut blocks = Blocks::new(header.checksum());
        let groups = blocks.decode::<WireGroup>(groups, "the groups")?;
        let entries = blocks.decode::<WireEntry>(entries, "the entries")?;
        header.assemble(&groups, &entries)
    }
}
