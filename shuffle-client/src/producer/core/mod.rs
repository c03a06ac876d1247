//! The books of one writer. Pure: `now` is passed in, memory is whatever [`Space`] is, and what leaves is collected in
//! a list that the caller sends.
//!
//! ```text
//!   granted --> free (LIFO) --> open, one per subpartition --> handed over
//!                 ^  \--> lent (WriteBuffer) --> committed ------^
//!                 \----------/ dropped unused
//! ```
//!
//! - `handed(s) <= limit(s)` for every subpartition `s`: the queue limit.
//! - `queued(s) = handed(s) - (limit(s) - max_queued)`, at least 0: the limit rises by one for each buffer consumed.
//!   `in_flight` is the sum of it.
//! - A record that fits one buffer, prefix included, is written whole or not at all; only a longer one can be torn by a
//!   caller that gives up in its middle, and then the writer refuses to go on.

mod leaving;
mod partial;
mod sorted;
mod state;
mod steps;

#[cfg(test)]
mod tests;

pub(crate) use leaving::HandOver;
pub(crate) use state::{Core, CoreConfig, Need, Space};
pub(crate) use steps::EventCursor;
