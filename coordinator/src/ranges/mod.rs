//! Who reads which subpartitions.
//!
//! ```text
//!  subpartitions   0  1  2 | 3  4 | 5 | 6  7  8  9
//!  task            0         1      2   3              contiguous, in order, none left out, none twice
//! ```
//!
//! *Evenly*: task k of N reads subpartitions `floor(k * P / N) .. floor((k + 1) * P / N)`. *By volume*: subpartitions go to the
//! same task until the next one would exceed a limit in bytes. A *piece* is a part of one subpartition, namely what some of the
//! producers wrote into it: so a subpartition that is far larger than the others is read by several tasks.

mod by_volume;
mod split;

use std::ops::Range;
use std::sync::Arc;

use shuffle_protocol::SubpartitionRange;

pub use by_volume::{ByVolume, by_volume};
pub use split::{SplitInput, split_skew};

use crate::ids::number;

/// `0 .. whole` in contiguous parts, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ranges {
    /// Part k of N is `floor(k * whole / N) .. floor((k + 1) * whole / N)`.
    Even {
        /// What is divided.
        whole: u32,
        /// How many parts.
        parts: u32,
    },
    /// Part k is `bounds[k] .. bounds[k + 1]`.
    Cut {
        /// From 0 to what is divided, one more than there are parts.
        bounds: Arc<[u32]>,
    },
}

impl Ranges {
    /// How many parts.
    pub fn parts(&self) -> u32 {
        match self {
            Self::Even { parts, .. } => *parts,
            Self::Cut { bounds } => number(bounds.len() - 1),
        }
    }

    /// What is divided.
    pub fn whole(&self) -> u32 {
        match self {
            Self::Even { whole, .. } => *whole,
            Self::Cut { bounds } => bounds.last().copied().unwrap_or(0),
        }
    }

    /// Part k.
    ///
    /// # Panics
    /// If there are not so many parts.
    pub fn part(&self, k: u32) -> Range<u32> {
        assert!(k < self.parts(), "part {k} of {}", self.parts());
        match self {
            Self::Even { whole, parts } => even_bound(*whole, *parts, k)..even_bound(*whole, *parts, k + 1),
            Self::Cut { bounds } => bounds[k as usize]..bounds[k as usize + 1],
        }
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Range<u32>> + '_ {
        (0..self.parts()).map(|k| self.part(k))
    }
}

/// `floor(k * whole / parts)`, which is at most `whole`.
fn even_bound(whole: u32, parts: u32, k: u32) -> u32 {
    let exact = u64::from(k) * u64::from(whole) / u64::from(parts);
    u32::try_from(exact).expect("invariant: a bound is at most the whole")
}

/// What some producers wrote into a subpartition of one input.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// Which input of the stage, in the order of its edges.
    pub input: u32,
    /// Which of its producer tasks.
    pub producers: Range<u32>,
}

/// What one task reads of each of its keyed and rebalanced inputs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TaskShare {
    /// These subpartitions.
    pub subpartitions: SubpartitionRange,
    /// Of one input only what these producers wrote; of all others, and where it is `None`, everything.
    pub piece: Option<Piece>,
}

/// What each task of a stage reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Assignment {
    /// Ranges of subpartitions.
    Ranges(Ranges),
    /// Where a subpartition was split: one by one.
    Shares(Arc<[TaskShare]>),
}

impl Assignment {
    /// How many tasks.
    pub fn tasks(&self) -> u32 {
        match self {
            Self::Ranges(ranges) => ranges.parts(),
            Self::Shares(shares) => number(shares.len()),
        }
    }

    /// What task k reads.
    ///
    /// # Panics
    /// If there are not so many tasks.
    pub fn share(&self, k: u32) -> TaskShare {
        match self {
            Self::Ranges(ranges) => whole(&ranges.part(k)),
            Self::Shares(shares) => shares[k as usize].clone(),
        }
    }
}

fn whole(part: &Range<u32>) -> TaskShare {
    TaskShare {
        subpartitions: SubpartitionRange {
            first: part.start,
            count: part.end - part.start,
        },
        piece: None,
    }
}
