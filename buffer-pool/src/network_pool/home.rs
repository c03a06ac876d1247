//! A buffer's way through its states, and home.

use super::NetworkPool;
use crate::{arena_books::Slot, backing::Backing, books::BufferState, ids::SlotRef};

impl<B: Backing> NetworkPool<B> {
    /// Moves a buffer that is out from one state to another.
    ///
    /// # Panics
    /// If it is not in `from`, or `to` is not a state of a buffer that is out: the caller's books are broken.
    pub fn transition(&mut self, slot: SlotRef, from: BufferState, to: BufferState) {
        assert!(
            !matches!(to, BufferState::Free | BufferState::Kernel),
            "invariant: {slot} goes home by release, not by a transition to {to:?}"
        );
        let arena = self.arena_of(slot);
        let entry = self.out_in(arena, slot, from);
        entry.state = to;
        self.tally.step(from, to);
        self.after_step();
    }

    /// Home. A pinned buffer is [`BufferState::Kernel`] until its last unpin.
    ///
    /// # Panics
    /// If it is not in `from`, or `from` is [`BufferState::Kernel`].
    pub fn release(&mut self, slot: SlotRef, from: BufferState) {
        assert!(
            from != BufferState::Kernel,
            "invariant: {slot} comes home from the kernel by its last unpin"
        );
        let arena = self.arena_of(slot);
        let entry = self.out_in(arena, slot, from);
        if entry.pins > 0 {
            entry.state = BufferState::Kernel;
            self.tally.step(from, BufferState::Kernel);
        } else {
            self.go_home(arena, slot.slot, from);
        }
        self.after_step();
    }

    /// A living process keeps a buffer it has lost the right to: not granted again until `release(slot, Quarantined)`.
    ///
    /// # Panics
    /// If it is free, in the kernel or quarantined already.
    pub fn quarantine(&mut self, slot: SlotRef) {
        let arena = self.arena_of(slot);
        let entry = self.arena_mut(arena).out_mut(slot.slot);
        let from = entry.state;
        assert!(
            !matches!(from, BufferState::Kernel | BufferState::Quarantined),
            "invariant: {slot} is held by a process, not {from:?}"
        );
        entry.state = BufferState::Quarantined;
        self.tally.step(from, BufferState::Quarantined);
        self.after_step();
    }

    /// Something outside the core's sight reads the buffer's memory until the matching [`Self::unpin`]. Pins are counted.
    ///
    /// # Panics
    /// If the buffer is free.
    pub fn pin(&mut self, slot: SlotRef) {
        let arena = self.arena_of(slot);
        let entry = self.arena_mut(arena).out_mut(slot.slot);
        entry.pins = entry.pins.checked_add(1).expect("invariant: fewer than 2^32 pins");
    }

    /// Whether anything outside the core's sight still reads or fills the buffer's memory.
    ///
    /// # Panics
    /// If the buffer is free.
    pub fn is_pinned(&mut self, slot: SlotRef) -> bool {
        let arena = self.arena_of(slot);
        self.arena_mut(arena).out_mut(slot.slot).pins > 0
    }

    /// Takes one pin back; at the last one a buffer that was released meanwhile comes home, and then this gives true.
    ///
    /// # Panics
    /// If the buffer is not pinned.
    pub fn unpin(&mut self, slot: SlotRef) -> bool {
        let arena = self.arena_of(slot);
        let entry = self.arena_mut(arena).out_mut(slot.slot);
        entry.pins = entry
            .pins
            .checked_sub(1)
            .unwrap_or_else(|| panic!("invariant: {slot} is pinned"));
        let is_home = entry.pins == 0 && entry.state == BufferState::Kernel;
        if is_home {
            self.go_home(arena, slot.slot, BufferState::Kernel);
        }
        self.after_step();
        is_home
    }

    fn out_in(&mut self, arena: u32, slot: SlotRef, state: BufferState) -> &mut Slot {
        let entry = self.arena_mut(arena).out_mut(slot.slot);
        assert!(
            entry.state == state,
            "invariant: {slot} is {:?}, not {state:?}",
            entry.state
        );
        entry
    }

    fn go_home(&mut self, arena: u32, slot: u32, from: BufferState) {
        self.tally.step(from, BufferState::Free);
        let books = self.arena_mut(arena);
        let job = books.job;
        let index = books.put_back(slot);
        let pool = self.pools.at_mut(index);
        pool.held = pool
            .held
            .checked_sub(1)
            .expect("invariant: a pool holds what it gives back");
        let (unmet, last_of_leaving) = (u32::from(pool.held < pool.minimum), pool.leaving && pool.held == 0);
        self.arena_mut(arena).unmet += unmet;
        self.moves_failed = false;
        self.settle_draining(arena, slot);
        self.note_movable(arena);
        self.drain_for_wanted();
        if !last_of_leaving {
            self.reconsider(index);
            return;
        }
        self.pools.remove(index);
        self.stirred |= !self.waiters.is_empty();
        if self.jobs.get(&job).is_some_and(|job| job.retiring) {
            self.finish_retired(job);
        }
    }
}
