//! Taking a buffer, and whose turn it is when there are too few.
//!
//! ```text
//! held >= size         nothing                     waits for its own size
//! held <  minimum      always                      it is possession
//! else                 spare here, else an extent  waits for memory, in order
//! ```
//!
//! Nobody overtakes: while others wait for what a pool would take, it stands behind them. The pool that `poll_ready` names
//! has the turn for **one** take; if it then takes nothing, it no longer waits.

use super::NetworkPool;
use crate::{
    backing::Backing,
    books::BufferState,
    ids::{ArenaKind, PoolId, SlotRef},
    local_pool::Wait,
    waiters::Queue,
};

impl<B: Backing> NetworkPool<B> {
    /// [`Self::take_as`] for a writer: the buffer is [`BufferState::Granted`].
    pub fn take(&mut self, id: PoolId) -> Option<SlotRef> {
        self.take_as(id, BufferState::Granted)
    }

    /// Takes the buffer freed last, in state `to`. `None`: the pool is at its size or there is no memory; it waits from
    /// now on and [`Self::poll_ready`] will name it.
    ///
    /// # Panics
    /// If the pool has been destroyed or `to` is [`BufferState::Free`].
    pub fn take_as(&mut self, id: PoolId, to: BufferState) -> Option<SlotRef> {
        assert!(to != BufferState::Free, "invariant: a taken buffer is not free");
        let pool = self.pool(id);
        let (index, arena, below_minimum) = (id.index(), pool.arena, pool.held < pool.minimum);
        if pool.held >= pool.size {
            self.wait_for(index, Wait::Size);
            return None;
        }
        if !below_minimum && !self.secure(index, arena) {
            self.wait_for(index, Wait::Queue);
            return None;
        }
        if self.turn == Some(index) {
            self.turn = None;
        }
        self.wait_for(index, Wait::No);
        self.pools.at_mut(index).held += 1;
        let books = self.arena_mut(arena);
        books.unmet -= u32::from(below_minimum);
        let slot = books.take(index, to).expect("invariant: what was secured is free");
        let slot = SlotRef {
            job: books.job,
            arena: books.kind,
            slot,
        };
        self.tally.step(BufferState::Free, to);
        self.note_movable(arena);
        self.after_step();
        Some(slot)
    }

    /// The next waiting pool for which a take would succeed now. Call it until `None` after every step that may have
    /// brought something home, and let each pool take at once.
    pub fn poll_ready(&mut self) -> Option<PoolId> {
        self.turn = None;
        if let Some(index) = self.waiters.first(Queue::Certain) {
            self.wait_for(index, Wait::No);
            return Some(self.pools.id(index));
        }
        // While nothing has changed, whoever could not be served still cannot.
        let servable = if self.stirred { self.first_servable() } else { None };
        let Some(index) = servable else {
            self.stirred = false;
            return None;
        };
        self.wait_for(index, Wait::No);
        self.turn = Some(index);
        Some(self.pools.id(index))
    }

    /// Makes sure that a pool beyond its minimum finds a spare buffer in its arena.
    fn secure(&mut self, index: u32, arena: u32) -> bool {
        let its_turn = self.turn == Some(index);
        let in_turn_here = self.turn.is_some_and(|other| self.pools.at(other).arena == arena);
        let first_here = self
            .waiters
            .first(Queue::Arena(arena))
            .is_none_or(|first| first == index);
        if !its_turn && (in_turn_here || !first_here) {
            return false;
        }
        if self.arena(arena).spare() > 0 {
            return true;
        }
        if !self.may_gain(self.arena(arena).kind) {
            return false;
        }
        let overtakes = self.turn.is_some() || self.first_servable().is_some_and(|first| first != index);
        if !its_turn && overtakes {
            return false;
        }
        // A failed move is kept for `poll_move_error`; this pool waits until something comes home.
        self.gain(arena).is_ok()
    }

    /// Of all arenas that could serve the first of their queue now, the one who came first.
    pub(super) fn first_servable(&self) -> Option<u32> {
        if self.waiters.is_empty() {
            return None;
        }
        let gain = [ArenaKind::Write, ArenaKind::Read].map(|kind| self.may_gain(kind));
        let servable = self.arenas().filter_map(|(at, books)| {
            let ticket = self.waiters.ticket_of_first(at)?;
            (books.spare() > 0 || gain[books.kind.index()]).then_some((ticket, at))
        });
        let (_, arena) = servable.min()?;
        self.waiters.first(Queue::Arena(arena))
    }

    /// What the pool waits for from now on. Who stands in a queue keeps its place.
    pub(super) fn wait_for(&mut self, index: u32, wait: Wait) {
        let pool = self.pools.at_mut(index);
        if pool.wait == wait {
            return;
        }
        let was = std::mem::replace(&mut pool.wait, wait);
        let queue = if pool.held < pool.minimum {
            Queue::Certain
        } else {
            Queue::Arena(pool.arena)
        };
        if was == Wait::Queue {
            self.waiters.remove(index);
        }
        if wait == Wait::Queue {
            self.waiters.push(queue, index);
        }
    }

    /// After a change of what it holds or may hold: from its own size to the queue for memory, or back.
    pub(super) fn reconsider(&mut self, index: u32) {
        let pool = self.pools.at(index);
        let (has_room, below_minimum) = (pool.held < pool.size, pool.held < pool.minimum);
        match pool.wait {
            Wait::No => {}
            Wait::Size if has_room => self.wait_for(index, Wait::Queue),
            Wait::Size => {}
            Wait::Queue if !has_room => self.wait_for(index, Wait::Size),
            Wait::Queue if below_minimum && self.waiters.queue_of(index) != Some(Queue::Certain) => {
                self.wait_for(index, Wait::No);
                self.wait_for(index, Wait::Queue);
            }
            Wait::Queue => {}
        }
        self.stirred |= !self.waiters.is_empty();
    }
}
