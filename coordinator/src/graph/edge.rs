//! An edge: which records go to which task, and when they can be read.

use std::fmt;

use shuffle_protocol::ResultId;
use shuffle_protocol::partition::{Lifetime, PartitionKind, Pressure, Readiness};

use super::idiom::{Idiom, Idioms};
use crate::ids::StageId;

/// Which consumer task a record goes to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Distribution {
    /// From task k to task k, on the same node where there is room. Both stages have equally many tasks.
    Local,
    /// To all tasks in turn, past those that are behind. Never determinate.
    Rebalance,
    /// Equal keys to the same task.
    Keyed,
    /// Every record to every task, from one queue.
    Broadcast,
}

impl Distribution {
    /// Whether consumers divide the subpartitions among themselves, so that each needs a part of every partition.
    pub const fn is_all_to_all(self) -> bool {
        matches!(self, Self::Rebalance | Self::Keyed)
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Rebalance => "rebalance",
            Self::Keyed => "keyed",
            Self::Broadcast => "broadcast",
        })
    }
}

/// When consumers run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Dependency {
    /// After the producers: the result is complete before a consumer starts, and can be read again.
    Regular,
    /// Beside the producers: both stages are in one group.
    Pipelined,
}

impl Dependency {
    /// The kind of the partitions that such an edge needs: what is read after its producers must be kept without a reader and
    /// for a second one, what is read beside them is gone once read.
    pub const fn partition_kind(self) -> PartitionKind {
        match self {
            Self::Regular => PartitionKind {
                lifetime: Lifetime::Persistent,
                readiness: Readiness::Blocking,
                pressure: Pressure::Spilling,
            },
            Self::Pipelined => PartitionKind::PIPELINE,
        }
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regular => "regular",
            Self::Pipelined => "pipelined",
        })
    }
}

/// An edge as the engine describes it: stages by name, regular unless said otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EdgeSpec {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) distribution: Distribution,
    pub(super) dependency: Dependency,
    pub(super) splittable: bool,
    pub(super) idioms: Idioms,
}

impl EdgeSpec {
    /// A regular edge.
    pub fn new(from: impl Into<String>, to: impl Into<String>, distribution: Distribution) -> Self {
        Self {
            from: from.into(),
            to: to.into(),
            distribution,
            dependency: Dependency::Regular,
            splittable: false,
            idioms: Idioms::default(),
        }
    }

    /// Task k to task k.
    pub fn local(from: impl Into<String>, to: impl Into<String>) -> Self {
        Self::new(from, to, Distribution::Local)
    }

    /// In turn, past those that are behind.
    pub fn rebalance(from: impl Into<String>, to: impl Into<String>) -> Self {
        Self::new(from, to, Distribution::Rebalance)
    }

    /// Equal keys to the same task.
    pub fn keyed(from: impl Into<String>, to: impl Into<String>) -> Self {
        Self::new(from, to, Distribution::Keyed)
    }

    /// Everything to every task.
    pub fn broadcast(from: impl Into<String>, to: impl Into<String>) -> Self {
        Self::new(from, to, Distribution::Broadcast)
    }

    /// Consumers run beside the producers.
    #[must_use]
    pub const fn pipelined(mut self) -> Self {
        self.dependency = Dependency::Pipelined;
        self
    }

    /// The records of one subpartition may be spread over several tasks, by ranges of producers. Every other input of these
    /// tasks is then read by each of them.
    #[must_use]
    pub const fn splittable(mut self) -> Self {
        self.splittable = true;
        self
    }

    /// The engine does this with the edge.
    #[must_use]
    pub const fn uses(mut self, idiom: Idiom) -> Self {
        self.idioms = self.idioms.with(idiom);
        self
    }
}

/// An edge of a graph that was built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The stage that writes.
    pub from: StageId,
    /// The stage that reads.
    pub to: StageId,
    /// Which consumer task a record goes to.
    pub distribution: Distribution,
    /// When consumers run.
    pub dependency: Dependency,
    /// Whether one subpartition may be read by several tasks, each from some producers.
    pub splittable: bool,
    /// The result that goes over it.
    pub result: ResultId,
    pub(crate) idioms: Idioms,
}
