//! Extents move: from the bank into an arena that needs one, and back when another arena needs it more.
//!
//! Nothing goes back eagerly: an extent that has just been emptied is the one whose pages are still in the cache.

use std::sync::Arc;

use super::NetworkPool;
use crate::{
    backing::Backing,
    books::BufferState,
    error::PoolError,
    ids::{ArenaKind, to_usize},
};

impl<B: Backing> NetworkPool<B> {
    /// Whether an arena of this kind could get an extent from somewhere else.
    pub(super) fn can_gain(&self, kind: ArenaKind) -> bool {
        let [write, read] = self.movable;
        match kind {
            ArenaKind::Read => self.bank > 0 || write + read > 0,
            // An extent that one write arena gives another leaves the read reserve as it is.
            ArenaKind::Write => write > 0 || (self.below_reserve() && (self.bank > 0 || read > 0)),
        }
    }

    /// How many buffers this arena could have beyond what is guaranteed to its pools, all moves made.
    pub(super) fn obtainable(&self, arena: u32) -> u32 {
        let this = self.arena(arena);
        let mut movable = [0; 2];
        for (_, other) in self.arenas().filter(|&(at, _)| at != arena) {
            movable[other.kind.index()] += other.movable();
        }
        let [write, read] = movable;
        let extents = match this.kind {
            ArenaKind::Read => self.bank + write + read,
            ArenaKind::Write => write + (self.bank + read).min(self.config.write_extents() - self.write_extents),
        };
        this.spare() + this.parked() + extents * self.config.extent_buffers
    }

    /// Moves one extent into an arena: from the bank, else from the arena that has most to give.
    ///
    /// # Errors
    /// [`PoolError::Move`]; the books are as before, but that an extent may have gone home to the bank.
    ///
    /// # Panics
    /// If there is none to be had: see [`Self::can_gain`].
    pub(super) fn gain(&mut self, arena: u32) -> Result<(), PoolError> {
        let kind = self.arena(arena).kind;
        let may_grow = kind == ArenaKind::Read || self.below_reserve();
        if self.bank == 0 || !may_grow {
            let donors = self
                .arenas()
                .filter(|&(at, from)| at != arena && (may_grow || from.kind == ArenaKind::Write));
            let most = donors
                .filter(|(_, from)| from.movable() > 0)
                .max_by_key(|(_, from)| from.movable());
            let (donor, _) = most.expect("invariant: an extent can be had");
            self.give(donor)?;
        }
        let books = self.arena(arena);
        let (job, extent) = (
            books.job,
            books
                .next_absent()
                .expect("invariant: an extent elsewhere is absent here"),
        );
        if let Err(cause) = self.backing.move_in(job, kind, extent) {
            let cause = Arc::new(cause);
            return Err(self.move_failed(PoolError::Move {
                job,
                arena: kind,
                extent,
                direction: "into",
                cause,
            }));
        }
        self.bank -= 1;
        self.tally.unassigned -= self.config.extent_buffers;
        self.tally.add(BufferState::Free, self.config.extent_buffers);
        self.write_extents += u32::from(kind == ArenaKind::Write);
        self.arena_mut(arena).gain();
        self.note_movable(arena);
        Ok(())
    }

    /// Moves the extent of an arena that has been empty longest to the bank.
    ///
    /// # Errors
    /// [`PoolError::Move`]; the books are as before.
    pub(super) fn give(&mut self, arena: u32) -> Result<(), PoolError> {
        let coldest = self.arena(arena).coldest_empty();
        self.give_extent(arena, coldest.expect("invariant: who gives an extent has an empty one"))
    }

    /// Moves this extent, which is empty or has drained, to the bank.
    ///
    /// # Errors
    /// [`PoolError::Move`]; the books are as before.
    pub(super) fn give_extent(&mut self, arena: u32, extent: u32) -> Result<(), PoolError> {
        let books = self.arena(arena);
        let (job, kind) = (books.job, books.kind);
        if let Err(cause) = self.backing.move_out(job, kind, extent) {
            let cause = Arc::new(cause);
            return Err(self.move_failed(PoolError::Move {
                job,
                arena: kind,
                extent,
                direction: "out of",
                cause,
            }));
        }
        self.arena_mut(arena).lose(extent);
        self.bank += 1;
        self.tally.subtract(BufferState::Free, self.config.extent_buffers);
        self.tally.unassigned += self.config.extent_buffers;
        self.write_extents -= u32::from(kind == ArenaKind::Write);
        self.note_movable(arena);
        Ok(())
    }

    /// Keeps the count of arenas that could give an extent; after each change of an arena's books.
    pub(super) fn note_movable(&mut self, arena: u32) {
        let books = self.arenas[to_usize(arena)]
            .as_mut()
            .expect("invariant: an arena is there as long as its job");
        let movable = books.movable() > 0;
        if movable == books.counted_movable {
            return;
        }
        books.counted_movable = movable;
        let count = &mut self.movable[books.kind.index()];
        if movable {
            *count += 1;
        } else {
            *count = count.checked_sub(1).expect("invariant: an arena is counted once");
        }
    }

    /// Whether write arenas may have one extent more.
    fn below_reserve(&self) -> bool {
        self.write_extents < self.config.write_extents()
    }

    fn move_failed(&mut self, error: PoolError) -> PoolError {
        self.moves_failed = true;
        self.move_error.get_or_insert_with(|| error.clone());
        error
    }
}
