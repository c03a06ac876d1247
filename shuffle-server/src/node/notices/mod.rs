//! What drivers of jobs are told of partitions.
//!
//! ```text
//!   create, first buffer, complete, end ──note──▶ Subscription of each driver ──poll_session──▶ PartitionEvents
//!                                                      ▲          │ due: at once, after `linger`, when a result is complete
//!                                      EventsSeen ─────┘          ▼
//!                                                           one message with whatever there is to say
//! ```
//!
//! What is said is read from the partitions when it leaves, so a driver that is slow hears less and not later. All that waits
//! is at most [`MAX_WAITING_BYTES`] on a node; beyond that the session of the driver that is furthest behind is closed. It may
//! come back, and hears in a snapshot what there is.

mod sizes;
mod subscription;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use buffer_pool::Backing;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::notify::{Packer, PartitionChange, PartitionState};
use shuffle_protocol::partition::Readiness;
use shuffle_protocol::{JobId, PartitionId, PartitionKey, ResultId, ShuffleError};

use self::sizes::Sizes;
use self::subscription::{End, Subscription, Urgency};
use super::{Node, Output, SessionId, Timer, Wake};
use crate::executor::protocol;
use crate::partition::{Partition, PartitionNo, PartitionState as Stage, Tombstone};

/// Bytes that may wait to be said to all drivers of a node.
const MAX_WAITING_BYTES: usize = 8 << 20;
/// Drivers of one job on one node.
const MAX_SUBSCRIPTIONS_PER_JOB: usize = 4;
/// Encoded bytes after which no further partition goes into a message.
const SAY_BYTES: usize = shuffle_protocol::limits::MAX_EVENTS_BYTES as usize;
/// Longest that a driver may let changes wait.
const MAX_LINGER: Duration = Duration::from_secs(10);

/// Who is to be told what.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    subscriptions: BTreeMap<SessionId, Subscription>,
    /// The drivers of each job; an entry stays while the job is on the node, so that one that comes back finds [`Sizes`].
    by_job: BTreeMap<JobId, BTreeSet<SessionId>>,
    sizes: Sizes,
    /// Something was noted in this step.
    noted: bool,
}

impl Notices {
    fn is_watched(&self, job: JobId) -> bool {
        !self.by_job.is_empty() && self.by_job.contains_key(&job)
    }

    fn of_job(&mut self, job: JobId, mut note: impl FnMut(&mut Subscription)) {
        for id in self.by_job.get(&job).into_iter().flatten() {
            if let Some(subscription) = self.subscriptions.get_mut(id) {
                note(subscription);
                self.noted = true;
            }
        }
    }

    /// The job has left the node.
    pub(crate) fn forget_job(&mut self, job: JobId) {
        if self.by_job.remove(&job).is_some() {
            self.sizes.forget(job);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.subscriptions.len()
    }

    pub(crate) fn is_subscribed(&self, id: SessionId) -> bool {
        self.subscriptions.contains_key(&id)
    }

    pub(crate) fn check_invariants(&self) {
        self.subscriptions.values().for_each(Subscription::check_invariants);
        let listed: usize = self.by_job.values().map(BTreeSet::len).sum();
        assert_eq!(listed, self.subscriptions.len(), "each subscription is of one job");
    }
}

impl<B: Backing> Node<B> {
    /// The session wants to hear of its job's partitions, from now on and what there is.
    pub(crate) fn subscribe(&mut self, id: SessionId, request: &control::Subscribe) -> Result<(), ShuffleError> {
        let job = self.open_session(id)?.info.job;
        let before = self.notices.subscriptions.get(&id).map_or(0, Subscription::sent);
        let drivers = self.notices.by_job.entry(job).or_default();
        if drivers.len() >= MAX_SUBSCRIPTIONS_PER_JOB && !drivers.contains(&id) {
            let kind = ErrorKind::LimitExceeded {
                what: "drivers of one job on one node".to_owned(),
                limit: MAX_SUBSCRIPTIONS_PER_JOB as u64,
                asked: drivers.len() as u64 + 1,
            };
            return Err(ShuffleError::new(
                kind,
                "end the sessions of drivers that are not needed any more",
            ));
        }
        drivers.insert(id);
        let linger = Duration::from_millis(request.linger_ms.into()).min(MAX_LINGER);
        let mut subscription = Subscription::new(job, linger, before);
        let of_job = self.partitions.values().filter(|partition| partition.job == job);
        for partition in of_job.filter(|partition| is_blocking(partition) && partition.state != Stage::Finished) {
            subscription.begin_producing(partition.id.result);
        }
        self.notices.subscriptions.insert(id, subscription);
        self.notices.noted = true;
        Ok(())
    }

