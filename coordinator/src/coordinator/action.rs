//! What the coordinator tells a driver to do.

use shuffle_protocol::partition::PartitionKind;
use shuffle_protocol::{GroupRef, JobId, NodeAddress, PartitionId, ResultId, ShuffleError};

use crate::completion::Notice;
use crate::graph::Distribution;
use crate::ids::{StageId, TaskId};
use crate::ranges::TaskShare;

/// Something to do. Everything but a notice is one message to one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Start tasks on a node.
    Deploy(Deployment),
    /// Tell the consumers of a node where more partitions are.
    Update {
        /// The node.
        node: NodeAddress,
        /// Which result.
        result: ResultId,
        /// What the node has not heard yet, or has heard otherwise.
        locations: Vec<LocationRun>,
    },
    /// Stop tasks on a node; what they still say is of no interest.
    Cancel {
        /// The node.
        node: NodeAddress,
        /// The tasks.
        tasks: Vec<TaskId>,
    },
    /// Refuse all attempts below those named.
    Fence {
        /// The node of the attempt before.
        node: NodeAddress,
        /// The attempts that are to come.
        partitions: Vec<PartitionId>,
    },
    /// Tear down all partitions, streams and tasks of a group on a node.
    FailGroup {
        /// The node.
        node: NodeAddress,
        /// The group.
        group: GroupRef,
        /// What was first: the same for all nodes.
        cause: ShuffleError,
    },
    /// All partitions of a result on a node have been read and can go.
    Release {
        /// The node.
        node: NodeAddress,
        /// The result.
        result: ResultId,
    },
    /// The job is over: whatever a node has of it can go.
    ReleaseJob {
        /// The node.
        node: NodeAddress,
        /// The job.
        job: JobId,
    },
    /// Something that can be seen of the job.
    Notify(Notice),
}

/// Tasks of one stage to start on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deployment {
    /// The node.
    pub node: NodeAddress,
    /// The stage.
    pub stage: StageId,
    /// How many tasks the stage has on all nodes.
    pub parallelism: u32,
    /// Those to start here.
    pub tasks: Vec<TaskId>,
    /// For each task what it reads of the keyed and rebalanced inputs; empty if the stage has none.
    pub shares: Vec<TaskShare>,
    /// Where it reads, in the order of its edges.
    pub inputs: Vec<DeployedInput>,
    /// What it writes.
    pub outputs: Vec<DeployedOutput>,
    /// The group, for a stage that runs beside others.
    pub group: Option<GroupRef>,
}

/// One input of a stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeployedInput {
    /// The result.
    pub result: ResultId,
    /// How many partitions it has.
    pub partitions: u32,
    /// Local: task k reads partition k. Broadcast: each task reads everything. Otherwise its share of each partition.
    pub distribution: Distribution,
    /// Where partitions are, as far as it is known and the node has not heard it: each location goes to a node once.
    pub locations: Vec<LocationRun>,
}

/// One output of a stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeployedOutput {
    /// The result.
    pub result: ResultId,
    /// Subpartitions of each partition.
    pub subpartitions: u32,
    /// How records are spread over them.
    pub distribution: Distribution,
    /// How long data lives, when it can be read, and what a full pool means.
    pub kind: PartitionKind,
    /// Whether a second attempt writes the same.
    pub determinate: bool,
}

/// Partitions `first .. first + count` of a result, all of one attempt and on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocationRun {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// Which attempt wrote them.
    pub attempt: u32,
    /// Whose server has them.
    pub node: NodeAddress,
}

impl Action {
    /// The node that the message goes to; `None` for a notice.
    pub fn node(&self) -> Option<&NodeAddress> {
        match self {
            Self::Deploy(Deployment { node, .. })
            | Self::Update { node, .. }
            | Self::Cancel { node, .. }
            | Self::Fence { node, .. }
            | Self::FailGroup { node, .. }
            | Self::Release { node, .. }
            | Self::ReleaseJob { node, .. } => Some(node),
            Self::Notify(_) => None,
        }
    }

    /// Bytes of what varies in the message, if numbers have their full width and addresses are spelled out: the size that
    /// grows with the job. A cause counts with its text.
    pub fn payload_bytes(&self) -> usize {
        const NUMBER: usize = size_of::<u32>();
        const IDENTITY: usize = size_of::<u64>();
        let runs =
            |runs: &[LocationRun]| -> usize { runs.iter().map(|run| 3 * NUMBER + run.node.as_str().len()).sum() };
        let group = |group: &GroupRef| -> usize {
            let nodes: usize = group.nodes.iter().map(|node| node.as_str().len()).sum();
            IDENTITY + group.home.as_str().len() + nodes
        };
        match self {
            Self::Deploy(deployment) => {
                let inputs = deployment.inputs.iter();
                let inputs: usize = inputs.map(|input| IDENTITY + 2 * NUMBER + runs(&input.locations)).sum();
                let pieces = deployment.shares.iter().filter(|share| share.piece.is_some()).count();
                2 * NUMBER
                    + deployment.tasks.len() * 2 * NUMBER
                    + deployment.shares.len() * 2 * NUMBER
                    + pieces * 3 * NUMBER
                    + inputs
                    + deployment.outputs.len() * (IDENTITY + 3 * NUMBER)
                    + deployment.group.as_ref().map_or(0, group)
            }
            Self::Update { locations, .. } => IDENTITY + runs(locations),
            Self::Cancel { tasks, .. } => tasks.len() * 3 * NUMBER,
            Self::Fence { partitions, .. } => partitions.len() * (IDENTITY + 2 * NUMBER),
            Self::FailGroup { group: of, cause, .. } => group(of) + cause.to_string().len(),
            Self::Release { .. } | Self::ReleaseJob { .. } => IDENTITY,
            Self::Notify(_) => 0,
        }
    }
}
