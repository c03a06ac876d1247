//! What the core wants of the disks. Pure.

use std::fmt;

use buffer_pool::SlotRef;
use shuffle_protocol::{JobId, PartitionId};

/// One spilled partition's data file, as the core numbers them. No number is used twice in the life of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreNo(pub u64);

impl fmt::Display for StoreNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One operation, as the core numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskTicket(pub u64);

/// Whose data a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreName {
    /// The job.
    pub job: JobId,
    /// The partition: one attempt of one producer task.
    pub partition: PartitionId,
}

/// A part of a buffer of some arena, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskPiece {
    /// The buffer. It is pinned until the operation has been answered.
    pub slot: SlotRef,
    /// Where in the buffer.
    pub offset: u32,
    /// How much.
    pub length: u32,
}

/// One thing to be done on a disk; each is answered once, by `Node::handle_disk`.
///
/// Operations on one file may be done in any order and at the same time: the core orders what must be ordered, by
/// waiting for answers. Offsets are in bytes from the start of the data file.
#[derive(Debug, Clone, PartialEq)]
pub enum DiskOp {
    /// The pieces, one behind the other. The first one of a store makes its file.
    Write {
        /// The file.
        store: StoreNo,
        /// Whose it is.
        name: StoreName,
        /// Where the first piece goes.
        at: u64,
        /// What is to be written.
        pieces: Vec<DiskPiece>,
    },
    /// Fills the pieces with what stands there, one behind the other. A file that ends before is an error.
    Read {
        /// The file.
        store: StoreNo,
        /// Where the first piece's bytes stand.
        at: u64,
        /// Where they go.
        pieces: Vec<DiskPiece>,
    },
    /// These bytes will not be read again: the file system may have their blocks back.
    Punch {
        /// The file.
        store: StoreNo,
        /// From where.
        at: u64,
        /// How many.
        bytes: u64,
    },
    /// Makes the file, complete, and its index outlive this server: data synced, index written, synced, and given its name.
    Seal {
        /// The file; one without data is made.
        store: StoreNo,
        /// Whose it is.
        name: StoreName,
        /// The whole index, encoded.
        index: Vec<u8>,
    },
    /// Takes data and index away. There may be none.
    Remove {
        /// The file.
        store: StoreNo,
    },
}

impl DiskOp {
    /// The file it is about.
    pub fn store(&self) -> StoreNo {
        match self {
            Self::Write { store, .. }
            | Self::Read { store, .. }
            | Self::Punch { store, .. }
            | Self::Seal { store, .. }
            | Self::Remove { store } => *store,
        }
    }

    /// The buffers it reads or fills.
    pub fn pieces(&self) -> &[DiskPiece] {
        match self {
            Self::Write { pieces, .. } | Self::Read { pieces, .. } => pieces,
            Self::Punch { .. } | Self::Seal { .. } | Self::Remove { .. } => &[],
        }
    }
}
