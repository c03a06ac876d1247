//! Partitions of our executors: creation, grants, hand-overs, and the three ways to end.

use std::time::Instant;

use buffer_pool::{ArenaKind, Backing, BufferState, JobKey, LocalPoolSpec, SlotRef};
use shuffle_protocol::control::{self, required};
use shuffle_protocol::frame::{Arena, NumberEntry, SlotEntry};
use shuffle_protocol::limits::MAX_SUBPARTITIONS;
use shuffle_protocol::{
    GroupRef, JobId, PartitionId, ShuffleError, StreamId, SubpartitionIndex, WriterId, error::ErrorKind,
};

use super::requests::{Claim, beyond_protocol, limit_exceeded};
use super::session::protocol;
use crate::node::{Holder, Node, Output, PoolOwner, SessionId, Timer, pool_error};
use crate::partition::{Buffered, MemberRef, Partition, PartitionNo, PartitionOrigin, PartitionState};

impl<B: Backing> Node<B> {
    /// Registers a partition and reserves its minimum of buffers.
    pub(crate) fn create_partition(
        &mut self,
        now: Instant,
        id: SessionId,
        request: &control::CreatePartition,
    ) -> Result<(), ShuffleError> {
        let Claim { job, group, .. } = self.check_partition(id, request)?;
        let writer = WriterId::new(request.writer);
        let name = self.open_session(id)?.info.name.clone();
        let partition = PartitionId::from(required(request.partition, "partition")?);
        let located = |error: ShuffleError| error.job(job).partition(partition);
        let pool = if request.subpartitions == 0 {
            None
        } else {
            let spec = LocalPoolSpec {
                minimum: request.min_buffers.max(1),
                maximum: (request.max_buffers > 0).then_some(request.max_buffers),
                weight: request.weight.max(1),
                label: format!("writer of {partition} ({name})"),
            };
            let made = self.pool.create_local_pool(JobKey(job.value()), ArenaKind::Write, spec);
            Some(made.map_err(|error| located(pool_error(&error)))?)
        };
        self.fence(now, job, partition);
        let max_queued = match request.max_queued_per_subpartition {
            0 => self.config.max_queued_per_subpartition,
            asked => asked,
        };
        let no = self.partitions.insert(Partition::new(PartitionOrigin {
            job,
            id: partition,
            session: id,
            writer,
            group: group.clone(),
            subpartitions: request.subpartitions,
            max_queued,
            pool,
        }));
        if let Some(pool) = pool {
            self.pool_owners.insert(pool, PoolOwner::Writer(no));
        }
        if let Some(session) = self.sessions.get_mut(id) {
            session.writers.insert(writer, no);
        }
        if let Some(of) = self.jobs.get_mut(&job) {
            of.partitions += 1;
        }
        if let Some(group) = &group {
            self.join_group(now, job, group, MemberRef::Partition(no));
        }
        self.counters.partitions_created += 1;
        tracing::debug!(%job, %partition, subpartitions = request.subpartitions, "partition created");
        let waiting = self.registry.register(job, partition, no);
        self.timers.cancel(Timer::Waiting(job, partition.key()));
        self.look_again(now, waiting);
        Ok(())
    }

    /// Whether nothing but buffers is in the way of a new partition. One without subpartitions needs none.
    pub(super) fn check_partition(
        &self,
        id: SessionId,
        request: &control::CreatePartition,
    ) -> Result<Claim, ShuffleError> {
        let session = self.open_session(id)?;
        let job = session.info.job;
        let writer = WriterId::new(request.writer);
        if session.writers.contains_key(&writer) {
            return Err(ShuffleError::new(
                ErrorKind::InvalidRequest,
                format!("writer {writer} is open already"),
            ));
        }
        let partition = PartitionId::from(required(request.partition, "partition")?);
        let located = |error: ShuffleError| error.job(job).partition(partition);
        self.check_creation(job, request).map_err(located)?;
        let group = request.group.clone().map(GroupRef::try_from).transpose();
        let group = group.map_err(located)?;
        if let Some(group) = &group
            && let Some(verdict) = self.groups.verdict(job, group.id)
        {
            return Err(located(verdict.clone()));
        }
        self.registry.admit(job, partition)?;
        let need = match request.subpartitions {
            0 => 0,
            _ => u64::from(request.min_buffers.max(1)),
        };
        Ok(Claim { job, group, need })
    }

