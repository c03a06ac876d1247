//! Frames to bytes. Nothing here allocates but the output buffer as it grows.

use bytes::{BufMut, BytesMut};

use super::header::{FrameKind, HEADER_BYTES, Header};
use super::{EndEntry, Entry, GrantEntry, NumberEntry, ReleaseEntry, SlotEntry};
use crate::ids::{Sequence, StreamId};
use crate::limits::{MAX_BATCH_ENTRIES, MAX_BUFFER_BYTES, MAX_SLICES};

/// Appends descriptors of buffers in shared memory, in as many frames as it takes.
pub fn encode_slots(entries: &[SlotEntry], out: &mut BytesMut) {
    encode_batch(FrameKind::Slots, entries, out);
}

/// Appends slots given back, in as many frames as it takes.
pub fn encode_releases(entries: &[ReleaseEntry], out: &mut BytesMut) {
    encode_batch(FrameKind::Release, entries, out);
}

/// Appends numbers of one kind (ack, credit, backlog or demand), in as many frames as it takes.
///
/// # Panics
/// If `kind` is not one of these four: a mistake of the caller.
pub fn encode_numbers(kind: FrameKind, entries: &[NumberEntry], out: &mut BytesMut) {
    assert!(
        matches!(
            kind,
            FrameKind::Ack | FrameKind::Credit | FrameKind::Backlog | FrameKind::Demand
        ),
        "{kind:?} frames hold no numbers"
    );
    encode_batch(kind, entries, out);
}

/// Appends grants, in as many frames as it takes.
pub fn encode_grants(entries: &[GrantEntry], out: &mut BytesMut) {
    encode_batch(FrameKind::Grant, entries, out);
}

/// Appends end markers, in as many frames as it takes.
pub fn encode_ends(entries: &[EndEntry], out: &mut BytesMut) {
    encode_batch(FrameKind::End, entries, out);
}

/// Appends the head of a data frame: the payload of these slices, in their order and without anything between, must be
/// written behind it.
///
/// # Panics
/// If there is no slice or more than [`MAX_SLICES`], one is not of `stream`, the first is not of `sequence`, or they have
/// more than [`MAX_BUFFER_BYTES`] together: mistakes of the caller.
pub fn encode_data_head(stream: StreamId, sequence: Sequence, slices: &[SlotEntry], out: &mut BytesMut) {
    assert!(
        slices.len() <= MAX_SLICES as usize,
        "{} slices in one frame",
        slices.len()
    );
    assert!(
        slices.first().is_some_and(|first| first.sequence == sequence)
            && slices.iter().all(|slice| slice.stream == stream),
        "slices of another channel, or not from {sequence} on"
    );
    let payload: u64 = slices.iter().map(|slice| u64::from(slice.length)).sum();
    let payload = u32::try_from(payload).unwrap_or(u32::MAX);
    assert!(payload <= MAX_BUFFER_BYTES, "a payload of {payload} bytes");

    let place = Place {
        stream: stream.value(),
        sequence: sequence.value(),
        payload,
    };
    encode_frame(FrameKind::Data, place, slices.len(), out, |out| {
        slices.iter().for_each(|slice| slice.put(out));
    });
}

/// Appends a ping or a pong.
///
/// # Panics
/// If `kind` is neither: a mistake of the caller.
pub fn encode_ping(kind: FrameKind, nonce: u64, out: &mut BytesMut) {
    assert!(
        matches!(kind, FrameKind::Ping | FrameKind::Pong),
        "{kind:?} frames have no nonce"
    );
    let place = Place {
        sequence: nonce,
        ..Place::default()
    };
    encode_frame(kind, place, 0, out, |_| ());
}

/// Appends a frame without a place in a channel around the body that `put` appends.
pub(super) fn with_header(kind: FrameKind, count: usize, out: &mut BytesMut, put: impl FnOnce(&mut BytesMut)) {
    encode_frame(kind, Place::default(), count, out, put);
}

/// What only data frames and pings have.
#[derive(Default)]
struct Place {
    stream: u32,
    sequence: u64,
    payload: u32,
}

fn encode_batch<T: Entry>(kind: FrameKind, entries: &[T], out: &mut BytesMut) {
    for chunk in entries.chunks(MAX_BATCH_ENTRIES as usize) {
        out.reserve(HEADER_BYTES + chunk.len() * T::BYTES as usize);
        with_header(kind, chunk.len(), out, |out| {
            chunk.iter().for_each(|entry| entry.put(out))
        });
    }
}

fn encode_frame(kind: FrameKind, place: Place, count: usize, out: &mut BytesMut, put: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_bytes(0, HEADER_BYTES);
    put(out);
    let (header, body) = out[start..].split_at_mut(HEADER_BYTES);
    let fits = |n: usize| u32::try_from(n).expect("invariant: a frame's length fits its field");
    let encoded = Header {
        kind,
        length: fits(body.len()) + place.payload,
        count: fits(count),
        stream: place.stream,
        sequence: place.sequence,
        body_checksum: crc32fast::hash(body),
    };
    header.copy_from_slice(&encoded.encode());
}
