//! The fetching side of a channel.
//!
//! ```text
//!            checked                    received
//!   ...acked | at the reader .......... | next           sequences of buffers and end markers
//!
//!                                       received         limit
//!   ................................... | credit, unused |          ordinals of buffers
//! ```
//!
//! Invariants: `checked <= received` in sequences, `received <= limit` in ordinals. The unused credit is exactly the number
//! of buffers that the caller keeps reserved for the channel.

use super::StreamError;
use crate::ids::Sequence;
use crate::limits::MAX_CREDIT_WINDOW;

/// What has arrived on a channel, what was checked, and how much more may come.
#[derive(Debug)]
pub struct Receiver {
    received: u64,
    checked: u64,
    /// Buffers received: the ordinal of the next.
    ordinal: u64,
    /// Buffers with an ordinal below may come.
    limit: u64,
    end: End,
    /// What the other side was told on this connection.
    told_limit: Option<u64>,
    told_ack: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Open,
    /// The last end marker arrived.
    Finished,
    /// The reader gave up.
    Cancelled,
}

/// What to do with something that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// It is the next: keep it.
    Accept,
    /// It came before, or nobody reads this channel any more: drop it. It took no credit.
    Duplicate,
}

/// Where a channel is taken up again on a new connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumePoint {
    /// Everything below was checked.
    pub acknowledged: Sequence,
    /// Everything below has arrived.
    pub received: Sequence,
    /// Buffers with an ordinal below may be sent.
    pub credit: u64,
}

impl Receiver {
    /// A channel on which nothing has arrived and `exclusive` buffers may: the caller has reserved them already. 0 where
    /// all credit is added as [`GateCredit`](super::GateCredit) assigns it.
    pub fn new(exclusive: u32) -> Self {
        Self {
            received: 0,
            checked: 0,
            ordinal: 0,
            limit: exclusive.into(),
            end: End::Open,
            told_limit: None,
            told_ack: None,
        }
    }

    /// A whole buffer has arrived. One that is accepted used a credit: its place is no longer reserved but taken.
    ///
    /// # Errors
    /// [`StreamError::Gap`], [`StreamError::BeyondCredit`], [`StreamError::AfterLast`] or [`StreamError::Exhausted`].
    pub fn handle_buffer(&mut self, sequence: Sequence) -> Result<Arrival, StreamError> {
        self.handle_frame(sequence, 1)
    }

    /// A whole frame has arrived, of so many buffers from this sequence on. One that is accepted used a credit.
    ///
    /// # Errors
    /// As [`Receiver::handle_buffer`].
    pub fn handle_frame(&mut self, first: Sequence, buffers: u32) -> Result<Arrival, StreamError> {
        let arrival = self.expects(first)?;
        if arrival == Arrival::Accept {
            let after = self.received.checked_add(buffers.into());
            self.received = after.ok_or(StreamError::Exhausted { got: first })?;
            self.ordinal += 1;
        }
        Ok(arrival)
    }

    /// What [`Receiver::handle_buffer`] would say, for a buffer whose payload is still to come.
    ///
    /// # Errors
    /// As [`Receiver::handle_buffer`].
    pub fn expects(&self, sequence: Sequence) -> Result<Arrival, StreamError> {
        let arrival = self.place(sequence)?;
        if arrival == Arrival::Accept && self.ordinal == self.limit {
            return Err(StreamError::BeyondCredit {
                sequence,
                limit: self.limit,
            });
        }
        Ok(arrival)
    }

    /// An end marker has arrived, the last one of the channel if `last`.
    ///
    /// # Errors
    /// [`StreamError::Gap`], [`StreamError::AfterLast`] or [`StreamError::Exhausted`].
    pub fn handle_end(&mut self, sequence: Sequence, last: bool) -> Result<Arrival, StreamError> {
        let arrival = self.place(sequence)?;
        if arrival == Arrival::Accept {
            self.received += 1;
            if last {
                self.end = End::Finished;
            }
        }
        Ok(arrival)
    }

    /// The reader has checked everything below. One that is not higher than the last changes nothing.
    ///
    /// # Errors
    /// [`StreamError::CheckedBeyondReceived`].
    pub fn handle_checked(&mut self, below: Sequence) -> Result<(), StreamError> {
        if below.value() > self.received {
            let received = Sequence::new(self.received);
            return Err(StreamError::CheckedBeyondReceived { below, received });
        }
        self.checked = self.checked.max(below.value());
        Ok(())
    }

