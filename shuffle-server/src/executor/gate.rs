//! One consumer task's view of all its inputs, and the receive buffers that its remote channels share.

use std::collections::BTreeSet;

use buffer_pool::PoolId;
use shuffle_protocol::stream::GateCredit;
use shuffle_protocol::{GroupRef, JobId, StreamId};

use crate::node::SessionId;
use crate::peer::InletNo;

/// An open gate.
///
/// `reserved.len() + (slots being received into) = credits its remote channels have outstanding`
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) session: SessionId,
    pub(crate) job: JobId,
    pub(crate) group: Option<GroupRef>,
    /// Receive buffers; a gate with local channels alone has none.
    pub(crate) pool: Option<PoolId>,
    pub(crate) credit: GateCredit,
    /// Free slots of the read arena behind the credits given, the hottest last.
    pub(crate) reserved: Vec<u32>,
    /// The remote channel behind each index of `credit`.
    pub(crate) remote: Vec<InletNo>,
    pub(crate) streams: BTreeSet<StreamId>,
}
