//! What can go wrong, and whose doing it is.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use super::verdict::Verdict;

/// Whose doing an error is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Initiator {
    /// Who called asked for something that cannot be.
    Caller,
    /// The other side of the connection, or the task on it.
    Peer,
    /// What lies between the two.
    Network,
    /// A disk.
    Disk,
    /// This program, or the limits it was given.
    Own,
}

impl fmt::Display for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Caller => "caller",
            Self::Peer => "peer",
            Self::Network => "network",
            Self::Disk => "disk",
            Self::Own => "this program",
        })
    }
}

/// What went wrong. Each kind has a stable code on the wire (`docs/protocol.md`), and carries its details with it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No producer registered the partition within the time a request waits.
    #[error("the partition was not registered within {waited:?}")]
    NotRegistered {
        /// How long the request waited.
        waited: Duration,
    },
    /// The partition, writer, gate, channel or group is not known.
    #[error("unknown")]
    Unknown,
    /// The partition was consumed or released.
    #[error("the partition was released")]
    Released,
    /// The partition outlived its lease.
    #[error("the partition has expired")]
    Expired,
    /// A newer attempt took the partition's place.
    #[error("superseded by attempt {by_attempt}")]
    Superseded {
        /// The newer attempt.
        by_attempt: u32,
    },
    /// The producer of the partition failed.
    #[error("the partition failed")]
    PartitionFailed,
    /// The producer gave the partition up.
    #[error("the producer aborted")]
    Aborted,
    /// The executor process went away without a word.
    #[error("the executor died")]
    ExecutorDied,
    /// Nothing was heard from the node for too long.
    #[error("nothing was heard from the peer for {silent_for:?}")]
    PeerLost {
        /// Since when.
        silent_for: Duration,
    },
    /// The node's server came back as another incarnation: what it held is gone.
    #[error("the peer was restarted")]
    PeerRestarted,
    /// The pool cannot guarantee as many buffers.
    #[error("need {need} buffers, {available} of {total} available, held by {holders}")]
    InsufficientBuffers {
        /// Buffers asked for.
        need: u32,
        /// Buffers that could be had.
        available: u32,
        /// Buffers of the pool.
        total: u32,
        /// Who holds the rest, in words.
        holders: String,
    },
    /// The record is longer than the configured limit.
    #[error("a record of {bytes} bytes is larger than the {max_bytes} bytes allowed")]
    RecordTooLarge {
        /// Length of the record.
        bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// The other side broke the protocol.
    #[error("protocol violation")]
    Protocol,
    /// The two sides have no protocol version in common.
    #[error(
        "no common protocol version: ours {}..={}, theirs {}..={}",
        ours.0, ours.1, theirs.0, theirs.1
    )]
    VersionMismatch {
        /// Lowest and highest version of the side that noticed.
        ours: (u32, u32),
        /// Lowest and highest version of the other side.
        theirs: (u32, u32),
    },
    /// The two sides are configured in ways that do not fit.
    #[error("{what} differs: ours {ours}, theirs {theirs}")]
    ConfigMismatch {
        /// Which setting.
        what: String,
        /// Its value on the side that noticed.
        ours: String,
        /// Its value on the other side.
        theirs: String,
    },
    /// The token, the credentials or the job do not allow it.
    #[error("denied")]
    Denied,
    /// It exists already.
    #[error("already exists")]
    AlreadyExists,
    /// The request makes no sense as it is.
    #[error("invalid request")]
    InvalidRequest,
    /// What came is not what the writer counted.
    #[error("{what}: expected {expected}, got {got}")]
    CountMismatch {
        /// What was counted.
        what: String,
        /// What the writer counted.
        expected: u64,
        /// What came.
        got: u64,
    },
    /// A payload does not have the checksum its writer made.
    #[error(
        "checksum mismatch in the buffer with sequence {sequence}: expected {expected:08x}, got {got:08x}; {verdict}"
    )]
    ChecksumMismatch {
        /// What the writer computed.
        expected: u32,
        /// What the reader computed.
        got: u32,
        /// Which buffer of the channel.
        sequence: u64,
        /// Where the bytes were changed.
        verdict: Verdict,
    },
    /// The reader or writer was cancelled or dropped.
    #[error("cancelled")]
    Cancelled,
    /// The server is going down and takes nothing new.
    #[error("the server is draining")]
    Draining,
    /// It took too long.
    #[error("{what} took longer than {after:?}")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// This version does not do that.
    #[error("not supported")]
    Unsupported,
    /// Another member of the group failed.
    #[error("the group failed")]
    GroupFailed,
    /// The connection broke.
    #[error("connection lost")]
    ConnectionLost,
    /// The operating system refused.
    #[error("i/o error")]
    Io,
    /// A quota or limit would be exceeded.
    #[error("{what}: {asked} is more than the {limit} allowed")]
    LimitExceeded {
        /// Which.
        what: String,
        /// The limit.
        limit: u64,
        /// What was asked for.
        asked: u64,
    },
    /// The session with the node's server is closed.
    #[error("the session is closed")]
    SessionClosed,
    /// No connection to the node could be made.
    #[error("the node cannot be reached")]
    NodeUnreachable,
    /// A disk is full, or its limit is reached.
    #[error("no space: {needed} bytes needed, {free} free")]
    NoSpace {
        /// Bytes that were to be written.
        needed: u64,
        /// Bytes that there are.
        free: u64,
    },
    /// What was kept on a disk cannot be read any more.
    #[error("the data is lost")]
    DataLost,
}

