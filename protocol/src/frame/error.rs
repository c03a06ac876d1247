//! What can be wrong with bytes that should be a frame.

use thiserror::Error;

use super::header::WIRE_VERSION;
use crate::error::{ErrorKind, Initiator, ShuffleError};

/// What is wrong with a frame. Nothing can be read from the connection after it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FrameError {
    /// It does not begin as a frame does: something else speaks on this connection.
    #[error("it begins with {got:02x?}, not with \"SHUF\"")]
    Magic {
        /// The first four bytes.
        got: [u8; 4],
    },
    /// The header is of another version.
    #[error("its version is {got}, ours is {WIRE_VERSION}")]
    Version {
        /// The version.
        got: u8,
    },
    /// The header was damaged.
    #[error("header checksum {got:08x}, expected {expected:08x}")]
    HeaderChecksum {
        /// What the header says.
        expected: u32,
        /// What it has.
        got: u32,
    },
    /// The body was damaged.
    #[error("body checksum {got:08x}, expected {expected:08x}")]
    BodyChecksum {
        /// What the header says.
        expected: u32,
        /// What the body has.
        got: u32,
    },
    /// A kind of frame that this version does not know.
    #[error("unknown kind {got}")]
    Kind {
        /// The kind.
        got: u8,
    },
    /// A flag that this version does not know.
    #[error("unknown flags {got:#06x}")]
    Flags {
        /// All flags.
        got: u16,
    },
    /// A field that this kind of frame does not use is not zero.
    #[error("the unused field {field} is not zero")]
    Unused {
        /// Its name.
        field: &'static str,
    },
    /// The number of entries is zero or beyond the limit.
    #[error("{got} entries, not 1 to {limit}")]
    Count {
        /// The number of entries.
        got: u32,
        /// The most allowed.
        limit: u32,
    },
    /// The length is not what the entries and the payload take.
    #[error("length {got}, not {expected}")]
    Length {
        /// The length in the header.
        got: u32,
        /// What it must be.
        expected: u64,
    },
    /// A payload larger than any buffer.
    #[error("a payload of {got} bytes, more than {limit}")]
    PayloadTooLarge {
        /// Its length.
        got: u32,
        /// The limit.
        limit: u32,
    },
    /// A control message larger than it may be.
    #[error("a control message of {bytes} bytes, more than {limit}")]
    ControlTooLarge {
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u32,
    },
    /// Something else than a control message before the handshake is done.
    #[error("a frame of kind {got:?} before the handshake is done")]
    BeforeHandshake {
        /// The kind of the frame.
        got: super::FrameKind,
    },
    /// A control message that cannot be read.
    #[error("a control message cannot be read: {0}")]
    Control(String),
    /// A control message of a kind that this version does not know.
    #[error("a control message of an unknown kind")]
    UnknownMessage,
    /// An entry that makes no sense.
    #[error("entry {index}: {error}")]
    Entry {
        /// Which entry of the batch.
        index: usize,
        /// What is wrong with it.
        error: EntryError,
    },
}

/// What is wrong with an entry of a batch.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EntryError {
    /// A field that must be zero is not.
    #[error("a reserved field is not zero")]
    Reserved,
    /// Neither data nor event.
    #[error("unknown buffer kind {0}")]
    BufferKind(u8),
    /// Neither write nor read arena.
    #[error("unknown arena {0}")]
    Arena(u8),
    /// A flag that this version does not know.
    #[error("unknown flags {0:#x}")]
    Flags(u32),
    /// The bytes do not lie within a buffer.
    #[error("{length} bytes at {offset} do not lie within a buffer")]
    Range {
        /// Where they begin.
        offset: u32,
        /// How many they are.
        length: u32,
    },
    /// It is of another channel than its frame.
    #[error("it is of stream {got}, its frame of stream {expected}")]
    Stream {
        /// Stream of the entry.
        got: u32,
        /// Stream of the frame.
        expected: u32,
    },
    /// The first entry's sequence is not the frame's.
    #[error("its sequence is {got}, its frame's {expected}")]
    Sequence {
        /// Sequence of the entry.
        got: u64,
        /// Sequence of the frame.
        expected: u64,
    },
}

impl From<FrameError> for ShuffleError {
    fn from(error: FrameError) -> Self {
        let message = format!("a frame cannot be read: {error}");
        match error {
            FrameError::Version { got } => {
                let (ours, theirs) = (u32::from(WIRE_VERSION), u32::from(got));
                let kind = ErrorKind::VersionMismatch {
                    ours: (ours, ours),
                    theirs: (theirs, theirs),
                };
                Self::new(kind, message)
            }
            FrameError::HeaderChecksum { .. } | FrameError::BodyChecksum { .. } => {
                Self::new(ErrorKind::Protocol, message).by(Initiator::Network)
            }
            _ => Self::new(ErrorKind::Protocol, message),
        }
    }
}
