//! From transforms to stages.
//!
//! ```text
//!  source -> map -> filter -> [rebalance] -> map -> [grouping key] aggregate
//!            \ fused   /      \ cuts the    /        \ two stages, or one if
//!             one stage        chain: distributed      an input is rebalanced
//! ```
//!
//! The rules are those of Hazelcast Jet (design document 008, "Control data distribution"):
//!
//! | what | becomes |
//! | --- | --- |
//! | an edge that nobody rebalances | local: task k to task k |
//! | `rebalance()`, `rebalance(key)` | distributed to all tasks, in turn or by key |
//! | stateless transforms in a row, equally many tasks, one downstream, no rebalance between | one stage |
//! | global aggregation | accumulation in parallel, combination in one task |
//! | keyed aggregation | local accumulation, then combination by the grouping key |
//! | the same with any input rebalanced | one stage, every input distributed by its grouping key |
//! | merge | each input as asked |
//! | hash join | the main input as asked, enriching inputs broadcast whatever is asked |
//! | stateful or rolling transform with a grouping key | distributed by that key, rebalanced or not |
//! | the same without one | one task; rebalanced it is an error |
//!
//! A local edge needs equally many tasks on both sides. Where they differ the edge becomes a rebalance, or, into a single
//! task, an edge by one constant key, which keeps its producer determinate.

mod aggregation;
mod edges;
mod fusion;
mod pipeline;

use thiserror::Error;

pub use pipeline::{Flow, Key, KeyedFlow, Pipeline};

use crate::graph::{Distribution, EdgeSpec, GraphBuilder, GraphErrors, JobGraph, Stage};

/// A stage of the plan: some transforms that run in one task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedStage {
    /// Of its transforms, in their order.
    pub name: String,
    /// The names of the transforms in it.
    pub transforms: Vec<String>,
    /// How many tasks.
    pub tasks: u32,
    /// Whether all records of one subpartition must meet in one task.
    pub keeps_state: bool,
    /// Nobody consumes it, and it is no sink: its result has a single queue.
    pub open_result: bool,
}

/// An edge of the plan, between stages by their place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedEdge {
    /// The stage that writes.
    pub from: usize,
    /// The stage that reads.
    pub to: usize,
    /// Which task a record goes to.
    pub distribution: Distribution,
    /// Of a keyed edge the key, unless it is the same for all records.
    pub key: Option<Key>,
}

impl PlannedEdge {
    /// Whether records leave the task, and the node, where they were made.
    pub fn is_distributed(&self) -> bool {
        self.distribution != Distribution::Local
    }
}

/// Stages and edges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Each behind its inputs.
    pub stages: Vec<PlannedStage>,
    /// In the order of the stages that read.
    pub edges: Vec<PlannedEdge>,
}

/// A pipeline that has no plan.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A rolling aggregation without a key, to be spread over tasks.
    #[error(
        "{transform:?}: a rolling aggregation without a grouping key can't be parallelised: give it a grouping key, or take the \
         rebalance away"
    )]
    RollingRebalanced {
        /// Its name.
        transform: String,
    },
    /// A stateful transform without a key, to be spread over tasks.
    #[error(
        "{transform:?}: a stateful transform can't be parallelised: rebalance has no meaning here: give it a grouping key, or \
         take the rebalance away"
    )]
    StatefulRebalanced {
        /// Its name.
        transform: String,
    },
    /// A transform that reads nothing.
    #[error("{transform:?} has no input: give it at least one")]
    NoInput {
        /// Its name.
        transform: String,
    },
}

impl Plan {
    /// The plan as a job graph to be refined: pipelined edges, adaptive stages, slots.
    pub fn to_builder(&self) -> GraphBuilder {
        let stages = self.stages.iter().fold(JobGraph::builder(), |graph, planned| {
            let mut stage = Stage::new(&planned.name).fixed(planned.tasks);
            if planned.keeps_state {
                stage = stage.keeps_state();
            }
            if planned.open_result {
                stage = stage.open_result();
            }
            graph.stage(stage)
        });
        self.edges.iter().fold(stages, |graph, edge| {
            let (from, to) = (&self.stages[edge.from].name, &self.stages[edge.to].name);
            graph.edge(EdgeSpec::new(from, to, edge.distribution))
        })
    }

    /// The plan as a job graph of regular edges.
    ///
    /// # Errors
    /// Two transforms of one name, or more tasks than a stage can have.
    pub fn to_graph(&self) -> Result<JobGraph, GraphErrors> {
        self.to_builder().build()
    }

    /// The stage in which a transform runs; of an aggregation in two stages the first.
    pub fn stage_of(&self, transform: &str) -> Option<usize> {
        self.stages
            .iter()
            .position(|stage| stage.transforms.iter().any(|name| name == transform))
    }
}