    fn check_creation(&self, job: JobId, request: &control::CreatePartition) -> Result<(), ShuffleError> {
        if self.draining {
            return Err(ShuffleError::new(
                ErrorKind::Draining,
                "this server is being stopped and takes no new partitions",
            ));
        }
        request.kind()?.validate()?;
        if request.subpartitions > MAX_SUBPARTITIONS {
            let (limit, asked) = (MAX_SUBPARTITIONS.into(), request.subpartitions.into());
            return Err(beyond_protocol("subpartitions of one partition", limit, asked));
        }
        if request.max_buffers > 0 && request.max_buffers < request.min_buffers {
            return Err(ShuffleError::new(
                ErrorKind::InvalidRequest,
                format!(
                    "at most {} buffers but at least {} were asked for",
                    request.max_buffers, request.min_buffers
                ),
            ));
        }
        let limit = self.config.quotas.partitions_per_job;
        let there = self.jobs.get(&job).map_or(0, |of| of.partitions);
        if there >= limit {
            let what = "partitions of one job on this node";
            return Err(limit_exceeded(what, limit, there + 1, "limits.partitions_per_job"));
        }
        Ok(())
    }

    /// The writer wants so many buffers in total since its creation.
    pub(crate) fn handle_demand(&mut self, id: SessionId, writer: WriterId, total: u64) {
        let Some(no) = self
            .sessions
            .get(id)
            .and_then(|session| session.writers.get(&writer))
            .copied()
        else {
            return;
        };
        if let Some(partition) = self.partitions.get_mut(no) {
            partition.demand = partition.demand.max(total);
        }
        self.grant(no);
    }

