//! Many channels into one sequence of items, fairly, each checked. Pure: `P` is the payload.
//!
//! ```text
//!   arrivals --> queue of each channel --> ring of channels that have something, a few buffers per turn --> items
//!               sequence without gap        checksum, counts, digest
//! ```
//!
//! An item comes out only when it is proven: a buffer has its writer's checksum, an end has the counts and the digest of
//! what came out before it.

use std::collections::VecDeque;

use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::frame::{EndEntry, SlotEntry};
use shuffle_protocol::ids::{Sequence, StreamId, SubpartitionIndex};
use shuffle_protocol::partition::Totals;

use super::channel::{Channel, Next};
use super::mismatch::{Mismatch, Payload};

/// What came for a channel.
#[derive(Debug)]
pub(crate) enum Arrival<P> {
    Buffer(SlotEntry, P),
    End(EndEntry),
}

/// What goes to the consumer.
#[derive(Debug)]
pub(crate) enum Item<P> {
    Buffer(SlotEntry, P),
    EndOfSubpartition(SubpartitionIndex, Totals),
    EndOfChannel,
}

/// An item, its channel, and what is to be acknowledged for it.
#[derive(Debug)]
pub(crate) struct Output<P> {
    pub(crate) channel: u32,
    pub(crate) item: Item<P>,
    /// Everything below is checked.
    pub(crate) ack: (StreamId, Sequence),
}

/// Buffers and ends that one channel delivers before it is another's turn.
const TURN: u32 = 4;

pub(crate) struct Demux<P> {
    channels: Vec<Channel<P>>,
    /// Channels whose queue is not empty, each once.
    ring: VecDeque<u32>,
    /// What the first of the ring may still deliver.
    turn: u32,
    unfinished: usize,
    /// Of which the server is to be told.
    mismatches: Vec<Mismatch>,
    /// Buffers that came once more.
    refetched: u64,
}

impl<P: Payload> Demux<P> {
    pub(crate) fn new(channels: Vec<Channel<P>>) -> Self {
        let unfinished = channels.len();
        let ended = (0u32..).zip(&channels).filter(|(_, channel)| channel.has_queued());
        let ring = ended.map(|(index, _)| index).collect();
        Self {
            channels,
            ring,
            turn: TURN,
            unfinished,
            mismatches: Vec::new(),
            refetched: 0,
        }
    }

    pub(crate) fn handle_arrival(&mut self, index: u32, arrival: Arrival<P>) -> Result<()> {
        let Some(channel) = self.channels.get_mut(to_index(index)) else {
            return Err(ShuffleError::new(
                ErrorKind::Protocol,
                format!("the gate has no channel {index}"),
            ));
        };
        let (had_something, was_awaited) = (channel.has_queued(), channel.is_awaiting());
        channel.handle_arrival(arrival)?;
        self.refetched += u64::from(was_awaited && !channel.is_awaiting());
        if !had_something && channel.has_queued() {
            self.ring.push_back(index);
        }
        Ok(())
    }

    /// The next item, if any has arrived that is proven; see [`Self::take_mismatches`] for what is not.
    pub(crate) fn poll_item(&mut self) -> Result<Option<Output<P>>> {
        loop {
            let Some(index) = self.ring.front().copied() else {
                return Ok(None);
            };
            let channel = &mut self.channels[to_index(index)];
            let next = channel.poll_next()?;
            let ack = (channel.source().stream, channel.checked());
            self.turn -= 1;
            if !channel.has_queued() {
                self.ring.pop_front();
                self.turn = TURN;
            } else if self.turn == 0 {
                self.ring.rotate_left(1);
                self.turn = TURN;
            }
            let item = match next {
                Next::Item(item) => item,
                Next::Mismatch(mismatch) => {
                    self.mismatches.push(mismatch);
                    continue;
                }
                Next::Nothing => unreachable!("a channel in the ring has something"),
            };
            if matches!(item, Item::EndOfChannel) {
                self.unfinished -= 1;
            }
            return Ok(Some(Output {
                channel: index,
                item,
                ack,
            }));
        }
    }

    /// What did not match since the last call.
    pub(crate) fn take_mismatches(&mut self) -> Vec<Mismatch> {
        std::mem::take(&mut self.mismatches)
    }

    /// Buffers that did not match and came once more.
    pub(crate) fn refetched(&self) -> u64 {
        self.refetched
    }

    /// Gives a channel up and drops what is queued of it. False: it had ended, or there is no such channel.
    pub(crate) fn cancel(&mut self, index: u32) -> bool {
        let Some(channel) = self.channels.get_mut(to_index(index)) else {
            return false;
        };
        if !channel.cancel() {
            return false;
        }
        self.unfinished -= 1;
        if self.ring.front() == Some(&index) {
            self.turn = TURN;
        }
        self.ring.retain(|queued| *queued != index);
        true
    }

    /// Whether every channel has delivered its end, or was cancelled.
    pub(crate) fn is_finished(&self) -> bool {
        self.unfinished == 0
    }

    pub(crate) fn channel(&self, index: u32) -> Option<&Channel<P>> {
        self.channels.get(to_index(index))
    }

    pub(crate) fn channel_mut(&mut self, index: u32) -> Option<&mut Channel<P>> {
        self.channels.get_mut(to_index(index))
    }

    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check_invariants(&self) {
        let with_something = self.channels.iter().filter(|channel| channel.has_queued()).count();
        assert_eq!(self.ring.len(), with_something);
        assert!(self.turn > 0 && self.turn <= TURN);
        let open = self.channels.iter().filter(|channel| !channel.is_over()).count();
        assert_eq!(open, self.unfinished);
    }
}

fn to_index(value: u32) -> usize {
    usize::try_from(value).expect("invariant: Linux has at least 32 bits")
}
