//! Who of a gate's channels gets the next buffer.
//!
//! ```text
//!   held by a channel  =  credits (reserved, unused)  +  at the reader (viewed)
//!
//!     0 ......... exclusive ......... exclusive + lent
//!     its own, at once    floating, while its sender's backlog is above its credits
//! ```
//!
//! Each channel has `exclusive` buffers of its own: whenever it holds fewer, it is to get one. All share `floating` more,
//! lent one at a time and in turn. A floating buffer is lent only for a buffer that already waits at the sender, so it is
//! used at once and comes round again: an idle channel never sits on what others wait for.
//!
//! Invariants: `credits <= held`; the sum of `max(0, held - exclusive)` is `lent <= floating`; every channel that is
//! entitled to a buffer stands in the queue for it.

use std::collections::VecDeque;

/// The credit book of a gate. It moves no buffer: whenever the gate's pool has a free one, the caller asks
/// [`GateCredit::poll_assign`] for which channel to reserve it.
#[derive(Debug)]
pub struct GateCredit {
    exclusive: u32,
    floating: u32,
    /// Floating buffers in use.
    lent: u32,
    channels: Vec<Channel>,
    /// Channels that may hold fewer than their exclusive buffers.
    entitled: VecDeque<usize>,
    /// Channels that may have a backlog above their credits.
    borrowers: VecDeque<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Channel {
    open: bool,
    /// Assigned, and nothing has arrived in it.
    credits: u32,
    /// Assigned, and not home.
    held: u32,
    /// Buffers that wait at the sender, as it last said.
    waiting: u32,
    is_entitled: bool,
    is_borrower: bool,
}

impl GateCredit {
    /// A gate without channels, with so many buffers for each channel and so many for all. Without exclusive buffers one
    /// floating buffer is guaranteed, and goes round.
    pub fn new(exclusive: u32, floating: u32) -> Self {
        let floating = if exclusive == 0 { floating.max(1) } else { floating };
        Self {
            exclusive,
            floating,
            lent: 0,
            channels: Vec::new(),
            entitled: VecDeque::new(),
            borrowers: VecDeque::new(),
        }
    }

    /// Adds a channel, which holds nothing yet. An index is never used again.
    pub fn add_channel(&mut self) -> usize {
        let index = self.channels.len();
        self.channels.push(Channel {
            open: true,
            ..Channel::default()
        });
        self.enqueue(index);
        index
    }

    /// A buffer arrived on the channel and used a credit; `waiting` more wait at the sender.
    ///
    /// # Panics
    /// If the channel has no credit: the [`Receiver`](super::Receiver) refuses such a buffer before.
    pub fn handle_buffer(&mut self, index: usize, waiting: u32) {
        let channel = self.open_channel(index);
        assert!(channel.credits > 0, "a buffer on channel {index} without credit");
        channel.credits -= 1;
        channel.waiting = waiting;
        self.enqueue(index);
    }

    /// The sender of the channel says that `waiting` buffers wait there for credit.
    pub fn handle_backlog(&mut self, index: usize, waiting: u32) {
        self.open_channel(index).waiting = waiting;
        self.enqueue(index);
    }

    /// A buffer that had arrived on the channel is home.
    ///
    /// # Panics
    /// If the channel holds none that had arrived: the caller's books are wrong.
    pub fn handle_release(&mut self, index: usize) {
        let channel = self.channels[index];
        assert!(
            channel.credits < channel.held,
            "channel {index} has no buffer at its reader"
        );
        self.take_home(index, 1);
        self.enqueue(index);
    }

    /// The channel is cancelled, failed or finished: `outstanding` reserved buffers are home at once, each of the others
    /// at its release.
    ///
    /// # Panics
    /// If that is not the credit it has: the books of the caller and these differ.
    pub fn handle_cancel(&mut self, index: usize, outstanding: u64) {
        let channel = self.open_channel(index);
        assert!(
            u64::from(channel.credits) == outstanding,
            "channel {index} has {} credits, not {outstanding}",
            channel.credits
        );
        let credits = std::mem::take(&mut channel.credits);
        channel.open = false;
        self.take_home(index, credits);
    }

