//! Local pools come with their minimum in hand or not at all, and every coming and going shares the rest anew.

use super::NetworkPool;
use crate::{
    backing::Backing,
    error::PoolError,
    ids::{ArenaKind, JobKey, PoolId},
    local_pool::{LocalPool, LocalPoolSpec, Wait},
    redistribute::{Share, redistribute},
};

impl<B: Backing> NetworkPool<B> {
    /// Creates a local pool that can take its minimum without ever waiting: the extents are moved in now.
    ///
    /// # Errors
    /// [`PoolError::Insufficient`] at once: the caller may try again when buffers have come home, unless it needs more than
    /// [`Self::most`]. [`PoolError::Move`],
    /// [`PoolError::JobUnknown`], [`PoolError::InvalidSpec`].
    pub fn create_local_pool(
        &mut self,
        job: JobKey,
        kind: ArenaKind,
        spec: LocalPoolSpec,
    ) -> Result<PoolId, PoolError> {
        let id = self.join(job, kind, spec)?;
        self.resize_pools();
        self.after_step();
        Ok(id)
    }

    /// Creates several at once, or none: what a group does with all its minimums on a node.
    ///
    /// # Errors
    /// As [`Self::create_local_pool`], from the first that fails.
    pub fn create_local_pools(
        &mut self,
        specs: impl IntoIterator<Item = (JobKey, ArenaKind, LocalPoolSpec)>,
    ) -> Result<Vec<PoolId>, PoolError> {
        let mut created = Vec::new();
        for (job, kind, spec) in specs {
            match self.join(job, kind, spec) {
                Ok(id) => created.push(id),
                Err(error) => {
                    created.into_iter().for_each(|id| self.leave(id));
                    self.resize_pools();
                    self.after_step();
                    return Err(error);
                }
            }
        }
        self.resize_pools();
        self.after_step();
        Ok(created)
    }

    /// The pool leaves redistribution now; what it still holds comes home one by one and is counted until then.
    ///
    /// # Panics
    /// If it has been destroyed before.
    pub fn destroy_local_pool(&mut self, id: PoolId) {
        self.leave(id);
        self.resize_pools();
        self.after_step();
    }

    /// Takes buffers out of what local pools share: their sizes shrink, their minimums do not.
    ///
    /// # Errors
    /// [`PoolError::Insufficient`].
    pub fn take_unpooled(&mut self, buffers: u32) -> Result<(), PoolError> {
        let available = self.undivided();
        if buffers > available {
            return Err(self.insufficient(buffers, available, self.config.total_buffers));
        }
        self.unpooled += buffers;
        self.resize_pools();
        self.after_step();
        Ok(())
    }

    /// Gives back what [`Self::take_unpooled`] took.
    ///
    /// # Panics
    /// If more comes back than was taken.
    pub fn return_unpooled(&mut self, buffers: u32) {
        self.unpooled = self
            .unpooled
            .checked_sub(buffers)
            .expect("invariant: what comes back was taken");
        self.resize_pools();
        self.after_step();
    }

    fn join(&mut self, job: JobKey, kind: ArenaKind, spec: LocalPoolSpec) -> Result<PoolId, PoolError> {
        let arena = match self.jobs.get(&job) {
            Some(known) if !known.retiring => known.arenas[kind.index()],
            _ => return Err(PoolError::JobUnknown(job)),
        };
        let LocalPoolSpec {
            minimum,
            maximum,
            weight,
            label,
        } = spec;
        let maximum = maximum.unwrap_or(u32::MAX);
        if weight == 0 {
            return Err(PoolError::InvalidSpec {
                label,
                reason: "its weight must be at least 1",
            });
        }
        if maximum < minimum {
            return Err(PoolError::InvalidSpec {
                label,
                reason: "its maximum is below its minimum",
            });
        }

        let available = self.undivided().min(self.obtainable(arena));
        if minimum > available {
            return Err(self.insufficient(minimum, available, self.most(kind)));
        }
        if self.arena(arena).spare() < minimum {
            self.arena_mut(arena).stop_draining_all();
        }
        while self.arena(arena).spare() < minimum {
            self.gain(arena)?;
        }
        let pool = LocalPool {
            arena,
            minimum,
            maximum,
            weight,
            label,
            size: minimum,
            held: 0,
            wait: Wait::No,
            leaving: false,
        };
        self.arena_mut(arena).unmet += minimum;
        self.note_movable(arena);
        self.guaranteed[kind.index()] += minimum;
        let id = self.pools.insert(pool);
        self.waiters.reserve(self.pools.capacity(), self.arenas.len());
        Ok(id)
    }

