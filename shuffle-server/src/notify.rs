//! Who is woken when the core has something to say.
//!
//! ```text
//! task A: core.handle_*() -> core.poll_wake(): Session(b), Link(c) -> signal b, signal c -> tasks b and c poll the core
//! ```
//!
//! One [`Signal`] per connection. A signal given while its task is busy is kept, once: nothing is lost and nothing queues up.
//!
//! The lease on the buffer that is arriving lies here too, because it must end in the same step in which the core gives the
//! connection up: in the next one the buffer may be somebody else's.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

use buffer_pool::Writable;
use shuffle_protocol::ShuffleError;
use tokio::sync::Notify;

/// What one connection's task waits for.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    output: Notify,
    close: RefCell<Option<ShuffleError>>,
    arriving: RefCell<Option<Writable>>,
    /// What arrives fills a part of that buffer: beside it lies what is being read.
    is_part: Cell<bool>,
}

impl Signal {
    /// Resolves when the core has output for this connection or wants it closed.
    pub(crate) async fn wait(&self) {
        self.output.notified().await;
    }

    /// Why the connection is to be closed, if it is.
    pub(crate) fn close_reason(&self) -> Option<ShuffleError> {
        self.close.borrow().clone()
    }

    /// The buffer that arrives now. Gone when the connection was closed.
    pub(crate) fn arriving(&self) -> RefMut<'_, Option<Writable>> {
        self.arriving.borrow_mut()
    }

    /// From now on this buffer arrives; `is_part`: in a part of it, beside what is being read.
    pub(crate) fn expect(&self, buffer: Writable, is_part: bool) {
        self.is_part.set(is_part);
        self.arriving.replace(Some(buffer));
    }

    /// Ends the lease on the buffer that arrives, if one does. What lies beside it stays as it is.
    pub(crate) fn abandon(&self) {
        let arriving = self.arriving.take();
        if let Some(buffer) = arriving.filter(|_| self.is_part.get()) {
            buffer.hand_over();
        }
    }

    /// There is output.
    pub(crate) fn raise(&self) {
        self.output.notify_one();
    }

    /// The connection is over; the first reason stays.
    pub(crate) fn close(&self, reason: ShuffleError) {
        self.close.borrow_mut().get_or_insert(reason);
        self.abandon();
        self.raise();
    }
}

/// The signals of all live connections of one kind.
#[derive(Debug)]
pub(crate) struct Signals<K> {
    by_id: BTreeMap<K, Rc<Signal>>,
}

impl<K> Default for Signals<K> {
    fn default() -> Self {
        Self { by_id: BTreeMap::new() }
    }
}

impl<K: Ord> Signals<K> {
    /// Gives a new connection its signal.
    pub(crate) fn add(&mut self, id: K) -> Rc<Signal> {
        let signal = Rc::new(Signal::default());
        self.by_id.insert(id, Rc::clone(&signal));
        signal
    }

    pub(crate) fn remove(&mut self, id: &K) {
        self.by_id.remove(id);
    }

    /// A connection that is already gone needs no signal.
    pub(crate) fn raise(&self, id: &K) {
        if let Some(signal) = self.by_id.get(id) {
            signal.raise();
        }
    }

    pub(crate) fn close(&self, id: &K, reason: ShuffleError) {
        if let Some(signal) = self.by_id.get(id) {
            signal.close(reason);
        }
    }

    pub(crate) fn close_all(&self, reason: &ShuffleError) {
        for signal in self.by_id.values() {
            signal.close(reason.clone());
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use super::Signals;

    #[tokio::test]
    async fn a_signal_before_the_wait_is_kept_once() {
        let mut signals = Signals::default();
        let signal = signals.add(1);
        signals.raise(&1);
        signals.raise(&1);
        signals.raise(&2);
        signal.wait().await;
        let again = tokio::time::timeout(std::time::Duration::from_millis(20), signal.wait()).await;
        assert!(again.is_err(), "one wake for any number of signals");
        signals.remove(&1);
        signals.raise(&1);
        assert_eq!(signals.len(), 0);
    }
}
