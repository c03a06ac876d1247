//! Extents on their way out: free buffers parked, the others awaited.

use super::ArenaBooks;
use crate::ids::to_usize;

impl ArenaBooks {
    /// Extents that drain.
    pub(crate) fn draining(&self) -> u32 {
        self.draining.len()
    }

    /// Free buffers of extents that drain: granted to nobody.
    pub(crate) fn parked(&self) -> u32 {
        self.parked
    }

    /// Whether parked buffers are needed for minimums now; the caller stops the draining before anything else.
    pub(crate) fn owes(&self) -> bool {
        self.free.len() < self.unmet
    }

    /// The extent of a buffer, if it drains.
    pub(crate) fn draining_extent_of(&self, slot: u32) -> Option<u32> {
        Some(slot / self.extent_buffers).filter(|&extent| self.draining.contains(extent))
    }

    /// Whether the last buffer of a draining extent is home.
    pub(crate) fn is_drained(&self, extent: u32) -> bool {
        self.used[to_usize(extent)] == Some(0)
    }

    /// Of the extents that are not empty, the one with the most free buffers that the arena can do without; free buffers
    /// first, then the extent.
    pub(crate) fn best_to_drain(&self) -> Option<(u32, u32)> {
        let spare = self.spare();
        let used = (0u32..).zip(&self.used);
        let candidates = used.filter_map(|(extent, used)| {
            let used = used.filter(|&used| used > 0 && !self.draining.contains(extent))?;
            let free = self.extent_buffers - used;
            (free <= spare).then_some((free, extent))
        });
        candidates.max()
    }

    /// Parks the free buffers of an extent that is not empty, and every one that comes home to it.
    pub(crate) fn drain(&mut self, extent: u32) {
        for slot in self.slots_of(extent) {
            if self.free.contains(slot) {
                self.free.remove(slot);
                self.parked += 1;
            }
        }
        self.draining.push(extent);
    }

    /// An ordinary extent again.
    pub(crate) fn stop_draining(&mut self, extent: u32) {
        self.draining.remove(extent);
        for slot in self.slots_of(extent) {
            if self.find_out(slot).is_none() {
                self.free.push(slot);
                self.parked -= 1;
            }
        }
        if self.is_drained(extent) {
            self.empty.push(extent);
        }
    }

    /// Every extent is an ordinary one again.
    pub(crate) fn stop_draining_all(&mut self) {
        while let Some(extent) = self.draining.coldest() {
            self.stop_draining(extent);
        }
    }
}
