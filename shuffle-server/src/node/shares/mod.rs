//! Slots that several hold at one time: a queue and its readers, or the slices of several queues.
//!
//! ```text
//!   claims > 0              queued        entries of queues that name it, or slices that its writer has yet to hand over
//!   else views              viewed        channels of executors
//!   else quarantined        quarantined   executors that have lost their right to it
//!   else                    home
//! ```

mod slices;

use buffer_pool::{Backing, BufferState, SlotRef};
use shuffle_protocol::{ShuffleError, StreamId};

pub(crate) use slices::Slice;

use self::slices::Handing;
use super::{ChannelNo, Holder, Node, SessionId};
use crate::peer::InletNo;

slotmap::new_key_type! {
    /// A slot with more than one holder.
    pub(crate) struct ShareNo;
}

/// A channel that has a shared slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) session: SessionId,
    pub(crate) channel: ChannelNo,
    /// As its executor calls it, also when it is closed.
    pub(crate) stream: StreamId,
}

/// Who holds a slot that several may hold.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) slot: SlotRef,
    /// As the pool's books have it.
    state: BufferState,
    /// Entries of queues that name it.
    claims: u32,
    /// One for each channel that has it, so a session may stand here more than once.
    views: Vec<View>,
    /// Executors that have lost their right to it, by the channel that they had it through.
    quarantined: Vec<(SessionId, StreamId)>,
    /// The channel from another node whose credit it came by.
    received_by: Option<InletNo>,
    /// The writer of which more slices of it are to come.
    handing: Option<Handing>,
}

impl Share {
    fn due_state(&self) -> Option<BufferState> {
        if self.claims > 0 || matches!(self.handing, Some(Handing::Over { .. })) {
            Some(BufferState::Queued)
        } else if !self.views.is_empty() {
            Some(BufferState::Viewed)
        } else if !self.quarantined.is_empty() || self.handing.is_some() {
            Some(BufferState::Quarantined)
        } else {
            None
        }
    }

    /// The channels that have it.
    pub(crate) fn views(&self) -> impl Iterator<Item = View> {
        self.views.iter().copied()
    }

    /// The channel from another node that counts it among its views.
    pub(crate) fn received_by(&self) -> Option<InletNo> {
        self.received_by
    }

    /// The sessions whose processes may hold it.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        let viewing = self.views.iter().map(|view| view.session);
        let lost = match self.handing {
            Some(Handing::Lost(session)) => Some(session),
            Some(Handing::Over { .. }) | None => None,
        };
        viewing
            .chain(self.quarantined.iter().map(|(session, _)| *session))
            .chain(lost)
    }

    /// What [`Node::check_invariants`] knows of it.
    pub(crate) fn check_invariants(&self, in_books: Option<BufferState>) {
        assert_eq!(Some(self.state), self.due_state(), "a shared slot that nobody holds");
        assert_eq!(Some(self.state), in_books, "the pool's books disagree on a shared slot");
    }
}

impl<B: Backing> Node<B> {
    /// From now on several may hold this slot: `claims` entries of queues for a start.
    pub(crate) fn share(&mut self, slot: SlotRef, from: BufferState, claims: u32, received_by: Option<InletNo>) {
        assert!(claims > 0, "a slot is shared by somebody");
        if from != BufferState::Queued {
            self.pool.transition(slot, from, BufferState::Queued);
        }
        let no = self.shares.insert(Share {
            slot,
            state: BufferState::Queued,
            claims,
            views: Vec::new(),
            quarantined: Vec::new(),
            received_by,
            handing: None,
        });
        self.set_holder(slot, Holder::Shared(no));
    }

    /// A slot that was received is viewed so many times through one channel. What that counts is the slot, and it counts it until
    /// the last view is dropped.
    pub(crate) fn share_views(&mut self, slot: SlotRef, inlet: InletNo, reader: (SessionId, StreamId), views: usize) {
        let (session, stream) = reader;
        let channel = ChannelNo::Remote(inlet);
        let view = View {
            session,
            channel,
            stream,
        };
        self.share(slot, BufferState::Receiving, 1, Some(inlet));
        let no = self.share_of(slot).expect("invariant: shared above");
        for _ in 0..views {
            self.view_share(no, view, true);
        }
        self.drop_claim(no);
    }

    /// Which share a slot is, if it is one.
    pub(crate) fn share_of(&self, slot: SlotRef) -> Option<ShareNo> {
        if self.shares.is_empty() {
            return None;
        }
        match self.holder(shuffle_protocol::JobId::new(slot.job.0), slot.arena, slot.slot) {
            Holder::Shared(no) => Some(no),
            _ => None,
        }
    }

