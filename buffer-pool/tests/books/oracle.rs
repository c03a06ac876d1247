//! The operations on a network pool, and a second opinion on each of its answers.
//!
//! The oracle keeps its own account of who has which buffer and sees of the pool only what `state` tells of each slot.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use buffer_pool::{
    ArenaKind, Backing, BufferState, JobKey, LocalPoolSpec, NetworkPool, PoolConfig, PoolError, PoolId, SlotRef,
};

/// Numbers choose among what is there, modulo how many there are.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    AddJob(u8),
    RetireJob(u8),
    Create {
        job: u8,
        write: bool,
        minimum: u32,
        more: u32,
        weight: u32,
    },
    CreateBoth {
        job: u8,
        write: u32,
        read: u32,
    },
    Destroy(u8),
    Take {
        pool: u8,
        state: u8,
        times: u8,
    },
    Transition {
        slot: u8,
        state: u8,
    },
    Release {
        slot: u8,
        times: u8,
    },
    Quarantine(u8),
    Pin(u8),
    Unpin(u8),
    TakeUnpooled(u32),
    ReturnUnpooled(u32),
    FailMoves(u32),
    ProveMinimums,
}

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

/// Refuses moves that make no sense, and as many others as it is told to.
#[derive(Debug, Default)]
struct Memory {
    jobs: BTreeSet<JobKey>,
    extents: BTreeSet<(JobKey, ArenaKind, u32)>,
    fail: u32,
}

impl Memory {
    fn may_fail(&mut self) -> io::Result<()> {
        if self.fail == 0 {
            return Ok(());
        }
        self.fail -= 1;
        Err(io::ErrorKind::OutOfMemory.into())
    }
}

impl Backing for Memory {
    fn create_job(&mut self, job: JobKey) -> io::Result<()> {
        assert!(self.jobs.insert(job));
        Ok(())
    }

    fn remove_job(&mut self, job: JobKey) {
        assert!(self.jobs.remove(&job));
        assert!(
            self.extents.iter().all(|extent| extent.0 != job),
            "all extents of {job} were moved out"
        );
    }

    fn move_in(&mut self, job: JobKey, arena: ArenaKind, extent: u32) -> io::Result<()> {
        self.may_fail()?;
        assert!(self.extents.insert((job, arena, extent)));
        Ok(())
    }

