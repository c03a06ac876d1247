//! What a driver tells the coordinator.

use shuffle_protocol::notify::PartitionChange;
use shuffle_protocol::{NodeAddress, PartitionId, ShuffleError};
use thiserror::Error;

use crate::ids::{StageId, TaskId};

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A node with slots for this job.
    NodeJoined {
        /// Its server.
        node: NodeAddress,
        /// Tasks of one slot that it can run at once.
        slots: u32,
    },
    /// A node is gone, with what ran and lay on it.
    NodeLost {
        /// Its server.
        node: NodeAddress,
        /// Why.
        cause: ShuffleError,
    },
    /// What the server of one node has to say of its partitions: as much as there is, in one message.
    Partitions {
        /// The node.
        node: NodeAddress,
        /// In the order in which it happened.
        changes: Vec<PartitionChange>,
    },
    /// An executor runs the task.
    TaskStarted {
        /// The task.
        task: TaskId,
    },
    /// An executor has finished the task.
    TaskFinished {
        /// The task.
        task: TaskId,
    },
    /// The task failed of itself.
    TaskFailed {
        /// The task.
        task: TaskId,
        /// Why.
        cause: ShuffleError,
    },
    /// The task failed because a partition could not be read.
    FetchFailed {
        /// The consumer.
        task: TaskId,
        /// What it could not read.
        partition: PartitionId,
        /// Why.
        cause: ShuffleError,
    },
    /// A self-estimating source knows how many tasks it wants.
    SourceEstimated {
        /// The source.
        stage: StageId,
        /// How many; brought within its limits.
        tasks: u32,
    },
    /// The engine gives the job up.
    Aborted {
        /// Why.
        cause: ShuffleError,
    },
}

/// An event that cannot be. Nothing was changed by it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum EventError {
    /// No living node has this address; so a late word from a node that was lost is answered too.
    #[error("node {node} is not, or no longer, one of this job")]
    UnknownNode {
        /// Its address.
        node: NodeAddress,
    },
    /// The node is there already.
    #[error("node {node} has joined before: tell of its loss first")]
    NodeKnown {
        /// Its address.
        node: NodeAddress,
    },
    /// The job has no such stage, or it is no source that estimates itself and has still to begin.
    #[error("stage {stage} is no self-estimating source that waits for its estimate")]
    NotEstimating {
        /// Its number.
        stage: StageId,
    },
    /// No such task was ever started.
    #[error("task {task} was never started")]
    UnknownTask {
        /// Its identity.
        task: TaskId,
    },
    /// No task that was started writes such a partition.
    #[error("partition {partition} is of no task that was started")]
    UnknownPartition {
        /// Its identity.
        partition: PartitionId,
    },
    /// The task does not read that result.
    #[error("task {task} does not read partition {partition}")]
    NotAnInput {
        /// The consumer.
        task: TaskId,
        /// What it is said to read.
        partition: PartitionId,
    },
    /// The sizes are not those of the partition's subpartitions.
    #[error("partition {partition} has {expected} subpartitions, bytes of {got} were reported")]
    WrongSizes {
        /// Its identity.
        partition: PartitionId,
        /// Subpartitions.
        expected: u32,
        /// Numbers reported.
        got: usize,
    },
    /// More bytes than can be added up.
    #[error(
        "partition {partition}: a subpartition of {bytes} bytes is larger than the {MAX_SUBPARTITION_BYTES} allowed"
    )]
    TooManyBytes {
        /// Its identity.
        partition: PartitionId,
        /// Reported.
        bytes: u64,
    },
}

/// Largest subpartition of one partition, in bytes (128 TiB): as many as a gate has channels can be added up in 64 bits.
pub const MAX_SUBPARTITION_BYTES: u64 = 1 << 47;

const _: () =
    assert!(MAX_SUBPARTITION_BYTES as u128 * (shuffle_protocol::limits::MAX_CHANNELS_PER_GATE as u128) < 1 << 64);
