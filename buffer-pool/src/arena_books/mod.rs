//! The books of one arena: which extents it has, which of its buffers are free, who holds the others.
//!
//! ```text
//! arena   | extent 0 | extent 1 |  absent  | extent 3 |  absent  | ...       sparse, as long as the whole pool
//! slots    f f g q .. f f f f f             v f f f f
//!                     '-- empty: may leave while spare >= one extent
//!
//! spare == free - unmet >= 0         unmet: what the arena's pools have of their minimums still to take
//! ```
//!
//! `spare` is what makes a minimum possession: nobody takes beyond a minimum, and no extent leaves, unless it stays >= 0.

mod check;
mod draining;

use crate::{
    books::BufferState,
    free_list::FreeList,
    ids::{ArenaKind, JobKey, to_usize},
};

/// One buffer of an arena. `pool` means something only while it is not free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) state: BufferState,
    pub(crate) pool: u32,
    pub(crate) pins: u32,
}

#[derive(Debug)]
pub(crate) struct ArenaBooks {
    pub(crate) job: JobKey,
    pub(crate) kind: ArenaKind,
    /// What its pools may still take of their minimums.
    pub(crate) unmet: u32,
    /// As last told to the network pool's count of arenas that can give an extent.
    pub(crate) counted_movable: bool,
    extent_buffers: u32,
    slots: Vec<Slot>,
    free: FreeList,
    used: Vec<Option<u32>>,
    empty: FreeList,
    absent: Vec<u32>,
    /// Extents whose free buffers are not granted, and how many such buffers there are.
    draining: FreeList,
    parked: u32,
}

impl ArenaBooks {
    /// No extent yet.
    pub(crate) fn new(job: JobKey, kind: ArenaKind, extents: u32, extent_buffers: u32) -> Self {
        let buffers = extents * extent_buffers;
        let slot = Slot {
            state: BufferState::Free,
            pool: 0,
            pins: 0,
        };
        Self {
            job,
            kind,
            unmet: 0,
            counted_movable: false,
            extent_buffers,
            slots: vec![slot; to_usize(buffers)],
            free: FreeList::new(buffers),
            used: vec![None; to_usize(extents)],
            empty: FreeList::new(extents),
            absent: (0..extents).rev().collect(),
            draining: FreeList::new(extents),
            parked: 0,
        }
    }

    /// Buffers beyond what the minimums of this arena's pools still need.
    pub(crate) fn spare(&self) -> u32 {
        self.free
            .len()
            .checked_sub(self.unmet)
            .expect("invariant: unmet minimums are possession")
    }

    /// Extents it could give away now.
    pub(crate) fn movable(&self) -> u32 {
        self.empty.len().min(self.spare() / self.extent_buffers)
    }

    /// Extents it has.
    pub(crate) fn extents(&self) -> u32 {
        u32::try_from(self.used.len() - self.absent.len()).expect("invariant: extents fit u32")
    }

    /// Buffers that are not free.
    pub(crate) fn out(&self) -> u32 {
        self.extents() * self.extent_buffers - self.free.len() - self.parked
    }

    /// The extent that the next [`Self::gain`] will add, if it does not have them all.
    pub(crate) fn next_absent(&self) -> Option<u32> {
        self.absent.last().copied()
    }

    /// The empty extent that has been empty longest.
    pub(crate) fn coldest_empty(&self) -> Option<u32> {
        self.empty.coldest()
    }

    /// Adds the extent named by [`Self::next_absent`], all free.
    pub(crate) fn gain(&mut self) {
        let extent = self.absent.pop().expect("invariant: an arena gains what it lacks");
        self.used[to_usize(extent)] = Some(0);
        self.empty.push(extent);
        // Pushed backwards, so that the lowest address is granted first.
        for slot in self.slots_of(extent).rev() {
            self.free.push(slot);
        }
    }

    /// Gives up an extent that is empty or has drained.
    pub(crate) fn lose(&mut self, extent: u32) {
        assert_eq!(
            self.used[to_usize(extent)].take(),
            Some(0),
            "invariant: only an empty extent leaves"
        );
        if self.draining.contains(extent) {
            self.draining.remove(extent);
            self.parked -= self.extent_buffers;
        } else {
            self.empty.remove(extent);
            for slot in self.slots_of(extent) {
                self.free.remove(slot);
            }
        }
        self.absent.push(extent);
    }

    /// The buffer freed last, now in `state` and held by `pool`.
    pub(crate) fn take(&mut self, pool: u32, state: BufferState) -> Option<u32> {
        let slot = self.free.pop()?;
        self.slots[to_usize(slot)] = Slot { state, pool, pins: 0 };
        let extent = slot / self.extent_buffers;
        let used = self.used_mut(extent);
        *used += 1;
        if *used == 1 {
            self.empty.remove(extent);
        }
        Some(slot)
    }

    /// Home: free, and the next to be granted unless its extent drains. Returns the pool that held it.
    pub(crate) fn put_back(&mut self, slot: u32) -> u32 {
        let entry = &mut self.slots[to_usize(slot)];
        entry.state = BufferState::Free;
        let pool = entry.pool;
        let extent = slot / self.extent_buffers;
        let used = self.used_mut(extent);
        *used = used
            .checked_sub(1)
            .expect("invariant: an extent holds no fewer than no buffers");
        let empty = *used == 0;
        if self.draining.contains(extent) {
            self.parked += 1;
        } else {
            self.free.push(slot);
            if empty {
                self.empty.push(extent);
            }
        }
        pool
    }

    /// A buffer that is out.
    ///
    /// # Panics
    /// If the slot is free or its extent is not here: the caller acts on a buffer that is not its own.
    pub(crate) fn out_mut(&mut self, slot: u32) -> &mut Slot {
        let (job, kind) = (self.job, self.kind);
        let known = to_usize(slot) < self.slots.len();
        assert!(known, "invariant: slot {slot} lies in the {kind} of {job}");
        let entry = &mut self.slots[to_usize(slot)];
        assert!(
            entry.state != BufferState::Free,
            "invariant: slot {slot} of the {kind} of {job} is out"
        );
        entry
    }

    /// The slot's entry if it is out.
    pub(crate) fn find_out(&self, slot: u32) -> Option<&Slot> {
        self.slots
            .get(to_usize(slot))
            .filter(|entry| entry.state != BufferState::Free)
    }

    /// `None` if the slot's extent is not here.
    pub(crate) fn state(&self, slot: u32) -> Option<BufferState> {
        (*self.used.get(to_usize(slot / self.extent_buffers))?)?;
        Some(self.slots[to_usize(slot)].state)
    }

    /// All that are out.
    pub(crate) fn iter_out(&self) -> impl Iterator<Item = (u32, &Slot)> {
        (0u32..)
            .zip(&self.slots)
            .filter(|(_, entry)| entry.state != BufferState::Free)
    }

    fn slots_of(&self, extent: u32) -> std::ops::Range<u32> {
        extent * self.extent_buffers..(extent + 1) * self.extent_buffers
    }

    fn used_mut(&mut self, extent: u32) -> &mut u32 {
        self.used[to_usize(extent)]
            .as_mut()
            .expect("invariant: the extent is here")
    }
}
