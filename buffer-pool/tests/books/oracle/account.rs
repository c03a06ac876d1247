//! The second opinion: what must hold after every operation, by the oracle's own account.

use buffer_pool::{ArenaKind, JobKey, PoolId, SlotRef};

use super::{Share, World};

impl World {
    pub(super) fn check(&self) {
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
        let sum = |kind: ArenaKind, of: fn(&Share) -> u32| -> u32 {
            self.shares.values().filter(|share| share.kind == kind).map(of).sum()
        };
        let guaranteed = [ArenaKind::Write, ArenaKind::Read].map(|kind| sum(kind, |share| share.minimum));
        let (write, read) = self.wanted;
        // What newcomers want counts as theirs, as far as it is not guaranteed to others.
        let all = config.total_buffers - self.unpooled;
        let all = all - (write + read).min(all - guaranteed[0] - guaranteed[1]);
        let limit =
            (config.total_buffers - config.read_reserve_buffers) / config.extent_buffers * config.extent_buffers;
        let limit = limit - write.min(limit - guaranteed[0]);
        let maxima =
            sum(ArenaKind::Write, |share| share.maximum).min(limit) + sum(ArenaKind::Read, |share| share.maximum);
        let sizes: u32 = self.shares.keys().map(|&id| self.pool.size(id)).sum();
        assert_eq!(sizes, maxima.min(all), "nothing is left unshared");
        for (&id, share) in &self.shares {
            let size = self.pool.size(id);
            assert!(share.minimum <= size && size <= share.maximum);
            assert_eq!(
                (self.pool.minimum(id), self.pool.held(id)),
                (share.minimum, self.held(id))
            );
        }
    }

    pub(super) fn nobody_waits_in_vain(&self) {
        if self.wanted != (0, 0) {
            return;
        }
        for (&id, share) in self.shares.iter().filter(|(_, share)| share.waiting) {
            let has_room = self.held(id) < self.pool.size(id);
            assert!(
                !has_room || self.obtainable(share.job, share.kind) == 0,
                "{id} was not woken"
            );
        }
    }

    pub(super) fn held(&self, id: PoolId) -> u32 {
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
    pub(super) fn obtainable(&self, job: JobKey, kind: ArenaKind) -> u32 {
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
