//! Bytes on their way to the socket: frames, and between them payload that is sent from where it lies. Pure.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};
use shuffle_protocol::control::Goodbye;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::ShuffleError;
use shuffle_protocol::frame::{
    FrameKind, SlotEntry, encode_control, encode_data_head, encode_numbers, encode_ping, encode_releases, encode_slots,
};

use super::outbox::OutBatch;

/// Most pieces in one write.
const MAX_PIECES: usize = 64;
/// What is shorter than this is copied between frames rather than sent as a piece of its own.
const SMALL_BYTES: usize = 4 << 10;

#[derive(Default)]
pub(crate) struct WriteQueue {
    pieces: VecDeque<Bytes>,
    /// Frames behind the pieces.
    tail: BytesMut,
    bytes: usize,
    /// Empty between calls.
    descriptors: Vec<SlotEntry>,
}

impl WriteQueue {
    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Encodes a batch in the order that the outbox promises, and empties it.
    pub(crate) fn push_batch(&mut self, batch: &mut OutBatch) {
        let before = self.tail.len();
        encode_some(&batch.demands, |demands| {
            encode_numbers(FrameKind::Demand, demands, &mut self.tail)
        });
        self.bytes += self.tail.len() - before;
        batch.demands.clear();
        self.push_slots(&mut batch.slots);
        let before = self.tail.len();
        encode_some(&batch.acks, |acks| encode_numbers(FrameKind::Ack, acks, &mut self.tail));
        encode_some(&batch.releases, |releases| encode_releases(releases, &mut self.tail));
        self.bytes += self.tail.len() - before;
        batch.acks.clear();
        batch.releases.clear();
        for message in batch.messages.drain(..) {
            self.push_bytes(message);
        }
    }

    fn push_slots(&mut self, slots: &mut Vec<(SlotEntry, Option<Bytes>)>) {
        let mut descriptors = std::mem::take(&mut self.descriptors);
        for (entry, payload) in slots.drain(..) {
            match payload {
                None => descriptors.push(entry),
                Some(payload) => {
                    let before = self.tail.len();
                    encode_data_head(entry.stream, entry.sequence, &[entry], &mut self.tail);
                    self.bytes += self.tail.len() - before;
                    self.push_bytes(payload);
                }
            }
        }
        let before = self.tail.len();
        encode_some(&descriptors, |slots| encode_slots(slots, &mut self.tail));
        self.bytes += self.tail.len() - before;
        descriptors.clear();
        self.descriptors = descriptors;
    }

    pub(crate) fn push_ping(&mut self, kind: FrameKind, nonce: u64) {
        let before = self.tail.len();
        encode_ping(kind, nonce, &mut self.tail);
        self.bytes += self.tail.len() - before;
    }

    /// The last frame of an orderly end.
    pub(crate) fn push_goodbye(&mut self, reason: &ShuffleError) {
        let before = self.tail.len();
        let goodbye = Message::Goodbye(Goodbye {
            reason: Some(reason.into()),
        });
        // Too long to be sent: the end of the connection says enough.
        let _ = encode_control(&goodbye, &mut self.tail);
        self.bytes += self.tail.len() - before;
    }

    fn push_bytes(&mut self, bytes: Bytes) {
        self.bytes += bytes.len();
        if bytes.len() < SMALL_BYTES {
            self.tail.extend_from_slice(&bytes);
            return;
        }
        self.seal_tail();
        self.pieces.push_back(bytes);
    }

    /// What to write next.
    pub(crate) fn pieces(&mut self) -> Vec<IoSlice<'_>> {
        if self.pieces.len() < MAX_PIECES {
            self.seal_tail();
        }
        self.pieces
            .iter()
            .take(MAX_PIECES)
            .map(|piece| IoSlice::new(piece))
            .collect()
    }

    /// So many bytes were written.
    pub(crate) fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        while written > 0 {
            let front = self
                .pieces
                .front_mut()
                .expect("invariant: no more written than was there");
            let n = written.min(front.len());
            front.advance(n);
            written -= n;
            if front.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    fn seal_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
    }
}

fn encode_some<T>(entries: &[T], encode: impl FnOnce(&[T])) {
    if !entries.is_empty() {
        encode(entries);
    }
}

#[cfg(test)]
mod tests {
    use shuffle_protocol::frame::{Deframer, Event, Frame, NumberEntry, SlotEntry};
    use shuffle_protocol::ids::StreamId;

    use super::*;

    fn drain(queue: &mut WriteQueue, step: usize) -> Vec<u8> {
        let mut wire = Vec::new();
        while !queue.is_empty() {
            let piece = queue.pieces()[0].to_vec();
            let n = piece.len().min(step);
            wire.extend_from_slice(&piece[..n]);
            queue.advance(n);
        }
        assert!(queue.pieces().is_empty());
        wire
    }

    #[test]
    fn a_batch_leaves_in_order_whatever_the_pieces() {
        for step in [1, 7, 4096, usize::MAX] {
            let mut queue = WriteQueue::default();
            let payload = Bytes::from(vec![5; SMALL_BYTES * 2]);
            let length = u32::try_from(payload.len()).unwrap();
            let entry = SlotEntry {
                stream: StreamId::new(3),
                length,
                ..SlotEntry::default()
            };
            let ack = NumberEntry {
                stream: StreamId::new(9),
                number: 4,
                ..NumberEntry::default()
            };
            queue.push_batch(&mut OutBatch {
                demands: vec![NumberEntry::default()],
                slots: vec![(entry, Some(payload.clone()))],
                acks: vec![ack],
                ..OutBatch::default()
            });
            queue.push_ping(FrameKind::Pong, 8);
            let wire = drain(&mut queue, step);
            let mut deframer = Deframer::new();
            let mut at = deframer.handle_bytes(&wire);
            assert!(matches!(
                deframer.poll_event(),
                Ok(Some(Event::Frame(Frame::Demand(_))))
            ));
            at += deframer.handle_bytes(&wire[at..]);
            assert!(matches!(deframer.poll_event(), Ok(Some(Event::Data(_)))));
            assert_eq!(&wire[at..at + payload.len()], &payload[..]);
            at += payload.len();
            at += deframer.handle_bytes(&wire[at..]);
            assert!(matches!(deframer.poll_event(), Ok(Some(Event::Frame(Frame::Ack(_))))));
            at += deframer.handle_bytes(&wire[at..]);
            assert_eq!(deframer.poll_event(), Ok(Some(Event::Frame(Frame::Pong(8)))));
            assert_eq!(at, wire.len());
        }
    }
}
