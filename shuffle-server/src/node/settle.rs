//! After each step: buffers that came home go to who waits for them.

use std::time::{Duration, Instant};

use buffer_pool::{ArenaKind, Backing, JobKey};
use shuffle_protocol::{GroupId, JobId, ShuffleError, error::ErrorKind};

use super::{Node, Pending, PendingKind, PoolOwner, SessionId, Timer};

/// How closely deadlines of requests that wait for buffers are kept.
const PENDING_GRAIN: Duration = Duration::from_millis(10);

impl<B: Backing> Node<B> {
    /// Lets everything happen that the last step made possible.
    pub(crate) fn settle(&mut self, now: Instant) {
        loop {
            for no in std::mem::take(&mut self.left) {
                self.wait_anew(now, no);
                self.handle_audience_left(now, no);
            }
            while let Some(pool) = self.pool.poll_ready() {
                match self.pool_owners.get(&pool) {
                    Some(PoolOwner::Writer(no)) => self.grant(*no),
                    Some(PoolOwner::Gate(no)) => self.lend(*no),
                    Some(PoolOwner::Reader(no)) => self.read_ahead(now, *no),
                    None => {}
                }
            }
            let need = |arena| self.pending.need(arena);
            let (write, read) = (need(ArenaKind::Write), need(ArenaKind::Read));
            self.pool.set_wanted(write, read);
            let is_waited_for = !self.pending.is_empty() || !self.without_pool.is_empty();
            if std::mem::take(&mut self.pool_changed) && is_waited_for {
                self.retry_reading(now);
                self.retry_pending(now);
            } else if self.left.is_empty() {
                break;
            }
        }
        for no in std::mem::take(&mut self.stalling) {
            self.watch_for_stragglers(now, no);
        }
        self.spool(now);
        self.settle_notices(now);
        self.check_some_invariants();
    }

    /// Creates what waits and can be had now. Behind the first that still lacks buffers nobody of its kind is tried, so
    /// nobody is overtaken for ever.
    fn retry_pending(&mut self, now: Instant) {
        while let Some(arena) = self.next_to_create() {
            let Some(pending) = self.pending.pop_head(arena) else {
                return;
            };
            self.leave_pending(pending.session);
            self.attempt(now, pending);
        }
    }

    /// The line whose head finds its buffers.
    fn next_to_create(&self) -> Option<ArenaKind> {
        let fits = |pending: &&Pending| {
            let arena = pending.kind.arena();
            pending.need <= self.pool.available(JobKey(pending.job.value()), arena)
        };
        self.pending.heads().find(fits).map(|pending| pending.kind.arena())
    }

    /// Moves of memory that failed are tried again. Gives what failed since this was last asked, to be logged.
    pub fn retry_moves(&mut self, now: Instant) -> Option<buffer_pool::PoolError> {
        self.pool.retry_moves();
        self.pool_changed = true;
        self.settle(now);
        self.pool.poll_move_error()
    }

    /// Creates or refuses.
    pub(crate) fn attempt(&mut self, now: Instant, pending: Pending) {
        let outcome = match &pending.kind {
            PendingKind::Partition(request) => self.create_partition(now, pending.session, request),
            PendingKind::Gate(request) => self.open_gate(now, pending.session, request),
        };
        self.reply(pending.session, pending.request, outcome);
    }

    /// Refuses, with the numbers of now, what has waited its time for buffers.
    pub(crate) fn expire_pending(&mut self, now: Instant) {
        for pending in self.pending.take(|pending| pending.deadline <= now) {
            self.leave_pending(pending.session);
            self.attempt(now, pending);
            // What waited behind it may come now.
            self.pool_changed = true;
        }
        if let Some(next) = self.pending.next_deadline() {
            self.timers.set(next.max(now + PENDING_GRAIN), Timer::Pending);
        }
    }

    /// The executor wants no more what it has asked for and what still waits for buffers. False: nothing of that waits.
    pub(crate) fn give_up_pending(&mut self, session: SessionId, is_it: impl Fn(&PendingKind) -> bool) -> bool {
        let error = ShuffleError::new(ErrorKind::Cancelled, "the executor gave it up before it was there");
        self.refuse_pending(&error, |pending| pending.session == session && is_it(&pending.kind))
    }

    /// Answers what waits as a member of a group that has failed.
    pub(crate) fn fail_pending(&mut self, job: JobId, group: GroupId, verdict: &ShuffleError) {
        self.refuse_pending(verdict, |pending| pending.job == job && pending.group == Some(group));
    }

    /// Answers with this error what waits and is meant. False: nothing of that waits.
    pub(crate) fn refuse_pending(&mut self, error: &ShuffleError, is_meant: impl Fn(&Pending) -> bool) -> bool {
        let meant = self.pending.take(is_meant);
        if meant.is_empty() {
            return false;
        }
        for pending in meant {
            self.leave_pending(pending.session);
            self.reply(pending.session, pending.request, Err(error.clone()));
        }
        // What waited behind them may come now.
        self.pool_changed = true;
        true
    }

    fn leave_pending(&mut self, session: SessionId) {
        if let Some(session) = self.sessions.get_mut(session) {
            session.waiting_requests -= 1;
        }
    }
}
