//! Stages that run beside each other.
//!
//! ```text
//!     S --regular--> A ==pipelined==> B --regular--> T
//!    {S}            {      A, B      }              {T}
//!                    admitted, completed and failed as one
//! ```
//!
//! A group is a connected component over the pipelined edges; a stage without any is a group of its own. Groups are fixed when
//! they are formed and belong to one job. A group is ready when all stages outside of it that it reads are complete, and these
//! are complete only when their whole group is. So groups must not wait for each other in a cycle, and none may wait for itself.

use std::fmt;

use shuffle_protocol::{GroupId, JobId};
use thiserror::Error;

use crate::adjacency::Adjacency;
use crate::graph::{Dependency, Idiom, Idioms, JobGraph, Parallelism, path};
use crate::ids::{StageId, number};

/// What a pipelined group does not go together with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unsupported {
    /// Something that the engine does with a member, with an edge between members, or with the whole job.
    Idiom(Idiom),
    /// A member whose second execution would write something else.
    IndeterminateProducer,
    /// A regular edge between two members.
    RegularInside,
    /// A member whose tasks would be decided by what comes over a pipelined edge.
    AdaptiveReplanning,
}

impl Unsupported {
    /// Why it cannot be, and what to do instead.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Idiom(Idiom::Barrier) => {
                "a barrier restarts the tasks of one stage together, but a group fails as a whole and is never run again in part: \
                 take the barrier away, the group is admitted all-or-nothing anyway"
            }
            Self::Idiom(Idiom::DynamicAllocation) => {
                "the slots of a group are taken all at once and kept to its end, so slots that come and go with the load can \
                 starve it: give the job fixed slots"
            }
            Self::Idiom(Idiom::Speculation) => {
                "a second copy of a task cannot read what the first has consumed, and its output would mix with the first's: \
                 turn speculation off for the group"
            }
            Self::Idiom(Idiom::PushMerge) => {
                "blocks that are merged before they are read are read late, and a pipelined reader reads the first buffer: turn \
                 the merge off for this edge, or make the edge regular"
            }
            Self::Idiom(Idiom::ChecksumRetry) => {
                "a member is never run again, so another checksum cannot be answered by a retry: turn it off for the group"
            }
            Self::Idiom(Idiom::CachedData) => {
                "a later run would skip a member and leave its consumers without a producer: cache the output of the group, \
                 behind a regular edge"
            }
            Self::Idiom(Idiom::SharedProducer) => {
                "a group has one owner, and what its producer writes is gone once read: let the other job have its own producer, \
                 or read it over a regular edge"
            }
            Self::IndeterminateProducer => {
                "what its consumers have read cannot be written again, and a group is never rolled back in part: make the \
                 stage determinate, key its outputs instead of rebalancing them, or make the edge regular"
            }
            Self::RegularInside => {
                "the consumer would start when its producer is complete, but members complete together: make the edge \
                 pipelined, or make the pipelined edges between the two regular"
            }
            Self::AdaptiveReplanning => {
                "its tasks start before anyone knows how much comes over a pipelined edge: give it a fixed number of tasks, or \
                 make its pipelined inputs regular"
            }
        }
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idiom(idiom) => idiom.fmt(f),
            Self::IndeterminateProducer => f.write_str("indeterminate producer"),
            Self::RegularInside => f.write_str("regular shuffle inside a group"),
            Self::AdaptiveReplanning => f.write_str("adaptive replanning over a pipelined exchange"),
        }
    }
}

/// Why stages cannot be grouped as their edges ask.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum GroupError {
    /// A stage does, or is, something that no member of a group may.
    #[error("stage {stage:?} is in a pipelined group with {with:?}: {what}: {}", what.reason())]
    Unsupported {
        /// The stage.
        stage: String,
        /// A stage to which a pipelined edge joins it.
        with: String,
        /// What it is.
        what: Unsupported,
    },
    /// A regular edge between two members.
    #[error(
        "edge {from:?} -> {to:?} is a regular shuffle internal to a group ({}): {}",
        Unsupported::RegularInside, Unsupported::RegularInside.reason()
    )]
    RegularInside {
        /// Start of the edge.
        from: String,
        /// End of the edge.
        to: String,
    },
    /// Groups that wait for each other.
    #[error(
        "cycle between groups: each waits for the whole of another one, round {}: make one of the edges between them \
         pipelined, or a pipelined one within a group regular",
        path(stages)
    )]
    Cycle {
        /// A stage of each group, in the order of the edges between them.
        stages: Vec<String>,
    },
}

/// The groups of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Groups {
    job: JobId,
    of_stage: Vec<u32>,
    /// Members of group g: `members[start[g] .. start[g + 1]]`, in topological order.
    start: Vec<u32>,
    members: Vec<StageId>,
}

impl Groups {
    /// Groups the stages of a job.
    ///
    /// # Errors
    /// Every idiom that a group does not go together with and every regular edge inside a group; if there are none, a cycle.
    pub fn form(job: JobId, graph: &JobGraph) -> Result<Self, Vec<GroupError>> {
        let groups = Self::connected(job, graph);
        let mut errors = groups.regular_inside(graph);
        for &stage in graph.topological_order() {
            groups.check_member(graph, stage, &mut errors);
        }
        if errors.is_empty() {
            groups.check_order(graph).map_err(|error| vec![error])?;
            Ok(groups)
        } else {
            Err(errors)
        }
    }

    /// The job that owns them.
    pub const fn job(&self) -> JobId {
        self.job
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.start.len() - 1
    }

    /// Whether there is none; never true of a graph that was built.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The group of a stage.
    pub fn of(&self, stage: StageId) -> GroupId {
        GroupId::new(u64::from(self.of_stage[stage.index()]))
    }