    /// The channel for which one more buffer is to be reserved; it counts as assigned. First come channels that hold less
    /// than their own, then those whose sender has more than they have credits; each in turn.
    pub fn poll_assign(&mut self) -> Option<usize> {
        let index = if let Some(index) = self.front_entitled() {
            self.entitled.pop_front();
            self.channels[index].is_entitled = false;
            index
        } else {
            let index = self.front_borrower()?;
            self.borrowers.pop_front();
            self.channels[index].is_borrower = false;
            index
        };
        let channel = &mut self.channels[index];
        channel.credits += 1;
        channel.held += 1;
        if channel.held > self.exclusive {
            self.lent += 1;
        }
        self.enqueue(index);
        Some(index)
    }

    /// Whether [`GateCredit::poll_assign`] would name a channel: the gate has a use for another buffer.
    pub fn wants_buffer(&mut self) -> bool {
        self.front_entitled().is_some() || self.front_borrower().is_some()
    }

    /// Buffers that the channel holds: reserved for it, or at its reader.
    pub fn held(&self, index: usize) -> u32 {
        self.channels[index].held
    }

    /// Floating buffers in use.
    pub fn lent(&self) -> u32 {
        self.lent
    }

    /// Checks the invariants of the module header. Takes time in the number of channels.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check_invariants(&self) {
        let mut lent = 0;
        for (index, channel) in self.channels.iter().enumerate() {
            assert!(
                channel.credits <= channel.held,
                "channel {index}: more credits than it holds"
            );
            assert!(
                channel.open || channel.credits == 0,
                "channel {index} is closed, with credit"
            );
            assert!(
                !self.is_entitled(index) || channel.is_entitled,
                "channel {index} is entitled to a buffer and not in the queue"
            );
            assert!(
                !self.is_borrower(index) || channel.is_borrower,
                "channel {index} wants a floating buffer and is not in the queue"
            );
            lent += channel.held.saturating_sub(self.exclusive);
        }
        assert!(
            lent == self.lent,
            "{lent} floating buffers are held, {} are booked",
            self.lent
        );
        assert!(self.lent <= self.floating, "more floating buffers lent than there are");
        let marked = |flag: fn(&Channel) -> bool| self.channels.iter().filter(|c| flag(c)).count();
        assert!(self.entitled.len() == marked(|channel| channel.is_entitled));
        assert!(self.borrowers.len() == marked(|channel| channel.is_borrower));
    }

    fn open_channel(&mut self, index: usize) -> &mut Channel {
        let channel = &mut self.channels[index];
        assert!(channel.open, "channel {index} is closed");
        channel
    }

    fn is_entitled(&self, index: usize) -> bool {
        let channel = &self.channels[index];
        channel.open && channel.held < self.exclusive
    }

    fn is_borrower(&self, index: usize) -> bool {
        let channel = &self.channels[index];
        channel.open && channel.held >= self.exclusive && channel.waiting > channel.credits
    }

    fn enqueue(&mut self, index: usize) {
        if self.is_entitled(index) && !self.channels[index].is_entitled {
            self.channels[index].is_entitled = true;
            self.entitled.push_back(index);
        }
        if self.is_borrower(index) && !self.channels[index].is_borrower {
            self.channels[index].is_borrower = true;
            self.borrowers.push_back(index);
        }
    }

    /// The first in the queue that is still entitled; who no longer is leaves the queue.
    fn front_entitled(&mut self) -> Option<usize> {
        while let Some(&index) = self.entitled.front() {
            if self.is_entitled(index) {
                return Some(index);
            }
            self.entitled.pop_front();
            self.channels[index].is_entitled = false;
        }
        None
    }

    /// The first in the queue that still wants a floating buffer, if there is one to lend.
    fn front_borrower(&mut self) -> Option<usize> {
        if self.lent == self.floating {
            return None;
        }
        while let Some(&index) = self.borrowers.front() {
            if self.is_borrower(index) {
                return Some(index);
            }
            self.borrowers.pop_front();
            self.channels[index].is_borrower = false;
        }
        None
    }

    /// So many of the buffers that the channel holds are home.
    fn take_home(&mut self, index: usize, buffers: u32) {
        let channel = &mut self.channels[index];
        let lent_before = channel.held.saturating_sub(self.exclusive);
        channel.held -= buffers;
        self.lent -= lent_before - channel.held.saturating_sub(self.exclusive);
    }
}
