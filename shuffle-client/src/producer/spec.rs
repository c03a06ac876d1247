//! What a partition is created with.

use std::time::Duration;

use shuffle_protocol::control;
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::ids::{NodeAddress, PartitionId, RequestId, WriterId};
use shuffle_protocol::partition::{GroupRef, PartitionKind};

use super::selector::Selector;
use crate::codec::Compression;

/// When a buffer that is only partly filled leaves its writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushInterval {
    /// After each record.
    AfterEachRecord,
    /// This long after its first record, also while the producer does nothing.
    Every(Duration),
    /// Never before it is full, or [`flush`](crate::Writer::flush) or [`finish`](crate::Writer::finish) is called.
    WhenFull,
}

impl Default for FlushInterval {
    /// 100 ms.
    fn default() -> Self {
        Self::Every(Duration::from_millis(100))
    }
}

/// Buffers without which nothing can be sorted: one to stage, one to leave.
const SORTED_LEAST: u32 = 2;

/// From more subpartitions on a writer sorts, unless it is told otherwise.
const SORTED_FROM: u32 = 512;

/// What a result partition is created with. Everything but its identity and its number of subpartitions has a
/// default.
#[derive(Debug)]
pub struct PartitionSpec {
    pub(crate) partition: PartitionId,
    pub(crate) subpartitions: u32,
    pub(crate) kind: PartitionKind,
    pub(crate) min_buffers: u32,
    pub(crate) max_buffers: Option<u32>,
    pub(crate) weight: u32,
    pub(crate) group: Option<GroupRef>,
    pub(crate) flush_interval: FlushInterval,
    pub(crate) selector: Selector,
    pub(crate) determinate: bool,
    pub(crate) max_queued: Option<u32>,
    pub(crate) checksums: bool,
    pub(crate) compression: Compression,
    pub(crate) time_to_live: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
    /// `None`: as its numbers say.
    pub(crate) sorted: Option<bool>,
    pub(crate) is_broadcast: bool,
    pub(crate) consumers: Vec<(Option<NodeAddress>, u32)>,
}

impl PartitionSpec {
    /// A partition with this many subpartitions: ephemeral, pipelined, bounded; hash of key; one buffer guaranteed for each
    /// subpartition, up to 8, and no upper limit.
    pub fn new(partition: PartitionId, subpartitions: u32) -> Self {
        Self {
            partition,
            subpartitions,
            kind: PartitionKind::default(),
            min_buffers: subpartitions.clamp(1, 8),
            max_buffers: None,
            weight: 1,
            group: None,
            flush_interval: FlushInterval::default(),
            selector: Selector::default(),
            determinate: true,
            max_queued: None,
            checksums: true,
            compression: Compression::None,
            time_to_live: None,
            timeout: None,
            sorted: None,
            is_broadcast: false,
            consumers: Vec::new(),
        }
    }

    /// A broadcast partition: one queue that every consumer reads whole, kept once here and once on each node that consumes it.
    ///
    /// An ephemeral one must know its [`consumers`](Self::consumers): a buffer is gone once all of them have read it.
    pub fn broadcast(partition: PartitionId) -> Self {
        Self {
            is_broadcast: true,
            ..Self::new(partition, 1)
        }
    }

    /// Declares how many consumers of a broadcast partition there are on a node (`None`: the node of the session's own server).
    /// Each opens its channel with [`GateSpec::broadcast`](crate::GateSpec::broadcast) and the same number.
    #[must_use]
    pub fn consumers(mut self, node: Option<NodeAddress>, count: u32) -> Self {
        self.consumers.push((node, count));
        self
    }

    /// Lifetime, readiness and pressure.
    #[must_use]
    pub fn kind(mut self, kind: PartitionKind) -> Self {
        self.kind = kind;
        self
    }

    /// Buffers of the local buffer pool: how many are guaranteed, and how many it may have at most (`None`: no limit).
    ///
    /// A writer that has fewer buffers than subpartitions works: it hands over buffers before they are full, or, with far
    /// fewer, sorts ([`PartitionSpec::sorted`]).
    #[must_use]
    pub fn buffers(mut self, minimum: u32, maximum: impl Into<Option<u32>>) -> Self {
        self.min_buffers = minimum;
        self.max_buffers = maximum.into();
        self
    }

    /// Share in what is left of the pool beyond all minimums, relative to other writers and gates (default 1).
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// The pipelined group the partition belongs to: it fails when any member of the group fails.
    #[must_use]
    pub fn group(mut self, group: GroupRef) -> Self {
        self.group = Some(group);
        self
    }

    /// When partly filled buffers leave (default: after 100 ms).
    #[must_use]
    pub fn flush_interval(mut self, interval: FlushInterval) -> Self {
        self.flush_interval = interval;
        self
    }

