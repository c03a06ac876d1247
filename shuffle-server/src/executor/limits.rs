//! How far a writer may go in each subpartition, as it is told.

use buffer_pool::Backing;
use shuffle_protocol::SubpartitionIndex;
use shuffle_protocol::frame::NumberEntry;

use crate::node::{Node, Output, SessionId};
use crate::partition::{PartitionNo, PartitionState};

impl<B: Backing> Node<B> {
    /// One more buffer of a subpartition is gone: its writer may hand over another.
    pub(crate) fn raise_limit(&mut self, no: PartitionNo, index: u32) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        if partition.state != PartitionState::Producing {
            return;
        }
        let session = partition.session;
        let Some(queue) = partition.queue_mut(index) else {
            return;
        };
        if !queue.set_limit_raised(true) {
            return;
        }
        if let Some(session) = self.sessions.get_mut(session) {
            session.raised.push_back((no, index));
        }
        self.wake_session(session);
    }

    /// The next raised limit to tell a writer.
    pub(crate) fn poll_raised(&mut self, id: SessionId) -> Option<Output> {
        loop {
            let (no, index) = self.sessions.get_mut(id)?.raised.pop_front()?;
            let Some(partition) = self.partitions.get_mut(no) else {
                continue;
            };
            let (writer, number) = (partition.writer, partition.limit_of(index));
            let Some(queue) = partition.queue_mut(index) else {
                continue;
            };
            queue.set_limit_raised(false);
            return Some(Output::Credit(NumberEntry {
                stream: writer.into(),
                subpartition: SubpartitionIndex::new(index),
                number,
            }));
        }
    }
}
