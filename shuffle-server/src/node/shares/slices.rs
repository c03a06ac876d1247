//! A slot that its writer hands over in slices, each to a subpartition of its own.
//!
//! ```text
//!   granted --slice, more to come--> shared, being handed over --last slice--> shared by the entries of its slices
//!                                        | the writer loses its right
//!                                        v
//!                                    what still comes of it is thrown away
//! ```
//!
//! The slot goes home when its last slice is acknowledged, or thrown away, and nothing more of it can come.

use buffer_pool::{Backing, BufferState, SlotRef};
use shuffle_protocol::ShuffleError;
use shuffle_protocol::limits::MAX_SLICES_OF_SLOT;

use super::{Share, ShareNo};
use crate::executor::protocol;
use crate::node::{Node, SessionId};
use crate::partition::PartitionNo;

/// The writer of which more slices of a slot are to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handing {
    /// It has handed over so many slices.
    Over { partition: PartitionNo, slices: u32 },
    /// It has no right to the slot any more, and its process may still name it.
    Lost(SessionId),
}

/// What a slice of a shared slot is to its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slice {
    /// The next one, for this partition.
    Of(PartitionNo),
    /// Its writer has failed: it is for nobody.
    Stray,
}

impl Share {
    /// The partition whose writer has more slices of it to hand over.
    pub(crate) fn handed_over_by(&self) -> Option<PartitionNo> {
        match self.handing {
            Some(Handing::Over { partition, .. }) => Some(partition),
            Some(Handing::Lost(_)) | None => None,
        }
    }
}

impl<B: Backing> Node<B> {
    /// What a further slice is that this session hands over.
    ///
    /// # Errors
    /// The session hands over no slices of it, or more than there may be.
    pub(crate) fn next_slice(&mut self, no: ShareNo, id: SessionId, more: bool) -> Result<Slice, ShuffleError> {
        let share = self.shares.get_mut(no).expect("invariant: a shared slot has its books");
        match share.handing {
            Some(Handing::Over { slices, .. }) if more && slices + 1 >= MAX_SLICES_OF_SLOT => Err(protocol(format!(
                "more than {MAX_SLICES_OF_SLOT} slices of slot {}",
                share.slot.slot
            ))),
            Some(Handing::Over { partition, .. }) => Ok(Slice::Of(partition)),
            Some(Handing::Lost(session)) if session == id => {
                if !more {
                    share.handing = None;
                    self.settle_share(no);
                }
                Ok(Slice::Stray)
            }
            _ => Err(protocol(format!(
                "slot {} is not granted to this session",
                share.slot.slot
            ))),
        }
    }

    /// The entry of a slice is in its queue. Whole slots are not the business of this room.
    pub(crate) fn handle_slice(&mut self, slot: SlotRef, partition: PartitionNo, more: bool) {
        let no = match self.share_of(slot) {
            Some(no) => {
                self.add_claim(no);
                no
            }
            None => {
                self.share(slot, BufferState::Granted, 1, None);
                self.share_of(slot).expect("invariant: shared above")
            }
        };
        let share = self.shares.get_mut(no).expect("invariant: a shared slot has its books");
        let before = match share.handing {
            Some(Handing::Over { slices, .. }) => slices,
            _ => 0,
        };
        share.handing = more.then_some(Handing::Over {
            partition,
            slices: before + 1,
        });
    }

    /// The writer of a partition has lost its right to what it has not handed over whole.
    pub(crate) fn stop_handing_over(&mut self, partition: PartitionNo, session: SessionId) {
        let process = self.sessions.contains_key(session).then_some(Handing::Lost(session));
        let of_it = |handing| matches!(handing, Some(Handing::Over { partition: of, .. }) if of == partition);
        let touched: Vec<ShareNo> = self
            .shares
            .iter()
            .filter(|(_, share)| of_it(share.handing))
            .map(|(no, _)| no)
            .collect();
        for no in touched {
            if let Some(share) = self.shares.get_mut(no) {
                share.handing = process;
            }
            self.settle_share(no);
        }
    }
}
