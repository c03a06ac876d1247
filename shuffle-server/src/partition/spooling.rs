//! Partitions that go to disk: what is written when, and what is done when it is there.

use std::collections::BTreeSet;
use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::ShuffleError;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::partition::Pressure;

use super::{Partition, PartitionNo, PartitionState, Place, RUN_BYTES};
use crate::node::{DiskWork, Node, Timer};
use crate::spill::{DiskOp, DiskPiece, Index, IndexEntry, IndexGroup, StoreName, StoreNo};

/// Partitions that may have something to write.
#[derive(Debug, Default)]
pub(crate) struct Spoolers {
    /// To be looked at after this step.
    due: BTreeSet<PartitionNo>,
    /// To be looked at when memory is short.
    idle: BTreeSet<PartitionNo>,
}

impl Spoolers {
    pub(crate) fn add(&mut self, no: PartitionNo) {
        self.due.insert(no);
    }

    pub(crate) fn remove(&mut self, no: PartitionNo) {
        self.due.remove(&no);
        self.idle.remove(&no);
    }
}

impl<B: Backing> Node<B> {
    /// Starts the writes that are due after a step.
    pub(crate) fn spool(&mut self, now: Instant) {
        if self.spoolers.due.is_empty() && self.spoolers.idle.is_empty() {
            return;
        }
        let pressed = self.pool.is_waited_for() || !self.pending.is_empty();
        if pressed {
            let idle = std::mem::take(&mut self.spoolers.idle);
            self.spoolers.due.extend(idle);
        }
        for no in std::mem::take(&mut self.spoolers.due) {
            self.spool_one(now, no, pressed);
        }
    }