    /// Gives a writer what it wants, as far as its local pool goes.
    pub(crate) fn grant(&mut self, no: PartitionNo) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let Some(pool) = partition.pool else { return };
        let (session, writer) = (partition.session, partition.writer);
        let wanted = partition.demand.saturating_sub(partition.granted);
        for _ in 0..wanted {
            let Some(slot) = self.pool.take(pool) else { break };
            self.set_holder(slot, Holder::Writer(no));
            if let Some(partition) = self.partitions.get_mut(no) {
                partition.granted += 1;
            }
            if let Some(session) = self.sessions.get_mut(session) {
                session
                    .sink
                    .out
                    .push_back(Output::Grant(shuffle_protocol::frame::GrantEntry {
                        writer,
                        slot: slot.slot,
                    }));
            }
        }
        self.wake_session(session);
    }

    /// A filled buffer of a writer: into its queue, or straight home where nobody will read it.
    pub(crate) fn hand_over(&mut self, id: SessionId, job: JobId, entry: &SlotEntry) -> Result<(), ShuffleError> {
        if entry.arena != Arena::Write {
            return Err(protocol("writers hand over buffers of the write arena"));
        }
        let slot = SlotRef {
            job: JobKey(job.value()),
            arena: ArenaKind::Write,
            slot: entry.slot,
        };
        let no = match self.holder(job, ArenaKind::Write, entry.slot) {
            // The writer failed or was fenced while this was on its way: what it gives back is home again.
            Holder::Quarantine(session) if session == id => {
                self.send_home(slot, BufferState::Quarantined);
                return Ok(());
            }
            Holder::Writer(no) => no,
            _ => return Err(protocol(format!("slot {} is not granted to this session", entry.slot))),
        };
        let buffer_bytes = self.config.buffer_bytes;
        let Some(partition) = self.partitions.get_mut(no).filter(|partition| partition.session == id) else {
            return Err(protocol(format!("slot {} is granted to another session", entry.slot)));
        };
        if StreamId::from(partition.writer) != entry.stream {
            return Err(protocol(format!(
                "slot {} is granted to writer {}",
                entry.slot, partition.writer
            )));
        }
        if entry.length > buffer_bytes || entry.offset > buffer_bytes - entry.length {
            return Err(protocol(format!(
                "bytes {} + {} do not lie in a buffer of {buffer_bytes}",
                entry.offset, entry.length
            )));
        }
        let max_queued = partition.max_queued;
        let index = entry.subpartition.value();
        let discarding = partition.is_discarding(index);
        let subpartitions = partition.subpartitions();
        let Some(queue) = partition.queue_mut(index) else {
            return Err(protocol(format!(
                "subpartition {index} of {subpartitions} does not exist"
            )));
        };
        let ordinal = queue.handed_over();
        if entry.sequence.value() != ordinal {
            return Err(protocol(format!(
                "buffer {} came where {ordinal} was due",
                entry.sequence
            )));
        }
        if ordinal >= queue.limit(max_queued) {
            return Err(protocol(format!(
                "subpartition {index} is blocked at {} buffers",
                queue.limit(max_queued)
            )));
        }
        queue.push(Buffered::from_entry(entry));
        self.counters.buffers_produced += 1;
        self.counters.bytes_produced += u64::from(entry.length);
        self.pool.transition(slot, BufferState::Granted, BufferState::Queued);
        self.set_holder(slot, Holder::Queue(no));
        if discarding {
            self.discard_waiting(no, index);
        } else {
            self.list_subpartition(no, index);
        }
        Ok(())
    }

    /// Tells the reader of a subpartition, if there is one, that something waits.
    pub(crate) fn list_subpartition(&mut self, no: PartitionNo, index: u32) {
        let Some(queue) = self
            .partitions
            .get_mut(no)
            .and_then(|partition| partition.queue_mut(index))
        else {
            return;
        };
        if queue.is_waiting_empty() || queue.listed {
            return;
        }
        let Some(reader) = queue.reader else { return };
        queue.listed = true;
        if let Some(outlet) = self.outlets.get_mut(reader) {
            outlet.handle_ready(index);
        }
        self.list_outlet(reader);
    }

    /// Throws away what waits in a subpartition that nobody will read.
    pub(crate) fn discard_waiting(&mut self, no: PartitionNo, index: u32) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let job = partition.job;
        let Some(queue) = partition.queue_mut(index) else {
            return;
        };
        let mut slots = Vec::new();
        while let Some(buffer) = queue.pop() {
            queue.handle_gone();
            slots.push(buffer.slot);
        }
        self.counters.buffers_discarded += u64::try_from(slots.len()).unwrap_or(u64::MAX);
        for slot in slots {
            self.send_home(Self::write_slot(job, slot), BufferState::Queued);
        }
        self.raise_limit(no, index);
    }

    /// One more buffer of a subpartition is gone: its writer may hand over another.
    pub(crate) fn raise_limit(&mut self, no: PartitionNo, index: u32) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        if partition.state != PartitionState::Producing {
            return;
        }
        let session = partition.session;
        let Some(queue) = partition.queue_mut(index) else {
            return;
        };
        if queue.limit_raised {
            return;
        }
        queue.limit_raised = true;
        if let Some(session) = self.sessions.get_mut(session) {
            session.raised.push_back((no, index));
        }
        self.wake_session(session);
    }

    /// The next raised limit to tell a writer.
    pub(crate) fn poll_raised(&mut self, id: SessionId) -> Option<Output> {
        loop {
            let (no, index) = self.sessions.get_mut(id)?.raised.pop_front()?;
            let Some(partition) = self.partitions.get_mut(no) else {
                continue;
            };
            let (writer, max_queued) = (partition.writer, partition.max_queued);
            let Some(queue) = partition.queue_mut(index) else {
                continue;
            };
            queue.limit_raised = false;
            return Some(Output::Credit(NumberEntry {
                stream: writer.into(),
                subpartition: SubpartitionIndex::new(index),
                number: queue.limit(max_queued),
            }));
        }
    }
}
