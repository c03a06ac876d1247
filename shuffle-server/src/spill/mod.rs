//! Where payload lies when memory is not the place for it: the data files of spilled and of persistent partitions.
//!
//! The core says what is to be written, read, punched, sealed and removed, by [`DiskOp`]; whoever drives it says what
//! became of each.

mod directories;
mod failure;
mod file;
mod index;
mod line;
mod memory;
mod names;
mod op;
mod recover;
mod schedule;
mod store;
mod system;
#[cfg(test)]
mod tests;

pub use index::{ENTRY_BYTES, HEADER_BYTES, INDEX_VERSION, Index, IndexEntry, IndexError, IndexGroup, IndexSummary};
pub use memory::{Memory, Targets};
pub use op::{DiskOp, DiskPiece, DiskTicket, StoreName, StoreNo};
pub use store::{Answer, DiskCounters, Recovered, Recovery, StorageError, Store};
pub use system::{FileSystem, Linux};
