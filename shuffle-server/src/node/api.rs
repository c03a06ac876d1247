//! What the drivers say to the core and what the core says to them.

use std::time::Duration;

use buffer_pool::SlotRef;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::frame::{EndEntry, GrantEntry, NumberEntry, SlotEntry};
use shuffle_protocol::{Generation, Incarnation, JobId, NodeAddress, ShuffleError};

slotmap::new_key_type! {
    /// One executor's session with this server.
    pub struct SessionId;
    /// One live connection to another server.
    pub struct LinkId;
}

/// Limits of one job on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas {
    /// Partitions that are registered at one time.
    pub partitions_per_job: u32,
    /// Channels that are open at one time, over all gates.
    pub channels_per_job: u32,
    /// Requests that one session may have unanswered.
    pub requests_per_session: u32,
    /// Payload on disk at one time, in bytes; `None`: as much as there is room for.
    pub disk_bytes_per_job: Option<u64>,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            partitions_per_job: 65_536,
            channels_per_job: 1 << 20,
            requests_per_session: 4096,
            disk_bytes_per_job: None,
        }
    }
}

/// What a node is told at its start and never changes.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The address under which other nodes reach this one; also its name.
    pub address: NodeAddress,
    /// Chosen anew at each start of the server.
    pub incarnation: Incarnation,
    /// Size of every network buffer.
    pub buffer_bytes: u32,
    /// TCP connections per pair of nodes.
    pub stripes: u32,
    /// Buffers a subpartition queues before it is blocked, where the writer does not say.
    pub max_queued_per_subpartition: u32,
    /// How long a request may wait for a partition to be registered or for buffers to come home.
    pub request_timeout: Duration,
    /// A ping leaves after this long without traffic.
    pub keepalive_interval: Duration,
    /// A peer that has not been heard for this long is dead.
    pub dead_peer_after: Duration,
    /// A peer whose port has refused connections for this long is dead.
    pub refused_grace: Duration,
    /// How long a member of a group waits for its home server's verdict before it acts on its own cause.
    pub group_verdict_after: Duration,
    /// How long a finished partition waits for readers before it expires.
    pub unread_expiry: Duration,
    /// There are directories for partitions that may need a disk.
    pub disks: bool,
    /// Limits per job.
    pub quotas: Quotas,
}

impl NodeConfig {
    /// The defaults of the service for a node of that name.
    #[must_use]
    pub fn new(address: NodeAddress, incarnation: Incarnation, buffer_bytes: u32) -> Self {
        Self {
            address,
            incarnation,
            buffer_bytes,
            stripes: 1,
            max_queued_per_subpartition: 10,
            request_timeout: Duration::from_secs(30),
            keepalive_interval: Duration::from_secs(5),
            dead_peer_after: Duration::from_secs(15),
            refused_grace: Duration::from_secs(2),
            group_verdict_after: Duration::from_secs(2),
            unread_expiry: Duration::from_secs(600),
            disks: false,
            quotas: Quotas::default(),
        }
    }
}

/// An executor that has passed the handshake.
#[derive(Debug, Clone)]
pub struct SessionInfo {
    /// The one job that this session may speak of.
    pub job: JobId,
    /// For logs and messages.
    pub name: String,
    /// The executor has no mapping: payload travels inline, over TCP.
    pub inline: bool,
    /// It takes several buffers in one slot.
    pub packed: bool,
}

/// Another server that has passed the handshake.
#[derive(Debug, Clone)]
pub struct PeerInfo {
    /// Its name and address.
    pub node: NodeAddress,
    /// Which start of that server this is.
    pub incarnation: Incarnation,
    /// Which connection of its kind this is, as the dialling side counts.
    pub generation: Generation,
    /// Which stripe of the pair.
    pub stripe: u32,
    /// This node dialled.
    pub dialled: bool,
}

/// A connection that the driver is to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dial {
    /// Whom to dial.
    pub node: NodeAddress,
    /// Which stripe of the pair.
    pub stripe: u32,
    /// What the handshake says.
    pub generation: Generation,
}

/// Where the payload of an arriving data frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// Straight into this buffer.
    Slot(SlotRef),
    /// Into this buffer from this offset on, in bytes; beside it lies what is being read.
    Part(SlotRef, u32),
    /// Nobody wants it any more: read and forget.
    Discard,
}

impl Output {
    /// The buffer that it is.
    pub fn buffer(&self) -> Option<(SlotEntry, SlotRef)> {
        match self {
            Self::Slot { entry, slot } | Self::Joined { entry, slot } => Some((*entry, *slot)),
            _ => None,
        }
    }
}

/// One thing to send, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// A control message.
    Control(Box<Message>),
    /// A filled buffer: a descriptor over the Unix socket, head and payload over TCP.
    Slot {
        /// What the receiver is told of it.
        entry: SlotEntry,
        /// Where the payload lies; over TCP pinned until [`super::Node::handle_written`].
        slot: SlotRef,
    },
    /// A filled buffer for another server, in the frame of the one before it. Otherwise as that.
    Joined {
        /// See `Slot`.
        entry: SlotEntry,
        /// See `Slot`.
        slot: SlotRef,
    },
    /// The end of a subpartition.
    End(EndEntry),
    /// A free buffer for a writer.
    Grant(GrantEntry),
    /// How far the sender may go.
    Credit(NumberEntry),
    /// What has arrived and was checked.
    Ack(NumberEntry),
    /// How much waits for credit.
    Backlog(NumberEntry),
    /// Are you there?
    Ping(u64),
    /// I am.
    Pong(u64),
}

/// Who has something to do now.
#[derive(Debug, Clone)]
pub enum Wake {
    /// The session has output.
    Session(SessionId),
    /// The session is over: say goodbye with this reason and close.
    CloseSession(SessionId, ShuffleError),
    /// The link has output.
    Link(LinkId),
    /// The link is over.
    CloseLink(LinkId, ShuffleError),
    /// [`super::Node::poll_dial`] has something.
    Dial,
    /// [`super::Node::poll_disk`] has something.
    Disk,
    /// [`super::Node::poll_verify`] has something.
    Verify,
}
