//! Which channel: of what, to whom.

use shuffle_protocol::{GroupRef, JobId, PartitionId, ShuffleError, StreamId, SubpartitionIndex, SubpartitionRange};

use super::Moved;
use crate::node::SessionId;
use crate::peer::PathId;

/// Where an outlet leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SinkRef {
    /// An executor on this node: descriptors; its buffers come home when it releases its views.
    Session(SessionId),
    /// Another node: payload; its buffers come home when they are acknowledged.
    Path(PathId),
}

/// An error with everything that is known of a channel.
pub(crate) fn locate(error: ShuffleError, job: JobId, id: PartitionId, range: SubpartitionRange) -> ShuffleError {
    let error = error.job(job).partition(id);
    if range.count == 1 {
        error.subpartition(SubpartitionIndex::new(range.first))
    } else {
        error
    }
}

/// Which channel, of what, to whom.
#[derive(Debug)]
pub(crate) struct OutletPlace {
    pub(crate) job: JobId,
    pub(crate) id: PartitionId,
    pub(crate) range: SubpartitionRange,
    pub(crate) sink: SinkRef,
    pub(crate) stream: StreamId,
    pub(crate) group: Option<GroupRef>,
    pub(crate) told_of: Option<u32>,
    pub(crate) moved: Option<Moved>,
    /// The reader takes several buffers in one frame, of so many bytes at most.
    pub(crate) packed_into: Option<u32>,
}
