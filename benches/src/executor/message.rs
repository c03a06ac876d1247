//! What a run's parent and its executors say to each other.

use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use shuffle_protocol::{GroupId, GroupRef, NodeAddress, ShuffleError};

use crate::clock::Moment;
use crate::rows::RowDigest;
use crate::text::{ByteRange, KeyColumn};

/// The whole task of an executor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ExecutorSpec {
    /// The process that started this one.
    pub(crate) parent: u32,
    /// Socket of the node's server.
    pub(crate) socket: PathBuf,
    pub(crate) job: u64,
    pub(crate) task: Task,
}

/// What an executor is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Task {
    Produce(ProduceSpec),
    Consume(ConsumeSpec),
}

/// Membership of everything in one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupSpec {
    pub(crate) home: String,
    pub(crate) nodes: Vec<String>,
}

impl GroupSpec {
    /// The group as the library takes it.
    pub(super) fn parse(&self) -> Result<GroupRef, ShuffleError> {
        let nodes = self.nodes.iter().map(|node| NodeAddress::parse(node));
        Ok(GroupRef {
            id: GroupId::new(GROUP),
            home: NodeAddress::parse(&self.home)?,
            nodes: nodes.collect::<Result<_, _>>()?,
        })
    }
}

/// One result partition to write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProduceSpec {
    pub(crate) partition: u32,
    pub(crate) subpartitions: u32,
    pub(crate) min_buffers: u32,
    pub(crate) group: GroupSpec,
    pub(crate) source: Source,
}

/// Where rows come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Source {
    /// Rows of TPC-H lineitem.
    Lineitem { scale: f64, part: u16, parts: u16 },
    /// Lines of a file that begin in a range.
    File {
        path: PathBuf,
        range: ByteRange,
        key: KeyColumn,
    },
    /// Blocks of lines that the parent sends.
    Blocks { name: String, key: KeyColumn },
}

/// One gate to read to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConsumeSpec {
    /// Producing node of each partition, by index.
    pub(crate) producers: Vec<String>,
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) exclusive: u32,
    pub(crate) floating: u32,
    pub(crate) group: GroupSpec,
    pub(crate) sink: Sink,
}

/// Where rows go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sink {
    /// Nowhere, once they are accounted for.
    Digest,
    /// One file for each subpartition, in order.
    Files(Vec<PathBuf>),
}

/// What an executor reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Event {
    /// It is attached to its server and waits for the start.
    Attached,
    /// Rows and their bytes so far.
    Progress { rows: u64, bytes: u64 },
    /// A producer's end.
    Produced(ProducerResult),
    /// A consumer's end.
    Consumed(ConsumerResult),
    /// The end of either, failed. Without a first cause it was the input or the output that failed.
    Failed {
        message: String,
        first_cause: Option<String>,
    },
}

/// What a producer made, accounted for before it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProducerResult {
    /// By subpartition.
    pub(crate) digests: Vec<RowDigest>,
    /// When finish was done.
    pub(crate) finished: Moment,
}

/// What a consumer read, accounted for after it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConsumerResult {
    /// By subpartition, from the first of its range on.
    pub(crate) digests: Vec<RowDigest>,
    pub(crate) first_row: Option<Moment>,
    pub(crate) finished: Moment,
    /// Rows from producers on the same node.
    pub(crate) local_rows: u64,
    /// Bytes of rows from producers on the same node and on others.
    pub(crate) local_bytes: u64,
    pub(crate) remote_bytes: u64,
    /// Payload that the library saw in the node's write arena and in its read arena.
    pub(crate) write_arena_bytes: u64,
    pub(crate) read_arena_bytes: u64,
}

/// Reports an event to the parent. If the parent is gone there is nobody to tell.
pub(crate) fn emit(event: &impl Serialize) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let mut output = std::io::stdout().lock();
        let _ = output.write_all(&line).and_then(|()| output.flush());
    }
}

/// Everything in a run fails as one.
const GROUP: u64 = 1;
