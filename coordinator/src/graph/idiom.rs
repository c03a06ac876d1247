//! What an engine may do with a stage, an edge or a whole job that a pipelined group does not go together with.

use std::fmt;

/// Something that an engine does with a stage, an edge or the whole job. Outside pipelined groups the coordinator leaves it to
/// the engine; within one it is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Idiom {
    /// All tasks of the stage start together and can be restarted together.
    Barrier,
    /// Slots come and go with the load while the job runs.
    DynamicAllocation,
    /// A second copy of a slow task runs beside the first, and whichever is faster counts.
    Speculation,
    /// Producers push their blocks to merging services before consumers ask.
    PushMerge,
    /// A stage whose output has another checksum than before is run again.
    ChecksumRetry,
    /// The output of the stage is kept, so that later runs skip it.
    CachedData,
    /// Another job reads the output of the same running stage.
    SharedProducer,
}

impl Idiom {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Barrier,
        Self::DynamicAllocation,
        Self::Speculation,
        Self::PushMerge,
        Self::ChecksumRetry,
        Self::CachedData,
        Self::SharedProducer,
    ];

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Idiom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Barrier => "barrier execution",
            Self::DynamicAllocation => "dynamic allocation",
            Self::Speculation => "speculative execution",
            Self::PushMerge => "push-based merge",
            Self::ChecksumRetry => "checksum-mismatch retry",
            Self::CachedData => "cached data in a member",
            Self::SharedProducer => "producer shared across jobs",
        })
    }
}

/// A set of [`Idiom`]s.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Idioms(u8);

impl Idioms {
    /// The set with one more.
    #[must_use]
    pub const fn with(self, idiom: Idiom) -> Self {
        Self(self.0 | idiom.bit())
    }

    /// What is in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those in the set.
    pub fn iter(self) -> impl Iterator<Item = Idiom> {
        Idiom::ALL.into_iter().filter(move |idiom| self.0 & idiom.bit() != 0)
    }
}