    /// Releases every partition of a result that is here.
    pub(crate) fn release_result(&mut self, now: Instant, id: SessionId, result: ResultId) -> Result<(), ShuffleError> {
        let job = self.open_session(id)?.info.job;
        let of_result = self.partitions.values();
        // A relay goes with its partition.
        let is_it = |of: &&Partition| of.job == job && of.id.result == result && of.relay.is_none();
        let of_result = of_result.filter(is_it);
        let partitions: Vec<PartitionId> = of_result.map(|partition| partition.id).collect();
        for partition in partitions {
            self.give_up_unread(now, job, partition)?;
        }
        Ok(())
    }

    /// The driver has taken in everything up to this message.
    pub(crate) fn handle_events_seen(&mut self, id: SessionId, number: u64) -> Result<(), ShuffleError> {
        if let Some(subscription) = self.notices.subscriptions.get_mut(&id)
            && !subscription.handle_seen(number)
        {
            return Err(protocol(format!("message {number} was seen before it was sent")));
        }
        self.notices.noted = true;
        Ok(())
    }

    pub(crate) fn end_subscription(&mut self, id: SessionId) {
        let Some(subscription) = self.notices.subscriptions.remove(&id) else {
            return;
        };
        if let Some(drivers) = self.notices.by_job.get_mut(&subscription.job) {
            drivers.remove(&id);
        }
        self.timers.cancel(Timer::Notices(id));
    }

    /// A partition was created, has its first buffer, or is finished.
    pub(crate) fn note_partition(&mut self, no: PartitionNo) {
        let Some(partition) = self.partitions.get(no) else {
            return;
        };
        if !self.notices.is_watched(partition.job) {
            return;
        }
        let (id, blocking) = (partition.id, is_blocking(partition));
        let (finished, created) = (partition.state == Stage::Finished, !partition.has_begun());
        let urgency = match (blocking, finished) {
            (false, _) => Urgency::Soon,
            (true, true) => Urgency::CanWait,
            (true, false) => Urgency::Along,
        };
        self.notices.of_job(partition.job, |subscription| {
            subscription.note(id, urgency).finished |= finished;
            match (finished, created) {
                (true, _) if blocking => subscription.end_producing(id.result),
                (false, true) if blocking => subscription.begin_producing(id.result),
                _ => {}
            }
        });
    }

    /// A partition is not there any more.
    pub(crate) fn note_end(&mut self, partition: &Partition, how: &Tombstone) {
        let (job, id) = (partition.job, partition.id);
        if !self.notices.is_watched(job) {
            return;
        }
        let finished = partition.state == Stage::Finished;
        let sizes: Option<Arc<[u64]>> = finished.then(|| partition.sizes().into());
        if let Some(sizes) = &sizes {
            self.notices.sizes.keep(job, id, Arc::clone(sizes));
        }
        let end = end_of(how);
        let urgency = match how {
            Tombstone::Lost(_) | Tombstone::Failed(_) => Urgency::Now,
            Tombstone::Expired => Urgency::CanWait,
            Tombstone::Released => Urgency::Along,
        };
        self.notices.of_job(job, |subscription| {
            subscription.note_end(id, urgency, end.clone(), sizes.as_ref());
            if is_blocking(partition) && !finished {
                subscription.end_producing(id.result);
            }
        });
    }

    /// After a step: wakes the sessions whose message may leave, and gives up who is too far behind.
    pub(crate) fn settle_notices(&mut self, now: Instant) {
        if !std::mem::take(&mut self.notices.noted) {
            return;
        }
        self.drop_laggards();
        let mut ready = Vec::new();
        for (id, subscription) in &mut self.notices.subscriptions {
            match subscription.due(now) {
                Some(due) if due <= now => ready.push(*id),
                Some(due) => self.timers.set(due, Timer::Notices(*id)),
                None => {}
            }
        }
        for id in ready {
            self.timers.cancel(Timer::Notices(id));
            self.wake_session(id);
        }
    }

    /// What waits has waited long enough.
    pub(crate) fn handle_notices_due(&mut self) {
        self.notices.noted = true;
    }

