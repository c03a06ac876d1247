//! The operations on a network pool, and a second opinion on each of its answers.
//!
//! The oracle keeps its own account of who has which buffer and sees of the pool only what `state` tells of each slot.

mod account;
mod memory;

use std::collections::BTreeMap;

use buffer_pool::{ArenaKind, BufferState, JobKey, LocalPoolSpec, NetworkPool, PoolConfig, PoolError, PoolId, SlotRef};

use crate::op::Op;
use memory::Memory;

const JOBS: u8 = 3;
const OUT_STATES: [BufferState; 7] = [
    BufferState::Granted,
    BufferState::Queued,
    BufferState::Reserved,
    BufferState::Receiving,
    BufferState::Viewed,
    BufferState::ReadAhead,
    BufferState::Quarantined,
];

#[derive(Debug)]
struct Out {
    pool: PoolId,
    state: BufferState,
    pins: u32,
}

#[derive(Debug)]
struct Share {
    job: JobKey,
    kind: ArenaKind,
    minimum: u32,
    maximum: u32,
    waiting: bool,
}

#[derive(Debug)]
pub(crate) struct World {
    pool: NetworkPool<Memory>,
    jobs: BTreeMap<JobKey, bool>,
    shares: BTreeMap<PoolId, Share>,
    out: BTreeMap<SlotRef, Out>,
    unpooled: u32,
    wanted: (u32, u32),
}

impl World {
    pub(crate) fn new(total_buffers: u32, extent_buffers: u32, read_reserve_buffers: u32) -> Self {
        let config = PoolConfig {
            total_buffers,
            buffer_bytes: 4096,
            extent_buffers,
            read_reserve_buffers,
        };
        let pool = NetworkPool::new(config, Memory::default()).expect("a valid configuration");
        let mut world = Self {
            pool,
            jobs: BTreeMap::new(),
            shares: BTreeMap::new(),
            out: BTreeMap::new(),
            unpooled: 0,
            wanted: (0, 0),
        };
        world.apply(&Op::AddJob(0));
        world
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        self.run(op);
        self.check();
        self.drain();
        self.check();
        self.nobody_waits_in_vain();
    }