    /// How [`Writer::write`](crate::Writer::write) chooses the subpartition (default: hash of key).
    #[must_use]
    pub fn selector(mut self, selector: Selector) -> Self {
        self.selector = selector;
        self
    }

    /// Whether another attempt would write the same records to the same subpartitions in the same order (default:
    /// yes, unless the selector is round-robin, which never does).
    #[must_use]
    pub fn determinate(mut self, determinate: bool) -> Self {
        self.determinate = determinate;
        self
    }

    /// Buffers that may wait in one subpartition before it is blocked (at least 1; default: what the server's configuration
    /// says, which is 10 unless changed).
    #[must_use]
    pub fn max_queued(mut self, buffers: u32) -> Self {
        self.max_queued = Some(buffers.max(1));
        self
    }

    /// Whether each buffer has a checksum, made by the writer and checked by its readers (default: yes). Without, a buffer that
    /// was changed on its way is found by nobody; counts are checked all the same.
    #[must_use]
    pub fn checksums(mut self, checksums: bool) -> Self {
        self.checksums = checksums;
        self
    }

    /// Whether and how buffers are packed, each by itself (default: not). Its readers unpack it to the heap; what does not get
    /// smaller travels as it is. Worth it where the network or a disk is slower than the processor.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// How long it is kept, once finished, while nobody reads it (default: what the server's configuration says; at least 1 ms).
    #[must_use]
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.time_to_live = Some(time);
        self
    }

    /// How long creation may wait for buffers (default, and most: the server's request timeout).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Whether records go through a sort buffer: they are ordered by subpartition inside shared buffers, which leave in slices,
    /// so that a few dozen buffers serve 100 000 subpartitions. A reader that stops then stops this writer for all its
    /// subpartitions, and each record is copied once more.
    ///
    /// Default: where there are more than 512 subpartitions, or more than 64 and more than four for each buffer it may have at
    /// most. It takes two buffers, and a server on this node that knows of it: asked for in vain it is an error, otherwise done
    /// without.
    #[must_use]
    pub fn sorted(mut self, sorted: bool) -> Self {
        self.sorted = Some(sorted);
        self
    }

    /// Settles whether it sorts; `able`: the server knows of slices.
    ///
    /// # Errors
    /// `Unsupported`: asked for, and the server cannot. `InvalidRequest`: with one buffer it cannot be.
    pub(crate) fn settle_sorted(&mut self, able: bool) -> Result<()> {
        let enough = self.max_buffers.is_none_or(|most| most >= SORTED_LEAST);
        let refuse = |kind, message: &str| Err(ShuffleError::new(kind, message));
        let sorted = match self.sorted {
            Some(true) if !able => {
                return refuse(
                    ErrorKind::Unsupported,
                    "a sorted writer hands over slices of shared memory: its server is of an older version, or on another node",
                );
            }
            Some(true) if !enough => {
                return refuse(
                    ErrorKind::InvalidRequest,
                    "a sorted writer needs two buffers: one to stage, one to leave",
                );
            }
            Some(sorted) => sorted,
            None => able && enough && self.is_wide(),
        };
        if sorted {
            self.min_buffers = self.min_buffers.max(SORTED_LEAST);
        }
        self.sorted = Some(sorted);
        Ok(())
    }

    /// Whether it has far fewer buffers than subpartitions.
    fn is_wide(&self) -> bool {
        let most = self.max_buffers.map_or(SORTED_FROM, |most| most.saturating_mul(4));
        self.subpartitions > most.clamp(64, SORTED_FROM)
    }

    pub(crate) fn to_message(&self, request: RequestId, writer: WriterId) -> control::CreatePartition {
        let determinate = self.determinate && !matches!(self.selector, Selector::RoundRobin);
        control::CreatePartition {
            request: request.value(),
            writer: writer.value(),
            partition: Some(self.partition.into()),
            subpartitions: self.subpartitions,
            min_buffers: self.min_buffers,
            max_buffers: self.max_buffers.unwrap_or(0),
            weight: self.weight,
            max_queued_per_subpartition: self.max_queued.unwrap_or(0),
            determinate,
            group: self.group.as_ref().map(Into::into),
            timeout_ms: crate::attach::millis(self.timeout),
            time_to_live_ms: crate::attach::millis(self.time_to_live),
            broadcast: self.is_broadcast,
            consumers: self.consumers.iter().map(consumers_message).collect(),
            ..control::CreatePartition::default()
        }
        .with_kind(self.kind)
    }
}

fn consumers_message((node, count): &(Option<NodeAddress>, u32)) -> control::Consumers {
    control::Consumers {
        node: node.as_ref().map(ToString::to_string).unwrap_or_default(),
        count: *count,
    }
}
