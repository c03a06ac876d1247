//! What a partition is created with.

use std::time::Duration;

use shuffle_protocol::control;
use shuffle_protocol::ids::{PartitionId, RequestId, WriterId};
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
    pub(crate) timeout: Option<Duration>,
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
            timeout: None,
        }
    }

    /// Lifetime, readiness and pressure.
    #[must_use]
    pub fn kind(mut self, kind: PartitionKind) -> Self {
        self.kind = kind;
        self
    }

    /// Buffers of the local buffer pool: how many are guaranteed, and how many it may have at most (`None`: no limit).
    ///
    /// A writer that has fewer buffers than subpartitions works, but hands over buffers before they are full.
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

    /// How long creation may wait for buffers (default, and most: the server's request timeout).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
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
            ..control::CreatePartition::default()
        }
        .with_kind(self.kind)
    }
}