    /// Adds what is to be said to this session now.
    pub(crate) fn poll_notices(&mut self, now: Instant, id: SessionId, out: &mut Vec<Output>) {
        let Some(subscription) = self.notices.subscriptions.get_mut(&id) else {
            return;
        };
        if subscription.due(now).is_none_or(|due| due > now) {
            return;
        }
        let mut packer = Packer::default();
        let (job, was_snapshot) = (subscription.job, subscription.snapshot.is_some());
        if let Some(from) = subscription.snapshot {
            let next = self.pack_snapshot(id, from, &mut packer);
            if let Some(subscription) = self.notices.subscriptions.get_mut(&id) {
                subscription.snapshot = next.map(Some);
            }
        }
        while packer.bytes() < SAY_BYTES
            && let Some(subscription) = self.notices.subscriptions.get_mut(&id)
            && subscription.snapshot.is_none()
            && let Some((partition, change)) = subscription.pop()
        {
            if let Some(bytes) = change.sizes {
                packer.push(&PartitionChange {
                    partition,
                    state: PartitionState::Finished { bytes },
                });
            }
            match change.end {
                Some(end) => packer.push(&end_change(partition, end)),
                None => self.pack_live(job, partition, &mut packer),
            }
        }
        let Some(subscription) = self.notices.subscriptions.get_mut(&id) else {
            return;
        };
        let snapshot_complete = was_snapshot && subscription.snapshot.is_none();
        let messages = packer.finish(subscription.sent() + 1, snapshot_complete);
        subscription.handle_sent(now, messages.len());
        self.counters.event_messages += messages.len() as u64;
        for message in messages {
            self.counters.events_told += message.events.len() as u64;
            out.push(Output::Control(Box::new(Message::PartitionEvents(message))));
        }
    }

    /// Says what there is from that place on, and with it what waits of the same partitions. Gives the place where it goes on.
    fn pack_snapshot(
        &mut self,
        id: SessionId,
        from: Option<PartitionKey>,
        packer: &mut Packer,
    ) -> Option<PartitionKey> {
        // Taken out while the rest is looked at; it comes back below.
        let mut subscription = self.notices.subscriptions.remove(&id)?;
        let job = subscription.job;
        let mut next = None;
        for (key, ended, live) in self.registry.known(job, from) {
            if packer.bytes() >= SAY_BYTES {
                next = Some(key);
                break;
            }
            if let Some((partition, how)) = ended {
                let sizes = subscription.take(partition).and_then(|change| change.sizes);
                if let Some(bytes) = sizes.or_else(|| self.notices.sizes.get(job, partition)) {
                    packer.push(&PartitionChange {
                        partition,
                        state: PartitionState::Finished { bytes },
                    });
                }
                packer.push(&end_change(partition, end_of(how)));
            }
            if let Some(partition) = live {
                subscription.take(partition);
                self.pack_live(job, partition, packer);
            }
        }
        self.notices.subscriptions.insert(id, subscription);
        next
    }

    fn pack_live(&self, job: JobId, id: PartitionId, packer: &mut Packer) {
        if let Some(partition) = self.registry.live(job, id).and_then(|no| self.partitions.get(no)) {
            let state = match partition.state {
                Stage::Finished => PartitionState::Finished {
                    bytes: partition.sizes().into(),
                },
                _ if partition.has_begun() => PartitionState::FirstBuffer,
                _ => PartitionState::Registered,
            };
            packer.push(&PartitionChange { partition: id, state });
        }
    }

    fn drop_laggards(&mut self) {
        let held = |notices: &Notices| -> usize { notices.subscriptions.values().map(Subscription::held).sum() };
        while held(&self.notices) > MAX_WAITING_BYTES {
            let furthest = self.notices.subscriptions.iter().max_by_key(|(_, of)| of.held());
            let Some((id, waiting)) = furthest.map(|(id, of)| (*id, of.held())) else {
                return;
            };
            let kind = ErrorKind::LimitExceeded {
                what: "bytes of partition events that wait for drivers".to_owned(),
                limit: MAX_WAITING_BYTES as u64,
                asked: waiting as u64,
            };
            let error = ShuffleError::new(
                kind,
                "this driver takes events too slowly: subscribe again to hear what there is",
            );
            self.end_subscription(id);
            self.counters.subscriptions_dropped += 1;
            self.wakes.push_back(Wake::CloseSession(id, error.retryable(true)));
        }
    }
}

fn is_blocking(partition: &Partition) -> bool {
    partition.kind.readiness == Readiness::Blocking
}

fn end_of(how: &Tombstone) -> End {
    match how {
        Tombstone::Released | Tombstone::Expired => End::Released,
        Tombstone::Lost(cause) | Tombstone::Failed(cause) => End::Failed(Arc::clone(cause)),
    }
}

fn end_change(partition: PartitionId, end: End) -> PartitionChange {
    let state = match end {
        End::Released => PartitionState::Released,
        End::Failed(cause) => PartitionState::Failed {
            cause: cause.as_ref().clone(),
        },
    };
    PartitionChange { partition, state }
}
