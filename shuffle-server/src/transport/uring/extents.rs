//! Which extents a ring has registered, and how they are let go of.
//!
//! ```text
//!   ring's thread                              server's thread
//!     first zero-copy send from it              the extent is empty and moves to the bank:
//!     -> registered, noted                       noted? -> Command::Forget -> punched, not waiting for anything
//!     Forget -> deregistered                     moved in again -> Command::Send
//! ```
//!
//! An extent is registered while a buffer of it is leased, and moves only when it is empty; so one that is not noted when it
//! moves is not about to be, either. Registering faults pages in: only an extent that has its pages can hold a leased buffer.
//!
//! Commands are obeyed in order, so the ring has forgotten an extent before it hears of the next buffer in it: no send reads
//! pages that were punched. Until then the kernel keeps them, beside the pages that the bank gets: [`LEAVING`] limits that.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use buffer_pool::{ArenaKind, JobKey, SlotRef};

use super::piece::Piece;
use super::ring::Ring;

/// Extents of one ring that may be on their way out at one time. A ring forgets in microseconds.
pub(crate) const LEAVING: usize = 16;

/// One extent of one arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ExtentKey {
    pub(crate) job: JobKey,
    pub(crate) arena: ArenaKind,
    pub(crate) extent: u32,
}

impl ExtentKey {
    fn of(slot: SlotRef, extent_buffers: u32) -> Self {
        Self {
            job: slot.job,
            arena: slot.arena,
            extent: slot.slot / extent_buffers,
        }
    }

    fn slots(self, extent_buffers: u32) -> Range<u32> {
        let first = self.extent * extent_buffers;
        first..first + extent_buffers
    }
}

/// What one ring has registered, as the server's thread may ask.
#[derive(Debug, Default)]
pub(crate) struct Registered(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    extents: HashSet<ExtentKey>,
    leaving: usize,
}

impl Registered {
    /// From now on this extent is on its way out, if it was registered: then the ring is to be told. `None`: it was not.
    ///
    /// # Errors
    /// `WouldBlock`: too many are on their way out.
    pub(crate) fn leave(&self, key: ExtentKey) -> io::Result<Option<ExtentKey>> {
        let mut state = self.lock();
        if !state.extents.contains(&key) {
            return Ok(None);
        }
        if state.leaving == LEAVING {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.leaving += 1;
        state.extents.remove(&key);
        Ok(Some(key))
    }

    /// The kernel holds nothing any more.
    pub(crate) fn clear(&self) {
        *self.lock() = State::default();
    }

    /// Extents of which the kernel holds pages.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let state = self.lock();
        state.extents.len() + state.leaving
    }

    pub(crate) fn note(&self, key: ExtentKey) {
        self.lock().extents.insert(key);
    }

    pub(crate) fn has_left(&self) {
        let mut state = self.lock();
        let left = state.leaving.checked_sub(1);
        state.leaving = left.expect("invariant: an extent leaves once");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The table of one ring, on its thread.
#[derive(Debug)]
pub(crate) struct Extents {
    entries: HashMap<ExtentKey, u16>,
    free: Vec<u16>,
    extent_buffers: u32,
    /// The kernel refused one: it is not asked again, what is not registered is copied.
    refused: bool,
}

impl Extents {
    pub(crate) fn new(entries: u16, extent_buffers: u32) -> Self {
        Self {
            entries: HashMap::new(),
            free: (0..entries).rev().collect(),
            extent_buffers,
            refused: false,
        }
    }

    /// Where a piece is registered, after registering its extent if that can be had.
    pub(crate) fn entry_of(&mut self, piece: &Piece, ring: &mut Ring, registered: &Registered) -> Option<u16> {
        let Piece::Payload { lease, slot } = piece else {
            return None;
        };
        let key = ExtentKey::of(*slot, self.extent_buffers);
        if let Some(entry) = self.entries.get(&key) {
            return Some(*entry);
        }
        if self.refused {
            return None;
        }
        let entry = self.free.pop()?;
        match ring.set_extent(entry, &lease.arena(), key.slots(self.extent_buffers)) {
            Ok(()) => {
                self.entries.insert(key, entry);
                registered.note(key);
                Some(entry)
            }
            Err(error) => {
                tracing::warn!(
                    "io_uring: extent {} of the {} of {} cannot be registered ({error}): its buffers are copied; \
                     locked memory is limited by RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=)",
                    key.extent,
                    key.arena,
                    key.job
                );
                self.free.push(entry);
                self.refused = true;
                None
            }
        }
    }

    /// Lets go of an extent.
    pub(crate) fn forget(&mut self, key: ExtentKey, ring: &mut Ring, registered: &Registered) {
        let entry = self.entries.remove(&key);
        let entry = entry.expect("invariant: what is on its way out was registered");
        if let Err(error) = ring.clear_extent(entry) {
            // It counts as leaving, and its entry is not used again: the kernel keeps the pages.
            tracing::error!("io_uring: an extent cannot be deregistered: {error}");
            return;
        }
        self.free.push(entry);
        registered.has_left();
    }
}
