//! Everything that bytes can be instead of a frame.

mod model;
mod samples;

use bytes::BytesMut;
use model::deframer::events;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::frame::{
    Deframer, EntryError, FrameError, FrameKind, HEADER_BYTES, SlotEntry, encode_control, encode_data_head,
};
use shuffle_protocol::limits::{MAX_BATCH_ENTRIES, MAX_CONTROL_BYTES, MAX_HANDSHAKE_BYTES, MAX_SLICES};

fn decode_error(wire: &[u8]) -> Option<FrameError> {
    events(&mut Deframer::new(), wire, wire.len()).1.err()
}

/// F61, F105: a connection that ends within a frame gives no event and no error, and is not a clean end.
#[test]
fn every_truncation_waits() {
    for (name, wire, _) in samples::frames() {
        for end in 0..wire.len() {
            let (found, result) = events(&mut Deframer::new(), &wire[..end], 17);
            assert_eq!(result, Ok(end == 0), "{name} cut at {end}");
            assert!(found.is_empty() || name == "data", "{name} cut at {end}");
        }
    }
}

/// F11: every flipped bit of a header or body is detected.
#[test]
fn every_flipped_bit_is_detected() {
    for (name, wire, checked) in samples::frames() {
        for bit in 0..checked * 8 {
            let mut wire = wire.clone();
            wire[bit / 8] ^= 1 << (bit % 8);
            let (found, result) = events(&mut Deframer::new(), &wire, 23);
            assert!(result.is_err() && found.is_empty(), "{name}, bit {bit}: {found:?}");
        }
    }
}

/// F98: lengths and counts at the end of their type, under a checksum that fits.
#[test]
fn absurd_lengths_are_refused_before_anything_is_allocated() {
    let absurd = [
        u32::MAX,
        u32::MAX - 6,
        u32::MAX - 40,
        u32::MAX / 2,
        MAX_CONTROL_BYTES + 1,
    ];
    for kind in samples::KINDS {
        for length in absurd {
            for count in [0, 1, MAX_SLICES, MAX_BATCH_ENTRIES, MAX_BATCH_ENTRIES + 1, u32::MAX] {
                let header = samples::header(kind, length, count);
                let mut deframer = Deframer::new();
                deframer.space().copy_from_slice(&header);
                deframer.handle_read(HEADER_BYTES);
                // 8 MiB and a byte of payload is fine; nothing else here is.
                let fits =
                    kind == FrameKind::Data && length == MAX_CONTROL_BYTES + 1 && (1..=MAX_SLICES).contains(&count);
                let refused = deframer.poll_event();
                assert_eq!(refused.is_ok(), fits, "{kind:?} {length} {count}: {refused:?}");
            }
        }
    }
}

/// F108: an announced length makes nobody allocate it; the room follows what has come.
#[test]
fn room_follows_what_has_come() {
    let header = samples::header(FrameKind::Control, MAX_CONTROL_BYTES, 0);
    let mut deframer = Deframer::new();
    assert_eq!(deframer.handle_bytes(&header), HEADER_BYTES);
    let mut come = 0;
    while come < 1 << 20 {
        let room = deframer.space().len();
        assert!(0 < room && room <= come.max(16 << 10), "room for {room} after {come}");
        deframer.handle_read(room);
        come += room;
        assert_eq!(deframer.poll_event(), Ok(None));
    }
}

/// F108: who speaks something else is found out by the first header's worth of bytes.
#[test]
fn other_protocols_are_refused() {
    let mut tls = vec![0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];
    tls.resize(HEADER_BYTES, 0x42);
    let http = b"GET / HTTP/1.1\r\nHost: shuffle.example\r\n\r\n".to_vec();
    let zeros = vec![0; HEADER_BYTES];
    let long = [&[0xff; 7][..], &[0x7f], &[0; 34]].concat();
    for stranger in [tls, http, zeros, long] {
        let error = decode_error(&stranger[..HEADER_BYTES]);
        assert!(matches!(error, Some(FrameError::Magic { .. })), "{error:?}");
    }
}

/// F101, F131: what a later version may send is named, not guessed at.
#[test]
fn unknown_fields_of_a_header_are_named() {
    let patched = |at: usize, byte: u8| {
        let mut header = samples::header(FrameKind::Ping, 0, 0);
        header[at] = byte;
        samples::seal(&mut header);
        decode_error(&header)
    };
    assert_eq!(patched(4, 2), Some(FrameError::Version { got: 2 }));
    assert_eq!(patched(5, 0), Some(FrameError::Kind { got: 0 }));
    assert_eq!(patched(5, 13), Some(FrameError::Kind { got: 13 }));
    assert_eq!(patched(6, 1), Some(FrameError::Flags { got: 1 }));
    assert_eq!(patched(20, 1), Some(FrameError::Unused { field: "reserved" }));
    assert_eq!(patched(16, 1), Some(FrameError::Unused { field: "stream" }));
    assert_eq!(patched(12, 1), Some(FrameError::Count { got: 1, limit: 0 }));
    assert_eq!(patched(8, 1), Some(FrameError::Length { got: 1, expected: 0 }));
    let error = shuffle_protocol::error::ShuffleError::from(FrameError::Version { got: 2 });
    assert!(error.to_string().contains("ours 1..=1, theirs 2..=2"), "{error}");
}

