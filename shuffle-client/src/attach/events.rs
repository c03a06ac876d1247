//! Events of partitions that the server has sent and nobody has taken yet.
//!
//! Bounded by the protocol: the server sends no more before it hears that these were seen.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use shuffle_protocol::control::PartitionEvents;
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::limits::MAX_UNSEEN_EVENTS;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct EventQueue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    messages: VecDeque<PartitionEvents>,
    ended: Option<ShuffleError>,
}

impl EventQueue {
    /// # Errors
    /// `Protocol` if the server sends more than it may.
    pub(crate) fn handle_message(&self, message: PartitionEvents) -> Result<()> {
        let mut state = self.lock();
        if state.messages.len() >= MAX_UNSEEN_EVENTS as usize {
            let message = "more events of partitions than may be under way";
            return Err(ShuffleError::new(ErrorKind::Protocol, message));
        }
        state.messages.push_back(message);
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    pub(crate) fn end(&self, error: &ShuffleError) {
        self.lock().ended.get_or_insert_with(|| error.clone());
        self.wake.notify_one();
    }

    /// The next message; what came before the end of the session is given before that.
    pub(crate) async fn next(&self) -> Result<PartitionEvents> {
        loop {
            {
                let mut state = self.lock();
                if let Some(message) = state.messages.pop_front() {
                    return Ok(message);
                }
                if let Some(error) = &state.ended {
                    return Err(error.clone());
                }
            }
            self.wake.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
