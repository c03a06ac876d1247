//! The job: stages, and edges between them.
//!
//! ```text
//!   Stage::new("scan").fixed(4)      EdgeSpec::keyed("scan", "count").pipelined()
//!            \                                  /
//!             GraphBuilder ---- build() ---> JobGraph: valid as a whole, or every defect at once
//! ```
//!
//! Every edge has a result of its own, in which each producer task has one partition. The exception is an *open* result,
//! whose consumers were not known when it was planned: it has a single queue, all its edges read the same one, and where a
//! consumer asks for more than that the builder puts a repartition stage before it.

mod builder;
mod edge;
mod error;
mod idiom;
mod render;
mod stage;
mod validate;

use shuffle_protocol::ResultId;

use crate::adjacency::Adjacency;
use crate::ids::{EdgeId, StageId, number};

pub use builder::GraphBuilder;
pub use edge::{Dependency, Distribution, Edge, EdgeSpec};
pub(crate) use error::path;
pub use error::{GraphError, GraphErrors};
pub use idiom::{Idiom, Idioms};
pub use stage::{Parallelism, Stage};

/// What one stage writes for some of its consumers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobResult {
    /// Who writes it.
    pub producer: StageId,
    /// Over which edges it is read: one; none or several if it is open.
    pub edges: Vec<EdgeId>,
    /// Subpartitions of each of its partitions.
    pub subpartitions: u32,
    /// When consumers run.
    pub dependency: Dependency,
    /// How records are spread over the subpartitions.
    pub distribution: Distribution,
}

/// A valid job graph: no cycle, no contradiction. It does not change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobGraph {
    stages: Vec<Stage>,
    edges: Vec<Edge>,
    results: Vec<JobResult>,
    idioms: Idioms,
    outgoing: Adjacency,
    incoming: Adjacency,
    /// Results of each stage, as pairs of (stage, result).
    written: Adjacency,
    order: Vec<StageId>,
}

impl JobGraph {
    /// Starts an empty graph.
    pub fn builder() -> GraphBuilder {
        GraphBuilder::default()
    }

    /// All stages; the number of a stage is its place.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// All edges; the number of an edge is its place.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// All results; the number of a result is its place.
    pub fn results(&self) -> &[JobResult] {
        &self.results
    }

    /// The stage of that number.
    ///
    /// # Panics
    /// If there is none.
    pub fn stage(&self, stage: StageId) -> &Stage {
        &self.stages[stage.index()]
    }

    /// The edge of that number.
    ///
    /// # Panics
    /// If there is none.
    pub fn edge(&self, edge: EdgeId) -> &Edge {
        &self.edges[edge.index()]
    }

    /// The result of that number, if there is one.
    pub fn result(&self, result: ResultId) -> Option<&JobResult> {
        self.results.get(usize::try_from(result.value()).ok()?)
    }

    /// The stage of that name; it looks at all of them.
    pub fn find(&self, name: &str) -> Option<StageId> {
        let at = self.stages.iter().position(|stage| stage.name == name)?;
        Some(StageId::from_index(at))
    }

    /// Every stage after all its inputs.
    pub fn topological_order(&self) -> &[StageId] {
        &self.order
    }

    /// The edges that leave a stage, with the stages they lead to.
    pub fn outputs(&self, stage: StageId) -> impl ExactSizeIterator<Item = (EdgeId, StageId)> {
        pairs(self.outgoing.of(stage.value()))
    }

    /// The edges that lead to a stage, with the stages they come from.
    pub fn inputs(&self, stage: StageId) -> impl ExactSizeIterator<Item = (EdgeId, StageId)> {
        pairs(self.incoming.of(stage.value()))
    }

    /// The results that a stage writes.
    pub fn results_of(&self, stage: StageId) -> impl ExactSizeIterator<Item = ResultId> {
        let pairs = self.written.of(stage.value());
        pairs.iter().map(|&(result, _)| ResultId::new(u64::from(result)))
    }

    /// Whether a second execution of a task of the stage writes the same bytes to the same subpartitions: it says so of
    /// itself, and none of its outputs is rebalanced.
    pub fn is_determinate(&self, stage: StageId) -> bool {
        let rebalances = |(edge, _)| self.edge(edge).distribution == Distribution::Rebalance;
        self.stage(stage).determinate && !self.outputs(stage).any(rebalances)
    }

    /// What the engine does with every stage.
    pub const fn idioms(&self) -> Idioms {
        self.idioms
    }

    fn new(stages: Vec<Stage>, mut edges: Vec<Edge>, idioms: Idioms) -> Result<Self, Vec<StageId>> {
        let ends = edges.iter().map(|edge| (edge.from.value(), edge.to.value()));
        let outgoing = Adjacency::new(stages.len(), ends.clone());
        let incoming = Adjacency::new(stages.len(), ends.map(|(from, to)| (to, from)));
        let ids = |numbers: Vec<u32>| numbers.into_iter().map(StageId::new).collect();
        let order = outgoing.topological_order().map(ids).map_err(ids)?;
        let results = results_of(&stages, &mut edges);
        let writers = results.iter().map(|result| (result.producer.value(), 0));
        let written = Adjacency::new(stages.len(), writers);
        Ok(Self {
            stages,
            edges,
            results,
            idioms,
            outgoing,
            incoming,
            written,
            order,
        })
    }
}

/// A result for each edge, and one for all edges of an open stage; the edges learn its number.
fn results_of(stages: &[Stage], edges: &mut [Edge]) -> Vec<JobResult> {
    let mut results: Vec<JobResult> = Vec::with_capacity(edges.len());
    let mut open = vec![None; stages.len()];
    let open_result = |producer| JobResult {
        producer,
        edges: Vec::new(),
        subpartitions: 1,
        dependency: Dependency::Regular,
        distribution: Distribution::Broadcast,
    };
    for (at, edge) in edges.iter_mut().enumerate() {
        let next = results.len();
        let place = if stages[edge.from.index()].open_result {
            *open[edge.from.index()].get_or_insert(next)
        } else {
            next
        };
        if place == next {
            let all_to_all = edge.distribution.is_all_to_all();
            results.push(if stages[edge.from.index()].open_result {
                open_result(edge.from)
            } else {
                JobResult {
                    producer: edge.from,
                    edges: Vec::new(),
                    subpartitions: if all_to_all {
                        stages[edge.to.index()].input_subpartitions()
                    } else {
                        1
                    },
                    dependency: edge.dependency,
                    distribution: edge.distribution,
                }
            });
        }
        results[place].edges.push(EdgeId::from_index(at));
        edge.result = ResultId::new(u64::from(number(place)));
    }
    for (stage, _) in stages
        .iter()
        .enumerate()
        .filter(|(at, stage)| stage.open_result && open[*at].is_none())
    {
        results.push(open_result(StageId::from_index(stage)));
    }
    results
}

fn pairs(pairs: &[(u32, u32)]) -> impl ExactSizeIterator<Item = (EdgeId, StageId)> {
    pairs
        .iter()
        .map(|&(edge, stage)| (EdgeId::new(edge), StageId::new(stage)))
}

#[cfg(test)]
mod tests;
