//! One channel to a producer on another node, as the reader's node sees it.

use std::time::Instant;

use buffer_pool::SlotRef;
use shuffle_protocol::stream::Receiver;
use shuffle_protocol::{JobId, PartitionId, Sequence, ShuffleError, StreamId, SubpartitionRange};

use super::trace::InletTrace;
use super::{InletNo, PathId};
use crate::executor::GateNo;
use crate::node::{Landing, SessionId};
use crate::partition::{Moved, PartitionNo, locate};

/// Which channel, of what, for whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InletPlace {
    pub(crate) job: JobId,
    pub(crate) id: PartitionId,
    pub(crate) range: SubpartitionRange,
    pub(crate) session: SessionId,
    pub(crate) stream: StreamId,
    pub(crate) gate: GateNo,
    /// Its reader takes several buffers in one slot.
    pub(crate) packed: bool,
    /// It fills a relay, and no session.
    pub(crate) relay: Option<RelayPlace>,
}

/// Which relay a channel fills.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RelayPlace {
    pub(crate) no: PartitionNo,
    /// Consumers that were declared for this node (0: whoever comes).
    pub(crate) consumers: u32,
    /// It takes some of them over from another channel.
    pub(crate) moved: Option<Moved>,
}

/// A buffer whose payload is on its way into its slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receiving {
    pub(crate) slot: SlotRef,
    pub(crate) inlet: InletNo,
    /// It did not match at its reader, who holds the slot: where it begins there, in bytes.
    pub(crate) again: Option<u32>,
}

impl Receiving {
    pub(super) fn landing(self) -> Landing {
        match self.again {
            Some(offset) => Landing::Part(self.slot, offset),
            None => Landing::Slot(self.slot),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// To be asked for, or taken up again, on the connection that is or comes up.
    Unannounced {
        resume: bool,
    },
    Open,
    /// All has arrived: credits are back, acknowledgements may still be due.
    Ended,
    /// Known to nobody any more but by the views that are out.
    Closed,
}

/// One channel to a producer on another node.
#[derive(Debug)]
pub(crate) struct Inlet {
    pub(crate) place: InletPlace,
    pub(crate) path: PathId,
    /// The channel's number between the two servers.
    pub(crate) remote: StreamId,
    pub(crate) receiver: Receiver,
    /// Stands in its path's list.
    pub(crate) listed: bool,
    /// A buffer of its is on its way into its slot.
    pub(crate) receiving: bool,
    /// The buffer that did not match at its reader and is traced.
    pub(crate) trace: Option<Box<InletTrace>>,
    /// The last that came once more for that.
    pub(super) refetched: Option<Sequence>,
    /// Views that its reader has not dropped.
    pub(crate) viewed: u32,
    /// Its place in the gate's credit.
    pub(super) index: usize,
    pub(super) stage: Stage,
    pub(super) deadline: Instant,
}

impl Inlet {
    /// May still receive.
    pub(crate) fn is_open(&self) -> bool {
        self.stage != Stage::Closed && !self.receiver.is_finished()
    }

    /// The peer has been asked for it, by whichever of its starts.
    pub(crate) fn is_announced(&self) -> bool {
        self.stage != (Stage::Unannounced { resume: false })
    }

    pub(crate) fn handle_disconnected(&mut self) {
        self.listed = false;
        self.receiver.handle_disconnected();
        self.ask_anew();
        match self.stage {
            Stage::Open | Stage::Ended => self.stage = Stage::Unannounced { resume: true },
            Stage::Unannounced { .. } | Stage::Closed => {}
        }
    }

    pub(super) fn locate(&self, error: ShuffleError) -> ShuffleError {
        locate(error, self.place.job, self.place.id, self.place.range)
    }
}
