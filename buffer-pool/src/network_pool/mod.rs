//! The node's fixed memory for shuffle data, as books: who holds which buffer, and who may take the next.
//!
//! ```text
//!                      NetworkPool  (total_buffers, in extents)
//!   +----------+-----------------------------------------------------------+
//!   |  bank    |  write arena, job 1   |  read arena, job 1  |  job 2 ...   |
//!   +----------+-----------------------+---------------------+--------------+
//!                local pools: a writer each   a gate or a relay each
//!
//!   write arenas together <= total - read reserve
//!   in each arena: free >= what its local pools may still take of their minimums
//! ```
//!
//! The second line makes a minimum possession: it can be taken without waiting, always. Beyond its minimum a pool takes
//! what is spare in its arena, else an extent from the bank, else a wholly empty extent of another arena that stays
//! covered. Else it waits, first come first served, and [`NetworkPool::poll_ready`] says when.
//!
//! Everything here is decided without memory, file or clock; a [`Backing`] moves the extents. `take`, `transition`,
//! `release`, `pin` and `unpin` are O(1) and allocate nothing; with waiters `poll_ready` looks at each arena once.

mod check;
mod create;
mod extents;
mod home;
mod jobs;
mod take;
mod wanted;

use std::collections::BTreeMap;

use crate::{
    arena_books::ArenaBooks,
    backing::Backing,
    books::{Books, BufferState, Tally},
    error::{Holder, PoolError},
    ids::{ArenaKind, JobKey, PoolId, SlotRef, to_u32, to_usize},
    local_pool::{LocalPool, LocalPools},
    waiters::Waiters,
};

/// The size of the pool and how it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// All buffers of the node; a multiple of `extent_buffers`.
    pub total_buffers: u32,
    /// Bytes of one buffer; a multiple of the page size where there is memory behind it.
    pub buffer_bytes: u32,
    /// Buffers that move between bank and arena together.
    pub extent_buffers: u32,
    /// Buffers that write arenas may never have; rounded up to whole extents.
    pub read_reserve_buffers: u32,
}

impl PoolConfig {
    /// 32 KiB buffers, extents of 8, a quarter for readers.
    pub fn with_buffers(total_buffers: u32) -> Self {
        Self {
            total_buffers,
            buffer_bytes: 32 * 1024,
            extent_buffers: 8,
            read_reserve_buffers: total_buffers / 4,
        }
    }

