//! Stages, edges and tasks by number. Results and partitions have the identities of the protocol.

use std::fmt;

use shuffle_protocol::{PartitionId, ResultId};

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            /// Wraps the number.
            pub const fn new(value: u32) -> Self {
                Self(value)
            }

            /// The number.
            pub const fn value(self) -> u32 {
                self.0
            }

            pub(crate) fn from_index(index: usize) -> Self {
                Self(number(index))
            }

            pub(crate) const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

index! {
    /// A stage: its place in the job graph, in the order in which stages were added.
    StageId
}
index! {
    /// An edge: its place in the job graph, in the order in which edges were added.
    EdgeId
}

/// One execution of one task of a stage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId {
    /// The stage.
    pub stage: StageId,
    /// Which task of it, from 0.
    pub index: u32,
    /// Which execution of that task, from 0.
    pub attempt: u32,
}

impl TaskId {
    /// What this execution writes of a result.
    pub const fn partition(self, result: ResultId) -> PartitionId {
        PartitionId {
            result,
            index: self.index,
            attempt: self.attempt,
        }
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}#{}", self.stage, self.index, self.attempt)
    }
}

/// A length as a number of the coordinator. Graphs with more than `u32::MAX` of anything are refused when they are built.
pub(crate) fn number(length: usize) -> u32 {
    u32::try_from(length).expect("invariant: counts of stages, edges and tasks fit 32 bits")
}