#[test]
fn entries_that_make_no_sense_are_named() {
    for (at, byte) in [(40, 2), (41, 2), (42, 0x18), (42, 0x40), (44, 1), (23, 2), (27, 2)] {
        let mut body = vec![0; 2 * 48];
        body[48 + at] = byte;
        let wire = model::deframer::frame(FrameKind::Slots, 2, &body);
        let error = decode_error(&wire);
        assert!(
            matches!(error, Some(FrameError::Entry { index: 1, .. })),
            "{at}: {error:?}"
        );
    }
    for (kind, length, at) in [
        (FrameKind::Release, 12, 8),
        (FrameKind::Release, 12, 9),
        (FrameKind::End, 56, 48),
        (FrameKind::End, 56, 52),
    ] {
        let mut body = vec![0; length];
        body[at] = 2;
        let error = decode_error(&model::deframer::frame(kind, 1, &body));
        assert!(
            matches!(error, Some(FrameError::Entry { index: 0, .. })),
            "{at}: {error:?}"
        );
    }
}

/// F98: a place whose end does not fit its type.
#[test]
fn places_that_wrap_are_refused() {
    for (offset, length) in [(u32::MAX, 2), (u32::MAX - 6, 8), (2, u32::MAX), (u32::MAX, u32::MAX)] {
        let mut body = [0; 48];
        body[20..24].copy_from_slice(&offset.to_le_bytes());
        body[24..28].copy_from_slice(&length.to_le_bytes());
        let error = decode_error(&model::deframer::frame(FrameKind::Slots, 1, &body));
        let expected = FrameError::Entry {
            index: 0,
            error: EntryError::Range { offset, length },
        };
        assert_eq!(error, Some(expected));
    }
}

/// The slices of a data frame belong to its channel, begin at its sequence and fill its payload.
#[test]
fn slices_must_fit_their_frame() {
    let slice = SlotEntry {
        length: 10,
        ..SlotEntry::default()
    };
    let head = |slices: &[SlotEntry], patch: &[(usize, u8)]| {
        let mut wire = BytesMut::new();
        encode_data_head(slice.stream, slice.sequence, slices, &mut wire);
        let mut wire = wire.to_vec();
        for (at, byte) in patch {
            wire[*at] = *byte;
        }
        samples::seal_frame(&mut wire, slices.len() * 48);
        decode_error(&wire)
    };
    assert_eq!(head(&[slice, slice], &[]), None);
    for patch in [
        [(40, 1)],
        [(88, 1)],
        [(48, 1)],
        [(8, 59)],
        [(64, 11)],
        [(16, 7)],
        [(24, 7)],
    ] {
        let error = head(&[slice, slice], &patch);
        assert!(
            matches!(error, Some(FrameError::Entry { .. } | FrameError::Length { .. })),
            "{patch:?}: {error:?}"
        );
    }
}

// ------------------------------------------------------------------------------- control frames

#[test]
fn before_the_handshake_only_short_control_frames() {
    for (name, wire, _) in samples::frames() {
        let (_, result) = events(&mut Deframer::for_handshake(), &wire, wire.len());
        assert_eq!(result.is_ok(), name == "control", "{name}: {result:?}");
    }
    let header = samples::header(FrameKind::Control, MAX_HANDSHAKE_BYTES + 1, 0);
    let mut deframer = Deframer::for_handshake();
    deframer.handle_bytes(&header);
    assert!(matches!(deframer.poll_event(), Err(FrameError::ControlTooLarge { .. })));
    let mut deframer = Deframer::for_handshake();
    deframer.handle_established();
    deframer.handle_bytes(&header);
    assert_eq!(deframer.poll_event(), Ok(None));
}

/// A few bytes per element must not become a few hundred in memory, millions of times.
#[test]
fn control_messages_are_bounded_before_they_are_decoded() {
    let varint = |mut n: usize, out: &mut Vec<u8>| {
        while n >= 0x80 {
            out.push(u8::try_from(n & 0x7f).unwrap() | 0x80);
            n >>= 7;
        }
        out.push(u8::try_from(n).unwrap());
    };
    let message = |number: usize, content: &[u8]| {
        let mut body = Vec::new();
        varint(number << 3 | 2, &mut body);
        varint(content.len(), &mut body);
        body.extend_from_slice(content);
        decode_error(&model::deframer::frame(FrameKind::Control, 0, &body))
    };
    let channels = |n: usize| [0x2a, 0].repeat(n);
    assert_eq!(message(13, &channels(65_536)), None);
    assert!(matches!(message(13, &channels(65_537)), Some(FrameError::Control(_))));
    // The nodes of a group, empty, in a message that may be long for another reason.
    let mut group = vec![0x32];
    varint(600 << 10, &mut group);
    group.extend([0x1a, 0].repeat(300 << 10));
    assert!(matches!(message(13, &group), Some(FrameError::ControlTooLarge { .. })));
    // The same in a message that is never long.
    assert!(matches!(
        message(12, &[0x1a, 0].repeat(300 << 10)),
        Some(FrameError::ControlTooLarge { .. })
    ));
    // As it is really encoded.
    let channel = control::ChannelRequest {
        stream: u32::MAX,
        node: "node-17.rack-4.example.com:7337".to_owned(),
        ..control::ChannelRequest::default()
    };
    let gate = control::OpenGate {
        channels: vec![channel; 65_536],
        ..control::OpenGate::default()
    };
    let mut wire = BytesMut::new();
    encode_control(&Message::OpenGate(gate), &mut wire).expect("a gate may have so many channels");
    assert_eq!(decode_error(&wire), None);
    assert_eq!(message(99, &[]), Some(FrameError::UnknownMessage));
    let empty = decode_error(&model::deframer::frame(FrameKind::Control, 0, &[]));
    assert!(matches!(empty, Some(FrameError::Control(_))));
    let two = decode_error(&model::deframer::frame(
        FrameKind::Control,
        0,
        &[0x9a, 1, 0, 0x9a, 1, 0],
    ));
    assert!(matches!(two, Some(FrameError::Control(_))), "{two:?}");
}