    /// All buffers together, in bytes.
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.total_buffers) * u64::from(self.buffer_bytes)
    }

    /// Bytes of one extent.
    pub fn extent_bytes(&self) -> u64 {
        u64::from(self.extent_buffers) * u64::from(self.buffer_bytes)
    }

    /// Extents of the whole pool.
    pub fn extents(&self) -> u32 {
        self.total_buffers / self.extent_buffers
    }

    /// Extents that write arenas may have together.
    fn write_extents(&self) -> u32 {
        (self.total_buffers - self.read_reserve_buffers) / self.extent_buffers
    }

    /// # Errors
    /// [`PoolError::Config`] names the field and what it must be.
    pub fn validate(&self) -> Result<(), PoolError> {
        let refuse = |why: String| Err(PoolError::Config(why));
        if self.total_buffers == 0 || self.buffer_bytes == 0 || self.extent_buffers == 0 {
            return refuse("total_buffers, buffer_bytes and extent_buffers must be at least 1".to_owned());
        }
        if !self.total_buffers.is_multiple_of(self.extent_buffers) {
            return refuse(format!(
                "total_buffers ({}) must be a multiple of extent_buffers ({})",
                self.total_buffers, self.extent_buffers
            ));
        }
        if self.read_reserve_buffers > self.total_buffers {
            return refuse(format!(
                "read_reserve_buffers ({}) must be at most total_buffers ({})",
                self.read_reserve_buffers, self.total_buffers
            ));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Job {
    arenas: [u32; 2],
    retiring: bool,
}

/// See the module's header.
#[derive(Debug)]
pub struct NetworkPool<B> {
    config: PoolConfig,
    backing: B,
    jobs: BTreeMap<JobKey, Job>,
    arenas: Vec<Option<ArenaBooks>>,
    vacant_arenas: Vec<u32>,
    pools: LocalPools,
    waiters: Waiters,
    tally: Tally,
    /// Extents in the bank, and in all write arenas together.
    bank: u32,
    write_extents: u32,
    /// Arenas of each kind that could give an extent now.
    movable: [u32; 2],
    /// Sum of the minimums of each kind.
    guaranteed: [u32; 2],
    unpooled: u32,
    /// Minimums of each kind that wait to be created.
    wanted: [u64; 2],
    /// The pool that `poll_ready` named last: nobody overtakes it until the next `poll_ready`.
    turn: Option<u32>,
    /// Something changed since `poll_ready` last found nobody to wake.
    stirred: bool,
    /// A move failed and nothing came home since: no use trying again yet.
    moves_failed: bool,
    move_error: Option<PoolError>,
    steps_since_check: u32,
}

impl<B: Backing> NetworkPool<B> {
    /// All buffers in the bank.
    ///
    /// # Errors
    /// [`PoolError::Config`].
    pub fn new(config: PoolConfig, backing: B) -> Result<Self, PoolError> {
        config.validate()?;
        Ok(Self {
            config,
            backing,
            jobs: BTreeMap::new(),
            arenas: Vec::new(),
            vacant_arenas: Vec::new(),
            pools: LocalPools::default(),
            waiters: Waiters::new(),
            tally: Tally::new(config.total_buffers),
            bank: config.extents(),
            write_extents: 0,
            movable: [0; 2],
            guaranteed: [0; 2],
            unpooled: 0,
            wanted: [0; 2],
            turn: None,
            stirred: false,
            moves_failed: false,
            move_error: None,
            steps_since_check: 0,
        })
    }

    /// As given to [`Self::new`].
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// What moves the memory.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    /// What moves the memory.
    pub fn backing_mut(&mut self) -> &mut B {
        &mut self.backing
    }

    /// How many buffers are in which state.
    pub fn books(&self) -> Books {
        self.tally.books()
    }

    /// Buffers the pool may hold now; 0 once it is destroyed.
    pub fn size(&self, id: PoolId) -> u32 {
        self.pools.find(id).map_or(0, |pool| pool.size)
    }

    /// Buffers it holds now, quarantined ones included.
    pub fn held(&self, id: PoolId) -> u32 {
        self.pools.find(id).map_or(0, |pool| pool.held)
    }

    /// Buffers it is guaranteed; 0 once it is destroyed.
    pub fn minimum(&self, id: PoolId) -> u32 {
        self.pools.find(id).map_or(0, |pool| pool.minimum)
    }

    /// Buffers that a local pool of this kind could be guaranteed if it were alone: writers may not take the read reserve.
    pub fn most(&self, kind: ArenaKind) -> u32 {
        match kind {
            ArenaKind::Write => self.config.write_extents() * self.config.extent_buffers,
            ArenaKind::Read => self.config.total_buffers,
        }
    }

    /// The largest minimum that a pool of this job could be guaranteed now; 0 for a job without arenas.
    pub fn available(&self, job: JobKey, kind: ArenaKind) -> u32 {
        self.jobs.get(&job).filter(|known| !known.retiring).map_or(0, |known| {
            self.undivided().min(self.obtainable(known.arenas[kind.index()]))
        })
    }

    /// Whether anybody waits for memory.
    pub fn is_waited_for(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Whether it was created and not yet destroyed.
    pub fn contains(&self, id: PoolId) -> bool {
        self.pools.find(id).is_some_and(|pool| !pool.leaving)
    }

    /// Where a buffer is in its life; `None` if there is no such job or slot, or its extent is in the bank.
    pub fn state(&self, slot: SlotRef) -> Option<BufferState> {
        let job = self.jobs.get(&slot.job)?;
        self.arena(job.arenas[slot.arena.index()]).state(slot.slot)
    }

    /// The local pool that holds a buffer, if it is out.
    pub fn pool_of(&self, slot: SlotRef) -> Option<PoolId> {
        let job = self.jobs.get(&slot.job)?;
        let out = self.arena(job.arenas[slot.arena.index()]).find_out(slot.slot)?;
        Some(self.pools.id(out.pool))
    }

    /// Buffers of whole extents that the job's arena has now.
    pub fn arena_buffers(&self, job: JobKey, kind: ArenaKind) -> u32 {
        self.jobs.get(&job).map_or(0, |job| {
            self.arena(job.arenas[kind.index()]).extents() * self.config.extent_buffers
        })
    }

    /// The first error of a move that could not be told to a caller, since last asked: an extent for [`Self::take`], or
    /// one on its way home.
    pub fn poll_move_error(&mut self) -> Option<PoolError> {
        self.move_error.take()
    }

    /// Forgets that a move failed. Without this a move is tried again when the next buffer comes home; call it now and
    /// then, since what was missing may have come from outside.
    pub fn retry_moves(&mut self) {
        self.stirred |= std::mem::take(&mut self.moves_failed);
        let retiring: Vec<JobKey> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.retiring)
            .map(|(key, _)| *key)
            .collect();
        for job in retiring {
            self.finish_retired(job);
        }
    }

    /// All who hold or are guaranteed buffers, largest first.
    pub fn holders(&self) -> Vec<Holder> {
        let mut holders: Vec<Holder> = self
            .pools
            .iter()
            .filter(|(_, pool)| pool.held > 0 || pool.minimum > 0)
            .map(|(_, pool)| Holder {
                label: pool.label.clone(),
                held: pool.held,
                minimum: pool.minimum,
            })
            .collect();
        holders.sort_by(|a, b| {
            b.held
                .max(b.minimum)
                .cmp(&a.held.max(a.minimum))
                .then_with(|| a.label.cmp(&b.label))
        });
        holders
    }

    fn arena(&self, index: u32) -> &ArenaBooks {
        self.arenas[to_usize(index)]
            .as_ref()
            .expect("invariant: an arena is there as long as its job")
    }

    fn arena_mut(&mut self, index: u32) -> &mut ArenaBooks {
        self.arenas[to_usize(index)]
            .as_mut()
            .expect("invariant: an arena is there as long as its job")
    }

    fn arenas(&self) -> impl Iterator<Item = (u32, &ArenaBooks)> {
        self.arenas
            .iter()
            .enumerate()
            .filter_map(|(at, arena)| arena.as_ref().map(|arena| (to_u32(at), arena)))
    }

    fn pool(&self, id: PoolId) -> &LocalPool {
        match self.pools.find(id) {
            Some(pool) if !pool.leaving => pool,
            _ => panic!("invariant: {id} has not been destroyed"),
        }
    }

    /// Index of the arena of a slot that must exist.
    fn arena_of(&self, slot: SlotRef) -> u32 {
        let job = self.jobs.get(&slot.job);
        job.unwrap_or_else(|| panic!("invariant: the job of {slot} is here"))
            .arenas[slot.arena.index()]
    }
}
