//! What two sides have in common: a version, and a set of optional features.

use std::fmt;
use std::ops::{BitAnd, BitOr, RangeInclusive};

use crate::error::{ErrorKind, Result, ShuffleError};

/// A set of optional features. Both sides name what they understand; what both named may be used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features(u64);

impl Features {
    /// No optional feature.
    pub const NONE: Self = Self(0);
    /// A writer may hand a slot over in slices of several subpartitions (`MORE_SLICES` of a slot entry).
    pub const SLICES: Self = Self(1);
    /// A reader takes several buffers of another node in one slot, each at an offset of its own.
    pub const PACKED: Self = Self(2);
    /// Every optional feature this build understands.
    pub const OURS: Self = Self(Self::SLICES.0 | Self::PACKED.0);

    /// The set with these bits, known or not.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The set as bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether all of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitAnd for Features {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features({:#x})", self.0)
    }
}

/// The highest version that both sides speak.
///
/// # Errors
/// `VersionMismatch` that names both ranges if there is none; `theirs` may be any numbers.
pub fn negotiate(ours: RangeInclusive<u32>, theirs: RangeInclusive<u32>) -> Result<u32> {
    let highest = *ours.end().min(theirs.end());
    if ours.contains(&highest) && theirs.contains(&highest) {
        return Ok(highest);
    }
    let bounds = |range: &RangeInclusive<u32>| (*range.start(), *range.end());
    let (ours, theirs) = (bounds(&ours), bounds(&theirs));
    Err(ShuffleError::new(ErrorKind::VersionMismatch { ours, theirs }, ""))
}
