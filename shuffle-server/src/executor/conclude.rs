//! How a partition ends: finished, aborted, failed, superseded, released or expired.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use buffer_pool::{Backing, BufferState};
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::partition::Totals;
use shuffle_protocol::{JobId, PartitionId, ShuffleError, SubpartitionIndex, WriterId, error::ErrorKind};

use super::session::protocol;
use crate::node::{Holder, Node, PendingKind, SessionId, Timer};
use crate::partition::{Lookup, MemberRef, OutletNo, PartitionNo, PartitionState, Tombstone};

impl<B: Backing> Node<B> {
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
            let said: HashSet<u32> = request.totals.iter().map(|totals| totals.subpartition).collect();
            let (index, totals) = partition
                .queues()
                .find(|(index, queue)| queue.totals().buffers > 0 && !said.contains(index))
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
        let is_it = |kind: &PendingKind| matches!(kind, PendingKind::Partition(of) if of.writer == writer.value());
        if self.give_up_pending(id, is_it) {
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

    /// Ends a partition with an error: its writer, its readers and its group are told, its buffers come home. A member of
    /// a group ends with the verdict on that, so that all see one first cause; until then its writer gets no buffers.
    pub(crate) fn fail_partition(&mut self, now: Instant, no: PartitionNo, error: ShuffleError) {
        let Some(partition) = self.partitions.get(no) else {
            return;
        };
        let (job, id) = (partition.job, partition.id);
        if let Some(group) = partition.group.clone()
            && !matches!(error.kind(), ErrorKind::Superseded { .. })
            && self.waits_for_verdict(job, &group, &error)
        {
            self.free_writer_pool(no);
            return self.handle_member_failed(now, job, &group, error.job(job).partition(id));
        }
        self.fail_partition_now(now, no, error);
    }

    /// As [`Node::fail_partition`], whatever its group.
    pub(crate) fn fail_partition_now(&mut self, now: Instant, no: PartitionNo, error: ShuffleError) {
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
        let verdict = group
            .as_ref()
            .filter(|_| matches!(error.kind(), ErrorKind::GroupFailed));
        let cause = verdict.and_then(|group| self.groups.shared_verdict(job, group.id));
        let cause = cause.unwrap_or_else(|| Arc::new(error.clone()));
        self.end_partition(now, no, Tombstone::Failed(cause), |node, outlet| {
            node.fail_outlet(now, outlet, for_readers.clone());
        });
        self.counters.partitions_failed += 1;
        tracing::warn!(%job, partition = %id, "partition failed: {error}");
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
        self.timers.cancel(Timer::Unread(no));
        for (_, queue) in partition.queues() {
            for buffer in queue.waiting() {
                self.send_home(Self::write_slot(job, buffer.slot), BufferState::Queued);
            }
        }
        self.registry.end(job, id, how, now);
        self.plan_sweep(now);
        if let Some(group) = group {
            self.leave_group(now, job, &group, MemberRef::Partition(no));
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
            Lookup::Live(no) => {
                self.discard_unread(now, no, Tombstone::Released);
                Ok(())
            }
            Lookup::Refused(error) => Err(error),
            Lookup::Wait => Err(
                ShuffleError::new(ErrorKind::Unknown, "the partition is not registered here")
                    .job(job)
                    .partition(id),
            ),
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
        self.plan_sweep(now);
        if !waiting.is_empty() {
            self.timers.cancel(Timer::Waiting(job, partition.key()));
        }
        self.look_again(now, waiting);
    }
}