    fn spool_one(&mut self, now: Instant, no: PartitionNo, pressed: bool) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let Some(spool) = &partition.spool else { return };
        if !spool.writing.is_empty() || partition.is_failing {
            // Looked at again when it is written, or never.
            return;
        }
        if spool.is_clean() {
            return self.seal_if_clean(no);
        }
        let starved = partition.pool.is_some() && partition.demand > partition.granted;
        let due = match &partition.kept {
            Some(kept) => {
                // A bounded writer may be blocked until it is on disk.
                let waited_for = partition.kind.pressure == Pressure::Bounded;
                let waited_for = waited_for || (kept.is_read() && partition.is_readable());
                waited_for || spool.in_memory_bytes >= RUN_BYTES || partition.state == PartitionState::Sealing
            }
            None => partition
                .pool
                .is_some_and(|pool| spool.in_memory > self.pool.size(pool) / 2),
        };
        if !due && !starved && !pressed {
            self.spoolers.idle.insert(no);
            return;
        }
        let wanted = starved || !self.pending.is_empty();
        if partition.plan_batch(false).is_empty() && (!wanted || partition.plan_batch(true).is_empty()) {
            self.spoolers.idle.insert(no);
            return;
        }
        let (job, id) = (partition.job, partition.id);
        if let Err(error) = self.claim_disk(no) {
            return self.fail_partition(now, no, error);
        }
        let Some(spool) = self.partitions.get(no).and_then(|partition| partition.spool.as_ref()) else {
            return;
        };
        let op = DiskOp::Write {
            store: spool.store,
            name: StoreName { job, partition: id },
            at: spool.writing.first().map_or(spool.end, |one| one.at),
            pieces: spool
                .writing
                .iter()
                .map(|one| DiskPiece {
                    slot: Self::write_slot(job, one.slot),
                    offset: one.offset,
                    length: one.length,
                })
                .collect(),
        };
        self.submit(op, DiskWork::Batch(no));
    }

    /// Counts the planned batch as its job's on this node's disks, or refuses it.
    fn claim_disk(&mut self, no: PartitionNo) -> Result<(), ShuffleError> {
        let Some(partition) = self.partitions.get_mut(no) else {
            return Ok(());
        };
        let (Some(of), Some(spool)) = (self.jobs.get_mut(&partition.job), &mut partition.spool) else {
            return Ok(());
        };
        let bytes: u64 = spool.writing.iter().map(|one| u64::from(one.length)).sum();
        let asked = of.disk_bytes + bytes;
        if let Some(limit) = self.config.quotas.disk_bytes_per_job.filter(|limit| asked > *limit) {
            spool.writing.clear();
            let what = "bytes of one job on this node's disks".to_owned();
            let message = "the server's configuration sets this limit: limits.disk_bytes_per_job";
            return Err(ShuffleError::new(
                ErrorKind::LimitExceeded { what, limit, asked },
                message,
            ));
        }
        of.disk_bytes = asked;
        spool.held += bytes;
        Ok(())
    }

    /// A batch is on disk, or failed.
    pub(crate) fn handle_batch(&mut self, now: Instant, no: PartitionNo, outcome: Result<(), ShuffleError>) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let Some(spool) = &mut partition.spool else { return };
        let written = std::mem::take(&mut spool.writing);
        if let Err(error) = outcome {
            return self.fail_partition(now, no, error);
        }
        let job = partition.job;
        let mut touched = BTreeSet::new();
        let mut slots = Vec::new();
        for one in &written {
            touched.insert(one.subpartition);
            if let Some(slot) = partition.handle_written(one) {
                self.counters.bytes_spilled += u64::from(one.length);
                slots.push(slot);
            }
        }
        for slot in slots {
            self.send_place_home(job, Place::Memory(slot));
        }
        for index in touched {
            self.pace(no, index);
            self.list_subpartition(no, index);
        }
        self.spoolers.add(no);
    }

    /// A persistent partition of which everything is on disk gets its index.
    fn seal_if_clean(&mut self, no: PartitionNo) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let due = partition.state == PartitionState::Sealing;
        let Some(spool) = partition.spool.as_ref().filter(|spool| due && spool.is_clean()) else {
            return;
        };
        let op = DiskOp::Seal {
            store: spool.store,
            name: StoreName {
                job: partition.job,
                partition: partition.id,
            },
            index: index_of(partition, self.config.buffer_bytes).encode(),
        };
        partition.state = PartitionState::Indexing;
        self.submit(op, DiskWork::Seal(no));
    }

    /// A persistent partition will survive this server now, or cannot be kept.
    pub(crate) fn handle_sealed(&mut self, now: Instant, no: PartitionNo, outcome: Result<(), ShuffleError>) {
        match outcome {
            // It ends with the verdict on its group, and so does its writer's request.
            Ok(()) if self.partitions.get(no).is_some_and(|partition| partition.is_failing) => {}
            Ok(()) => self.complete_partition(now, no),
            Err(error) => self.fail_partition(now, no, error),
        }
    }

    /// The slowest reader that is there, and the disk, say how far a bounded partition that is kept may go.
    pub(crate) fn pace(&mut self, no: PartitionNo, index: u32) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let Some(kept) = &partition.kept else { return };
        if partition.kind.pressure != Pressure::Bounded || partition.state != PartitionState::Producing {
            return;
        }
        let outlets = &mut self.outlets;
        let slowest = kept
            .readers_of(index)
            .filter_map(|reader| Some(outlets.get_mut(reader)?.cursor_mut(index)?.acked))
            .min();
        let Some(queue) = partition.queue_mut(index) else {
            return;
        };
        queue.handle_passed(slowest.unwrap_or(u64::MAX).min(queue.written()));
        self.raise_limit(no, index);
    }

    /// A reader has left what is kept: if it was the last, the time to live begins anew.
    pub(crate) fn wait_anew(&mut self, now: Instant, no: PartitionNo) {
        if let Some(partition) = self.partitions.get(no).filter(|partition| partition.outlives_server())
            && partition.kept.as_ref().is_some_and(|kept| !kept.is_read())
        {
            self.timers.set(now + partition.time_to_live, Timer::Unread(no));
        }
    }

    /// A partition that an earlier start of this server has sealed is served again. Of two attempts the newer one is, and the
    /// older one's files go.
    ///
    /// # Errors
    /// Its buffers are larger than this server's; too many jobs, or its job's arenas cannot be made. Its files stay.
    pub fn adopt(&mut self, now: Instant, store: StoreNo, index: Index) -> Result<(), ShuffleError> {
        self.disks.adopt_store(store);
        let (job, id) = (index.job, index.partition);
        if index.buffer_bytes > self.config.buffer_bytes {
            let kind = ErrorKind::ConfigMismatch {
                what: "the size of a buffer".to_owned(),
                ours: self.config.buffer_bytes.to_string(),
                theirs: index.buffer_bytes.to_string(),
            };
            let error = ShuffleError::new(kind, "start the server with buffers as large as those that were kept");
            return Err(error.job(job).partition(id));
        }
        if let Err(refusal) = self.registry.admit(job, id) {
            tracing::info!(%job, partition = %id, "files of an earlier start are not needed any more: {refusal}");
            self.forget_store(store);
            return Ok(());
        }
        // Counted first: the job must not go with an older attempt.
        let of = self.enter_job(job)?;
        of.partitions += 1;
        of.disk_bytes += index.data_bytes;
        self.fence(now, job, id);
        let partition = Partition::recovered(index, store, self.config.unread_expiry);
        let time_to_live = partition.time_to_live;
        let no = self.partitions.insert(partition);
        let waiting = self.registry.register(job, id, no);
        self.timers.set(now + time_to_live, Timer::Unread(no));
        self.look_again(now, waiting);
        self.counters.partitions_recovered += 1;
        tracing::info!(%job, partition = %id, "a partition of an earlier start is served again");
        Ok(())
    }

    /// A partition of an earlier start cannot be served again: who asks for it is told why.
    pub fn handle_lost(&mut self, now: Instant, name: StoreName, why: String) {
        let StoreName { job, partition } = name;
        let error = ShuffleError::new(ErrorKind::DataLost, why)
            .job(job)
            .partition(partition);
        tracing::warn!(%job, %partition, "a partition of an earlier start is lost: {error}");
        self.fence(now, job, partition);
        self.registry.remember_lost(job, partition, error, now);
        self.plan_sweep(now);
    }
}

fn index_of(partition: &Partition, buffer_bytes: u32) -> Index {
    let entry = |buffer: super::Buffered| IndexEntry {
        at: match buffer.place {
            Place::Disk(at) => at,
            Place::Memory(_) | Place::Loaded { .. } | Place::Received(_) => {
                unreachable!("a clean partition is on disk")
            }
        },
        length: buffer.length,
        checksum: buffer.checksum,
        records: buffer.records,
        kind: buffer.kind,
        continues: buffer.continues,
        partial_start: buffer.partial_start,
        unchecked: buffer.unchecked,
        codec: buffer.codec,
    };
    Index {
        job: partition.job,
        partition: partition.id,
        kind: partition.kind,
        is_broadcast: partition.is_broadcast,
        buffer_bytes,
        subpartitions: partition.subpartitions(),
        data_bytes: partition.spool.as_ref().map_or(0, |spool| spool.end),
        groups: partition
            .queues()
            .filter(|(_, queue)| !queue.is_waiting_empty())
            .map(|(subpartition, queue)| IndexGroup {
                subpartition,
                entries: queue.waiting().map(entry).collect(),
            })
            .collect(),
    }
}
