//! The producer's side: records or buffers into subpartitions.
//!
//! ```text
//!   key, record -> selector -> record -> core (open buffers, queue limits, totals) -> outbox
//!                              WriteBuffer ---^         ^--- grants, limits: from the driver
//!                                                       ^--- flush interval: from the timer
//! ```

mod core;
mod create;
mod handle;
mod record;
mod selector;
mod sort_buffer;
mod spec;
mod timer;
mod writer;

pub use handle::WriteBuffer;
pub use record::{RECORD_PREFIX_BYTES, encode_record};
pub use selector::{SelectFn, Selector, hash_key, subpartition_of};
pub use spec::{FlushInterval, PartitionSpec};
pub use writer::{FinishReport, Writer};

pub(crate) use self::core::Space;
pub(crate) use create::create;
pub(crate) use handle::{WriterShared, release};
#[cfg(test)]
pub(crate) use record::Encoder;
