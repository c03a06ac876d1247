//! What the tasks of a session have for its server, until the driver takes it.
//!
//! Entries and messages of one batch leave in this order: demands, slots, acknowledgements, releases, control messages.
//! A message is never overtaken by what was put in after it, nor does it overtake what was put in before: an entry behind a
//! message starts another batch. So a partition's last buffer precedes its end, and a gate precedes its first
//! acknowledgement.
//!
//! Bounded: a slot needs a granted buffer, an acknowledgement or release a buffer that credit let in, a demand stands
//! once per writer, and messages are limited to [`MAX_MESSAGES`] beyond one per writer, gate and channel.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::frame::{NumberEntry, ReleaseEntry, SlotEntry};
use tokio::sync::Notify;

/// Most messages that wait before new requests are refused.
const MAX_MESSAGES: usize = 4096;

/// What leaves together.
#[derive(Default)]
pub(crate) struct OutBatch {
    pub(crate) demands: Vec<NumberEntry>,
    /// Descriptor, and the payload where it travels inline.
    pub(crate) slots: Vec<(SlotEntry, Option<Bytes>)>,
    pub(crate) acks: Vec<NumberEntry>,
    pub(crate) releases: Vec<ReleaseEntry>,
    /// Encoded control frames.
    pub(crate) messages: Vec<Bytes>,
}

#[derive(Default)]
struct State {
    batches: VecDeque<OutBatch>,
    /// An empty one with room, so that none has to be made.
    spare: Option<OutBatch>,
    messages: usize,
    /// Nobody can put anything in any more; what is in still leaves.
    closing: bool,
    /// Nothing leaves any more.
    shut: bool,
}

#[derive(Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    wake: Notify,
}

/// What the driver finds.
pub(crate) enum Taken {
    Batch(OutBatch),
    Nothing,
    /// Nothing is left, and nothing will come: say goodbye.
    Closing,
}

impl Outbox {
    /// Puts entries in and wakes the driver if it may be asleep.
    pub(crate) fn push(&self, put: impl FnOnce(&mut OutBatch)) {
        if self.push_quietly(put) {
            self.wake.notify_one();
        }
    }

    /// Puts entries in. True: call [`Outbox::wake`] once no lock is held.
    #[must_use]
    pub(crate) fn push_quietly(&self, put: impl FnOnce(&mut OutBatch)) -> bool {
        let mut state = self.lock();
        if state.shut {
            return false;
        }
        let was_empty = state.batches.is_empty();
        if state.batches.back().is_none_or(|batch| !batch.messages.is_empty()) {
            let batch = state.spare.take().unwrap_or_default();
            state.batches.push_back(batch);
        }
        put(state.batches.back_mut().expect("invariant: pushed above"));
        was_empty
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Puts in a message that a caller waits for.
    pub(crate) fn push_request(&self, message: Bytes) -> Result<()> {
        if self.lock().messages >= MAX_MESSAGES {
            let limit = MAX_MESSAGES.try_into().unwrap_or(u64::MAX);
            let kind = ErrorKind::LimitExceeded {
                what: "requests not yet sent".to_owned(),
                limit,
                asked: limit + 1,
            };
            return Err(ShuffleError::new(kind, "").retryable(true));
        }
        self.push_message(message);
        Ok(())
    }

    /// Puts in a message that ends something, and is never refused.
    pub(crate) fn push_message(&self, message: Bytes) {
        let mut state = self.lock();
        if state.shut {
            return;
        }
        let was_empty = state.batches.is_empty();
        if was_empty {
            state.batches.push_back(OutBatch::default());
        }
        state.messages += 1;
        state
            .batches
            .back_mut()
            .expect("invariant: pushed above")
            .messages
            .push(message);
        drop(state);
        if was_empty {
            self.wake.notify_one();
        }
    }

    /// No handle to the session is left.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_one();
    }

    /// The connection is gone: drops what is here and what comes.
    pub(crate) fn shut(&self) {
        let dropped = {
            let mut state = self.lock();
            state.shut = true;
            state.messages = 0;
            std::mem::take(&mut state.batches)
        };
        drop(dropped);
    }

    pub(crate) fn take(&self) -> Taken {
        let mut state = self.lock();
        match state.batches.pop_front() {
            Some(batch) => {
                state.messages -= batch.messages.len();
                Taken::Batch(batch)
            }
            None if state.closing => Taken::Closing,
            None => Taken::Nothing,
        }
    }

    /// Takes an emptied batch back.
    pub(crate) fn recycle(&self, batch: OutBatch) {
        self.lock().spare = Some(batch);
    }

    pub(crate) fn has_some(&self) -> bool {
        !self.lock().batches.is_empty()
    }

    /// Returns once there is something to take, or was.
    pub(crate) async fn ready(&self) {
        self.wake.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutBatch {
    /// Notes that everything of a channel below `below` is checked.
    pub(crate) fn ack(&mut self, entry: NumberEntry) {
        match self.acks.last_mut() {
            Some(last) if last.stream == entry.stream => *last = entry,
            _ => self.acks.push(entry),
        }
    }

    /// Notes that a writer wants so many buffers in total.
    pub(crate) fn demand(&mut self, entry: NumberEntry) {
        match self.demands.iter_mut().find(|demand| demand.stream == entry.stream) {
            Some(demand) => *demand = entry,
            None => self.demands.push(entry),
        }
    }
}
