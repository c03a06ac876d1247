//! After each step: buffers that came home go to who waits for them.

use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::{ShuffleError, control, error::ErrorKind};

use super::{Node, PoolOwner, SessionId, Timer};

/// A request that waits for buffers.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) session: SessionId,
    pub(crate) request: u64,
    pub(crate) deadline: Instant,
    pub(crate) kind: PendingKind,
}

/// What is to be created.
#[derive(Debug)]
pub(crate) enum PendingKind {
    Partition(Box<control::CreatePartition>),
    Gate(Box<control::OpenGate>),
}

impl<B: Backing> Node<B> {
    /// Lets everything happen that the last step made possible.
    pub(crate) fn settle(&mut self, now: Instant) {
        loop {
            while let Some(pool) = self.pool.poll_ready() {
                match self.pool_owners.get(&pool) {
                    Some(PoolOwner::Writer(no)) => self.grant(*no),
                    Some(PoolOwner::Gate(no)) => self.lend(*no),
                    None => {}
                }
            }
            self.state_wanted();
            if !std::mem::take(&mut self.pool_changed) || self.pending.is_empty() {
                break;
            }
            self.retry_pending(now);
        }
        self.check_some_invariants();
    }

    /// Tries what waits, in the order in which it came; behind the first that still lacks buffers nobody of its kind
    /// is tried, so nobody is overtaken for ever.
    fn retry_pending(&mut self, now: Instant) {
        let (mut writers_wait, mut readers_wait) = (false, false);
        for pending in std::mem::take(&mut self.pending) {
            let waits = match pending.kind {
                PendingKind::Partition(_) => &mut writers_wait,
                PendingKind::Gate(_) => &mut readers_wait,
            };
            if *waits {
                self.pending.push_back(pending);
                continue;
            }
            let session = pending.session;
            match self.attempt(now, pending) {
                Some(pending) => {
                    *waits = true;
                    self.pending.push_back(pending);
                }
                None => self.leave_pending(session),
            }
        }
    }

    /// Tells the pool what waits, so that it makes room.
    fn state_wanted(&mut self) {
        let (mut write, mut read) = (0u32, 0u32);
        for pending in &self.pending {
            match &pending.kind {
                PendingKind::Partition(request) => write = write.saturating_add(request.min_buffers.max(1)),
                PendingKind::Gate(request) => read = read.saturating_add(self.receive_minimum(request)),
            }
        }
        self.pool.set_wanted(write, read);
    }

    /// Moves of memory that failed are tried again. Gives what failed since this was last asked, to be logged.
    pub fn retry_moves(&mut self, now: Instant) -> Option<buffer_pool::PoolError> {
        self.pool.retry_moves();
        self.pool_changed = true;
        self.settle(now);
        self.pool.poll_move_error()
    }

    /// Tries a creation. Gives it back where only buffers are missing.
    pub(crate) fn attempt(&mut self, now: Instant, pending: Pending) -> Option<Pending> {
        let outcome = match &pending.kind {
            PendingKind::Partition(request) => self.create_partition(now, pending.session, request),
            PendingKind::Gate(request) => self.open_gate(now, pending.session, request),
        };
        match outcome {
            Err(error) if pending.deadline > now && matches!(error.kind(), ErrorKind::InsufficientBuffers { .. }) => {
                Some(pending)
            }
            outcome => {
                self.reply(pending.session, pending.request, outcome);
                None
            }
        }
    }

    /// Refuses, with the numbers of now, what has waited its time for buffers.
    pub(crate) fn expire_pending(&mut self, now: Instant) {
        for pending in std::mem::take(&mut self.pending) {
            let session = pending.session;
            if pending.deadline > now {
                self.pending.push_back(pending);
                continue;
            }
            self.leave_pending(session);
            let refused = self.attempt(now, pending);
            assert!(refused.is_none(), "a request waits beyond its deadline");
        }
        if let Some(next) = self.pending.iter().map(|pending| pending.deadline).min() {
            self.timers.set(next, Timer::Pending);
        }
    }

    /// The executor wants no more what it has asked for and what still waits for buffers.
    pub(crate) fn give_up_pending(&mut self, session: SessionId, is_it: impl Fn(&PendingKind) -> bool) {
        for pending in std::mem::take(&mut self.pending) {
            if pending.session != session || !is_it(&pending.kind) {
                self.pending.push_back(pending);
                continue;
            }
            self.leave_pending(session);
            let error = ShuffleError::new(ErrorKind::Cancelled, "the executor gave it up before it was there");
            self.reply(session, pending.request, Err(error));
        }
        // What waited behind it may come now.
        self.pool_changed = true;
    }

    /// Answers everything that waits, since the node is being stopped.
    pub(crate) fn refuse_pending(&mut self, error: &ShuffleError) {
        for pending in std::mem::take(&mut self.pending) {
            self.leave_pending(pending.session);
            self.reply(pending.session, pending.request, Err(error.clone()));
        }
    }

    fn leave_pending(&mut self, session: SessionId) {
        if let Some(session) = self.sessions.get_mut(session) {
            session.waiting_requests -= 1;
        }
    }
}