    /// All is given back: nothing is left anywhere, all memory is in the bank.
    pub(crate) fn everything_comes_home(&mut self) {
        self.pool.backing_mut().fail = 0;
        let jobs: Vec<JobKey> = self.jobs.keys().copied().collect();
        for job in jobs {
            self.retire(job);
        }
        while !self.out.is_empty() {
            self.run(&Op::Unpin(0));
            self.run(&Op::Release { slot: 0, times: 1 });
            self.check();
        }
        // A move that failed has left its job behind; nothing else may.
        let left: Vec<JobKey> = self.pool.backing().jobs.iter().copied().collect();
        for job in left {
            assert!(self.pool.retire_job(job).expect("left behind"));
        }
        assert_eq!(self.pool.books().unassigned, self.pool.config().total_buffers);
        assert!(self.pool.backing().extents.is_empty() && self.pool.holders().is_empty());
        self.pool.check_invariants();
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::AddJob(job) => self.add_job(JobKey(u64::from(job % JOBS))),
            Op::RetireJob(job) => {
                let job = JobKey(u64::from(job % JOBS));
                if self.jobs.contains_key(&job) {
                    self.retire(job);
                }
            }
            Op::Create {
                job,
                write,
                minimum,
                more,
                weight,
            } => {
                let kind = if write { ArenaKind::Write } else { ArenaKind::Read };
                self.create(JobKey(u64::from(job % JOBS)), kind, minimum, minimum + more, weight);
            }
            Op::CreateBoth { job, write, read } => self.create_both(JobKey(u64::from(job % JOBS)), write, read),
            Op::Destroy(pool) => {
                if let Some(id) = pick(&self.shares, pool) {
                    self.shares.remove(&id);
                    self.pool.destroy_local_pool(id);
                }
            }
            Op::Take { pool, state, times } => {
                if let Some(id) = pick(&self.shares, pool) {
                    let state = OUT_STATES[usize::from(state) % (OUT_STATES.len() - 1)];
                    (0..times).for_each(|_| {
                        self.take(id, state);
                    });
                }
            }
            Op::Transition { slot, state } => {
                let to = OUT_STATES[usize::from(state) % OUT_STATES.len()];
                if let Some(slot) = pick(&self.out, slot) {
                    let out = self.out.get_mut(&slot).expect("picked");
                    if out.state != BufferState::Kernel {
                        self.pool.transition(slot, out.state, to);
                        out.state = to;
                    }
                }
            }
            Op::Release { slot, times } => (0..times).for_each(|more| self.release(slot.wrapping_add(more))),
            Op::Quarantine(slot) => {
                if let Some(slot) = pick(&self.out, slot) {
                    let out = self.out.get_mut(&slot).expect("picked");
                    if !matches!(out.state, BufferState::Kernel | BufferState::Quarantined) {
                        self.pool.quarantine(slot);
                        out.state = BufferState::Quarantined;
                    }
                }
            }
            Op::Pin(slot) => {
                if let Some(slot) = pick(&self.out, slot) {
                    self.pool.pin(slot);
                    self.out.get_mut(&slot).expect("picked").pins += 1;
                }
            }
            Op::Unpin(slot) => self.unpin(slot),
            Op::TakeUnpooled(buffers) => {
                if self.pool.take_unpooled(buffers).is_ok() {
                    self.unpooled += buffers;
                }
            }
            Op::ReturnUnpooled(buffers) => {
                let buffers = buffers.min(self.unpooled);
                self.pool.return_unpooled(buffers);
                self.unpooled -= buffers;
            }
            Op::Want { write, read } => {
                self.pool.set_wanted(write.into(), read.into());
                self.wanted = (write, read);
            }
            Op::FailMoves(moves) => self.pool.backing_mut().fail = moves,
            Op::ProveMinimums => self.prove_minimums(),
        }
    }

    fn add_job(&mut self, job: JobKey) {
        match self.pool.add_job(job) {
            Ok(()) => {
                self.jobs.insert(job, true);
            }
            Err(PoolError::JobExists(_)) => assert_eq!(self.jobs.get(&job), Some(&true)),
            Err(other) => panic!("{other}"),
        }
    }

    fn retire(&mut self, job: JobKey) {
        let busy = self.out.keys().any(|slot| slot.job == job);
        assert!(!busy || matches!(self.pool.remove_job(job), Err(PoolError::JobBusy { .. })));
        match self.pool.retire_job(job) {
            Ok(gone) => assert!(!(gone && busy), "a job goes with its last buffer"),
            Err(error) => assert!(matches!(error, PoolError::JobUnknown(_)) && !busy, "{error}"),
        }
        self.jobs.remove(&job);
        self.shares.retain(|_, share| share.job != job);
    }

    fn spec(minimum: u32, maximum: u32, weight: u32) -> LocalPoolSpec {
        LocalPoolSpec {
            minimum,
            maximum: Some(maximum),
            weight,
            label: format!("pool of {minimum}"),
        }
    }

    fn create(&mut self, job: JobKey, kind: ArenaKind, minimum: u32, maximum: u32, weight: u32) {
        let obtainable = self.obtainable(job, kind);
        match self
            .pool
            .create_local_pool(job, kind, Self::spec(minimum, maximum, weight))
        {
            Ok(id) => {
                assert!(minimum <= obtainable, "no pool without its minimum");
                self.shares.insert(
                    id,
                    Share {
                        job,
                        kind,
                        minimum,
                        maximum,
                        waiting: false,
                    },
                );
            }
            Err(PoolError::JobUnknown(_)) => assert!(!self.jobs.contains_key(&job)),
            Err(PoolError::Insufficient {
                need, available, total, ..
            }) => {
                assert!(need == minimum && available < need && available <= total && available <= obtainable);
            }
            Err(PoolError::Move { .. }) => assert!(self.pool.poll_move_error().is_some()),
            Err(other) => panic!("{other}"),
        }
    }

    fn create_both(&mut self, job: JobKey, write: u32, read: u32) {
        let before = self.shares.len();
        let specs = [(ArenaKind::Write, write), (ArenaKind::Read, read)];
        let asked = specs.map(|(kind, minimum)| (job, kind, Self::spec(minimum, minimum + 3, 1)));
        if let Ok(ids) = self.pool.create_local_pools(asked) {
            for (id, (kind, minimum)) in ids.into_iter().zip(specs) {
                self.shares.insert(
                    id,
                    Share {
                        job,
                        kind,
                        minimum,
                        maximum: minimum + 3,
                        waiting: false,
                    },
                );
            }
            assert_eq!(self.shares.len(), before + 2);
        }
    }

    fn take(&mut self, id: PoolId, state: BufferState) -> bool {
        let share = &self.shares[&id];
        let (job, kind, certain) = (share.job, share.kind, self.held(id) < share.minimum);
        let Some(slot) = self.pool.take_as(id, state) else {
            assert!(!certain, "a minimum is possession");
            self.shares.get_mut(&id).expect("it is live").waiting = true;
            return false;
        };
        assert_eq!((slot.job, slot.arena), (job, kind));
        let before = self.out.insert(
            slot,
            Out {
                pool: id,
                state,
                pins: 0,
            },
        );
        assert!(before.is_none(), "{slot} was granted to two, or out of quarantine");
        assert!(self.held(id) <= self.pool.size(id), "nobody takes beyond its size");
        self.shares.get_mut(&id).expect("it is live").waiting = false;
        true
    }

    fn release(&mut self, slot: u8) {
        let Some(slot) = pick(&self.out, slot) else { return };
        let out = self.out.get_mut(&slot).expect("picked");
        if out.state == BufferState::Kernel {
            return;
        }
        self.pool.release(slot, out.state);
        out.state = BufferState::Kernel;
        if out.pins == 0 {
            self.out.remove(&slot);
        }
    }

    fn unpin(&mut self, slot: u8) {
        let pinned: BTreeMap<SlotRef, ()> = self
            .out
            .iter()
            .filter(|(_, out)| out.pins > 0)
            .map(|(&slot, _)| (slot, ()))
            .collect();
        let Some(slot) = pick(&pinned, slot) else { return };
        let out = self.out.get_mut(&slot).expect("picked");
        out.pins -= 1;
        self.pool.unpin(slot);
        if out.pins == 0 && out.state == BufferState::Kernel {
            self.out.remove(&slot);
        }
    }

    /// Everybody takes its whole minimum at the same time, then gives it back.
    fn prove_minimums(&mut self) {
        let mut taken = Vec::new();
        let ids: Vec<PoolId> = self.shares.keys().copied().collect();
        for id in ids {
            while self.held(id) < self.shares[&id].minimum {
                let slot = self.pool.take(id).expect("a minimum is possession");
                assert!(
                    self.out
                        .insert(
                            slot,
                            Out {
                                pool: id,
                                state: BufferState::Granted,
                                pins: 0
                            }
                        )
                        .is_none()
                );
                self.shares.get_mut(&id).expect("it is live").waiting = false;
                taken.push(slot);
            }
        }
        for slot in taken {
            self.pool.release(slot, BufferState::Granted);
            self.out.remove(&slot);
        }
    }

    /// Everybody who is named takes one buffer, and gets it.
    fn drain(&mut self) {
        while let Some(id) = self.pool.poll_ready() {
            assert!(self.shares[&id].waiting, "only who waits is named");
            if !self.take(id, BufferState::Granted) {
                assert!(
                    self.pool.poll_move_error().is_some(),
                    "who is named gets a buffer, unless a move fails"
                );
            }
        }
        // As a server does on its timer.
        self.pool.backing_mut().fail = 0;
        self.pool.poll_move_error();
        self.pool.retry_moves();
        while let Some(id) = self.pool.poll_ready() {
            assert!(self.take(id, BufferState::Granted), "who is named gets a buffer");
        }
    }
}

fn pick<K: Copy + Ord, V>(map: &BTreeMap<K, V>, number: u8) -> Option<K> {
    map.keys().nth(usize::from(number) % map.len().max(1)).copied()
}
