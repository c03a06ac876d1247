//! What the core counts. Drivers publish these; names are in the table of `metrics`.

/// Totals since the start of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// Buffers writers handed over, and their payload bytes.
    pub buffers_produced: u64,
    /// See `buffers_produced`.
    pub bytes_produced: u64,
    /// Buffers given to readers on this node from producers on this node, and their payload bytes.
    pub buffers_local: u64,
    /// See `buffers_local`.
    pub bytes_local: u64,
    /// Buffers sent to other nodes, and their payload bytes; what was sent again counts again.
    pub buffers_sent: u64,
    /// See `buffers_sent`.
    pub bytes_sent: u64,
    /// Buffers received from other nodes, and their payload bytes.
    pub buffers_received: u64,
    /// See `buffers_received`.
    pub bytes_received: u64,
    /// Buffers sent again after a connection broke, or because they did not match at their reader.
    pub buffers_resent: u64,
    /// Buffers that did not have their checksum, whose copy at the producing node has it: counted where they are read.
    pub mismatches_wire: u64,
    /// Of which the producing node's memory has not: counted there.
    pub mismatches_producer_memory: u64,
    /// Of which the producing node's data file has not: counted there.
    pub mismatches_disk: u64,
    /// Buffers that did not have their checksum and were given to their reader once more.
    pub buffers_refetched: u64,
    /// Buffers that arrived a second time, or for a channel that nobody reads any more.
    pub buffers_unwanted: u64,
    /// Buffers thrown away because their reader was gone.
    pub buffers_discarded: u64,
    /// Broadcast partitions of other nodes that were read here.
    pub relays_opened: u64,
    /// Payload of them that came a second time, for consumers that held up the others, in bytes.
    pub refetch_bytes: u64,
    /// Partitions registered, finished, failed and released.
    pub partitions_created: u64,
    /// See `partitions_created`.
    pub partitions_finished: u64,
    /// See `partitions_created`.
    pub partitions_failed: u64,
    /// See `partitions_created`.
    pub partitions_released: u64,
    /// Persistent partitions of earlier starts that are served again.
    pub partitions_recovered: u64,
    /// Payload that left memory for a disk, in bytes.
    pub bytes_spilled: u64,
    /// Payload that was loaded from a disk for a reader, in bytes.
    pub bytes_loaded: u64,
    /// Channels opened for readers on this node, and those that failed.
    pub channels_opened: u64,
    /// See `channels_opened`.
    pub channels_failed: u64,
    /// Messages to drivers, and what they told of partitions.
    pub event_messages: u64,
    /// See `event_messages`.
    pub events_told: u64,
    /// Drivers given up because they took in too slowly what they were told.
    pub subscriptions_dropped: u64,
    /// Groups that failed.
    pub groups_failed: u64,
    /// Connections to other servers that were up, and channels taken up again on a new one.
    pub links_opened: u64,
    /// See `links_opened`.
    pub channels_resumed: u64,
    /// Peers given up.
    pub peers_lost: u64,
    /// Frames refused because they broke the protocol, and messages dropped because too many wait for a peer.
    pub refused: u64,
}

impl NodeCounters {
    /// Every counter by its metric name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 34] {
        [
            ("buffers_produced", self.buffers_produced),
            ("bytes_produced", self.bytes_produced),
            ("buffers_local", self.buffers_local),
            ("bytes_local", self.bytes_local),
            ("buffers_sent", self.buffers_sent),
            ("bytes_sent", self.bytes_sent),
            ("buffers_received", self.buffers_received),
            ("bytes_received", self.bytes_received),
            ("buffers_resent", self.buffers_resent),
            ("mismatches_wire", self.mismatches_wire),
            ("mismatches_producer_memory", self.mismatches_producer_memory),
            ("mismatches_disk", self.mismatches_disk),
            ("buffers_refetched", self.buffers_refetched),
            ("buffers_unwanted", self.buffers_unwanted),
            ("buffers_discarded", self.buffers_discarded),
            ("relays_opened", self.relays_opened),
            ("refetch_bytes", self.refetch_bytes),
            ("partitions_created", self.partitions_created),
            ("partitions_finished", self.partitions_finished),
            ("partitions_failed", self.partitions_failed),
            ("partitions_released", self.partitions_released),
            ("partitions_recovered", self.partitions_recovered),
            ("bytes_spilled", self.bytes_spilled),
            ("bytes_loaded", self.bytes_loaded),
            ("channels_opened", self.channels_opened),
            ("channels_failed", self.channels_failed),
            ("event_messages", self.event_messages),
            ("events_told", self.events_told),
            ("subscriptions_dropped", self.subscriptions_dropped),
            ("groups_failed", self.groups_failed),
            ("links_opened", self.links_opened),
            ("channels_resumed", self.channels_resumed),
            ("peers_lost", self.peers_lost),
            ("refused", self.refused),
        ]
    }
}
