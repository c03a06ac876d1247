//! When an executor goes: its connection, its process, and what each still holds.

use std::time::Instant;

use buffer_pool::{Backing, BufferState, JobKey, SlotRef};
use shuffle_protocol::{JobId, ShuffleError, error::ErrorKind};

use super::session::SessionState;
use crate::node::{ChannelNo, Holder, Node, SessionId, Sink, Timer};

impl<B: Backing> Node<B> {
    /// The session's connection is gone. Where its process lives on, what that holds is quarantined until
    /// [`Node::handle_process_exited`].
    pub fn handle_session_closed(&mut self, now: Instant, id: SessionId, process_alive: bool) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.is_open()) else {
            return;
        };
        session.state = SessionState::Lingering;
        session.sink = Sink::default();
        session.raised.clear();
        let name = session.info.name.clone();
        let job = session.info.job;
        let writers: Vec<_> = session.writers.values().copied().collect();
        let gates: Vec<_> = session.gates.values().copied().collect();
        self.pending.take(|pending| pending.session == id);
        // What waited behind them may come now.
        self.pool_changed = true;
        self.timers.cancel(Timer::Session(id));
        self.end_subscription(id);
        let cause = ShuffleError::new(
            ErrorKind::ExecutorDied,
            format!("executor {name} closed its session with work unfinished"),
        )
        .job(job)
        .node(&self.config.address);
        for partition in writers {
            let located = self
                .partitions
                .get(partition)
                .map_or(cause.clone(), |p| cause.clone().partition(p.id));
            self.fail_partition(now, partition, located);
        }
        for gate in gates {
            self.lose_gate(now, gate, &cause);
        }
        if process_alive {
            self.quarantine_views(id, job, |_| true);
        }
        // A process that holds nothing need not be waited for.
        let holds_nothing = self.slots_held(id, job).is_empty() && self.shares_of(id).next().is_none();
        if !process_alive || holds_nothing {
            self.bury(now, id, job);
        }
        self.settle(now);
    }

    /// The session is over and its process still holds slots: its end is to be told.
    #[must_use]
    pub fn is_session_lingering(&self, id: SessionId) -> bool {
        self.sessions.get(id).is_some_and(|session| !session.is_open())
    }

    /// The process behind a closed session has exited: whatever it still held comes home.
    pub fn handle_process_exited(&mut self, now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get(id) else { return };
        let job = session.info.job;
        if session.is_open() {
            self.handle_session_closed(now, id, false);
        } else {
            self.bury(now, id, job);
            self.settle(now);
        }
    }

    fn bury(&mut self, now: Instant, id: SessionId, job: JobId) {
        for (slot, holder) in self.slots_held(id, job) {
            let from = if matches!(holder, Holder::View(..)) {
                BufferState::Viewed
            } else {
                BufferState::Quarantined
            };
            self.send_home(slot, from);
        }
        self.bury_shares(id);
        self.sessions.remove(id);
        if let Some(of) = self.jobs.get_mut(&job) {
            of.sessions -= 1;
        }
        self.retire_job_if_idle(now, job);
    }

    fn slots_held(&self, id: SessionId, job: JobId) -> Vec<(SlotRef, Holder)> {
        self.slots_of(job, |holder| match holder {
            Holder::View(session, _) | Holder::Quarantine(session) => session == id,
            _ => false,
        })
    }

    /// Turns this session's views, of the channels that are named, into quarantined slots.
    pub(crate) fn quarantine_views(&mut self, id: SessionId, job: JobId, of: impl Fn(ChannelNo) -> bool) {
        self.quarantine_shares(id, &of);
        let views: Vec<_> = self.slots_of(
            job,
            |holder| matches!(holder, Holder::View(session, channel) if session == id && of(channel)),
        );
        for (slot, _) in views {
            self.quarantine(slot, id);
        }
    }

    pub(crate) fn slots_of(&self, job: JobId, wanted: impl Fn(Holder) -> bool) -> Vec<(SlotRef, Holder)> {
        let Some(of) = self.jobs.get(&job) else {
            return Vec::new();
        };
        let key = JobKey(job.value());
        of.holders
            .held()
            .filter(|(_, _, holder)| wanted(*holder))
            .map(|(arena, slot, holder)| (SlotRef { job: key, arena, slot }, holder))
            .collect()
    }
}
