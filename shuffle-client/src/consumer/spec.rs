//! What a gate is opened with.

use std::time::Duration;

use shuffle_protocol::control;
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::ids::{GateId, NodeAddress, PartitionId, RequestId, StreamId, SubpartitionRange};
use shuffle_protocol::limits::{MAX_CHANNELS_PER_GATE, MAX_CREDIT_WINDOW};
use shuffle_protocol::partition::GroupRef;

/// One input of a gate: a range of subpartitions of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSpec {
    /// The producing node; `None` is the node of the session's own server.
    pub node: Option<NodeAddress>,
    /// The partition and the attempt of it.
    pub partition: PartitionId,
    /// Its subpartitions.
    pub range: SubpartitionRange,
    /// Of a broadcast partition: how many consumers were declared for this node (0: none were).
    pub broadcast: Option<u32>,
}

/// What an input gate reads, and with how many buffers.
#[derive(Clone, Debug)]
pub struct GateSpec {
    pub(crate) channels: Vec<ChannelSpec>,
    pub(crate) exclusive: u32,
    pub(crate) floating: u32,
    pub(crate) group: Option<GroupRef>,
    pub(crate) timeout: Option<Duration>,
}

impl GateSpec {
    /// A gate without channels yet, with 2 exclusive credits for each and 8 floating.
    pub fn new() -> Self {
        Self {
            channels: Vec::new(),
            exclusive: 2,
            floating: 8,
            group: None,
            timeout: None,
        }
    }

    /// Adds a channel: subpartitions of a partition on a node (`None`: this one). Channels are numbered from 0 in the
    /// order in which they are added.
    #[must_use]
    pub fn channel(mut self, node: Option<NodeAddress>, partition: PartitionId, range: SubpartitionRange) -> Self {
        self.channels.push(ChannelSpec {
            node,
            partition,
            range,
            broadcast: None,
        });
        self
    }

    /// Adds a channel that reads a broadcast partition, whole. `consumers`: how many were declared for this node, this one among
    /// them, in [`PartitionSpec::consumers`](crate::PartitionSpec::consumers); 0 for a persistent one that has declared none.
    ///
    /// The node holds one copy for all its consumers. The slowest of those that were declared holds up the others; where none
    /// were, who comes late has its node fetch the partition again.
    #[must_use]
    pub fn broadcast(mut self, node: Option<NodeAddress>, partition: PartitionId, consumers: u32) -> Self {
        self.channels.push(ChannelSpec {
            node,
            partition,
            range: SubpartitionRange { first: 0, count: 1 },
            broadcast: Some(consumers),
        });
        self
    }

    /// Credits, in buffers: `exclusive` for each channel (0 is allowed) and `floating` for the gate, lent to the channels
    /// with the longest backlog.
    #[must_use]
    pub fn credits(mut self, exclusive: u32, floating: u32) -> Self {
        self.exclusive = exclusive;
        self.floating = floating;
        self
    }

    /// The pipelined group the consumer belongs to: the gate fails when any member of the group fails.
    #[must_use]
    pub fn group(mut self, group: GroupRef) -> Self {
        self.group = Some(group);
        self
    }

    /// How long opening may wait for buffers, and a channel for its partition to be registered (default, and most: the
    /// server's request timeout).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Number of channels so far.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    pub(crate) fn check(&self) -> Result<()> {
        let limit = |what: &str, limit: u64, asked: u64| {
            let kind = ErrorKind::LimitExceeded {
                what: what.to_owned(),
                limit,
                asked,
            };
            Err(ShuffleError::new(kind, ""))
        };
        let channels = u64::try_from(self.channels.len()).unwrap_or(u64::MAX);
        if channels > MAX_CHANNELS_PER_GATE.into() {
            return limit("channels of a gate", MAX_CHANNELS_PER_GATE.into(), channels);
        }
        let window = u64::from(self.exclusive) + u64::from(self.floating);
        if window > MAX_CREDIT_WINDOW {
            return limit("credits of a channel", MAX_CREDIT_WINDOW, window);
        }
        if window == 0 {
            return Err(ShuffleError::new(
                ErrorKind::InvalidRequest,
                "a gate without credits receives nothing",
            ));
        }
        for channel in &self.channels {
            SubpartitionRange::new(channel.range.first, channel.range.count)
                .map_err(|error| error.partition(channel.partition))?;
        }
        Ok(())
    }

    /// Whether there is a channel through which something can come.
    pub(crate) fn has_sources(&self) -> bool {
        self.channels.iter().any(|channel| channel.range.count > 0)
    }

    /// Most buffers of one channel that can be here at a time.
    pub(crate) fn window(&self) -> u64 {
        u64::from(self.exclusive) + u64::from(self.floating.max(1))
    }

    /// Most arrivals of the whole gate that can wait: buffers, and the ends of all subpartitions.
    pub(crate) fn capacity(&self) -> u64 {
        self.channels
            .iter()
            .map(|channel| self.window() + u64::from(channel.range.count))
            .sum()
    }

    pub(crate) fn to_message(&self, request: RequestId, gate: GateId, first: StreamId) -> control::OpenGate {
        let channels = (0u32..)
            .zip(&self.channels)
            .filter(|(_, channel)| channel.range.count > 0)
            .map(|(index, channel)| control::ChannelRequest {
                stream: first.value().wrapping_add(index),
                node: channel.node.as_ref().map(ToString::to_string).unwrap_or_default(),
                partition: Some(channel.partition.into()),
                range: Some(channel.range.into()),
                broadcast: channel.broadcast.map(|consumers| control::Broadcast { consumers }),
            });
        control::OpenGate {
            request: request.value(),
            gate: gate.value(),
            exclusive: self.exclusive,
            floating: self.floating,
            channels: channels.collect(),
            group: self.group.as_ref().map(Into::into),
            timeout_ms: crate::attach::millis(self.timeout),
            selective: false,
        }
    }
}

impl Default for GateSpec {
    fn default() -> Self {
        Self::new()
    }
}
