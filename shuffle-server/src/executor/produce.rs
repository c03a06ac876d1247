//! Partitions of our executors: creation, grants, hand-overs, and the three ways to end.

use std::time::{Duration, Instant};

use buffer_pool::{ArenaKind, Backing, BufferState, JobKey, LocalPoolSpec};
use shuffle_protocol::control::{self, required};
use shuffle_protocol::frame::{Arena, SlotEntry};
use shuffle_protocol::limits::MAX_SUBPARTITIONS;
use shuffle_protocol::{GroupRef, JobId, PartitionId, ShuffleError, StreamId, WriterId, error::ErrorKind};

use super::requests::{Claim, beyond_protocol, limit_exceeded};
use super::session::protocol;
use crate::node::{DiskWork, Holder, Node, Output, PoolOwner, SessionId, Slice, Timer, pool_error};
use crate::partition::{Buffered, MemberRef, OutletNo, Partition, PartitionNo, PartitionOrigin, Place};
use crate::spill::DiskOp;

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
        let broadcast = self.consumers_of(request).map_err(located)?;
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
        // The older attempt may have been a member of the group, and have taken it along.
        if let Some(verdict) = group
            .as_ref()
            .and_then(|group| self.groups.verdict(job, group.id))
            .cloned()
        {
            pool.into_iter().for_each(|pool| self.pool.destroy_local_pool(pool));
            self.pool_changed = true;
            return Err(located(verdict));
        }
        let max_queued = match request.max_queued_per_subpartition {
            0 => self.config.max_queued_per_subpartition,
            asked => asked,
        };
        let kind = request.kind()?;
        let time_to_live = match request.time_to_live_ms {
            0 => self.config.unread_expiry,
            ms => Duration::from_millis(ms.into()),
        };
        let store = kind.may_use_disk().then(|| self.disks.new_store());
        let mut made = Partition::new(PartitionOrigin {
            job,
            id: partition,
            session: id,
            writer,
            group: group.clone(),
            subpartitions: request.subpartitions,
            kind,
            max_queued,
            time_to_live,
            store,
            pool,
            broadcast,
        });
        made.limit_unacked(request.max_buffers);
        let no = self.partitions.insert(made);
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
        self.note_partition(no);
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
        let kind = request.kind()?;
        kind.validate()?;
        if kind.may_use_disk() && !self.config.disks {
            return Err(ShuffleError::new(
                ErrorKind::Unsupported,
                format!(
                    "a partition that is {kind} may need a disk, and this server has none: set storage.directories"
                ),
            ));
        }
        if request.subpartitions > MAX_SUBPARTITIONS {
            let (limit, asked) = (MAX_SUBPARTITIONS.into(), request.subpartitions.into());
            return Err(beyond_protocol("subpartitions of one partition", limit, asked));
        }
        self.consumers_of(request)?;
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
        if self
            .partitions
            .get(no)
            .is_some_and(|partition| partition.spool.is_some())
        {
            self.spoolers.add(no);
        }
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
        let slot = Self::write_slot(job, entry.slot);
        let no = match self.holder(job, ArenaKind::Write, entry.slot) {
            // The writer failed or was fenced while this was on its way: what it gives back is home again.
            Holder::Quarantine(session) if session == id => {
                if !entry.more_slices {
                    self.send_home(slot, BufferState::Quarantined);
                }
                return Ok(());
            }
            Holder::Writer(no) => no,
            Holder::Shared(share) => match self.next_slice(share, id, entry.more_slices)? {
                Slice::Of(no) => no,
                Slice::Stray => return Ok(()),
            },
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
        let index = entry.subpartition.value();
        let discarding = partition.is_discarding(index);
        let subpartitions = partition.subpartitions();
        let Some(queue) = partition.queue_mut(index) else {
            return Err(protocol(format!(
                "subpartition {index} of {subpartitions} does not exist"
            )));
        };
        let ordinal = queue.handed_over();
        let limit = partition.limit_of(index);
        if entry.sequence.value() != ordinal {
            return Err(protocol(format!(
                "buffer {} came where {ordinal} was due",
                entry.sequence
            )));
        }
        if ordinal >= limit {
            return Err(protocol(format!("subpartition {index} is blocked at {limit} buffers")));
        }
        let begun = partition.has_begun();
        partition.push(index, Buffered::from_entry(entry));
        let (spools, shared) = (partition.spool.is_some(), partition.audience.is_some());
        self.counters.buffers_produced += 1;
        self.counters.bytes_produced += u64::from(entry.length);
        if shared || entry.more_slices || self.share_of(slot).is_some() {
            self.handle_slice(slot, no, entry.more_slices);
        } else {
            self.pool.transition(slot, BufferState::Granted, BufferState::Queued);
            self.set_holder(slot, Holder::Queue(no));
        }
        if discarding {
            self.discard_waiting(no, index);
        } else {
            self.list_subpartition(no, index);
        }
        if !begun {
            self.note_partition(no);
        }
        if spools {
            self.spoolers.add(no);
            // What may spill is not blocked, and its writer is to know that.
            self.raise_limit(no, index);
        }
        Ok(())
    }

    /// Tells who reads a subpartition that something waits.
    pub(crate) fn list_subpartition(&mut self, no: PartitionNo, index: u32) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        if !partition.is_readable() {
            return;
        }
        let readers: Vec<OutletNo> = match (&partition.kept, &partition.audience) {
            (Some(kept), _) => kept.readers_of(index).collect(),
            (None, Some(audience)) => audience.readers().collect(),
            (None, None) => {
                let reader = partition.reader_of(index);
                return self.list_for(no, index, reader);
            }
        };
        for reader in readers {
            self.list_for(no, index, Some(reader));
        }
    }

    pub(crate) fn list_for(&mut self, no: PartitionNo, index: u32, reader: Option<OutletNo>) {
        let Some(reader) = reader else { return };
        if let Some(partition) = self.partitions.get_mut(no)
            && let Some(outlet) = self.outlets.get_mut(reader)
            && outlet.handle_more(partition, index)
        {
            self.list_outlet(reader);
        }
    }

    /// Throws away what waits in a subpartition that nobody will read.
    pub(crate) fn discard_waiting(&mut self, no: PartitionNo, index: u32) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let job = partition.job;
        let mut discarded = Vec::new();
        while let Some(buffer) = partition.pop(index) {
            discarded.push(buffer);
        }
        self.counters.buffers_discarded += u64::try_from(discarded.len()).unwrap_or(u64::MAX);
        for buffer in discarded {
            self.send_place_home(job, buffer.place);
            self.handle_consumed(no, index, buffer);
        }
    }

    /// A buffer of an ephemeral partition was read, or thrown away: its writer may hand over another, and its place on disk is
    /// given back.
    pub(crate) fn handle_consumed(&mut self, no: PartitionNo, index: u32, buffer: Buffered) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        if let Some(queue) = partition.queue_mut(index) {
            queue.handle_gone();
        }
        if let (Place::Disk(at) | Place::Loaded { at, .. }, Some(spool)) = (buffer.place, &mut partition.spool)
            && let Some((at, bytes)) = spool.handle_consumed(at, buffer.length)
        {
            let store = spool.store;
            spool.held -= bytes;
            if let Some(of) = self.jobs.get_mut(&partition.job) {
                of.disk_bytes -= bytes;
            }
            self.submit(DiskOp::Punch { store, at, bytes }, DiskWork::Unattended);
        }
        self.raise_limit(no, index);
    }
}
