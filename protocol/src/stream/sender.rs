//! The serving side of a channel.
//!
//! ```text
//!            acked          resend                      sent
//!   ...freed | kept until acknowledged ............... | next
//!            |              |<- resent after a resume ->|
//!            |                                          |
//!            |   ordinal of the next buffer <= credit limit
//! ```
//!
//! Invariants: `acked <= resend <= sent`; everything from `acked` to `sent` is kept; no buffer has an ordinal of `limit`
//! or above.

use std::collections::{VecDeque, vec_deque};

use super::StreamError;
use crate::ids::Sequence;
use crate::limits::MAX_CREDIT_WINDOW;

/// Entries for which room is kept on an idle channel.
const ROOM: usize = 16;

/// What was sent on a channel and not acknowledged yet, and how much more may be sent. `T` is a handle of what is sent.
#[derive(Debug)]
pub struct Sender<T> {
    /// From `acked` to `sent`.
    kept: VecDeque<Kept<T>>,
    acked: u64,
    /// The next to be sent again; `sent` if nothing is.
    resend: u64,
    sent: u64,
    /// Frames with buffers sent: the ordinal of the next.
    ordinal: u64,
    /// Frames with an ordinal below may be sent.
    limit: u64,
    /// The backlog was told since the credit ran out.
    announced: bool,
}

#[derive(Debug)]
struct Kept<T> {
    item: T,
    is_buffer: bool,
    /// It went in the frame of the one before it, and goes so again.
    joins: bool,
}

impl<T> Sender<T> {
    /// A channel on which nothing was sent and `initial_credit` buffers may be.
    ///
    /// # Errors
    /// [`StreamError::CreditBeyondWindow`].
    pub fn new(initial_credit: u64) -> Result<Self, StreamError> {
        let mut sender = Self {
            kept: VecDeque::new(),
            acked: 0,
            resend: 0,
            sent: 0,
            ordinal: 0,
            limit: 0,
            announced: false,
        };
        sender.handle_credit(initial_credit)?;
        Ok(sender)
    }

    /// Buffers with an ordinal below `limit` may be sent. A limit that is not higher than the last came late and changes
    /// nothing.
    ///
    /// # Errors
    /// [`StreamError::CreditBeyondWindow`].
    pub fn handle_credit(&mut self, limit: u64) -> Result<(), StreamError> {
        if limit.saturating_sub(self.ordinal) > MAX_CREDIT_WINDOW {
            let (sent, window) = (self.ordinal, MAX_CREDIT_WINDOW);
            return Err(StreamError::CreditBeyondWindow { limit, sent, window });
        }
        if limit > self.limit {
            self.limit = limit;
            self.announced = false;
        }
        Ok(())
    }