impl ErrorKind {
    /// The code of the kind on the wire; never used for another kind.
    pub const fn code(&self) -> u32 {
        match self {
            Self::NotRegistered { .. } => 1,
            Self::Unknown => 2,
            Self::Released => 3,
            Self::Expired => 4,
            Self::Superseded { .. } => 5,
            Self::PartitionFailed => 6,
            Self::Aborted => 7,
            Self::ExecutorDied => 8,
            Self::PeerLost { .. } => 9,
            Self::PeerRestarted => 10,
            Self::InsufficientBuffers { .. } => 11,
            Self::RecordTooLarge { .. } => 12,
            Self::Protocol => 13,
            Self::VersionMismatch { .. } => 14,
            Self::ConfigMismatch { .. } => 15,
            Self::Denied => 16,
            Self::AlreadyExists => 17,
            Self::InvalidRequest => 18,
            Self::CountMismatch { .. } => 19,
            Self::ChecksumMismatch { .. } => 20,
            Self::Cancelled => 21,
            Self::Draining => 22,
            Self::TimedOut { .. } => 23,
            Self::Unsupported => 24,
            Self::GroupFailed => 25,
            Self::ConnectionLost => 26,
            Self::Io => 27,
            Self::LimitExceeded { .. } => 28,
            Self::SessionClosed => 29,
            Self::NodeUnreachable => 30,
            Self::NoSpace { .. } => 31,
            Self::DataLost => 32,
        }
    }

    /// Whose doing an error of this kind is unless more is known.
    pub const fn initiator(&self) -> Initiator {
        match self {
            Self::Unknown
            | Self::Released
            | Self::Expired
            | Self::RecordTooLarge { .. }
            | Self::Denied
            | Self::AlreadyExists
            | Self::InvalidRequest
            | Self::Cancelled
            | Self::Unsupported
            | Self::LimitExceeded { .. }
            | Self::SessionClosed => Initiator::Caller,
            Self::NotRegistered { .. }
            | Self::Superseded { .. }
            | Self::PartitionFailed
            | Self::Aborted
            | Self::ExecutorDied
            | Self::PeerRestarted
            | Self::Protocol
            | Self::VersionMismatch { .. }
            | Self::ConfigMismatch { .. }
            | Self::CountMismatch { .. }
            | Self::Draining
            | Self::GroupFailed => Initiator::Peer,
            Self::PeerLost { .. } | Self::TimedOut { .. } | Self::ConnectionLost | Self::NodeUnreachable => {
                Initiator::Network
            }
            Self::ChecksumMismatch { verdict, .. } => verdict.initiator(),
            Self::InsufficientBuffers { .. } | Self::Io => Initiator::Own,
            Self::NoSpace { .. } | Self::DataLost => Initiator::Disk,
        }
    }

    /// Whether the same call may succeed when it is made again, unless more is known.
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::NotRegistered { .. }
                | Self::PeerLost { .. }
                | Self::InsufficientBuffers { .. }
                | Self::Draining
                | Self::TimedOut { .. }
                | Self::ConnectionLost
                | Self::NodeUnreachable
                | Self::NoSpace { .. }
        )
    }
}
