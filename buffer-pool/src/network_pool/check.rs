//! The books always balance: the sums after every step, everything recounted once in a while (debug builds).

use super::NetworkPool;
use crate::{
    backing::Backing,
    books::{BufferState, Tally},
    ids::{ArenaKind, to_u32, to_usize},
    local_pool::Wait,
    waiters::Queue,
};

/// A recount looks at every buffer of every arena; in debug builds a step pays for about this many on average.
const RECOUNTED_PER_STEP: u32 = 16;

impl<B: Backing> NetworkPool<B> {
    /// After every public step.
    pub(super) fn after_step(&mut self) {
        if cfg!(debug_assertions) {
            assert_eq!(
                self.tally.sum(),
                u64::from(self.config.total_buffers),
                "invariant: the books balance"
            );
            self.steps_since_check += 1;
            let buffers = self.config.total_buffers * to_u32(self.arenas.len().max(1));
            if self.steps_since_check >= buffers / RECOUNTED_PER_STEP {
                self.steps_since_check = 0;
                self.check_invariants();
            }
        }
    }

    /// Recounts everything that is kept as a running number; O(arenas x buffers).
    ///
    /// # Panics
    /// If any book does not balance.
    pub fn check_invariants(&self) {
        self.check_extents();
        self.check_buffers();
        self.check_waiters();
        self.check_draining();
    }

    fn check_extents(&self) {
        let mut extents = [0; 2];
        let mut movable = [0; 2];
        for (_, books) in self.arenas() {
            books.check_invariants();
            extents[books.kind.index()] += books.extents();
            movable[books.kind.index()] += u32::from(books.movable() > 0);
            assert_eq!(
                books.counted_movable,
                books.movable() > 0,
                "arenas that could give an extent"
            );
        }
        assert_eq!(movable, self.movable, "arenas that could give an extent");
        assert_eq!(
            extents[ArenaKind::Write.index()],
            self.write_extents,
            "extents of write arenas"
        );
        assert!(
            self.write_extents <= self.config.write_extents(),
            "writers leave the read reserve alone"
        );
        assert_eq!(
            self.bank + extents.iter().sum::<u32>(),
            self.config.extents(),
            "an extent is in one place"
        );
    }

    fn check_buffers(&self) {
        let mut recount = Tally::new(self.bank * self.config.extent_buffers);
        let mut held = vec![0; self.pools.capacity()];
        for (at, books) in self.arenas() {
            recount.add(
                BufferState::Free,
                books.extents() * self.config.extent_buffers - books.out(),
            );
            for (slot, entry) in books.iter_out() {
                recount.add(entry.state, 1);
                held[to_usize(entry.pool)] += 1;
                assert_eq!(
                    self.pools.at(entry.pool).arena,
                    at,
                    "slot {slot} is held by a pool of its arena"
                );
                assert!(
                    entry.state != BufferState::Kernel || entry.pins > 0,
                    "slot {slot} is pinned in the kernel"
                );
            }
            let unmet: u32 = self
                .pools
                .iter()
                .filter(|(_, pool)| pool.arena == at)
                .map(|(_, pool)| pool.unmet())
                .sum();
            assert_eq!(unmet, books.unmet, "what pools may still take of their minimums");
        }
        assert_eq!(recount, self.tally, "states of all buffers");
        assert_eq!(
            recount.sum(),
            u64::from(self.config.total_buffers),
            "each buffer is in one state"
        );

        let mut guaranteed = [0; 2];
        for (index, pool) in self.pools.iter() {
            assert_eq!(pool.held, held[to_usize(index)], "what \"{}\" holds", pool.label);
            assert!(
                pool.minimum <= pool.size || pool.leaving,
                "\"{}\" has its minimum",
                pool.label
            );
            assert!(pool.size <= pool.maximum, "\"{}\" has at most its maximum", pool.label);
            assert!(
                !pool.leaving || pool.held > 0,
                "\"{}\" leaves with its last buffer",
                pool.label
            );
            guaranteed[self.arena(pool.arena).kind.index()] += pool.minimum;
        }
        assert_eq!(guaranteed, self.guaranteed, "sum of the minimums");
    }

    fn check_waiters(&self) {
        for (index, pool) in self.pools.iter() {
            let queue = self.waiters.queue_of(index);
            assert_eq!(
                queue.is_some(),
                pool.wait == Wait::Queue,
                "\"{}\" stands in a queue",
                pool.label
            );
            match queue {
                None => {}
                Some(Queue::Certain) => assert!(pool.held < pool.minimum, "\"{}\" is sure of a buffer", pool.label),
                Some(Queue::Arena(arena)) => {
                    assert_eq!(arena, pool.arena);
                    assert!(
                        pool.minimum <= pool.held && pool.held < pool.size,
                        "\"{}\" waits for memory",
                        pool.label
                    );
                }
            }
            assert!(
                pool.wait != Wait::Size || pool.held >= pool.size,
                "\"{}\" waits for its size",
                pool.label
            );
        }
        assert!(
            self.stirred || self.first_servable().is_none(),
            "poll_ready looks for whoever can be served"
        );
        for queue in self.arenas().map(|(at, _)| Queue::Arena(at)).chain([Queue::Certain]) {
            assert!(
                self.waiters
                    .iter(queue)
                    .all(|pool| self.waiters.queue_of(pool) == Some(queue))
            );
        }
    }
}