    fn move_out(&mut self, job: JobKey, arena: ArenaKind, extent: u32) -> io::Result<()> {
        self.may_fail()?;
        assert!(self.extents.remove(&(job, arena, extent)));
        Ok(())
    }
}

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

    fn check(&self) {
        self.pool.check_invariants();
        let config = self.pool.config();
        let books = self.pool.books();
        assert_eq!(books.total(), config.total_buffers);
        assert_eq!(books.held(), u32::try_from(self.out.len()).expect("few"));
        for (&slot, out) in &self.out {
            assert_eq!(
                (self.pool.state(slot), self.pool.pool_of(slot)),
                (Some(out.state), Some(out.pool))
            );
        }
        let written: u32 = self
            .arenas()
            .filter(|&(_, kind)| kind == ArenaKind::Write)
            .map(|at| self.present(at))
            .sum();
        assert!(
            written <= config.total_buffers - config.read_reserve_buffers,
            "the reserve is the readers'"
        );
        self.check_sizes();
    }

    fn check_sizes(&self) {
        let config = self.pool.config();
        let limit =
            (config.total_buffers - config.read_reserve_buffers) / config.extent_buffers * config.extent_buffers;
        let sum = |kind: ArenaKind, of: fn(&Share) -> u32| -> u32 {
            self.shares.values().filter(|share| share.kind == kind).map(of).sum()
        };
        let maxima =
            sum(ArenaKind::Write, |share| share.maximum).min(limit) + sum(ArenaKind::Read, |share| share.maximum);
        let sizes: u32 = self.shares.keys().map(|&id| self.pool.size(id)).sum();
        assert_eq!(
            sizes,
            maxima.min(config.total_buffers - self.unpooled),
            "nothing is left unshared"
        );
        for (&id, share) in &self.shares {
            let size = self.pool.size(id);
            assert!(share.minimum <= size && size <= share.maximum);
            assert_eq!(
                (self.pool.minimum(id), self.pool.held(id)),
                (share.minimum, self.held(id))
            );
        }
    }

    fn nobody_waits_in_vain(&self) {
        for (&id, share) in self.shares.iter().filter(|(_, share)| share.waiting) {
            let has_room = self.held(id) < self.pool.size(id);
            assert!(
                !has_room || self.obtainable(share.job, share.kind) == 0,
                "{id} was not woken"
            );
        }
    }

    fn held(&self, id: PoolId) -> u32 {
        u32::try_from(self.out.values().filter(|out| out.pool == id).count()).expect("few")
    }

    fn arenas(&self) -> impl Iterator<Item = (JobKey, ArenaKind)> {
        let jobs = self.pool.backing().jobs.iter();
        jobs.flat_map(|&job| [(job, ArenaKind::Write), (job, ArenaKind::Read)])
    }

    fn present(&self, (job, kind): (JobKey, ArenaKind)) -> u32 {
        self.pool.arena_buffers(job, kind)
    }

    /// Buffers of an arena beyond what its pools may still take of their minimums.
    fn spare(&self, (job, kind): (JobKey, ArenaKind)) -> u32 {
        let out = self
            .out
            .keys()
            .filter(|slot| slot.job == job && slot.arena == kind)
            .count();
        let here = self
            .shares
            .iter()
            .filter(|(_, share)| share.job == job && share.kind == kind);
        let unmet: u32 = here
            .map(|(&id, share)| share.minimum.saturating_sub(self.held(id)))
            .sum();
        self.present((job, kind)) - u32::try_from(out).expect("few") - unmet
    }

    /// Extents of an arena that could leave it.
    fn movable(&self, (job, kind): (JobKey, ArenaKind)) -> u32 {
        let size = self.pool.config().extent_buffers;
        let extents = self
            .pool
            .backing()
            .extents
            .iter()
            .filter(|extent| extent.0 == job && extent.1 == kind);
        let empty = extents.filter(|extent| {
            let slots = extent.2 * size..(extent.2 + 1) * size;
            slots
                .map(|slot| SlotRef { job, arena: kind, slot })
                .all(|slot| !self.out.contains_key(&slot))
        });
        u32::try_from(empty.count())
            .expect("few")
            .min(self.spare((job, kind)) / size)
    }

    /// Buffers that could be had in an arena beyond all minimums.
    fn obtainable(&self, job: JobKey, kind: ArenaKind) -> u32 {
        if !self.pool.backing().jobs.contains(&job) {
            return 0;
        }
        let config = self.pool.config();
        let others = |of: ArenaKind| -> u32 {
            self.arenas()
                .filter(|&at| at.1 == of && at != (job, kind))
                .map(|at| self.movable(at))
                .sum()
        };
        let free = self.pool.books().unassigned / config.extent_buffers + others(ArenaKind::Read);
        let written: u32 = self
            .arenas()
            .filter(|&(_, kind)| kind == ArenaKind::Write)
            .map(|at| self.present(at))
            .sum();
        let limit = (config.total_buffers - config.read_reserve_buffers - written) / config.extent_buffers;
        let extents = others(ArenaKind::Write)
            + if kind == ArenaKind::Write {
                free.min(limit)
            } else {
                free
            };
        self.spare((job, kind)) + extents * config.extent_buffers
    }
}

fn pick<K: Copy + Ord, V>(map: &BTreeMap<K, V>, number: u8) -> Option<K> {
    map.keys().nth(usize::from(number) % map.len().max(1)).copied()
}
