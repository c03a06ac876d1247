//! What the strategies have done, for metrics and for tests that must notice when one silently becomes another.

use std::cell::Cell;
use std::rc::Rc;

use super::Strategy;
use crate::transport::uring::ZeroCopySends;

/// Of all connections to other servers.
#[derive(Debug, Default)]
pub(crate) struct SendCounters {
    connections: [Cell<u64>; Strategy::ALL.len()],
    copied: Cell<u64>,
    uncopied: Cell<u64>,
    ringed: Cell<u64>,
    ringed_uncopied: Cell<u64>,
    zero_copy_copied: Cell<u64>,
    zero_copy_uncopied: Cell<u64>,
    fallbacks: Cell<u64>,
}

impl SendCounters {
    /// Payload bytes that the kernel copied.
    pub(crate) fn add_copied(&self, bytes: usize) {
        add(&self.copied, bytes);
    }

    /// Payload bytes that the kernel took by reference.
    pub(crate) fn add_uncopied(&self, bytes: usize) {
        add(&self.uncopied, bytes);
    }

    /// Payload bytes that were given to a ring.
    pub(crate) fn add_ringed(&self, bytes: usize) {
        add(&self.ringed, bytes);
    }

    /// What the kernel has reported of sends that were to go without a copy.
    pub(crate) fn add_zero_copy(&self, sends: ZeroCopySends) {
        self.zero_copy_copied.set(self.zero_copy_copied.get() + sends.copied);
        self.zero_copy_uncopied
            .set(self.zero_copy_uncopied.get() + sends.uncopied);
        self.ringed_uncopied
            .set(self.ringed_uncopied.get() + sends.uncopied_bytes);
    }

    /// A connection does not get the strategy that is configured.
    pub(crate) fn add_fallback(&self) {
        add(&self.fallbacks, 1);
    }

    /// By metric name.
    pub(crate) fn named(&self) -> [(&'static str, u64); 7 + Strategy::ALL.len()] {
        let of = |strategy: Strategy| self.connections[strategy.index()].get();
        [
            ("peer_connections_copy", of(Strategy::Copy)),
            ("peer_connections_sendfile", of(Strategy::Sendfile)),
            ("peer_connections_uring", of(Strategy::Uring)),
            ("send_bytes_copied", self.copied.get()),
            ("send_bytes_uncopied", self.uncopied.get()),
            ("send_bytes_uring", self.ringed.get()),
            ("send_bytes_uring_uncopied", self.ringed_uncopied.get()),
            ("send_zero_copy_copied", self.zero_copy_copied.get()),
            ("send_zero_copy_uncopied", self.zero_copy_uncopied.get()),
            ("send_fallbacks", self.fallbacks.get()),
        ]
    }
}

/// One live connection in the count of its strategy.
#[derive(Debug)]
pub(crate) struct Counted {
    counters: Rc<SendCounters>,
    strategy: Strategy,
}

impl Counted {
    pub(crate) fn new(counters: &Rc<SendCounters>, strategy: Strategy) -> Self {
        add(&counters.connections[strategy.index()], 1);
        Self {
            counters: Rc::clone(counters),
            strategy,
        }
    }

    /// Those of all connections.
    pub(crate) fn all(&self) -> &SendCounters {
        &self.counters
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let count = &self.counters.connections[self.strategy.index()];
        let left = count.get().checked_sub(1);
        count.set(left.expect("invariant: a connection is counted once"));
    }
}

fn add(counter: &Cell<u64>, amount: usize) {
    counter.set(counter.get() + u64::try_from(amount).expect("invariant: usize fits u64"));
}
