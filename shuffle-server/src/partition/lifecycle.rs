//! The life of one result partition.
//!
//! ```text
//!   created ─▶ producing ─▶ [sealing] ─▶ finished ─▶ released      ephemeral: every range read to its end, or nobody
//!                  │            │           │                       left who would; persistent: released or expired
//!                  └────────────┴───────────┴─────▶ failed          with the first cause; its buffers go home at once
//! ```
//!
//! A persistent partition is sealed, that is, on disk with its index, before its producer hears that it is finished.

use std::collections::BTreeMap;
use std::time::Duration;

use buffer_pool::PoolId;
use shuffle_protocol::partition::{Lifetime, PartitionKind, Pressure, Readiness};
use shuffle_protocol::{GroupRef, JobId, NodeAddress, PartitionId, SubpartitionRange, WriterId};

use super::queues::Queues;
use super::readers::ReaderRange;
use super::spool::Written;
use super::{Audience, Buffered, Kept, Place, Queue, Relay, Spool};
use crate::node::SessionId;
use crate::spill::{Index, StoreNo};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartitionState {
    Producing,
    /// Persistent: everything was handed over and is on its way to disk.
    Sealing,
    /// Its data is on disk, its index on its way there.
    Indexing,
    Finished,
}

/// With more subpartitions, a queue that becomes empty gives its memory back.
const KEEPING_ROOM: u32 = 64;

/// Of a spilling broadcast, by node that reads it; a relay has no more buffers.
const MAX_UNACKED_IN_MEMORY: u64 = 32;

/// One attempt's output on this node.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) job: JobId,
    pub(crate) id: PartitionId,
    pub(crate) session: SessionId,
    pub(crate) writer: WriterId,
    pub(crate) group: Option<GroupRef>,
    pub(crate) state: PartitionState,
    pub(crate) kind: PartitionKind,
    pub(crate) max_queued: u32,
    /// The writer's local buffer pool; given back when it finishes.
    pub(crate) pool: Option<PoolId>,
    /// Buffers the writer has asked for, and was granted, since its creation.
    pub(crate) demand: u64,
    pub(crate) granted: u64,
    /// Its data file, where its kind may have one.
    pub(crate) spool: Option<Spool>,
    /// Persistent: its readers.
    pub(crate) kept: Option<Kept>,
    /// One queue that every consumer reads whole.
    pub(crate) is_broadcast: bool,
    /// Broadcast and ephemeral: its readers.
    pub(crate) audience: Option<Box<Audience>>,
    /// Spilling and broadcast: a node that has not acknowledged so many gets only what is on disk, so that no slow one keeps
    /// the writer's buffers.
    pub(crate) max_unacked_in_memory: u64,
    /// It holds what another node sends.
    pub(crate) relay: Option<Box<Relay>>,
    /// How long it is kept while nobody reads it.
    pub(crate) time_to_live: Duration,
    /// Whose request is to be answered when it is sealed.
    pub(crate) finishing: Option<(SessionId, u64)>,
    /// It has failed, and ends with the verdict on its group.
    pub(crate) is_failing: bool,
    /// A buffer was handed over.
    begun: bool,
    pub(super) queues: Queues,
    pub(super) ranges: BTreeMap<u32, ReaderRange>,
    /// Subpartitions whose range has been read to its end or given up.
    pub(super) done: u32,
}

/// What the creator of a partition says of it.
#[derive(Debug)]
pub(crate) struct PartitionOrigin {
    pub(crate) job: JobId,
    pub(crate) id: PartitionId,
    pub(crate) session: SessionId,
    pub(crate) writer: WriterId,
    pub(crate) group: Option<GroupRef>,
    pub(crate) subpartitions: u32,
    pub(crate) kind: PartitionKind,
    pub(crate) max_queued: u32,
    pub(crate) time_to_live: Duration,
    /// The data file that it may have.
    pub(crate) store: Option<StoreNo>,
    /// `None` where there is no subpartition that could take a buffer.
    pub(crate) pool: Option<PoolId>,
    /// Its consumers by node, where it is broadcast.
    pub(crate) broadcast: Option<Vec<(NodeAddress, u32)>>,
}

impl Partition {
    pub(crate) fn new(origin: PartitionOrigin) -> Self {
        Self {
            job: origin.job,
            id: origin.id,
            session: origin.session,
            writer: origin.writer,
            group: origin.group,
            state: PartitionState::Producing,
            kind: origin.kind,
            max_queued: origin.max_queued,
            pool: origin.pool,
            demand: 0,
            granted: 0,
            spool: origin.store.map(Spool::new),
            kept: (origin.kind.lifetime == Lifetime::Persistent).then(Kept::default),
            is_broadcast: origin.broadcast.is_some(),
            audience: origin
                .broadcast
                .filter(|_| origin.kind.lifetime == Lifetime::Ephemeral)
                .map(|declared| Box::new(Audience::new(declared))),
            max_unacked_in_memory: u64::MAX,
            relay: None,
            time_to_live: origin.time_to_live,
            finishing: None,
            is_failing: false,
            begun: false,
            queues: Queues::new(origin.subpartitions),
            ranges: BTreeMap::new(),
            done: 0,
        }
    }

    pub(crate) fn subpartitions(&self) -> u32 {
        self.queues.count()
    }

    /// The queue of a subpartition that is there; made at the first buffer.
    pub(crate) fn queue_mut(&mut self, subpartition: u32) -> Option<&mut Queue> {
        self.queues.get_or_make(subpartition)
    }

    pub(crate) fn queue(&self, subpartition: u32) -> Option<&Queue> {
        self.queues.get(subpartition)
    }

