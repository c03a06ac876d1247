//! What is to be looked at when. A timer is never taken back: when it fires, whoever set it looks
//! whether it still matters.

use std::collections::BTreeMap;
use std::time::Instant;

use shuffle_protocol::{GroupId, JobId, PartitionKey};

use super::{LinkId, SessionId};
use crate::partition::PartitionNo;
use crate::peer::PathId;

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    Unconfirmed(PathId, u64),
    /// The home server has had time to decide.
    Verdict(JobId, GroupId),
    /// A finished partition has had time to be read.
    Unread(PartitionNo),
    /// Old tombstones may go.
    Sweep,
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: BTreeMap<(Instant, u64), Timer>,
    count: u64,
}

impl Timers {
    pub(crate) fn set(&mut self, at: Instant, timer: Timer) {
        self.count += 1;
        self.due.insert((at, self.count), timer);
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.keys().next().map(|(at, _)| *at)
    }

    /// One timer that is due.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Timer> {
        let key = *self.due.keys().next()?;
        if key.0 > now { None } else { self.due.remove(&key) }
    }
}
