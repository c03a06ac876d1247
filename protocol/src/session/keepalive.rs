//! Whether the other side is still there, also while nothing is said and also while the kernel takes our bytes.
//!
//! ```text
//!   last_received                                       dead
//!      |------------------- dead_after -------------------|
//!   the earlier of last_received and last_sent, or the last ping if that was later
//!      |----- interval -----| ping
//! ```
//!
//! Invariant: `interval < dead_after`, so a living peer had the chance to answer before it is given up.
//! Time only moves forward: an `Instant` before the last one counts as no time passed.

use std::time::{Duration, Instant};

use crate::limits::MAX_TIMEOUT;

/// The timers of one connection.
#[derive(Clone, Debug)]
pub struct Keepalive {
    interval: Duration,
    dead_after: Duration,
    last_received: Instant,
    last_sent: Instant,
    last_ping: Instant,
}

/// What is to be done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeepaliveAction {
    /// Nothing until [`Keepalive::poll_timeout`].
    Nothing,
    /// Send a ping. It counts as sent: the next is due an interval later.
    SendPing,
    /// Nothing was heard for too long: give the connection up.
    Dead {
        /// Since when.
        silent_for: Duration,
    },
}

impl Keepalive {
    /// Timers of a connection on which something was heard `now`.
    ///
    /// # Panics
    /// If `interval` is zero or not below `dead_after`, or that is longer than a month: configuration and handshake
    /// check that.
    pub fn new(interval: Duration, dead_after: Duration, now: Instant) -> Self {
        assert!(
            Duration::ZERO < interval && interval < dead_after && dead_after <= MAX_TIMEOUT,
            "a keepalive interval of {interval:?} with a dead-peer time of {dead_after:?}"
        );
        Self {
            interval,
            dead_after,
            last_received: now,
            last_sent: now,
            last_ping: now,
        }
    }

    /// Bytes came.
    pub fn handle_received(&mut self, now: Instant) {
        self.last_received = self.last_received.max(now);
    }

    /// Bytes went.
    pub fn handle_sent(&mut self, now: Instant) {
        self.last_sent = self.last_sent.max(now);
    }

    /// What is to be done now.
    ///
    /// A ping is due an interval after the last bytes went *or* came, whichever is longer ago: who only sends must ask to
    /// learn that the other side lives, and who only receives must let the other side know.
    pub fn poll(&mut self, now: Instant) -> KeepaliveAction {
        let silent_for = now.saturating_duration_since(self.last_received);
        if silent_for >= self.dead_after {
            return KeepaliveAction::Dead { silent_for };
        }
        if now >= self.ping_at() {
            self.last_ping = self.last_ping.max(now);
            return KeepaliveAction::SendPing;
        }
        KeepaliveAction::Nothing
    }

    /// When [`Keepalive::poll`] has something to do, unless bytes come or go before.
    pub fn poll_timeout(&self) -> Instant {
        self.ping_at().min(self.last_received + self.dead_after)
    }

    fn ping_at(&self) -> Instant {
        self.last_received.min(self.last_sent).max(self.last_ping) + self.interval
    }
}
