//! Where the bytes of the shuffle live: the node's fixed network buffer pool in shared memory.
//!
//! ```text
//!   books (pure)                     memory                         handles
//!   NetworkPool ---- Backing ----->  MemfdBacking: bank, arenas     Writable -> Shared -> Bytes
//!     who may have which buffer        which pages exist where        what this process may do with them
//! ```
//!
//! The server has all three; an executor only maps its job's arenas ([`MappedArena`]) and holds handles. The simulator has
//! only the books ([`NoBacking`]). `docs/memory.md` tells the life of a buffer and who may hold how many.

mod arena;
mod arena_books;
mod backing;
mod books;
mod budget;
mod buffer;
pub mod counted;
mod error;
mod file_range;
mod free_list;
mod ids;
mod lease;
mod local_pool;
mod memfd;
mod network_pool;
mod redistribute;
#[expect(
    unsafe_code,
    reason = "payload is used where it lies, in memory that other processes map"
)]
mod region;
mod sync;
mod waiters;

pub use arena::{ArenaFile, MappedArena, verify_seals};
pub use backing::{Backing, NoBacking, PageHolder};
pub use books::{Books, BufferState};
pub use buffer::{Home, Leased, POISON, Shared, Writable};
pub use error::{Holder, PoolError};
pub use file_range::FileRange;
pub use ids::{ArenaKind, JobKey, PoolId, SlotRef};
pub use local_pool::LocalPoolSpec;
pub use memfd::MemfdBacking;
pub use network_pool::{NetworkPool, PoolConfig};
pub use redistribute::{Share, redistribute};
pub use region::{LeaseError, SharedWords};
