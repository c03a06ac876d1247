//! One error type for everything: which kind, whose fault, retryable or not, where, and what was first.
//!
//! ```text
//!   ShuffleError { kind, initiator, retryable, location, message }
//!        \-- cause: ShuffleError { .. }
//!              \-- cause: the first cause
//! ```
//!
//! An error crosses the wire as [`control::Error`](crate::control::Error) and comes out as the same kind with the same
//! details and causes, so a reader sees what the failing producer saw.

mod kind;
mod location;
mod shuffle_error;
mod verdict;
mod wire;

pub use kind::{ErrorKind, Initiator};
pub use location::Location;
pub use shuffle_error::{Result, ShuffleError};
pub use verdict::Verdict;