    pub(super) fn leave(&mut self, id: PoolId) {
        let index = id.index();
        let pool = self.pool(id);
        let (arena, minimum, unmet, held) = (pool.arena, pool.minimum, pool.unmet(), pool.held);
        self.wait_for(index, Wait::No);
        if self.turn == Some(index) {
            self.turn = None;
        }
        let pool = self.pools.at_mut(index);
        pool.leaving = true;
        pool.minimum = 0;
        pool.size = 0;
        let books = self.arena_mut(arena);
        books.unmet -= unmet;
        let kind = books.kind;
        self.guaranteed[kind.index()] -= minimum;
        self.note_movable(arena);
        if held == 0 {
            self.pools.remove(index);
        }
    }

    /// Shares anew what is neither unpooled nor wanted by newcomers. Writers together get at most what the read reserve leaves them; what they cannot use is
    /// the readers'.
    pub(super) fn resize_pools(&mut self) {
        // More may be wanted than there is; sizes shrink to the minimums at most.
        let kept_back = |wanted: u64, at_most: u32| u32::try_from(wanted).map_or(at_most, |wanted| wanted.min(at_most));
        let undivided = self.undivided();
        let wanted = kept_back(self.wanted.iter().sum(), undivided);
        let available = self.config.total_buffers - self.unpooled - wanted;
        let live: Vec<(u32, ArenaKind, Share)> = self
            .pools
            .iter()
            .filter(|(_, pool)| !pool.leaving)
            .map(|(index, pool)| {
                let share = Share {
                    minimum: pool.minimum,
                    maximum: pool.maximum,
                    weight: pool.weight,
                };
                (index, self.arena(pool.arena).kind, share)
            })
            .collect();
        let of = |kind: ArenaKind| live.iter().filter(move |entry| entry.1 == kind).copied();
        let mut sizes = sizes(available, live.iter().copied());
        let written: u32 = sizes
            .iter()
            .filter(|(_, kind, _)| *kind == ArenaKind::Write)
            .map(|(.., size)| size)
            .sum();
        let write = ArenaKind::Write.index();
        let most = self.most(ArenaKind::Write);
        let limit = most - kept_back(self.wanted[write], most - self.guaranteed[write]);
        if written > limit {
            sizes = self::sizes(limit, of(ArenaKind::Write));
            sizes.extend(self::sizes(available - limit, of(ArenaKind::Read)));
        }
        for (index, _, size) in sizes {
            self.pools.at_mut(index).size = size;
            self.reconsider(index);
        }
    }

    /// Buffers that are neither guaranteed to a local pool nor unpooled.
    pub(super) fn undivided(&self) -> u32 {
        let guaranteed: u32 = self.guaranteed.iter().sum();
        self.config.total_buffers - self.unpooled - guaranteed
    }

    fn insufficient(&self, need: u32, available: u32, total: u32) -> PoolError {
        PoolError::Insufficient {
            need,
            available,
            total,
            holders: self.holders(),
        }
    }
}

fn sizes(available: u32, entries: impl Iterator<Item = (u32, ArenaKind, Share)> + Clone) -> Vec<(u32, ArenaKind, u32)> {
    let shares: Vec<Share> = entries.clone().map(|(.., share)| share).collect();
    let sizes = redistribute(available, &shares);
    entries
        .zip(sizes)
        .map(|((index, kind, _), size)| (index, kind, size))
        .collect()
}