    /// Everything below was received and checked. Returns what is no longer kept, in order; what the caller does not take
    /// from the iterator is dropped with it. An acknowledgement that is not higher than the last changes nothing.
    ///
    /// # Errors
    /// [`StreamError::AckBeyondSent`].
    pub fn handle_ack(&mut self, below: Sequence) -> Result<Freed<'_, T>, StreamError> {
        if below.value() > self.sent {
            return Err(StreamError::AckBeyondSent {
                below,
                sent: self.sent(),
            });
        }
        Ok(self.free(below.value()))
    }

    /// Whether a buffer may be sent now: there is credit, and nothing waits to be sent again.
    pub fn can_send_buffer(&self) -> bool {
        self.credit_left() > 0 && !self.is_resending()
    }

    /// Whether an end marker may be sent now: nothing waits to be sent again.
    pub fn can_send_end(&self) -> bool {
        !self.is_resending()
    }

    /// Sends a buffer; it is kept until it is acknowledged.
    ///
    /// # Panics
    /// If [`Sender::can_send_buffer`] is false: a mistake of the caller.
    pub fn send_buffer(&mut self, item: T) -> Sequence {
        assert!(
            self.can_send_buffer(),
            "a buffer without credit, or before what is sent again"
        );
        self.ordinal += 1;
        self.send(item, true, false)
    }

    /// Sends a buffer in the frame of the last one: together they take one credit.
    ///
    /// # Panics
    /// If the last that was sent is no buffer, or not new: mistakes of the caller.
    pub fn join_buffer(&mut self, item: T) -> Sequence {
        let is_behind_one = self.kept.back().is_some_and(|last| last.is_buffer);
        assert!(
            is_behind_one && !self.is_resending(),
            "a buffer joins one that was just sent"
        );
        self.send(item, true, true)
    }

    /// Sends an end marker; it takes no credit and is kept until it is acknowledged.
    ///
    /// # Panics
    /// If [`Sender::can_send_end`] is false: a mistake of the caller.
    pub fn send_end(&mut self, item: T) -> Sequence {
        assert!(self.can_send_end(), "an end marker before what is sent again");
        self.send(item, false, false)
    }

    /// The channel is taken up again on a new connection: everything below `acknowledged` was checked, everything below
    /// `received` has arrived, and buffers with an ordinal below `credit` may be sent, as in [`Sender::handle_credit`].
    /// Returns what is no longer kept, as [`Sender::handle_ack`]; [`Sender::poll_resend`] says what to send again.
    ///
    /// # Errors
    /// [`StreamError::Resume`] unless `acked <= acknowledged <= received <= sent`, and where `received` lies within a frame;
    /// [`StreamError::CreditBeyondWindow`].
    pub fn handle_resume(
        &mut self,
        acknowledged: Sequence,
        received: Sequence,
        credit: u64,
    ) -> Result<Freed<'_, T>, StreamError> {
        let in_order = self.acked <= acknowledged.value() && acknowledged <= received && received.value() <= self.sent;
        // A frame arrives whole or not at all.
        let in_order = in_order && !self.kept_at(received.value()).is_some_and(|kept| kept.joins);
        if !in_order {
            return Err(StreamError::Resume { acknowledged, received });
        }
        self.handle_credit(credit)?;
        self.announced = false;
        self.resend = received.value();
        Ok(self.free(acknowledged.value()))
    }

    /// The next that must be sent again after a resume, before anything new.
    pub fn poll_resend(&mut self) -> Option<(Sequence, &T)> {
        if !self.is_resending() {
            return None;
        }
        let sequence = self.resend;
        self.resend += 1;
        let kept = self.kept_at(sequence).expect("invariant: what is sent again is kept");
        Some((Sequence::new(sequence), &kept.item))
    }

    /// Whether the next that is sent again goes in the frame of the one before it.
    pub fn resends_joined(&self) -> bool {
        self.is_resending() && self.kept_at(self.resend).is_some_and(|kept| kept.joins)
    }

    /// Whether anything waits to be sent again.
    pub fn is_resending(&self) -> bool {
        self.resend < self.sent
    }

    /// The backlog to tell the other side, if `waiting` buffers wait in the queue: once when the credit has run out, and
    /// again only after credit came or the queue was empty.
    pub fn poll_backlog(&mut self, waiting: u32) -> Option<u32> {
        if waiting == 0 || self.credit_left() > 0 {
            self.announced = false;
            return None;
        }
        (!std::mem::replace(&mut self.announced, true)).then_some(waiting)
    }

    /// Gives memory back that a burst took, once nothing is kept: there may be thousands of channels.
    pub fn shrink(&mut self) {
        if self.kept.is_empty() && self.kept.capacity() > ROOM {
            self.kept = VecDeque::new();
        }
    }

    /// The sequence that is sent next.
    pub fn sent(&self) -> Sequence {
        Sequence::new(self.sent)
    }

    /// Everything below is acknowledged.
    pub fn acked(&self) -> Sequence {
        Sequence::new(self.acked)
    }

    /// Buffers that may still be sent.
    pub fn credit_left(&self) -> u64 {
        self.limit - self.ordinal
    }

    /// What was sent and not acknowledged, in order.
    pub fn unacked(&self) -> impl ExactSizeIterator<Item = &T> {
        self.kept.iter().map(|kept| &kept.item)
    }

    /// What was sent with this sequence, if it is not acknowledged.
    pub fn kept(&self, sequence: Sequence) -> Option<&T> {
        self.kept_at(sequence.value()).map(|kept| &kept.item)
    }

    /// Ends the channel. Returns what was sent and not acknowledged, in order.
    pub fn close(self) -> Vec<T> {
        self.kept.into_iter().map(|kept| kept.item).collect()
    }

    /// Checks the invariants of the module header.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check_invariants(&self) {
        assert!(
            self.acked <= self.resend && self.resend <= self.sent,
            "sequences out of order"
        );
        let kept = self.sent - self.acked;
        assert!(
            u64::try_from(self.kept.len()) == Ok(kept),
            "not exactly the unacknowledged is kept"
        );
        assert!(self.ordinal <= self.limit, "more buffers sent than credit given");
        assert!(self.ordinal <= self.sent, "more buffers than sequences");
        assert!(
            self.limit - self.ordinal <= MAX_CREDIT_WINDOW,
            "credit beyond the window"
        );
        let buffers = self.kept.iter().filter(|kept| kept.is_buffer && !kept.joins).count();
        assert!(
            u64::try_from(buffers).is_ok_and(|n| n <= self.ordinal),
            "buffers never sent are kept"
        );
    }

    fn send(&mut self, item: T, is_buffer: bool, joins: bool) -> Sequence {
        let sequence = self.sent();
        self.kept.push_back(Kept { item, is_buffer, joins });
        self.sent += 1;
        self.resend = self.sent;
        sequence
    }

    fn free(&mut self, below: u64) -> Freed<'_, T> {
        let count = below.saturating_sub(self.acked);
        let count = usize::try_from(count).expect("invariant: no more is freed than is kept");
        self.acked = self.acked.max(below);
        self.resend = self.resend.max(self.acked);
        Freed(self.kept.drain(..count))
    }

    fn kept_at(&self, sequence: u64) -> Option<&Kept<T>> {
        let index = usize::try_from(sequence.checked_sub(self.acked)?).ok()?;
        self.kept.get(index)
    }
}

/// What is no longer kept, in order.
#[derive(Debug)]
#[must_use = "what was acknowledged must go home"]
pub struct Freed<'a, T>(vec_deque::Drain<'a, Kept<T>>);

impl<T> Iterator for Freed<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.next().map(|kept| kept.item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<T> ExactSizeIterator for Freed<'_, T> {}
