//! Frames as values.

use bytes::Bytes;

use super::control::decode_control;
use super::header::{FrameKind, Header};
use super::{Batch, EndEntry, EntryError, FrameError, GrantEntry, NumberEntry, ReleaseEntry, SlotEntry};
use crate::control::control::Message;
use crate::ids::{Sequence, StreamId};

/// A frame without payload.
#[derive(Clone, PartialEq, Debug)]
pub enum Frame {
    /// One protobuf message.
    Control(Box<Message>),
    /// Descriptors of buffers in shared memory.
    Slots(Batch<SlotEntry>),
    /// Slots given back.
    Release(Batch<ReleaseEntry>),
    /// Cumulative acknowledgements: sequences.
    Ack(Batch<NumberEntry>),
    /// Absolute limits: ordinals of buffers.
    Credit(Batch<NumberEntry>),
    /// Buffers that wait for credit.
    Backlog(Batch<NumberEntry>),
    /// Buffers that a writer wants in all.
    Demand(Batch<NumberEntry>),
    /// Slots granted to writers.
    Grant(Batch<GrantEntry>),
    /// End markers.
    End(Batch<EndEntry>),
    /// Are you there? The answer carries the same nonce.
    Ping(u64),
    /// I am.
    Pong(u64),
}

/// The head of a data frame; its payload is still to come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataHead {
    /// The slices, one after the other in the payload; all of one channel, at least one.
    pub slots: Batch<SlotEntry>,
    /// Length of the payload: the sum of the slices' lengths, at most
    /// [`MAX_BUFFER_BYTES`](crate::limits::MAX_BUFFER_BYTES).
    pub payload_bytes: u32,
    /// Sequence of the first slice.
    pub sequence: Sequence,
    /// The channel; from an executor the writer.
    pub stream: StreamId,
}

/// What a [`Deframer`](super::Deframer) finds.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A whole frame.
    Frame(Frame),
    /// A data frame up to its payload: the next `payload_bytes` bytes of the connection are the caller's to move.
    Data(DataHead),
}

impl Event {
    /// The event of a frame whose body has arrived.
    pub(super) fn decode(header: &Header, body: Bytes) -> Result<Self, FrameError> {
        let (expected, got) = (header.body_checksum, crc32fast::hash(&body));
        if expected != got {
            return Err(FrameError::BodyChecksum { expected, got });
        }
        Ok(Self::Frame(match header.kind {
            FrameKind::Control => Frame::Control(decode_control(body)?),
            FrameKind::Data => return DataHead::decode(header, body).map(Self::Data),
            FrameKind::Slots => Frame::Slots(Batch::decode(body)?),
            FrameKind::Release => Frame::Release(Batch::decode(body)?),
            FrameKind::Ack => Frame::Ack(Batch::decode(body)?),
            FrameKind::Credit => Frame::Credit(Batch::decode(body)?),
            FrameKind::Backlog => Frame::Backlog(Batch::decode(body)?),
            FrameKind::Demand => Frame::Demand(Batch::decode(body)?),
            FrameKind::Grant => Frame::Grant(Batch::decode(body)?),
            FrameKind::End => Frame::End(Batch::decode(body)?),
            FrameKind::Ping => Frame::Ping(header.sequence),
            FrameKind::Pong => Frame::Pong(header.sequence),
        }))
    }
}

impl DataHead {
    /// Whether the sequences of the slices follow each other.
    pub fn is_in_order(&self) -> bool {
        let due = self.sequence.value()..;
        due.zip(self.slots.iter())
            .all(|(sequence, slot)| slot.sequence.value() == sequence)
    }

    fn decode(header: &Header, body: Bytes) -> Result<Self, FrameError> {
        let slots = Batch::<SlotEntry>::decode(body)?;
        let refused = |index, error| Err(FrameError::Entry { index, error });
        let mut sum = 0u64;
        for (index, slot) in slots.iter().enumerate() {
            if slot.stream.value() != header.stream {
                let (got, expected) = (slot.stream.value(), header.stream);
                return refused(index, EntryError::Stream { got, expected });
            }
            if index == 0 && slot.sequence.value() != header.sequence {
                let (got, expected) = (slot.sequence.value(), header.sequence);
                return refused(index, EntryError::Sequence { got, expected });
            }
            sum += u64::from(slot.length);
        }
        let payload_bytes = header.payload_bytes();
        if sum != u64::from(payload_bytes) {
            let expected = u64::from(header.body_bytes()) + sum;
            return Err(FrameError::Length {
                got: header.length,
                expected,
            });
        }
        Ok(Self {
            slots,
            payload_bytes,
            sequence: Sequence::new(header.sequence),
            stream: StreamId::new(header.stream),
        })
    }
}
