//! Rows that a scenario shuffles, and the account of them that is kept apart from the transport.
//!
//! ```text
//! producer: row -> RowDigest (before the row is written)  ---+
//!                                                            |--> equal, or the run is not verified
//! consumer: row -> RowDigest (after the row was read)     ---+
//! ```
//!
//! Both sides hash whole rows; the sums do not depend on the order in which rows arrive.

mod digest;
mod lineitem;

pub use digest::RowDigest;
pub use lineitem::{LineitemPart, LineitemRow, estimated_lineitem_rows};
