//! Who reads a broadcast partition: who comes, who goes, and who is not waited for any more.

use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::NodeAddress;
use shuffle_protocol::control::{self, control::Message};

use super::{Moved, OutletNo, Partition, PartitionNo, SinkRef};
use crate::node::Node;

impl<B: Backing> Node<B> {
    /// Whoever has not come to read a broadcast queue will not read it any more, on other nodes neither. A relay leaves it to the
    /// producing node to refuse who comes late.
    pub(crate) fn close_audience(&mut self, no: PartitionNo) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let is_relay = partition.relay.is_some();
        let Some(audience) = &mut partition.audience else {
            return;
        };
        if is_relay {
            audience.open();
        } else {
            audience.give_up_absent();
        }
        let readers: Vec<OutletNo> = audience.readers().collect();
        self.left.push(no);
        for reader in readers {
            self.tell_nobody_is_awaited(reader);
        }
    }

    /// The relay at the other end of a channel need not wait for consumers that have not come.
    pub(super) fn tell_nobody_is_awaited(&mut self, no: OutletNo) {
        if let Some((SinkRef::Path(path), stream)) = self.outlets.get(no).map(|of| (of.sink, of.stream)) {
            let stream = stream.value();
            self.tell_path_surely(path, Message::AudienceClosed(control::AudienceClosed { stream }));
        }
    }

    /// A reader has left a broadcast queue: those that it held up go on, and a relay without readers goes.
    pub(crate) fn handle_audience_left(&mut self, now: Instant, no: PartitionNo) {
        self.advance(no);
        let over =
            |partition: &Partition| partition.relay.is_some() && partition.is_consumed() && !partition.is_adopting();
        if self.partitions.get(no).is_some_and(over) {
            self.end_relay(now, no, None);
        }
    }

    /// Consumers that were declared for a node that is lost, and have not come, will not come.
    pub(crate) fn give_up_listeners_of(&mut self, node: &NodeAddress) {
        for (no, partition) in &mut self.partitions {
            if partition.relay.is_none()
                && let Some(audience) = &mut partition.audience
                && audience.give_up_node(node)
            {
                self.left.push(no);
            }
        }
    }

    /// Who reads a broadcast partition through this outlet.
    pub(crate) fn listener(&self, no: OutletNo) -> Option<Listener> {
        let outlet = self.outlets.get(no)?;
        let declared = outlet.told_of?;
        let (node, consumers) = match outlet.sink {
            SinkRef::Session(_) => (self.config.address.clone(), 1),
            SinkRef::Path(path) => (self.paths.get(path)?.node.clone(), declared),
        };
        let moved = outlet.moved.map(|moved| {
            let of = match outlet.sink {
                SinkRef::Path(path) => self.outlet_of(path, moved.of),
                SinkRef::Session(_) => None,
            };
            (of, moved)
        });
        Some(Listener {
            node,
            declared,
            consumers,
            moved,
        })
    }
}

/// Who reads a broadcast partition through a channel.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) node: NodeAddress,
    /// Consumers on that node, as its side was told.
    pub(crate) declared: u32,
    /// Those that the channel is for.
    pub(crate) consumers: u32,
    /// It takes consumers over from this channel, if that is still there.
    pub(crate) moved: Option<(Option<OutletNo>, Moved)>,
}

impl Listener {
    /// The buffer that it begins with.
    pub(crate) fn from(&self) -> u64 {
        self.moved.map_or(0, |(_, moved)| moved.from)
    }
}
