//! Where the bytes of the shuffle live: the node's fixed network buffer pool in shared memory.

mod arena_books;
mod backing;
mod books;
mod error;
mod free_list;
mod ids;
mod local_pool;
mod network_pool;
mod redistribute;
mod waiters;

pub use backing::{Backing, NoBacking};
pub use books::{Books, BufferState};
pub use error::{Holder, PoolError};
pub use ids::{ArenaKind, JobKey, PoolId, SlotRef};
pub use local_pool::LocalPoolSpec;
pub use network_pool::{NetworkPool, PoolConfig};
pub use redistribute::{Share, redistribute};
