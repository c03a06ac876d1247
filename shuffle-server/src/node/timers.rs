//! What is to be looked at when.
//!
//! ```text
//! armed timers = entries of `due`       each thing has at most one: setting it again moves it
//! ```
//!
//! When a timer fires, whoever set it looks whether it still matters, and sets it again where it was early.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use shuffle_protocol::{GroupId, JobId, PartitionKey};

use super::{LinkId, SessionId};
use crate::partition::{OutletNo, PartitionNo};
use crate::peer::{InletNo, PathId};

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Timer {
    /// Readers may have waited long enough for this partition.
    Waiting(JobId, PartitionKey),
    /// Creations may have waited long enough for buffers.
    Pending,
    /// A peer without a connection: dial again, or give it up.
    Path(PathId),
    /// A connection: ping, or declare it dead.
    Link(LinkId),
    /// An executor on the other side of a network: ping, or declare it dead.
    Session(SessionId),
    /// Readers of a connection that is back have had time to take up their channels.
    Unconfirmed(PathId),
    /// Whoever was asked to decide on the group has had time to answer.
    Verdict(JobId, GroupId),
    /// A finished partition has had time to be read.
    Unread(PartitionNo),
    /// A reader of a file has waited long enough for buffers to load into.
    Reading(OutletNo),
    /// What a driver is to be told has waited long enough for more.
    Notices(SessionId),
    /// A buffer that did not match has had time to be traced and to come once more.
    Tracing(InletNo),
    /// The slowest readers of a relay have held up the others long enough.
    Straggler(PartitionNo),
    /// Old tombstones may go.
    Sweep,
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: BTreeMap<(Instant, u64), Timer>,
    armed: HashMap<Timer, (Instant, u64)>,
    count: u64,
}

impl Timers {
    /// Lets the timer fire then, and at no other time.
    pub(crate) fn set(&mut self, at: Instant, timer: Timer) {
        self.cancel(timer);
        self.count += 1;
        let key = (at, self.count);
        self.due.insert(key, timer);
        self.armed.insert(timer, key);
    }

    /// Lets the timer fire then, unless it fires sooner.
    pub(crate) fn set_no_later(&mut self, at: Instant, timer: Timer) {
        if self.armed.get(&timer).is_none_or(|(armed, _)| at < *armed) {
            self.set(at, timer);
        }
    }

    /// What it was for is gone.
    pub(crate) fn cancel(&mut self, timer: Timer) {
        if let Some(key) = self.armed.remove(&timer) {
            self.due.remove(&key);
        }
    }

    pub(crate) fn is_armed(&self, timer: Timer) -> bool {
        self.armed.contains_key(&timer)
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.keys().next().map(|(at, _)| *at)
    }

    /// One timer that is due.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Timer> {
        let key = *self.due.keys().next()?;
        if key.0 > now {
            return None;
        }
        let timer = self.due.remove(&key)?;
        self.armed.remove(&timer);
        Some(timer)
    }

    /// All that are armed, in the order in which they fire.
    pub(crate) fn armed(&self) -> impl Iterator<Item = Timer> {
        assert_eq!(self.due.len(), self.armed.len(), "a timer is armed once");
        self.due.values().copied()
    }
}
