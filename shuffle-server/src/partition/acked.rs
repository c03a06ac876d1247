//! What readers have acknowledged, or will never read: it need not be sent again.

use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::{JobId, Sequence, ShuffleError};

use super::{Item, OutletNo, OutletState, PartitionNo, SinkRef};
use crate::node::Node;

impl<B: Backing> Node<B> {
    /// Everything below has been checked by the reader: its buffers need not be sent again.
    pub(crate) fn ack_outlet(&mut self, now: Instant, no: OutletNo, below: Sequence) -> Result<(), ShuffleError> {
        let Some(outlet) = self.outlets.get_mut(no) else {
            return Ok(());
        };
        let mut items = std::mem::take(&mut self.acked);
        items.extend(outlet.sender.handle_ack(below).map_err(ShuffleError::from)?);
        outlet.sender.shrink();
        self.handle_acked(now, no, items.drain(..));
        self.acked = items;
        Ok(())
    }

    /// These of an outlet were acknowledged; with the last end marker it is over.
    pub(crate) fn handle_acked(&mut self, now: Instant, no: OutletNo, items: impl IntoIterator<Item = Item>) {
        let Some(outlet) = self.outlets.get(no) else { return };
        let complete = outlet.is_sent() && outlet.sender.acked() == outlet.sender.sent();
        let (job, state, sink) = (outlet.job, outlet.state, outlet.sink);
        if let OutletState::Open(partition) = state {
            self.forget_items(partition, job, sink, Some(no), items);
        }
        if complete {
            return self.drop_outlet(now, no);
        }
        if let OutletState::Open(partition) = state
            && self
                .partitions
                .get(partition)
                .is_some_and(|of| of.max_unacked_in_memory < u64::MAX)
        {
            // It may have been bound to what is on disk.
            self.list_for(partition, 0, Some(no));
        }
    }

    /// These were sent and are not needed any more; `reader`: because it has acknowledged them.
    pub(crate) fn forget_items(
        &mut self,
        partition: PartitionNo,
        job: JobId,
        sink: SinkRef,
        reader: Option<OutletNo>,
        items: impl IntoIterator<Item = Item>,
    ) {
        let mut passed = false;
        for item in items {
            let Item::Buffer { subpartition, buffer } = item else {
                continue;
            };
            if matches!(sink, SinkRef::Path(_)) {
                self.send_place_home(job, buffer.place);
            }
            let Some(of) = self.partitions.get_mut(partition) else {
                continue;
            };
            if let Some(audience) = &mut of.audience {
                if let Some(reader) = reader {
                    audience.handle_passed(reader, 1);
                    passed = true;
                }
            } else if of.kept.is_none() {
                self.handle_consumed(partition, subpartition, buffer);
            } else if let Some(cursor) = reader.and_then(|no| self.outlets.get_mut(no)?.cursor_mut(subpartition)) {
                cursor.acked += 1;
                self.pace(partition, subpartition);
            }
        }
        if passed {
            self.advance(partition);
        }
    }
}
