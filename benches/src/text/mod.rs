//! Lines of text as rows: cut into blocks of whole lines, and each line's key column found.
//!
//! ```text
//! file:  |---- range 0 ----|---- range 1 ----|   a line belongs to the range in which it starts
//!        BlockReader        BlockReader          blocks of whole lines, in the order of the file
//!
//! stdin: BlockReader -> block -> whichever producer is free (blocks carry their first line number)
//! ```

mod blocks;
mod column;
mod ranges;

pub use blocks::{Block, BlockReader, MAX_LINE_BYTES, ReadError, lines};
pub use column::{Delimiter, KeyColumn, MissingColumn};
pub use ranges::{ByteRange, lines_before, open_range, split_ranges};
