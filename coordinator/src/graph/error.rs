//! Why a graph cannot be built.

use std::fmt;

use shuffle_protocol::limits::{MAX_CHANNELS_PER_GATE, MAX_SUBPARTITIONS};
use thiserror::Error;

/// One defect: which stage or edge, and what to change.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum GraphError {
    /// Nothing to run.
    #[error("the graph has no stage: add one")]
    Empty,
    /// Two stages of one name.
    #[error("there are two stages {stage:?}: give one of them another name")]
    DuplicateStage {
        /// The name.
        stage: String,
    },
    /// An edge names a stage that is not there.
    #[error("edge {from:?} -> {to:?}: there is no stage {missing:?}: add it, or correct the name")]
    UnknownStage {
        /// Start of the edge.
        from: String,
        /// End of the edge.
        to: String,
        /// The name nobody has.
        missing: String,
    },
    /// Stages that wait for each other.
    #[error("the stages {} form a cycle: take one of these edges out", path(stages))]
    Cycle {
        /// In the order of the edges.
        stages: Vec<String>,
    },
    /// A stage without tasks.
    #[error("stage {stage:?} may have 0 tasks: give it at least 1")]
    NoTasks {
        /// The stage.
        stage: String,
    },
    /// A stage with more tasks than a consumer could have channels.
    #[error("stage {stage:?} may have {tasks} tasks: at most {MAX_CHANNELS_PER_GATE}, the channels of one gate")]
    TooManyTasks {
        /// The stage.
        stage: String,
        /// Its most tasks.
        tasks: u32,
    },
    /// The limits of an adaptive stage contradict each other.
    #[error("stage {stage:?} has a minimum of {min} tasks and a maximum of {max}: lower the one or raise the other")]
    MinAboveMax {
        /// The stage.
        stage: String,
        /// Its minimum.
        min: u32,
        /// Its maximum.
        max: u32,
    },
    /// A task that takes no slot.
    #[error("a task of stage {stage:?} takes 0 slots: let it take at least 1")]
    NoSlots {
        /// The stage.
        stage: String,
    },
    /// Some task would have nothing to read.
    #[error(
        "stage {stage:?} may have {tasks} tasks and its inputs are cut into {subpartitions} subpartitions: \
         cut them into at least {tasks}, or lower its tasks"
    )]
    TooFewSubpartitions {
        /// The stage.
        stage: String,
        /// Its subpartitions.
        subpartitions: u32,
        /// Its most tasks.
        tasks: u32,
    },
    /// More subpartitions than a partition can have.
    #[error("the inputs of stage {stage:?} are cut into {subpartitions} subpartitions: at most {MAX_SUBPARTITIONS}")]
    TooManySubpartitions {
        /// The stage.
        stage: String,
        /// Its subpartitions.
        subpartitions: u32,
    },
    /// The two ends of a local edge do not, or may not, have equally many tasks.
    #[error(
        "local edge {from:?} -> {to:?} joins task to task, but {from:?} has {from_tasks} tasks and {to:?} {to_tasks}: \
         make them equal, or make the edge a rebalance"
    )]
    LocalTasksDiffer {
        /// Start of the edge.
        from: String,
        /// End of the edge.
        to: String,
        /// In words, as `4` or `1 to 8`.
        from_tasks: String,
        /// In words.
        to_tasks: String,
    },
    /// A stage whose tasks follow two adaptive stages at once.
    #[error(
        "stage {stage:?} has local inputs from {first:?} and {second:?}, which may come out with different numbers of \
         tasks: fix them both, or make one of the edges a rebalance"
    )]
    TwoLocalInputs {
        /// The stage.
        stage: String,
        /// One input.
        first: String,
        /// The other.
        second: String,
    },
    /// Split records that must meet.
    #[error(
        "edge {from:?} -> {to:?} is splittable, but {to:?} aggregates by key or keeps state, so all records of a \
         subpartition must meet in one task: take one of the two out"
    )]
    SplitIntoState {
        /// Start of the edge.
        from: String,
        /// End of the edge.
        to: String,
    },
    /// A splittable edge where nothing is ever split.
    #[error("edge {from:?} -> {to:?} is splittable, but {reason}")]
    SplitWithoutEffect {
        /// Start of the edge.
        from: String,
        /// End of the edge.
        to: String,
        /// Why it has no effect, and what to change.
        reason: &'static str,
    },
    /// A self-estimating stage that is not an adaptive source.
    #[error("stage {stage:?} estimates its own number of tasks, but {reason}")]
    EstimatesWithoutEffect {
        /// The stage.
        stage: String,
        /// Why that cannot be, and what to change.
        reason: &'static str,
    },
    /// A consumer beside a producer that was planned without one.
    #[error(
        "stage {from:?} has an open result, whose consumers come later, so the edge to {to:?} cannot be pipelined: make the \
         edge regular, or take open_result away"
    )]
    OpenPipelined {
        /// The stage with the open result.
        from: String,
        /// Its consumer.
        to: String,
    },
}

/// Everything that is wrong with a graph, found in one go. Never empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphErrors(pub(super) Vec<GraphError>);

impl GraphErrors {
    /// One by one.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &GraphError> {
        self.0.iter()
    }
}

impl fmt::Display for GraphErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for GraphErrors {}

/// `"a" -> "b" -> "a"`: the way round, back to where it began.
pub(crate) fn path(stages: &[String]) -> String {
    let mut names: Vec<String> = stages.iter().map(|name| format!("{name:?}")).collect();
    names.extend(names.first().cloned());
    names.join(" -> ")
}
