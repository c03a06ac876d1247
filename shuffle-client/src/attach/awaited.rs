//! Buffers that did not have their checksum and come once more. The session holds them already, whatever became of their gate
//! meanwhile: so what comes once more is not given back for itself.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shuffle_protocol::ids::{Sequence, StreamId};

#[derive(Default)]
pub(crate) struct Awaited {
    /// There are any: almost never, so that nobody takes the lock for each buffer.
    any: AtomicBool,
    buffers: Mutex<BTreeSet<(StreamId, Sequence)>>,
}

impl Awaited {
    /// Before the server is told.
    pub(crate) fn insert(&self, stream: StreamId, sequence: Sequence) {
        let mut buffers = self.lock();
        buffers.insert((stream, sequence));
        self.any.store(true, Ordering::Release);
    }

    /// Whether a buffer that has come is one of them.
    pub(super) fn take(&self, stream: StreamId, sequence: Sequence) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut buffers = self.lock();
        let was_awaited = buffers.remove(&(stream, sequence));
        self.any.store(!buffers.is_empty(), Ordering::Release);
        was_awaited
    }

    /// Nothing comes on this channel any more.
    pub(super) fn forget(&self, stream: StreamId) {
        let mut buffers = self.lock();
        buffers.retain(|(of, _)| *of != stream);
        self.any.store(!buffers.is_empty(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(StreamId, Sequence)>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
