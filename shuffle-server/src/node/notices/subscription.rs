//! What one driver has still to hear: not a queue of events, but the partitions of which something is to be said.
//!
//! ```text
//!   changed ──▶ waits ──▶ said (sent > seen) ──EventsSeen──▶ the next message may leave
//!                 │          changes of one partition fall together until then
//!                 └ leaves   at once         what failed
//!                            soon            pipelined: at most one message in `linger`
//!                            can wait        blocking and finished: after `linger`, or with the last producer of the result here
//!                            along           blocking and begun, released: with anything else, or after 50 times `linger`
//! ```
//!
//! Bounded by partitions, not by events; [`super::Notices`] bounds the bytes of all of them together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shuffle_protocol::{JobId, PartitionId, PartitionKey, ResultId, ShuffleError};

/// What a change that waits costs beside sizes and causes, in bytes.
const ENTRY_BYTES: usize = 160;
/// How often a change that nobody waits for lets others go first.
const LINGERS_ALONG: u32 = 50;

/// How soon a change is to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    Along,
    CanWait,
    Soon,
    Now,
}

/// How a partition ended.
#[derive(Debug, Clone)]
pub(super) enum End {
    Released,
    Failed(Arc<ShuffleError>),
}

/// What is to be said of one partition.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// That it is finished is among it.
    pub(super) finished: bool,
    /// Its sizes, where it has ended before they were told.
    pub(super) sizes: Option<Arc<[u64]>>,
    /// It is not there any more.
    pub(super) end: Option<End>,
}

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) job: JobId,
    linger: Duration,
    /// Numbers of messages.
    sent: u64,
    seen: u64,
    /// Where what was there at the beginning goes on; `None`: all of it was said.
    pub(super) snapshot: Option<Option<PartitionKey>>,
    changes: BTreeMap<u64, (PartitionId, Change)>,
    places: HashMap<PartitionId, u64>,
    count: u64,
    bytes: usize,
    /// Blocking partitions that are being produced, by result.
    producing: HashMap<ResultId, u32>,
    /// Since when the oldest change of each urgency waits; `None`: since this step.
    waiting: BTreeMap<Urgency, Option<Instant>>,
    last_sent: Option<Instant>,
}

impl Subscription {
    pub(super) fn new(job: JobId, linger: Duration, sent: u64) -> Self {
        Self {
            job,
            linger,
            sent,
            seen: sent,
            snapshot: Some(None),
            changes: BTreeMap::new(),
            places: HashMap::new(),
            count: 0,
            bytes: 0,
            producing: HashMap::new(),
            waiting: BTreeMap::new(),
            last_sent: None,
        }
    }

    /// Bytes that wait.
    pub(super) fn held(&self) -> usize {
        self.bytes
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// A blocking partition of that result is being produced.
    pub(super) fn begin_producing(&mut self, result: ResultId) {
        *self.producing.entry(result).or_default() += 1;
    }

    /// One of them is not any more. With the last of them what waits can go.
    pub(super) fn end_producing(&mut self, result: ResultId) {
        if let Some(left) = self.producing.get_mut(&result) {
            *left -= 1;
            if *left == 0 {
                self.producing.remove(&result);
                if !self.waiting.is_empty() {
                    self.waiting.entry(Urgency::Now).or_default();
                }
            }
        }
    }

    /// Something of this partition is to be said.
    pub(super) fn note(&mut self, id: PartitionId, urgency: Urgency) -> &mut Change {
        self.waiting.entry(urgency).or_default();
        let known = self.places.get(&id).copied();
        // One that was forgotten and is there again is said to have ended first.
        let known = known.filter(|place| self.changes.get(place).is_some_and(|(_, change)| change.end.is_none()));
        let place = known.unwrap_or_else(|| {
            self.count += 1;
            self.bytes += ENTRY_BYTES;
            self.changes.insert(self.count, (id, Change::default()));
            self.places.insert(id, self.count);
            self.count
        });
        let change = self.changes.get_mut(&place);
        &mut change.expect("invariant: a place is that of a change").1
    }

    /// The partition has ended; `sizes` if it was finished.
    pub(super) fn note_end(&mut self, id: PartitionId, urgency: Urgency, end: End, sizes: Option<&Arc<[u64]>>) {
        let change = self.note(id, urgency);
        let mut bytes = 0;
        if change.finished {
            change.sizes = sizes.cloned();
            bytes += cost_of_sizes(change);
        }
        bytes += cost_of_end(Some(&end));
        change.end = Some(end);
        self.bytes += bytes;
    }

    /// When the next message is to leave, if the one before was seen.
    pub(super) fn due(&mut self, now: Instant) -> Option<Instant> {
        if self.seen < self.sent {
            return None;
        }
        if self.snapshot.is_some() {
            return Some(now);
        }
        let (linger, last_sent) = (self.linger, self.last_sent);
        let due = self.waiting.iter_mut().map(|(urgency, since)| {
            let since = *since.get_or_insert(now);
            match urgency {
                Urgency::Now => since,
                Urgency::Soon => last_sent.map_or(since, |last| last + linger),
                Urgency::CanWait => since + linger,
                Urgency::Along => since + LINGERS_ALONG * linger,
            }
        });
        due.min()
    }

    /// Takes out what has waited longest.
    pub(super) fn pop(&mut self) -> Option<(PartitionId, Change)> {
        let place = *self.changes.keys().next()?;
        self.remove(place)
    }

    /// Takes out what waits of this partition, which is said otherwise.
    pub(super) fn take(&mut self, id: PartitionId) -> Option<Change> {
        let place = *self.places.get(&id)?;
        self.remove(place).map(|(_, change)| change)
    }

    fn remove(&mut self, place: u64) -> Option<(PartitionId, Change)> {
        let (id, change) = self.changes.remove(&place)?;
        if self.places.get(&id) == Some(&place) {
            self.places.remove(&id);
        }
        self.bytes -= ENTRY_BYTES + cost_of_sizes(&change) + cost_of_end(change.end.as_ref());
        if self.changes.is_empty() {
            self.waiting.clear();
        }
        Some((id, change))
    }

    /// So many messages are on their way.
    pub(super) fn handle_sent(&mut self, now: Instant, messages: usize) {
        self.sent += messages as u64;
        self.last_sent = Some(now);
    }

    /// False: no such message was sent.
    pub(super) fn handle_seen(&mut self, number: u64) -> bool {
        self.seen = self.seen.max(number);
        number <= self.sent
    }

    pub(super) fn check_invariants(&self) {
        assert!(self.changes.len() >= self.places.len());
        assert_eq!(self.waiting.is_empty(), self.changes.is_empty());
        let changes = self.changes.values();
        let bytes: usize = changes
            .map(|(_, change)| ENTRY_BYTES + cost_of_sizes(change) + cost_of_end(change.end.as_ref()))
            .sum();
        assert_eq!(bytes, self.bytes, "what waits to be said is counted");
    }
}

fn cost_of_sizes(change: &Change) -> usize {
    change.sizes.as_ref().map_or(0, |sizes| size_of_val::<[u64]>(sizes))
}

fn cost_of_end(end: Option<&End>) -> usize {
    match end {
        Some(End::Failed(cause)) => size_of::<ShuffleError>() + cause.message().len(),
        Some(End::Released) | None => 0,
    }
}