    /// One more entry of a queue names it.
    pub(crate) fn add_claim(&mut self, no: ShareNo) {
        let share = self.shares.get_mut(no).expect("invariant: a shared slot has its books");
        share.claims += 1;
    }

    /// An entry of a queue needs it no more.
    pub(crate) fn drop_claim(&mut self, no: ShareNo) {
        let share = self.shares.get_mut(no).expect("invariant: a shared slot has its books");
        let left = share.claims.checked_sub(1);
        share.claims = left.expect("invariant: a claim is dropped once");
        self.settle_share(no);
    }

    /// A channel of an executor has it; `keeps_claim`: and so does the queue.
    pub(crate) fn view_share(&mut self, no: ShareNo, view: View, keeps_claim: bool) {
        let share = self.shares.get_mut(no).expect("invariant: a shared slot has its books");
        share.views.push(view);
        if !keeps_claim {
            self.drop_claim(no);
        }
    }

    /// An executor gives it back, once, as it had it through this channel. `Ok(None)`: it had no right to it any more.
    ///
    /// # Errors
    /// It does not hold it: gives `()`.
    fn release_share(&mut self, no: ShareNo, session: SessionId, stream: StreamId) -> Result<Option<ChannelNo>, ()> {
        let share = self.shares.get_mut(no).expect("invariant: a shared slot has its books");
        let is_it = |view: &View| (view.session, view.stream) == (session, stream);
        let viewed = share.views.iter().position(is_it);
        let channel = match viewed {
            Some(index) => Some(share.views.swap_remove(index).channel),
            None => {
                let index = share
                    .quarantined
                    .iter()
                    .position(|of| *of == (session, stream))
                    .ok_or(())?;
                share.quarantined.swap_remove(index);
                None
            }
        };
        self.settle_share(no);
        Ok(channel)
    }

    /// These channels of a session have lost their right to what they hold.
    pub(crate) fn quarantine_shares(&mut self, session: SessionId, of: impl Fn(ChannelNo) -> bool) {
        let mut touched = Vec::new();
        for (no, share) in &mut self.shares {
            let before = share.quarantined.len();
            share.views.retain(|view| {
                let lost = view.session == session && of(view.channel);
                if lost {
                    share.quarantined.push((session, view.stream));
                }
                !lost
            });
            if share.quarantined.len() > before {
                touched.push(no);
            }
        }
        for no in touched {
            self.settle_share(no);
        }
    }

    /// The session's process is dead: it holds nothing.
    pub(crate) fn bury_shares(&mut self, session: SessionId) {
        let held: Vec<ShareNo> = self.shares_of(session).collect();
        for no in held {
            if let Some(share) = self.shares.get_mut(no) {
                share.views.retain(|view| view.session != session);
                share.quarantined.retain(|(of, _)| *of != session);
                share.handing = share.handing.filter(|handing| *handing != Handing::Lost(session));
            }
            self.settle_share(no);
        }
    }

    /// What a session's process may hold.
    pub(crate) fn shares_of(&self, session: SessionId) -> impl Iterator<Item = ShareNo> {
        let held = self.shares.iter();
        held.filter(move |(_, share)| share.sessions().any(|of| of == session))
            .map(|(no, _)| no)
    }

    /// Lets the pool's books say who holds it now; with the last holder it goes home.
    fn settle_share(&mut self, no: ShareNo) {
        let Some(share) = self.shares.get_mut(no) else { return };
        let (slot, from) = (share.slot, share.state);
        match share.due_state() {
            Some(to) if to == from => {}
            Some(to) => {
                share.state = to;
                self.pool.transition(slot, from, to);
            }
            None => {
                let received_by = share.received_by;
                self.shares.remove(no);
                self.send_home(slot, from);
                if let Some(inlet) = received_by {
                    self.handle_inlet_view_dropped(inlet);
                }
            }
        }
    }

    /// See [`Node::release_share`]; what an executor says of a slot that it does not hold is a breach of the protocol.
    pub(crate) fn handle_share_released(
        &mut self,
        no: ShareNo,
        session: SessionId,
        stream: StreamId,
    ) -> Result<(), ShuffleError> {
        match self.release_share(no, session, stream) {
            Ok(Some(channel @ ChannelNo::Local(_))) => self.handle_view_dropped(channel),
            // Of a channel from another node with the last of its views.
            Ok(Some(ChannelNo::Remote(_)) | None) => Ok(()),
            Err(()) => Err(crate::executor::protocol("a shared slot is not held by this session")),
        }
    }
}
