//! Buffers that are to be summed, since one of them did not have its checksum at its reader. Nothing else makes a server read payload.
//!
//! ```text
//!   verify ──▶ poll_verify ──▶ driver sums ──▶ handle_verified        the slot is pinned from first to last
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use buffer_pool::{Backing, SlotRef};
use shuffle_protocol::{JobId, ShuffleError};

use super::{ChannelNo, Holder, Node, SessionId, Wake};
use crate::partition::OutletNo;
use crate::peer::InletNo;

/// One sum, as the core numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VerifyTicket(u64);

/// The crc32 of a part of a buffer is wanted; to be answered once, by [`Node::handle_verified`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verify {
    /// Names it in the answer.
    pub ticket: VerifyTicket,
    /// The buffer. It is pinned until the answer.
    pub slot: SlotRef,
    /// Where in the buffer, in bytes.
    pub offset: u32,
    /// How many bytes.
    pub length: u32,
}

/// Whose buffer it is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VerifyFor {
    /// As a channel from another node received it.
    Received(InletNo),
    /// As the producing node holds it.
    Source(OutletNo),
}

/// The sums that are wanted of one node. Bounded: each channel traces one buffer at a time.
#[derive(Debug, Default)]
pub(crate) struct Verifying {
    made: u64,
    waiting: VecDeque<Verify>,
    pending: BTreeMap<VerifyTicket, (VerifyFor, SlotRef)>,
    woken: bool,
    /// Channels whose buffer is to be loaded once more, when the kernel has let go of its slot.
    pub(crate) reloads: Vec<OutletNo>,
}

impl<B: Backing> Node<B> {
    /// A sum that is wanted; each is to be answered by [`Node::handle_verified`].
    pub fn poll_verify(&mut self) -> Option<Verify> {
        let next = self.verifying.waiting.pop_front();
        self.verifying.woken = next.is_some();
        next
    }

    /// The crc32 of those bytes, or why it cannot be had.
    pub fn handle_verified(&mut self, now: Instant, ticket: VerifyTicket, outcome: Result<u32, ShuffleError>) {
        let Some((of, slot)) = self.verifying.pending.remove(&ticket) else {
            return;
        };
        self.pool_changed |= self.pool.unpin(slot);
        match of {
            VerifyFor::Received(no) => self.handle_received_verified(now, no, ticket, outcome),
            VerifyFor::Source(no) => self.handle_source_verified(now, no, ticket, outcome),
        }
        self.settle(now);
    }

    /// Whether this executor holds this slot through that channel.
    pub(crate) fn is_viewed(&self, slot: SlotRef, session: SessionId, channel: ChannelNo) -> bool {
        match self.holder(JobId::new(slot.job.0), slot.arena, slot.slot) {
            Holder::View(of, through) => (of, through) == (session, channel),
            Holder::Shared(no) => self.shares.get(no).is_some_and(|share| {
                share
                    .views()
                    .any(|view| (view.session, view.channel) == (session, channel))
            }),
            _ => false,
        }
    }

    pub(crate) fn verify(&mut self, of: VerifyFor, slot: SlotRef, offset: u32, length: u32) -> VerifyTicket {
        self.verifying.made += 1;
        let ticket = VerifyTicket(self.verifying.made);
        self.pool.pin(slot);
        self.verifying.pending.insert(ticket, (of, slot));
        self.verifying.waiting.push_back(Verify {
            ticket,
            slot,
            offset,
            length,
        });
        if !std::mem::replace(&mut self.verifying.woken, true) {
            self.wakes.push_back(Wake::Verify);
        }
        ticket
    }
}
