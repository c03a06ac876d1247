//! How a partition ends otherwise than finished: aborted, failed, superseded, released or expired.

use std::sync::Arc;
use std::time::Instant;

use buffer_pool::{Backing, BufferState};
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::{JobId, PartitionId, ShuffleError, WriterId, error::ErrorKind};

use crate::node::{Holder, Node, PendingKind, SessionId, Timer};
use crate::partition::{Kept, Lookup, MemberRef, OutletNo, Partition, PartitionNo, PartitionState, Tombstone};

impl<B: Backing> Node<B> {
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

    pub(super) fn writer_of(&self, id: SessionId, writer: WriterId) -> Result<PartitionNo, ShuffleError> {
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

    pub(super) fn forget_writer(&mut self, id: SessionId, writer: WriterId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.writers.remove(&writer);
        }
    }

    /// The writer's pool leaves redistribution; granted buffers stay with its process until it gives them back.
    pub(super) fn free_writer_pool(&mut self, no: PartitionNo) {
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
        self.stop_handing_over(no, session);
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
            if let Some(partition) = self.partitions.get_mut(no) {
                partition.is_failing = true;
            }
            return self.handle_member_failed(now, job, &group, error.job(job).partition(id));
        }
        self.fail_partition_now(now, no, error);
    }

    /// As [`Node::fail_partition`], whatever its group.
    pub(crate) fn fail_partition_now(&mut self, now: Instant, no: PartitionNo, error: ShuffleError) {
        let Some(partition) = self.partitions.get(no) else {
            return;
        };
        if partition.relay.is_some() {
            return self.end_relay(now, no, Some(error));
        }
        let (job, id, session, writer) = (partition.job, partition.id, partition.session, partition.writer);
        let group = partition.group.clone();
        let error = error.job(job).partition(id);
        if let Some((session, request)) = self.partitions.get_mut(no).and_then(|of| of.finishing.take()) {
            self.reply(session, request, Err(error.clone()));
        }
        if let Some(of) = self.sessions.get_mut(session)
            && of.is_open()
            && of.writers.get(&writer) == Some(&no)
        {
            of.writers.remove(&writer);
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
                self.send_place_home(job, buffer.place);
            }
        }
        self.spoolers.remove(no);
        if let Some(spool) = &partition.spool {
            self.forget_store(spool.store);
        }
        self.note_end(&partition, &how);
        self.registry.end(job, id, how, now);
        self.plan_sweep(now);
        if let Some(group) = group {
            self.leave_group(now, job, &group, MemberRef::Partition(no));
        }
        if let Some(of) = self.jobs.get_mut(&job) {
            of.partitions -= 1;
            of.disk_bytes -= partition.spool.as_ref().map_or(0, |spool| spool.held);
        }
        self.retire_job_if_idle(now, job);
    }

    /// A finished partition whose every subpartition was read or given up is released.
    pub(crate) fn release_if_consumed(&mut self, now: Instant, no: PartitionNo) {
        // A relay goes when its readers have, finished or not.
        let is_over = |of: &Partition| of.relay.is_none() && of.state == PartitionState::Finished && of.is_consumed();
        if self.partitions.get(no).is_some_and(is_over) {
            self.counters.partitions_released += 1;
            let kept = self
                .partitions
                .get_mut(no)
                .and_then(|partition| partition.kept.as_mut());
            let how = kept.and_then(|kept| kept.ended.take()).unwrap_or(Tombstone::Released);
            self.end_partition(now, no, how, |_, _| {});
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
        let Some(partition) = self.partitions.get(no) else {
            return;
        };
        if partition.kept.as_ref().is_some_and(Kept::is_read) {
            self.timers.set(now + partition.time_to_live, Timer::Unread(no));
        } else {
            self.discard_unread(now, no, Tombstone::Expired);
        }
    }

    pub(super) fn discard_unread(&mut self, now: Instant, no: PartitionNo, how: Tombstone) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        if let Some(kept) = &mut partition.kept {
            kept.ended.get_or_insert(how);
            return self.release_if_consumed(now, no);
        }
        let given_up = if partition.audience.is_some() {
            self.close_audience(no);
            Vec::new()
        } else {
            partition.give_up_unread()
        };
        let Some(partition) = self.partitions.get(no) else {
            return;
        };
        let finished = partition.state == PartitionState::Finished && partition.relay.is_none();
        let wholly = finished && partition.is_consumed();
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
        let stale = || {
            let by_attempt = partition.attempt;
            let message = "this attempt is stale: a newer one has taken its place";
            ShuffleError::new(ErrorKind::Superseded { by_attempt }, message)
        };
        if let Some(no) = older {
            self.fail_partition(now, no, stale());
        }
        if !self.relays.is_empty() {
            self.fence_relays(now, job, partition, &stale());
        }
        self.plan_sweep(now);
        if !waiting.is_empty() {
            self.timers.cancel(Timer::Waiting(job, partition.key()));
        }
        self.look_again(now, waiting);
    }
}
