//! Which extents a ring has registered, and how they are let go before their pages are.
//!
//! ```text
//!   ring's thread                       server's thread
//!     first zero-copy send from it        the extent is empty and moves to the bank:
//!     -> registered, noted                 noted? -> Command::Forget, wait -> punch
//! ```
//!
//! An extent is registered while a buffer of it is leased, and moves only when it is empty; so one that is not noted when it
//! moves is not about to be, either. Registering faults pages in: only an extent that has its pages can hold a leased buffer.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use buffer_pool::{ArenaKind, JobKey, SlotRef};

use super::piece::Piece;
use super::ring::Ring;

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
pub(crate) struct Registered {
    extents: Mutex<HashSet<ExtentKey>>,
    forgotten: Condvar,
}

impl Registered {
    pub(crate) fn contains(&self, key: ExtentKey) -> bool {
        self.lock().contains(&key)
    }

    /// Waits until the ring has let go of this extent.
    ///
    /// # Errors
    /// `TimedOut`: it has not.
    pub(crate) fn wait_forgotten(&self, key: ExtentKey, at_most: Duration) -> io::Result<()> {
        let until = Instant::now() + at_most;
        let mut extents = self.lock();
        while extents.contains(&key) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let waited = self.forgotten.wait_timeout(extents, left);
            extents = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn note(&self, key: ExtentKey) {
        self.lock().insert(key);
    }

    fn forget(&self, key: ExtentKey) {
        self.lock().remove(&key);
        self.forgotten.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<ExtentKey>> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Lets go of an extent; whoever waits is told, unless the kernel refused.
    pub(crate) fn forget(&mut self, key: ExtentKey, ring: &mut Ring, registered: &Registered) {
        let Some(entry) = self.entries.get(&key).copied() else {
            return;
        };
        if let Err(error) = ring.clear_extent(entry) {
            tracing::error!("io_uring: an extent cannot be deregistered: {error}");
            return;
        }
        self.entries.remove(&key);
        self.free.push(entry);
        registered.forget(key);
    }

    /// Lets go of everything.
    pub(crate) fn forget_all(&mut self, ring: &mut Ring, registered: &Registered) {
        let keys: Vec<ExtentKey> = self.entries.keys().copied().collect();
        for key in keys {
            self.forget(key, ring, registered);
        }
    }
}