    /// The caller has reserved so many more buffers for the channel.
    ///
    /// # Panics
    /// If nothing more can come on the channel, or more than [`MAX_CREDIT_WINDOW`] would be reserved: mistakes of the
    /// caller.
    pub fn add_credit(&mut self, buffers: u32) {
        assert!(
            self.end == End::Open,
            "credit for a channel on which nothing more can come"
        );
        self.limit += u64::from(buffers);
        assert!(
            self.outstanding_credit() <= MAX_CREDIT_WINDOW,
            "credit beyond the window"
        );
    }

    /// The limit to tell the other side, if it does not know it.
    pub fn poll_credit(&mut self) -> Option<u64> {
        if self.end != End::Open || self.told_limit == Some(self.limit) {
            return None;
        }
        self.told_limit = Some(self.limit);
        self.told_limit
    }

    /// The acknowledgement to tell the other side, if it does not know it.
    pub fn poll_ack(&mut self) -> Option<Sequence> {
        if self.told_ack.unwrap_or(0) == self.checked {
            return None;
        }
        self.told_ack = Some(self.checked);
        Some(Sequence::new(self.checked))
    }

    /// Buffers that are reserved for the channel: credit that was given and not used.
    pub fn outstanding_credit(&self) -> u64 {
        self.limit - self.ordinal
    }

    /// The reader gives up. Returns how many buffers were reserved: they are the caller's again. What has arrived counts
    /// as checked, what still comes is dropped.
    pub fn cancel(&mut self) -> u64 {
        if self.end == End::Open {
            self.end = End::Cancelled;
        }
        self.checked = self.received;
        self.reclaim_credit()
    }

    /// Nothing more can come. Returns how many buffers were reserved: they are the caller's again.
    ///
    /// # Panics
    /// If more can come, before the last end marker or [`Receiver::cancel`]: a mistake of the caller.
    pub fn reclaim_credit(&mut self) -> u64 {
        assert!(self.end != End::Open, "credit that may be used cannot be taken back");
        let reserved = self.outstanding_credit();
        self.limit = self.ordinal;
        reserved
    }

    /// Whether the last end marker has arrived.
    pub fn is_finished(&self) -> bool {
        self.end == End::Finished
    }

    /// Whether the last end marker has arrived and everything was checked: after the acknowledgement was told, both
    /// sides can forget the channel.
    pub fn is_settled(&self) -> bool {
        self.is_finished() && self.checked == self.received
    }

    /// Where the channel is to be taken up again.
    pub fn resume_point(&self) -> ResumePoint {
        ResumePoint {
            acknowledged: Sequence::new(self.checked),
            received: Sequence::new(self.received),
            credit: self.limit,
        }
    }

    /// The connection is gone: what was told on it counts as untold, and is told again on the next.
    pub fn handle_disconnected(&mut self) {
        self.told_limit = None;
        self.told_ack = None;
    }

    /// Checks the invariants of the module header.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check_invariants(&self) {
        assert!(self.checked <= self.received, "checked what never arrived");
        assert!(self.ordinal <= self.received, "more buffers than sequences");
        assert!(self.ordinal <= self.limit, "more buffers arrived than credit was given");
        assert!(
            self.outstanding_credit() <= MAX_CREDIT_WINDOW,
            "credit beyond the window"
        );
        assert!(
            self.told_limit
                .is_none_or(|told| told <= self.limit || self.end != End::Open)
        );
        assert!(self.told_ack.is_none_or(|told| told <= self.checked));
    }

    fn place(&self, got: Sequence) -> Result<Arrival, StreamError> {
        let expected = Sequence::new(self.received);
        if self.end == End::Cancelled || got < expected {
            return Ok(Arrival::Duplicate);
        }
        if self.end == End::Finished {
            return Err(StreamError::AfterLast { got });
        }
        if got > expected {
            return Err(StreamError::Gap { got, expected });
        }
        if got.next().is_none() {
            return Err(StreamError::Exhausted { got });
        }
        Ok(Arrival::Accept)
    }
}
