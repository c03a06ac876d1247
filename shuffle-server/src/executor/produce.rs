//! Partitions of our executors: creation, grants, hand-overs, and the three ways to end.

use std::time::Instant;

use buffer_pool::{ArenaKind, Backing, BufferState, JobKey, LocalPoolSpec, SlotRef};
use shuffle_protocol::control::{self, control::Message, required};
use shuffle_protocol::frame::{Arena, NumberEntry, SlotEntry};
use shuffle_protocol::limits::MAX_SUBPARTITIONS;
use shuffle_protocol::partition::Totals;
use shuffle_protocol::{
    GroupRef, JobId, PartitionId, ShuffleError, StreamId, SubpartitionIndex, WriterId, error::ErrorKind,
};

use super::requests::limit_exceeded;
use super::session::protocol;
use crate::node::{Holder, Node, Output, PoolOwner, SessionId, Timer, pool_error};
use crate::partition::{
    Buffered, MemberRef, OutletNo, Partition, PartitionNo, PartitionOrigin, PartitionState, Tombstone,
};

impl<B: Backing> Node<B> {
    /// Registers a partition and reserves its minimum of buffers.
    pub(crate) fn create_partition(
        &mut self,
        now: Instant,
        id: SessionId,
        request: &control::CreatePartition,
    ) -> Result<(), ShuffleError> {
        let session = self.open_session(id)?;
        let job = session.info.job;
        let writer = WriterId::new(request.writer);
        let name = session.info.name.clone();
        if session.writers.contains_key(&writer) {
            return Err(ShuffleError::new(
                ErrorKind::InvalidRequest,
                format!("writer {writer} is open already"),
            ));
        }
        let partition = PartitionId::from(required(request.partition, "partition")?);
        let located = |error: ShuffleError| error.job(job).partition(partition);
        self.check_creation(job, request).map_err(located)?;
        let group = request
            .group
            .clone()
            .map(GroupRef::try_from)
            .transpose()
            .map_err(located)?;
        if let Some(group) = &group
            && let Some(verdict) = self.groups.verdict(job, group.id)
        {
            return Err(located(verdict.clone()));
        }
        self.registry.admit(job, partition)?;
        let spec = LocalPoolSpec {
            minimum: request.min_buffers.max(1),
            maximum: (request.max_buffers > 0).then_some(request.max_buffers),
            weight: request.weight.max(1),
            label: format!("writer of {partition} ({name})"),
        };
        let pool = self
            .pool
            .create_local_pool(JobKey(job.value()), ArenaKind::Write, spec)
            .map_err(|error| located(pool_error(&error)))?;
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
        self.pool_owners.insert(pool, PoolOwner::Writer(no));
        if let Some(session) = self.sessions.get_mut(id) {
            session.writers.insert(writer, no);
        }
        if let Some(of) = self.jobs.get_mut(&job) {
            of.partitions += 1;
        }
        if let Some(group) = &group {
            self.groups.state(job, group).members.insert(MemberRef::Partition(no));
        }
        self.counters.partitions_created += 1;
        let waiting = self.registry.register(job, partition, no);
        self.look_again(now, waiting);
        Ok(())
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
            return Err(limit_exceeded(
                "subpartitions of one partition",
                MAX_SUBPARTITIONS,
                request.subpartitions,
            ));
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
            return Err(limit_exceeded("partitions of one job on this node", limit, there + 1));
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
        let mut granted = Vec::new();
        while partition.granted < partition.demand {
            let Some(slot) = self.pool.take(pool) else { break };
            partition.granted += 1;
            granted.push(slot);
        }
        for slot in granted {
            self.set_holder(slot, Holder::Writer(no));
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
        if entry.length == 0 || entry.length > buffer_bytes || entry.offset > buffer_bytes - entry.length {
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

    /// The producer says that it is done, and what it wrote.
    pub(crate) fn finish_partition(
        &mut self,
        now: Instant,
        id: SessionId,
        request: &control::FinishPartition,
    ) -> Result<(), ShuffleError> {
        let writer = WriterId::new(request.writer);
        let no = self.writer_of(id, writer)?;
        if let Err(error) = self.compare_totals(no, request) {
            self.fail_partition(now, no, error.clone());
            return Err(error);
        }
        self.forget_writer(id, writer);
        let Some(partition) = self.partitions.get_mut(no) else {
            return Ok(());
        };
        partition.state = PartitionState::Finished;
        let readers = partition.readers();
        self.counters.partitions_finished += 1;
        self.free_writer_pool(no);
        for reader in readers {
            self.list_outlet(reader);
        }
        self.timers.set(now + self.config.unread_expiry, Timer::Unread(no));
        self.release_if_consumed(now, no);
        Ok(())
    }

    fn compare_totals(&self, no: PartitionNo, request: &control::FinishPartition) -> Result<(), ShuffleError> {
        let Some(partition) = self.partitions.get(no) else {
            return Ok(());
        };
        let located = |error: ShuffleError, index: SubpartitionIndex| {
            error
                .job(partition.job)
                .partition(partition.id)
                .subpartition(index)
                .node(&self.config.address)
        };
        let mut named = 0;
        for totals in &request.totals {
            let (index, said) = totals.parts();
            let came = partition
                .queue(index.value())
                .map(|queue| *queue.totals())
                .unwrap_or_default();
            said.verify(&came).map_err(|error| located(error, index))?;
            named += usize::from(came.buffers > 0);
        }
        let there = partition
            .queues()
            .filter(|(_, queue)| queue.totals().buffers > 0)
            .count();
        if there != named {
            let (index, totals) = partition
                .queues()
                .find(|(index, queue)| {
                    queue.totals().buffers > 0 && !request.totals.iter().any(|totals| totals.subpartition == *index)
                })
                .map(|(index, queue)| (SubpartitionIndex::new(index), *queue.totals()))
                .unwrap_or_default();
            return Err(located(
                Totals::default()
                    .verify(&totals)
                    .err()
                    .unwrap_or_else(|| protocol("totals name a subpartition twice")),
                index,
            ));
        }
        Ok(())
    }

    /// The producer gives its partition up.
    pub(crate) fn abort_partition(
        &mut self,
        now: Instant,
        id: SessionId,
        writer: WriterId,
        cause: Option<control::Error>,
    ) -> Result<(), ShuffleError> {
        if let Some(session) = self.sessions.get_mut(id)
            && session.failed_writers.remove(&writer).is_some()
        {
            return Ok(());
        }
        let no = self.writer_of(id, writer)?;
        let cause = cause.map_or_else(
            || ShuffleError::new(ErrorKind::Aborted, "the producer aborted without a cause"),
            ShuffleError::from,
        );
        self.forget_writer(id, writer);
        self.fail_partition(
            now,
            no,
            ShuffleError::new(ErrorKind::Aborted, "the producer aborted").because(cause),
        );
        Ok(())
    }

    fn writer_of(&self, id: SessionId, writer: WriterId) -> Result<PartitionNo, ShuffleError> {
        let session = self.open_session(id)?;
        if let Some(error) = session.failed_writers.get(&writer) {
            return Err(error.clone());
        }
        session.writers.get(&writer).copied().ok_or_else(|| {
            ShuffleError::new(
                ErrorKind::Unknown,
                format!("writer {writer} is not open in this session"),
            )
        })
    }

    fn forget_writer(&mut self, id: SessionId, writer: WriterId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.writers.remove(&writer);
        }
    }

    /// The writer's pool leaves redistribution; granted buffers stay with its process until it gives them back.
    fn free_writer_pool(&mut self, no: PartitionNo) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let Some(pool) = partition.pool.take() else { return };
        let (job, session) = (partition.job, partition.session);
        let granted = self.slots_of(job, |holder| holder == Holder::Writer(no));
        for (slot, _) in granted {
            if self.sessions.contains_key(session) {
                self.quarantine(slot, session);
            } else {
                self.send_home(slot, BufferState::Granted);
            }
        }
        self.pool_owners.remove(&pool);
        self.pool.destroy_local_pool(pool);
        self.pool_changed = true;
    }

    /// Ends a partition with an error: its writer, its readers and its group are told, its buffers come home.
    pub(crate) fn fail_partition(&mut self, now: Instant, no: PartitionNo, error: ShuffleError) {
        let Some(partition) = self.partitions.get(no) else {
            return;
        };
        let (job, id, session, writer) = (partition.job, partition.id, partition.session, partition.writer);
        let group = partition.group.clone();
        let error = error.job(job).partition(id);
        if let Some(of) = self.sessions.get_mut(session)
            && of.is_open()
            && of.writers.remove(&writer).is_some()
        {
            of.failed_writers.insert(writer, error.clone());
            let failed = control::WriterFailed {
                writer: writer.value(),
                error: Some((&error).into()),
            };
            self.tell_session(session, Message::WriterFailed(failed));
        }
        let superseded = matches!(error.kind(), ErrorKind::Superseded { .. });
        let for_readers = if superseded || matches!(error.kind(), ErrorKind::GroupFailed) {
            error.clone()
        } else {
            ShuffleError::new(ErrorKind::PartitionFailed, "the producer failed")
                .job(job)
                .partition(id)
                .because(error.clone())
        };
        self.end_partition(now, no, Tombstone::Failed(error.clone()), |node, outlet| {
            node.fail_outlet(now, outlet, for_readers.clone());
        });
        self.counters.partitions_failed += 1;
        if let Some(group) = group
            && !superseded
        {
            self.handle_member_failed(now, job, &group, error);
        }
    }

    /// Takes a partition away, in whatever state it is.
    fn end_partition(
        &mut self,
        now: Instant,
        no: PartitionNo,
        how: Tombstone,
        each_reader: impl Fn(&mut Self, OutletNo),
    ) {
        let Some(partition) = self.partitions.get(no) else {
            return;
        };
        let (job, id, group) = (partition.job, partition.id, partition.group.clone());
        for reader in partition.readers() {
            each_reader(self, reader);
        }
        self.free_writer_pool(no);
        let Some(partition) = self.partitions.remove(no) else {
            return;
        };
        for (_, queue) in partition.queues() {
            for buffer in queue.waiting() {
                self.send_home(Self::write_slot(job, buffer.slot), BufferState::Queued);
            }
        }
        self.registry.end(job, id, how, now);
        self.timers.set(now + self.config.unread_expiry, Timer::Sweep);
        if let Some(group) = group {
            self.groups.leave(job, group.id, MemberRef::Partition(no));
        }
        if let Some(of) = self.jobs.get_mut(&job) {
            of.partitions -= 1;
        }
        self.retire_job_if_idle(now, job);
    }

    /// A finished partition whose every subpartition was read or given up is released.
    pub(crate) fn release_if_consumed(&mut self, now: Instant, no: PartitionNo) {
        let consumed = self
            .partitions
            .get(no)
            .is_some_and(|partition| partition.state == PartitionState::Finished && partition.is_consumed());
        if consumed {
            self.counters.partitions_released += 1;
            self.end_partition(now, no, Tombstone::Released, |_, _| {});
        }
    }

    /// Nobody new may read the partition; readers that are there go on.
    pub(crate) fn give_up_unread(&mut self, now: Instant, job: JobId, id: PartitionId) -> Result<(), ShuffleError> {
        match self.registry.lookup(job, id) {
            crate::partition::Lookup::Live(no) => {
                self.discard_unread(now, no, Tombstone::Released);
                Ok(())
            }
            crate::partition::Lookup::Refused(error) => Err(error),
            crate::partition::Lookup::Wait => Err(ShuffleError::new(
                ErrorKind::Unknown,
                "the partition is not registered here",
            )
            .job(job)
            .partition(id)),
        }
    }

    /// A finished partition has waited long enough for readers.
    pub(crate) fn expire_unread(&mut self, now: Instant, no: PartitionNo) {
        self.discard_unread(now, no, Tombstone::Expired);
    }

    fn discard_unread(&mut self, now: Instant, no: PartitionNo, how: Tombstone) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let given_up = partition.give_up_unread();
        let wholly = partition.state == PartitionState::Finished && partition.is_consumed();
        for index in given_up {
            self.discard_waiting(no, index);
        }
        if wholly {
            self.counters.partitions_released += 1;
            self.end_partition(now, no, how, |_, _| {});
        }
    }

    /// Refuses every older attempt from now on.
    pub(crate) fn fence(&mut self, now: Instant, job: JobId, partition: PartitionId) {
        let (older, waiting) = self.registry.fence(job, partition.key(), partition.attempt, now);
        if let Some(no) = older {
            let error = ShuffleError::new(
                ErrorKind::Superseded {
                    by_attempt: partition.attempt,
                },
                "this attempt is stale: a newer one has taken its place",
            );
            self.fail_partition(now, no, error);
        }
        self.look_again(now, waiting);
    }
}
