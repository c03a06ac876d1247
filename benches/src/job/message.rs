//! What the engine and a task say to each other.

use std::path::PathBuf;

use prost::Message as _;
use serde::{Deserialize, Serialize};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{GroupId, GroupRef, NodeAddress, PartitionId, ResultId, ShuffleError, control};

use crate::clock::Moment;
use crate::executor::ExecutorError;
use crate::load::Kind;

/// One execution of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TaskSpec {
    /// The process that started this one.
    pub(crate) parent: u32,
    /// Socket of the node's server.
    pub(crate) socket: PathBuf,
    pub(crate) job: u64,
    pub(crate) index: u32,
    pub(crate) attempt: u32,
    /// Tasks of the stage.
    pub(crate) parallelism: u32,
    pub(crate) work: Work,
    pub(crate) input: Option<Input>,
    pub(crate) output: Option<Output>,
    pub(crate) group: Option<Group>,
}

/// What the tasks of a stage do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Rows of TPC-H lineitem, to the task of their part and supplier.
    Scan { scale: f64 },
    /// Sums by part and supplier, each to the task of its range of revenues.
    Aggregate,
    /// Its sums in the order of their revenues, into a file.
    Sort { file: PathBuf },
    /// Each row as a sum of one, passed on as it comes.
    Convert,
    /// Sums by part and supplier, into a file.
    Total { file: PathBuf },
}

/// Which part of which result a task reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Input {
    pub(crate) result: u64,
    pub(crate) partitions: u32,
    /// Subpartitions of each.
    pub(crate) first: u32,
    pub(crate) count: u32,
    /// Those that are known already.
    pub(crate) locations: Vec<Location>,
}

/// Where some neighbouring partitions are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Location {
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) attempt: u32,
    pub(crate) node: String,
}

/// What a task writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Output {
    pub(crate) result: u64,
    pub(crate) subpartitions: u32,
    pub(crate) kind: Kind,
    pub(crate) determinate: bool,
    /// Records go in turn to whoever has room, and not by key.
    pub(crate) in_turn: bool,
}

/// The pipelined group of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    id: u64,
    home: String,
    nodes: Vec<String>,
}

/// What the engine says to a task that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// More partitions of its input are there.
    Locations(Vec<Location>),
    /// Its work is of no use any more.
    Cancel(ErrorBytes),
}

/// What a task says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// It runs.
    Attached,
    /// Rows so far.
    Progress(u64),
    /// It is done.
    Finished(TaskResult),
    /// It failed. `cancelled`: of that the engine told it, and the service nothing.
    Failed { error: ErrorBytes, cancelled: bool },
}

/// What a task that is done found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskResult {
    pub(crate) rows_in: u64,
    pub(crate) rows_out: u64,
    /// When its first row came.
    pub(crate) first_row: Option<Moment>,
    /// When its last row was read or made.
    pub(crate) last_row: Moment,
}

impl TaskSpec {
    pub(super) fn partition(&self, result: u64) -> PartitionId {
        PartitionId {
            result: ResultId::new(result),
            index: self.index,
            attempt: self.attempt,
        }
    }
}

impl Group {
    /// The group as the library takes it.
    pub(super) fn parse(&self) -> Result<GroupRef, ShuffleError> {
        let nodes = self.nodes.iter().map(|node| NodeAddress::parse(node));
        Ok(GroupRef {
            id: GroupId::new(self.id),
            home: NodeAddress::parse(&self.home)?,
            nodes: nodes.collect::<Result<_, _>>()?,
        })
    }
}

impl From<&GroupRef> for Group {
    fn from(group: &GroupRef) -> Self {
        Self {
            id: group.id.value(),
            home: group.home.to_string(),
            nodes: group.nodes.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Report {
    pub(super) fn failed(error: &ExecutorError) -> Self {
        let error = match error {
            ExecutorError::Shuffle(error) => error.into(),
            ExecutorError::Other(message) => (&ShuffleError::new(ErrorKind::Aborted, message)).into(),
        };
        Self::Failed {
            error,
            cancelled: false,
        }
    }
}

/// An error as it goes over the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ErrorBytes(Vec<u8>);

impl From<&ShuffleError> for ErrorBytes {
    fn from(error: &ShuffleError) -> Self {
        Self(control::Error::from(error).encode_to_vec())
    }
}

impl From<&ErrorBytes> for ShuffleError {
    fn from(bytes: &ErrorBytes) -> Self {
        control::Error::decode(&bytes.0[..]).map_or_else(
            |error| Self::new(ErrorKind::Protocol, format!("an error that cannot be read: {error}")),
            Self::from,
        )
    }
}