    /// Its members, each behind its inputs.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn members(&self, group: GroupId) -> &[StageId] {
        let at = usize::try_from(group.value()).expect("a group of this job");
        &self.members[self.start[at] as usize..self.start[at + 1] as usize]
    }

    /// Whether the stage runs beside others, so that it is admitted, completed and failed with them and never run again.
    pub fn is_pipelined(&self, stage: StageId) -> bool {
        self.members(self.of(stage)).len() > 1
    }

    pub(crate) fn place(&self, stage: StageId) -> u32 {
        self.of_stage[stage.index()]
    }

    pub(crate) fn members_at(&self, group: u32) -> &[StageId] {
        &self.members[self.start[group as usize] as usize..self.start[group as usize + 1] as usize]
    }

    fn connected(job: JobId, graph: &JobGraph) -> Self {
        let mut parent: Vec<u32> = (0..number(graph.stages().len())).collect();
        for edge in graph
            .edges()
            .iter()
            .filter(|edge| edge.dependency == Dependency::Pipelined)
        {
            let (a, b) = (root(&mut parent, edge.from.value()), root(&mut parent, edge.to.value()));
            parent[a as usize] = b;
        }
        // Groups are numbered in the order of their first stages.
        let mut of_root = vec![None; parent.len()];
        let mut sizes: Vec<u32> = Vec::new();
        let mut of_stage = Vec::with_capacity(parent.len());
        for stage in 0..number(parent.len()) {
            let group = *of_root[root(&mut parent, stage) as usize].get_or_insert_with(|| {
                sizes.push(0);
                number(sizes.len() - 1)
            });
            sizes[group as usize] += 1;
            of_stage.push(group);
        }
        let mut start = vec![0];
        start.extend(sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        }));
        let mut next = start.clone();
        let mut members = vec![StageId::default(); of_stage.len()];
        for &stage in graph.topological_order() {
            let at = &mut next[of_stage[stage.index()] as usize];
            members[*at as usize] = stage;
            *at += 1;
        }
        Self {
            job,
            of_stage,
            start,
            members,
        }
    }

    fn regular_inside(&self, graph: &JobGraph) -> Vec<GroupError> {
        let name = |stage| graph.stage(stage).name().to_owned();
        let regular = graph
            .edges()
            .iter()
            .filter(|edge| edge.dependency == Dependency::Regular);
        let inside = regular.filter(|edge| self.of(edge.from) == self.of(edge.to));
        let error = |edge: &crate::graph::Edge| GroupError::RegularInside {
            from: name(edge.from),
            to: name(edge.to),
        };
        inside.map(error).collect()
    }

    fn check_member(&self, graph: &JobGraph, stage: StageId, errors: &mut Vec<GroupError>) {
        let is_pipelined = |(edge, _): &(_, _)| graph.edge(*edge).dependency == Dependency::Pipelined;
        let reads = graph.inputs(stage).find(is_pipelined);
        let writes = graph.outputs(stage).find(is_pipelined);
        let Some((_, with)) = reads.or(writes) else {
            return;
        };
        let mut refuse = |what| {
            errors.push(GroupError::Unsupported {
                stage: graph.stage(stage).name().to_owned(),
                with: graph.stage(with).name().to_owned(),
                what,
            });
        };
        let of_edges = graph
            .outputs(stage)
            .filter(is_pipelined)
            .fold(Idioms::default(), |all, (edge, _)| all.union(graph.edge(edge).idioms));
        for idiom in graph.stage(stage).idioms().union(graph.idioms()).union(of_edges).iter() {
            refuse(Unsupported::Idiom(idiom));
        }
        if writes.is_some() && !graph.is_determinate(stage) {
            refuse(Unsupported::IndeterminateProducer);
        }
        if reads.is_some() && matches!(graph.stage(stage).parallelism(), Parallelism::Adaptive { .. }) {
            refuse(Unsupported::AdaptiveReplanning);
        }
    }

    fn check_order(&self, graph: &JobGraph) -> Result<(), GroupError> {
        let group = |stage: StageId| self.of_stage[stage.index()];
        let between = graph.edges().iter().map(|edge| (group(edge.from), group(edge.to)));
        let between = between.filter(|(from, to)| from != to);
        match Adjacency::new(self.len(), between).topological_order() {
            Ok(_) => Ok(()),
            Err(cycle) => Err(GroupError::Cycle {
                stages: self.way_round(graph, &cycle),
            }),
        }
    }

    /// For each step of the cycle the edge between the two groups, by both of its stages; a stage is said once where one edge
    /// ends where the next begins.
    fn way_round(&self, graph: &JobGraph, cycle: &[u32]) -> Vec<String> {
        let mut stages: Vec<StageId> = Vec::new();
        for (at, &from) in cycle.iter().enumerate() {
            let to = cycle[(at + 1) % cycle.len()];
            let joins = |edge: &&crate::graph::Edge| {
                (self.of_stage[edge.from.index()], self.of_stage[edge.to.index()]) == (from, to)
            };
            let edge = graph.edges().iter().find(joins);
            let edge = edge.expect("invariant: groups of a cycle are joined by edges");
            stages.extend([edge.from, edge.to]);
        }
        stages.dedup();
        if stages.len() > 1 && stages.first() == stages.last() {
            stages.pop();
        }
        stages
            .iter()
            .map(|&stage| graph.stage(stage).name().to_owned())
            .collect()
    }
}

/// The root of a stage's tree; each second node on the way is joined to its grandparent.
fn root(parent: &mut [u32], mut stage: u32) -> u32 {
    while parent[stage as usize] != stage {
        let grandparent = parent[parent[stage as usize] as usize];
        parent[stage as usize] = grandparent;
        stage = grandparent;
    }
    stage
}
