//! Readers of what is on disk: buffers are loaded ahead of them, in the order of the file.

use std::time::Instant;

use buffer_pool::{ArenaKind, Backing, BufferState, JobKey, LocalPoolSpec, PoolId};
use shuffle_protocol::{JobId, ShuffleError};

use super::{OutletNo, OutletState};
use crate::node::{DiskWork, Holder, Node, PoolOwner, Timer, pool_error};
use crate::spill::{DiskOp, DiskPiece, StoreNo};

/// Buffers that a reader of a file is guaranteed.
const MINIMUM: u32 = 2;

/// Buffers that it may have at most: those that are loaded, and as many that are sent or viewed.
const MAXIMUM: u32 = 128;

/// Buffers of one read at most.
const RUN_PIECES: usize = 64;

impl<B: Backing> Node<B> {
    /// Loads what a reader will want next, as far as its buffers go.
    pub(crate) fn read_ahead(&mut self, now: Instant, no: OutletNo) {
        let Some((job, store)) = self.file_of(no) else { return };
        let mut planned: Vec<(u64, DiskPiece)> = Vec::new();
        while let Some(outlet) = self.outlets.get(no)
            && outlet.wants_load(!planned.is_empty())
        {
            let Some(pool) = self.reading_pool(now, no, job) else {
                break;
            };
            let Some(slot) = self.pool.take_as(pool, BufferState::ReadAhead) else {
                break;
            };
            self.set_holder(slot, Holder::Reading(no));
            let (at, length) = self.plan_load(no, slot.slot);
            planned.push((
                at,
                DiskPiece {
                    slot,
                    offset: 0,
                    length,
                },
            ));
        }
        let follows = |a: &(u64, DiskPiece), b: &(u64, DiskPiece)| a.0 + u64::from(a.1.length) == b.0;
        for run in planned.chunk_by(follows).flat_map(|run| run.chunks(RUN_PIECES)) {
            let Some((at, _)) = run.first() else { continue };
            let pieces = run.iter().map(|(_, piece)| *piece).collect();
            let op = DiskOp::Read { store, at: *at, pieces };
            let ticket = self.submit(op, DiskWork::Load(no));
            if let Some(reading) = self.outlets.get_mut(no).and_then(|outlet| outlet.reading.as_mut()) {
                reading.handle_submitted(run.len(), ticket);
            }
        }
    }

    /// Gives a slot to the next buffer of a reader that lies on disk: where it lies, and its length, in bytes.
    fn plan_load(&mut self, no: OutletNo, slot: u32) -> (u64, u32) {
        let planned = self.outlets.get_mut(no).and_then(|outlet| {
            let OutletState::Open(partition) = outlet.state else {
                return None;
            };
            outlet.plan_load(self.partitions.get_mut(partition)?, slot)
        });
        planned.expect("invariant: a reader that wants to load has something on disk")
    }

    /// The job and the file that an open outlet reads.
    pub(super) fn file_of(&self, no: OutletNo) -> Option<(JobId, StoreNo)> {
        let outlet = self.outlets.get(no)?;
        let OutletState::Open(partition) = outlet.state else {
            return None;
        };
        let spool = self.partitions.get(partition)?.spool.as_ref()?;
        Some((outlet.job, spool.store))
    }

    /// The pool that a reader loads into; made when it first has something to load. `None`: there are no buffers for it now, it
    /// waits for some.
    fn reading_pool(&mut self, now: Instant, no: OutletNo, job: JobId) -> Option<PoolId> {
        let outlet = self.outlets.get_mut(no)?;
        let (id, range) = (outlet.id, outlet.range);
        let reading = outlet.reading.get_or_insert_default();
        if let Some(pool) = reading.pool {
            return Some(pool);
        }
        let spec = LocalPoolSpec {
            minimum: MINIMUM,
            maximum: Some(MAXIMUM),
            weight: 1,
            label: format!("reader of {id}, subpartitions {}+{}", range.first, range.count),
        };
        match self.pool.create_local_pool(JobKey(job.value()), ArenaKind::Read, spec) {
            Ok(pool) => {
                reading.pool = Some(pool);
                self.pool_owners.insert(pool, PoolOwner::Reader(no));
                self.without_pool.remove(&no);
                self.timers.cancel(Timer::Reading(no));
                Some(pool)
            }
            Err(error) => {
                if self.without_pool.insert(no, pool_error(&error)).is_none() {
                    self.timers.set(now + self.config.request_timeout, Timer::Reading(no));
                }
                None
            }
        }
    }

    /// Buffers have come home: readers that have none to load into try again.
    pub(crate) fn retry_reading(&mut self, now: Instant) {
        let waiting: Vec<OutletNo> = self.without_pool.keys().copied().collect();
        for no in waiting {
            self.read_ahead(now, no);
            if self.without_pool.contains_key(&no) {
                return;
            }
        }
    }

    /// A reader has waited its time for buffers to load into.
    pub(crate) fn expire_reading(&mut self, now: Instant, no: OutletNo) {
        if let Some(error) = self.without_pool.remove(&no) {
            self.end_outlet(now, no, error, true);
        }
    }

    /// Buffers that were loaded for a reader are there, or cannot be read.
    pub(crate) fn handle_load(
        &mut self,
        now: Instant,
        no: OutletNo,
        ticket: crate::spill::DiskTicket,
        outcome: Result<(), ShuffleError>,
    ) {
        let Some(reading) = self.outlets.get_mut(no).and_then(|outlet| outlet.reading.as_mut()) else {
            return;
        };
        match outcome {
            Ok(()) => {
                self.counters.bytes_loaded += reading.handle_loaded(ticket);
                self.list_outlet(no);
            }
            Err(error) => self.end_outlet(now, no, error, true),
        }
    }

    /// A reader goes: what was loaded for it, or is being loaded, comes home.
    pub(crate) fn stop_reading(&mut self, job: JobId, no: OutletNo, reading: Option<Box<super::Reading>>) {
        let Some(reading) = reading else { return };
        for load in &reading.loads {
            self.send_place_home(job, load.buffer.place);
        }
        self.without_pool.remove(&no);
        self.timers.cancel(Timer::Reading(no));
        if let Some(pool) = reading.pool {
            self.pool_owners.remove(&pool);
            self.pool.destroy_local_pool(pool);
            self.pool_changed = true;
        }
    }
}
