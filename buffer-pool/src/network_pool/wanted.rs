//! Making room for pools that wait to be created.
//!
//! A busy pool gives a buffer back and takes it again at once, so without more the minimum of a newcomer might never be free,
//! and the free buffers of an arena might lie scattered over extents none of which is ever empty. While buffers are wanted
//!
//! 1. sizes shrink as if the newcomers were there, so others give back what they hold above their share;
//! 2. nobody gets an extent beyond its minimum;
//! 3. extents *drain*: their free buffers are not granted, what is out comes home, and then they go to the bank.
//!
//! ```text
//! arena   | f q f f | q q f q | f f f q |      wanted: one extent
//!                               ^ fewest out: drains while spare >= its free buffers, else it stops
//! ```

use super::NetworkPool;
use crate::{
    backing::Backing,
    ids::{ArenaKind, to_u32},
};

impl<B: Backing> NetworkPool<B> {
    /// Says how many buffers the pools that wait to be created need as minimums, all of them together, in write and in read
    /// arenas: the sum of `need` of the refusals that are going to be tried again. Absolute; 0 and 0 as soon as nobody waits.
    /// The sums may exceed the pool: many may wait.
    pub fn set_wanted(&mut self, write: u64, read: u64) {
        let wanted = [write, read];
        if wanted == self.wanted {
            return;
        }
        self.wanted = wanted;
        self.stop_draining();
        self.resize_pools();
        self.drain_for_wanted();
        self.stirred = true;
        self.after_step();
    }

    /// Whether an arena of this kind may get an extent for a pool beyond its minimum.
    pub(super) fn may_gain(&self, kind: ArenaKind) -> bool {
        !self.moves_failed && self.wanted == [0; 2] && self.can_gain(kind)
    }

    /// Starts to drain as many extents as are wanted and not in sight yet.
    pub(super) fn drain_for_wanted(&mut self) {
        if self.wanted == [0; 2] {
            return;
        }
        while let Some((arena, extent)) = self.next_to_drain() {
            self.arena_mut(arena).drain(extent);
            self.note_movable(arena);
        }
    }

    /// After a buffer came home: an extent that has drained goes to the bank; one whose buffers are needed here stops.
    pub(super) fn settle_draining(&mut self, arena: u32, slot: u32) {
        let Some(extent) = self.arena(arena).draining_extent_of(slot) else {
            return;
        };
        let books = self.arena(arena);
        let drained = books.is_drained(extent) && !books.owes();
        if !drained || self.give_extent(arena, extent).is_err() {
            let books = self.arena_mut(arena);
            if drained || books.owes() {
                books.stop_draining(extent);
            }
        }
    }

    fn stop_draining(&mut self) {
        for at in 0..self.arenas.len() {
            if let Some(books) = &mut self.arenas[at] {
                books.stop_draining_all();
                self.note_movable(to_u32(at));
            }
        }
    }

    /// The extent with the fewest buffers out that an arena can do without, while extents are missing.
    fn next_to_drain(&self) -> Option<(u32, u32)> {
        let extents = self
            .wanted
            .map(|buffers| buffers.div_ceil(u64::from(self.config.extent_buffers)));
        let [write, read] = extents;
        let in_sight = |kind: ArenaKind| -> u64 {
            let arenas = self.arenas().filter(move |(_, books)| books.kind == kind);
            arenas
                .map(|(_, books)| u64::from(books.movable() + books.draining()))
                .sum()
        };
        let (from_write, from_read) = (in_sight(ArenaKind::Write), in_sight(ArenaKind::Read));
        // At the read reserve a writer's extent can only come from another write arena.
        let room = u64::from(self.config.write_extents() - self.write_extents);
        let only_write = from_write < write.saturating_sub(room);
        if !only_write && u64::from(self.bank) + from_write + from_read >= write + read {
            return None;
        }
        let arenas = self
            .arenas()
            .filter(|(_, books)| !only_write || books.kind == ArenaKind::Write);
        let candidates =
            arenas.filter_map(|(at, books)| books.best_to_drain().map(|(free, extent)| (free, (at, extent))));
        candidates.max().map(|(_, chosen)| chosen)
    }

    pub(super) fn check_draining(&self) {
        let draining: u32 = self.arenas().map(|(_, books)| books.draining()).sum();
        assert!(
            draining == 0 || self.wanted != [0; 2],
            "extents drain only for somebody"
        );
    }
}