    /// Those that have had a buffer.
    pub(crate) fn queues(&self) -> impl Iterator<Item = (u32, &Queue)> {
        self.queues.used()
    }

    /// Bytes that the books of its subpartitions take, without what waits in them.
    pub(crate) fn book_bytes(&self) -> u64 {
        self.queues.book_bytes()
    }

    /// Of a spilling broadcast: its writer may have so many buffers (0: however many there are).
    pub(crate) fn limit_unacked(&mut self, writer_buffers: u32) {
        let Some(audience) = &self.audience else { return };
        if self.kind.pressure == Pressure::Spilling {
            let share = u64::from(writer_buffers) / (4 * audience.nodes().max(1));
            self.max_unacked_in_memory = match writer_buffers {
                0 => MAX_UNACKED_IN_MEMORY,
                _ => share.clamp(1, MAX_UNACKED_IN_MEMORY),
            };
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Bytes of each subpartition, as they travel.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        let bytes = |index| self.queue(index).map_or(0, |queue| queue.totals().bytes);
        (0..self.subpartitions()).map(bytes).collect()
    }

    /// Whether it is on disk, complete, for a later start of the server.
    pub(crate) fn outlives_server(&self) -> bool {
        self.kept.is_some() && self.state == PartitionState::Finished
    }

    /// Whether readers get data now: a blocking partition is read once it is finished.
    pub(crate) fn is_readable(&self) -> bool {
        self.kind.readiness == Readiness::Pipelined || self.state == PartitionState::Finished
    }

    /// How many buffers a subpartition may take, ever. What may spill is never blocked.
    pub(crate) fn limit_of(&self, subpartition: u32) -> u64 {
        let Some(queue) = self.queue(subpartition) else {
            return u64::from(self.max_queued);
        };
        match self.kind.pressure {
            Pressure::Bounded => queue.limit(self.max_queued),
            Pressure::Spilling => queue.handed_over() + u64::from(self.max_queued),
        }
    }

    /// Takes a buffer from the writer; the caller has checked the limit.
    pub(crate) fn push(&mut self, subpartition: u32, buffer: Buffered) {
        self.begun = true;
        if let Some(spool) = &mut self.spool {
            spool.handle_pushed(subpartition, buffer.length);
        }
        let keeps_room = self.keeps_room();
        if let Some(queue) = self.queue_mut(subpartition) {
            queue.push(buffer, keeps_room);
        }
    }

    fn keeps_room(&self) -> bool {
        self.queues.count() <= KEEPING_ROOM
    }

    /// The next buffer of a subpartition, for its reader or for nobody; it counts against the limit until it is gone.
    pub(crate) fn pop(&mut self, subpartition: u32) -> Option<Buffered> {
        let keeps_room = self.keeps_room();
        let buffer = self.queue_mut(subpartition)?.pop(keeps_room)?;
        if let (Place::Memory(_), Some(spool)) = (buffer.place, &mut self.spool) {
            spool.handle_left_memory(buffer.length);
        }
        Some(buffer)
    }

    /// A buffer of a batch is on disk. Gives the slot that it leaves, unless its reader has it.
    pub(crate) fn handle_written(&mut self, one: &Written) -> Option<u32> {
        let slot = self.queue_mut(one.subpartition)?.handle_written(one.ordinal, one.at)?;
        if let Some(spool) = &mut self.spool {
            spool.handle_left_memory(one.length);
        }
        Some(slot)
    }

    /// A finished partition of an earlier start of the server.
    pub(crate) fn recovered(index: Index, store: StoreNo, time_to_live: Duration) -> Self {
        let mut partition = Self::new(PartitionOrigin {
            job: index.job,
            id: index.partition,
            session: SessionId::default(),
            writer: WriterId::new(0),
            group: None,
            subpartitions: index.subpartitions,
            kind: index.kind,
            max_queued: 0,
            time_to_live,
            store: Some(store),
            pool: None,
            broadcast: index.is_broadcast.then(Vec::new),
        });
        partition.state = PartitionState::Finished;
        if let Some(spool) = &mut partition.spool {
            spool.end = index.data_bytes;
            spool.held = index.data_bytes;
        }
        for group in index.groups {
            if let Some(queue) = partition.queue_mut(group.subpartition) {
                *queue = Queue::recovered(group.entries.iter().map(Buffered::recovered));
            }
        }
        partition
    }

    /// Subpartitions of a range in which something waits.
    pub(crate) fn waiting_in(&self, range: SubpartitionRange) -> Vec<u32> {
        let end = range.first.saturating_add(range.count).min(self.subpartitions());
        (range.first..end)
            .filter(|&index| self.queue(index).is_some_and(|queue| !queue.is_waiting_empty()))
            .collect()
    }

    pub(crate) fn check_invariants(&self) {
        let limit = (self.kind.pressure == Pressure::Bounded).then_some(self.max_queued);
        for (_, queue) in self.queues() {
            queue.check_invariants(limit);
        }
        if let Some(audience) = &self.audience {
            audience.check_invariants();
        }
        if let Some(spool) = &self.spool {
            let in_memory = self
                .queues()
                .flat_map(|(_, queue)| queue.waiting())
                .filter(|buffer| matches!(buffer.place, Place::Memory(_)));
            let (count, bytes) = in_memory.fold((0, 0), |(count, bytes), buffer| {
                (count + 1, bytes + u64::from(buffer.length))
            });
            assert_eq!((spool.in_memory, spool.in_memory_bytes), (count, bytes));
        }
        let done: u32 = self
            .ranges
            .values()
            .filter(|r| r.reader.is_none())
            .map(|r| r.count)
            .sum();
        assert_eq!(done, self.done);
        assert!(self.granted <= self.demand, "more buffers granted than asked for");
    }
}
