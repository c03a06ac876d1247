//! Between the driver, which knows what has arrived, and the gate, which takes all of it at once.
//!
//! Bounded by credit: a buffer that is here, queued in the gate or held by the consumer has used one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use shuffle_protocol::error::{ErrorKind, ShuffleError};
use tokio::sync::Notify;

use super::channel::shares_slot;
use super::demux::Arrival;
use crate::attach::View;

#[derive(Default)]
struct State {
    arrivals: Vec<(u32, Arrival<View>)>,
    /// Credits, and ends, that brought them: buffers that came in one slot took one.
    credits: u64,
    failure: Option<Failure>,
    closed: bool,
}

impl State {
    /// It came in the slot of the one before it.
    fn joins_last(&self, index: u32, arrival: &Arrival<View>) -> bool {
        match (self.arrivals.last(), arrival) {
            (Some((of, Arrival::Buffer(last, _))), Arrival::Buffer(next, _)) => *of == index && shares_slot(last, next),
            _ => false,
        }
    }
}

/// An error, and the channel of the gate in which it happened, if it was in one.
type Failure = (Option<u32>, ShuffleError);

pub(crate) struct Inbox {
    state: Mutex<State>,
    wake: Notify,
    capacity: u64,
}

impl Inbox {
    /// For at most `capacity` arrivals: what all credits of the gate and the ends of its subpartitions come to.
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            state: Mutex::default(),
            wake: Notify::new(),
            capacity,
        }
    }

    /// Something has arrived for a channel; `arrivals` is empty afterwards. What comes after a failure or the end is dropped,
    /// and so given back.
    pub(crate) fn handle_arrivals(&self, index: u32, arrivals: &mut Vec<Arrival<View>>) {
        let mut state = self.lock();
        if state.closed || state.failure.is_some() {
            drop(state);
            arrivals.clear();
            return;
        }
        let was_empty = state.arrivals.is_empty();
        for arrival in arrivals.drain(..) {
            state.credits += u64::from(!state.joins_last(index, &arrival));
            state.arrivals.push((index, arrival));
        }
        let too_many = state.credits > self.capacity;
        drop(state);
        if too_many {
            let message = format!("more than {} arrivals, beyond all credit of the gate", self.capacity);
            self.handle_failure(Some(index), ShuffleError::new(ErrorKind::Protocol, message));
            return;
        }
        if was_empty {
            self.wake.notify_one();
        }
    }

    /// The gate fails with this error, unless it has failed before; what has arrived is given back.
    pub(crate) fn handle_failure(&self, channel: Option<u32>, error: ShuffleError) {
        let dropped = {
            let mut state = self.lock();
            state.failure.get_or_insert((channel, error));
            state.credits = 0;
            std::mem::take(&mut state.arrivals)
        };
        drop(dropped);
        self.wake.notify_one();
    }

    /// Moves all arrivals to `out`, which is empty.
    pub(super) fn take(&self, out: &mut Vec<(u32, Arrival<View>)>) -> Result<(), Failure> {
        let mut state = self.lock();
        match &state.failure {
            Some(failure) => Err(failure.clone()),
            None => {
                std::mem::swap(&mut state.arrivals, out);
                state.credits = 0;
                Ok(())
            }
        }
    }

    /// Returns once something has arrived since the last call, or the gate has failed.
    pub(super) async fn ready(&self) {
        self.wake.notified().await;
    }

    /// The gate is gone.
    pub(super) fn close(&self) {
        let dropped = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.arrivals)
        };
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
