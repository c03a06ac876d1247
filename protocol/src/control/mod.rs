//! The control messages: what `control.proto` publishes, and its way to and from typed values.
//!
//! The types here are generated from that file. A message that came is only a shape; [`TryFrom`] makes checked values
//! of its parts, and an inspection before bounds what decoding it may allocate.

mod convert;
mod inspect;

pub use convert::{parse_nodes, required};
pub use generated::*;
pub(crate) use inspect::inspect;

#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/shuffle.v1.rs"));
}
