//! What the parent of a measurement and its workers say to each other.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use shuffle_protocol::partition::{Lifetime, PartitionKind, Pressure, Readiness};

use super::latency::LatencyLoad;
use super::many::ManyLoad;
use super::pattern::Totals;
use crate::clock::Moment;
use crate::executor::ExecutorError;
use crate::peers::{CarrierLoad, PairLoad, RelayLoad};

pub(crate) use crate::executor::emit;

/// The whole task of a worker process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkerSpec {
    /// The process that started this one.
    pub(crate) parent: u32,
    pub(crate) task: Task,
}

/// What a worker does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Fill buffers or records of a partition and write them through a server.
    Produce(ProduceLoad),
    /// Read a gate through a server.
    Consume(ConsumeLoad),
    /// Be one end of a pair without a server.
    Pair(PairLoad),
    /// Stand between two ends of a pair.
    Carry(CarrierLoad),
    /// Be one end of a latency measurement through servers.
    Latency(LatencyLoad),
    /// Be part of a chain without a server.
    Relay(RelayLoad),
    /// Write, or read, partitions of very many subpartitions.
    Many(ManyLoad),
    /// Write or read a file without a server.
    File(FileLoad),
}

/// Where a worker attaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Desk {
    pub(crate) socket: PathBuf,
    pub(crate) job: u64,
}

/// When partly filled buffers leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Flush {
    WhenFull,
    AfterEachRecord,
    Every { milliseconds: u64 },
}

/// One partition to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProduceLoad {
    pub(crate) desk: Desk,
    pub(crate) partition: u32,
    pub(crate) subpartitions: u32,
    /// Subpartitions that are written to by turns, before the next ones are.
    pub(crate) active: u32,
    /// Pieces for each of them until then.
    pub(crate) burst: u64,
    pub(crate) buffers: u32,
    /// Bytes of a record; 0 for the layer of buffers.
    pub(crate) record_bytes: u32,
    /// Buffers or records to write.
    pub(crate) pieces: u64,
    pub(crate) flush: Flush,
    pub(crate) checksums: bool,
    /// Buffers between two turns of the runtime.
    pub(crate) turn: u32,
    pub(crate) kind: Kind,
    /// It is broadcast, to these.
    pub(crate) audience: Option<Audience>,
}

/// Who reads a broadcast partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Audience {
    /// How many, by node.
    pub(crate) consumers: Vec<(String, u32)>,
}

/// The three choices of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kind {
    pub(crate) persistent: bool,
    pub(crate) blocking: bool,
    pub(crate) spilling: bool,
}

impl From<PartitionKind> for Kind {
    fn from(kind: PartitionKind) -> Self {
        Self {
            persistent: kind.lifetime == Lifetime::Persistent,
            blocking: kind.readiness == Readiness::Blocking,
            spilling: kind.pressure == Pressure::Spilling,
        }
    }
}

impl From<Kind> for PartitionKind {
    fn from(kind: Kind) -> Self {
        Self {
            lifetime: if kind.persistent {
                Lifetime::Persistent
            } else {
                Lifetime::Ephemeral
            },
            readiness: if kind.blocking {
                Readiness::Blocking
            } else {
                Readiness::Pipelined
            },
            pressure: if kind.spilling {
                Pressure::Spilling
            } else {
                Pressure::Bounded
            },
        }
    }
}

/// A file that a plain program writes, or reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileLoad {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Bytes of a piece that has a checksum.
    pub(crate) piece: u32,
    /// Otherwise it is written, and synced.
    pub(crate) reads: bool,
}

/// Gates to read to their ends, all the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConsumeLoad {
    pub(crate) desk: Desk,
    /// So many consumers, each with a gate and a task of its own.
    pub(crate) gates: u32,
    pub(crate) channels: Vec<Channel>,
    pub(crate) exclusive: u32,
    pub(crate) floating: u32,
    pub(crate) records: bool,
    /// Bytes are counted and not read.
    pub(crate) counts_only: bool,
    pub(crate) turn: u32,
}

/// Channels of a gate: `count` subpartitions from `first` on, in channels of `width` subpartitions each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Channel {
    pub(crate) node: String,
    pub(crate) partition: u32,
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) width: u32,
    /// The partition is broadcast, to so many consumers on this node.
    pub(crate) told_of: Option<u32>,
}

/// What a worker reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Event {
    /// It waits for others at this address; they are to be told.
    Listening(String),
    /// It waits for the start.
    Ready,
    /// Bytes read so far.
    Progress(u64),
    /// The end of its task.
    Done(Done),
    /// The end of its task, failed.
    Failed {
        message: String,
        first_cause: Option<String>,
    },
}

/// What a worker did between the start and the end of its task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) totals: Totals,
    pub(crate) finished: Moment,
    /// Of this process, all its threads.
    pub(crate) cpu_seconds: f64,
    /// Payload that came from the worker's own node and from others, where servers were in between.
    pub(crate) local_bytes: u64,
    pub(crate) remote_bytes: u64,
    /// Nanoseconds and how many records took so long, where that was measured.
    pub(crate) latencies: Vec<(u64, u64)>,
}

impl Event {
    /// The failure as it is reported.
    pub(crate) fn failed(error: &ExecutorError) -> Self {
        let (message, first_cause) = error.message_and_cause();
        Self::Failed { message, first_cause }
    }
}
