//! The books of a writer where producer, timer and driver meet, and a buffer lent to the producer.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shuffle_protocol::error::{Result, ShuffleError};
use shuffle_protocol::frame::{NumberEntry, ReleaseEntry};
use shuffle_protocol::ids::{PartitionId, SubpartitionIndex, WriterId};
use tokio::sync::Notify;

use super::core::{Core, CoreConfig, HandOver, Space};
use crate::attach::{Filling, Lifeline, Outbox};

pub(crate) struct WriterShared {
    pub(crate) id: WriterId,
    pub(crate) partition: PartitionId,
    core: Mutex<Core<Filling>>,
    /// The producer waits here for a buffer or a higher limit.
    pub(crate) wake: Notify,
    /// The timer waits here while no buffer is open.
    pub(crate) timer: Notify,
}

impl WriterShared {
    pub(crate) fn new(partition: PartitionId, config: CoreConfig) -> Self {
        Self {
            id: config.writer,
            partition,
            core: Mutex::new(Core::new(config)),
            wake: Notify::new(),
            timer: Notify::new(),
        }
    }

    /// The hot path: a record into an open buffer. One uncontended lock, no allocation, no wait.
    #[inline]
    pub(crate) fn append(&self, outbox: &Outbox, subpartition: SubpartitionIndex, record: &[u8]) -> bool {
        let mut core = self.lock();
        if !core.append(subpartition, record) {
            return false;
        }
        let wake = core.has_leaving() && send(self.id, &mut core, outbox);
        drop(core);
        if wake {
            outbox.wake();
        }
        true
    }

    /// Does one step on the books and sends what leaves.
    pub(crate) fn with<R>(&self, outbox: &Outbox, step: impl FnOnce(&mut Core<Filling>) -> R) -> R {
        let mut core = self.lock();
        let had_open = core.has_open();
        let result = step(&mut core);
        #[cfg(debug_assertions)]
        core.check_invariants();
        let wake = send(self.id, &mut core, outbox);
        let opened = (!had_open && core.has_open()) || core.take_started();
        drop(core);
        if wake {
            outbox.wake();
        }
        if opened {
            self.timer.notify_one();
        }
        result
    }

    /// Granted buffers; `buffers` is empty afterwards.
    pub(crate) fn handle_grants(&self, buffers: &mut Vec<Filling>, outbox: &Outbox) {
        let refused: Vec<Filling> = self.with(outbox, |core| {
            let granted = buffers.drain(..).map(|buffer| core.handle_grant(buffer));
            granted.filter_map(std::result::Result::err).collect()
        });
        if refused.is_empty() {
            self.wake.notify_one();
        }
        release(self.id, refused, outbox);
    }

    pub(crate) fn handle_limit(&self, subpartition: u32, limit: u64, outbox: &Outbox) -> Result<()> {
        self.with(outbox, |core| core.handle_limit(subpartition, limit))?;
        self.wake.notify_one();
        Ok(())
    }

    /// Later calls fail with this error, unless an earlier one is known; what the writer holds goes back.
    pub(crate) fn handle_failure(&self, error: ShuffleError, outbox: &Outbox) {
        let unsent = self.with(outbox, |core| core.handle_failure(error.partition(self.partition)));
        release(self.id, unsent, outbox);
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Core<Filling>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Moves what leaves to the outbox while the books are locked, so that two tasks cannot swap buffers of one
/// subpartition. True: wake the driver once they are unlocked.
fn send(writer: WriterId, core: &mut Core<Filling>, outbox: &Outbox) -> bool {
    let demand = core.poll_demand();
    if demand.is_none() && !core.has_leaving() {
        return false;
    }
    outbox.push_quietly(|out| {
        if let Some(number) = demand {
            out.demand(NumberEntry {
                stream: writer.into(),
                number,
                ..NumberEntry::default()
            });
        }
        out.slots.extend(
            core.poll_leaving()
                .map(|HandOver { entry, buffer, used }| (entry, buffer.and_then(|buffer| buffer.hand_over(used)))),
        );
    })
}

/// Gives granted buffers back unused.
pub(crate) fn release(writer: WriterId, buffers: Vec<Filling>, outbox: &Outbox) {
    if buffers.is_empty() {
        return;
    }
    let slots: Vec<u32> = buffers.iter().map(Space::slot).collect();
    // The leases end before the server hears of it.
    drop(buffers);
    outbox.push(|out| {
        out.releases.extend(slots.into_iter().map(|slot| ReleaseEntry {
            stream: writer.into(),
            slot,
            ..ReleaseEntry::default()
        }));
    });
}

/// A buffer of the pool, reserved for one subpartition, to be filled in place from its start. Its length is its
/// capacity; what it holds at first is not defined.
///
/// Dropped without [`Writer::commit`](crate::Writer::commit) it goes back to its writer, and nothing is sent.
pub struct WriteBuffer {
    pub(super) memory: Option<Filling>,
    pub(super) subpartition: SubpartitionIndex,
    pub(super) writer: Arc<WriterShared>,
    pub(super) session: Arc<Lifeline>,
}

impl WriteBuffer {
    /// The subpartition it was reserved for.
    pub fn subpartition(&self) -> SubpartitionIndex {
        self.subpartition
    }
}

impl Deref for WriteBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| memory.bytes())
    }
}

impl DerefMut for WriteBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |memory| memory.space())
    }
}

impl std::fmt::Debug for WriteBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteBuffer")
            .field("partition", &self.writer.partition)
            .field("subpartition", &self.subpartition)
            .field("capacity", &self.len())
            .finish()
    }
}

impl Drop for WriteBuffer {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        let outbox = self.session.outbox();
        match self.writer.with(outbox, |core| core.put_back(memory)) {
            Ok(()) => self.writer.wake.notify_one(),
            Err(memory) => release(self.writer.id, vec![memory], outbox),
        }
    }
}
