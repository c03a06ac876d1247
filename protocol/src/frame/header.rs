//! The header that every frame begins with.
//!
//! ```text
//!   0      4 5 6    8        12       16       20       24               32        36        40
//!   | SHUF |v|k|flag| length | count  | stream | 0      | sequence       | body crc| head crc|
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{EndEntry, Entry, FrameError, GrantEntry, NumberEntry, ReleaseEntry, SlotEntry};
use crate::limits::{MAX_BATCH_ENTRIES, MAX_BUFFER_BYTES, MAX_CONTROL_BYTES, MAX_SLICES};

/// Length of a header, in bytes.
pub const HEADER_BYTES: usize = 40;
/// What every frame begins with.
pub const MAGIC: [u8; 4] = *b"SHUF";
/// Version of the header layout. Handshake messages have this version for ever; what else may change is negotiated.
pub const WIRE_VERSION: u8 = 1;

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// One protobuf message.
    Control = 1,
    /// A slice table of one channel, and the payload itself.
    Data = 2,
    /// Descriptors of buffers in shared memory.
    Slots = 3,
    /// Buffers given back.
    Release = 4,
    /// Cumulative acknowledgements.
    Ack = 5,
    /// Absolute limits.
    Credit = 6,
    /// Buffers that wait for credit.
    Backlog = 7,
    /// Buffers a writer wants in all.
    Demand = 8,
    /// Buffers granted to writers.
    Grant = 9,
    /// End markers.
    End = 10,
    /// Are you there?
    Ping = 11,
    /// I am.
    Pong = 12,
}

impl FrameKind {
    const ALL: [Self; 12] = [
        Self::Control,
        Self::Data,
        Self::Slots,
        Self::Release,
        Self::Ack,
        Self::Credit,
        Self::Backlog,
        Self::Demand,
        Self::Grant,
        Self::End,
        Self::Ping,
        Self::Pong,
    ];

    /// Length of one entry of its body, in bytes; 0 where the body is not a batch.
    pub const fn entry_bytes(self) -> u32 {
        match self {
            Self::Control | Self::Ping | Self::Pong => 0,
            Self::Data | Self::Slots => SlotEntry::BYTES,
            Self::Release => ReleaseEntry::BYTES,
            Self::Ack | Self::Credit | Self::Backlog | Self::Demand => NumberEntry::BYTES,
            Self::Grant => GrantEntry::BYTES,
            Self::End => EndEntry::BYTES,
        }
    }

    /// Most entries in one frame; 0 where the body is not a batch.
    pub const fn max_entries(self) -> u32 {
        match self {
            Self::Control | Self::Ping | Self::Pong => 0,
            Self::Data => MAX_SLICES,
            _ => MAX_BATCH_ENTRIES,
        }
    }
}

impl TryFrom<u8> for FrameKind {
    type Error = FrameError;

    fn try_from(kind: u8) -> Result<Self, FrameError> {
        Self::ALL
            .into_iter()
            .find(|known| *known as u8 == kind)
            .ok_or(FrameError::Kind { got: kind })
    }
}

/// A header in native types. One that [`Header::decode`] returned is consistent in itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the frame holds.
    pub kind: FrameKind,
    /// Bytes after the header: entries and payload.
    pub length: u32,
    /// Number of entries.
    pub count: u32,
    /// Data: the channel. Else 0.
    pub stream: u32,
    /// Data: sequence of the first slice. Ping and pong: the nonce. Else 0.
    pub sequence: u64,
    /// Checksum of the body without payload.
    pub body_checksum: u32,
}

impl Header {
    /// Bytes of the body that are not payload.
    pub const fn body_bytes(&self) -> u32 {
        match self.kind {
            FrameKind::Control => self.length,
            kind => self.count * kind.entry_bytes(),
        }
    }

    /// Bytes of payload behind the body.
    pub const fn payload_bytes(&self) -> u32 {
        self.length - self.body_bytes()
    }

    /// The header as it is on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut wire = WireHeader {
            magic: MAGIC,
            version: WIRE_VERSION,
            kind: self.kind as u8,
            flags: U16::new(0),
            length: self.length.into(),
            count: self.count.into(),
            stream: self.stream.into(),
            reserved: U32::new(0),
            sequence: self.sequence.into(),
            body_checksum: self.body_checksum.into(),
            header_checksum: U32::new(0),
        };
        wire.header_checksum = wire.checksum().into();
        zerocopy::transmute!(wire)
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`FrameError`] for every field that is not as its kind of frame has it, and for lengths and counts beyond their
    /// limits.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let wire: &WireHeader = zerocopy::transmute_ref!(bytes);
        if wire.magic != MAGIC {
            return Err(FrameError::Magic { got: wire.magic });
        }
        if wire.version != WIRE_VERSION {
            return Err(FrameError::Version { got: wire.version });
        }
        let (expected, got) = (wire.header_checksum.get(), wire.checksum());
        if expected != got {
            return Err(FrameError::HeaderChecksum { expected, got });
        }
        let header = Self {
            kind: FrameKind::try_from(wire.kind)?,
            length: wire.length.get(),
            count: wire.count.get(),
            stream: wire.stream.get(),
            sequence: wire.sequence.get(),
            body_checksum: wire.body_checksum.get(),
        };
        if wire.flags.get() != 0 {
            return Err(FrameError::Flags { got: wire.flags.get() });
        }
        if wire.reserved.get() != 0 {
            return Err(FrameError::Unused { field: "reserved" });
        }
        header.check_unused()?;
        header.check_lengths()?;
        Ok(header)
    }

    fn check_unused(&self) -> Result<(), FrameError> {
        let unused = |field| Err(FrameError::Unused { field });
        match self.kind {
            FrameKind::Data => Ok(()),
            _ if self.stream != 0 => unused("stream"),
            FrameKind::Ping | FrameKind::Pong => Ok(()),
            _ if self.sequence != 0 => unused("sequence"),
            _ => Ok(()),
        }
    }

    fn check_lengths(&self) -> Result<(), FrameError> {
        let Self {
            kind, length, count, ..
        } = *self;
        let limit = kind.max_entries();
        if (limit == 0) != (count == 0) || count > limit {
            return Err(FrameError::Count { got: count, limit });
        }
        let entries = u64::from(count) * u64::from(kind.entry_bytes());
        match kind {
            FrameKind::Control if length > MAX_CONTROL_BYTES => Err(FrameError::ControlTooLarge {
                bytes: length.into(),
                limit: MAX_CONTROL_BYTES,
            }),
            FrameKind::Control => Ok(()),
            FrameKind::Data => match u64::from(length).checked_sub(entries) {
                None => Err(FrameError::Length {
                    got: length,
                    expected: entries,
                }),
                Some(payload) if payload > MAX_BUFFER_BYTES.into() => Err(FrameError::PayloadTooLarge {
                    got: length,
                    limit: MAX_BUFFER_BYTES,
                }),
                Some(_) => Ok(()),
            },
            _ if u64::from(length) != entries => Err(FrameError::Length {
                got: length,
                expected: entries,
            }),
            _ => Ok(()),
        }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireHeader {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    flags: U16,
    length: U32,
    count: U32,
    stream: U32,
    reserved: U32,
    sequence: U64,
    body_checksum: U32,
    header_checksum: U32,
}

const _: () = assert!(size_of::<WireHeader>() == HEADER_BYTES);

impl WireHeader {
    fn checksum(&self) -> u32 {
        crc32fast::hash(&self.as_bytes()[..HEADER_BYTES - size_of::<U32>()])
    }
}
