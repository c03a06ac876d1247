//! Bytes to frames: every way to cut the same bytes gives the same frames, and a frame that is accepted is exactly what
//! encoding it gives.

use bytes::{Buf, BytesMut};
use shuffle_protocol::frame::{
    Batch, Deframer, Entry, Event, Frame, FrameError, FrameKind, HEADER_BYTES, Header, MAGIC, WIRE_VERSION,
    encode_control, encode_data_head, encode_ends, encode_grants, encode_numbers, encode_ping, encode_releases,
    encode_slots,
};

use super::input::Input;

/// First byte: how. Bit 0: a stranger's connection. Bit 1: make the checksums fit, so that what lies behind them is
/// reached. The rest: how to cut. Then the bytes of the connection.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let Some(how) = input.byte() else { return };
    let mut wire = input.0.to_vec();
    if how & 2 != 0 {
        repair(&mut wire);
    }
    let new = || match how & 1 {
        0 => Deframer::new(),
        _ => Deframer::for_handshake(),
    };
    let whole = events(&mut new(), &wire, wire.len());
    let piece = usize::from(how >> 2) + 1;
    let pieces = events(&mut new(), &wire, piece);
    assert_eq!(whole, pieces, "cut in pieces the same bytes are other frames");
    let read = events_read(&mut new(), &wire, piece);
    assert_eq!(whole, read, "read in place the same bytes are other frames");
    for (event, at) in &whole.0 {
        check_canonical(event, &wire[..*at]);
    }
}

/// Events, each with the place in the bytes where it was complete, and how it ended.
pub(crate) type Events = (Vec<(Event, usize)>, Result<bool, FrameError>);

/// What a deframer finds in bytes that are offered in pieces; ends with the error, or whether the end is a clean one.
pub(crate) fn events(deframer: &mut Deframer, wire: &[u8], piece: usize) -> Events {
    let mut found = Vec::new();
    let mut at = 0;
    let mut payload = 0;
    while at < wire.len() {
        if payload > 0 {
            let n = payload.min(wire.len() - at);
            payload -= n;
            at += n;
            continue;
        }
        let end = wire.len().min(at.saturating_add(piece));
        at += deframer.handle_bytes(&wire[at..end]);
        match deframer.poll_event() {
            Ok(None) => {}
            Ok(Some(event)) => {
                payload = payload_of(&event);
                found.push((event, at));
            }
            Err(error) => {
                assert_eq!(deframer.poll_event(), Err(error.clone()), "an error is for good");
                return (found, Err(error));
            }
        }
    }
    let clean = deframer.is_at_boundary() && payload == 0;
    (found, Ok(clean))
}

/// The same through the room that the deframer gives, filled in part, and in turn with bytes read elsewhere.
fn events_read(deframer: &mut Deframer, wire: &[u8], piece: usize) -> Events {
    let mut found = Vec::new();
    let mut rest = wire;
    let mut payload = 0;
    let mut in_place = true;
    while !rest.is_empty() {
        if payload > 0 {
            let n = payload.min(rest.len());
            payload -= n;
            rest.advance(n);
            continue;
        }
        let space = deframer.space();
        assert!(!space.is_empty(), "no room, and no event");
        let n = space.len().min(rest.len()).min(piece);
        if in_place {
            space[..n].copy_from_slice(&rest[..n]);
            deframer.handle_read(n);
            rest.advance(n);
        } else {
            rest.advance(deframer.handle_bytes(&rest[..n]));
        }
        in_place = !in_place;
        match deframer.poll_event() {
            Ok(None) => {}
            Ok(Some(event)) => {
                payload = payload_of(&event);
                found.push((event, wire.len() - rest.len()));
            }
            Err(error) => return (found, Err(error)),
        }
    }
    let clean = deframer.is_at_boundary() && payload == 0;
    (found, Ok(clean))
}

fn payload_of(event: &Event) -> usize {
    match event {
        Event::Data(head) => usize::try_from(head.payload_bytes).expect("32 bits fit"),
        Event::Frame(_) => 0,
    }
}

/// Appends the frame of an event.
pub(crate) fn encode(event: &Event, out: &mut BytesMut) {
    fn all<T: Entry>(batch: &Batch<T>) -> Vec<T> {
        batch.iter().collect()
    }
    match event {
        Event::Data(head) => encode_data_head(head.stream, head.sequence, &all(&head.slots), out),
        Event::Frame(frame) => match frame {
            Frame::Control(message) => encode_control(message, out).expect("it was accepted"),
            Frame::Slots(batch) => encode_slots(&all(batch), out),
            Frame::Release(batch) => encode_releases(&all(batch), out),
            Frame::Ack(batch) => encode_numbers(FrameKind::Ack, &all(batch), out),
            Frame::Credit(batch) => encode_numbers(FrameKind::Credit, &all(batch), out),
            Frame::Backlog(batch) => encode_numbers(FrameKind::Backlog, &all(batch), out),
            Frame::Demand(batch) => encode_numbers(FrameKind::Demand, &all(batch), out),
            Frame::Grant(batch) => encode_grants(&all(batch), out),
            Frame::End(batch) => encode_ends(&all(batch), out),
            Frame::Ping(nonce) => encode_ping(FrameKind::Ping, *nonce, out),
            Frame::Pong(nonce) => encode_ping(FrameKind::Pong, *nonce, out),
        },
    }
}

/// Protobuf has more than one encoding of a message; everything else has one.
fn check_canonical(event: &Event, wire: &[u8]) {
    let mut encoded = BytesMut::new();
    if let Event::Frame(Frame::Control(message)) = event {
        // A message can be longer in its one encoding by us than it came, but not by much.
        if encode_control(message, &mut encoded).is_ok() {
            let (again, end) = events(&mut Deframer::new(), &encoded, encoded.len());
            assert_eq!(end, Ok(true));
            assert!(matches!(&again[..], [(again, _)] if again == event));
        }
        return;
    }
    encode(event, &mut encoded);
    assert!(wire.ends_with(&encoded), "accepted, but not what encoding gives");
}

/// Makes magic, version and checksums of the frames in the bytes fit.
fn repair(wire: &mut [u8]) {
    let mut rest = wire;
    while rest.len() >= HEADER_BYTES {
        let (header, body) = rest.split_at_mut(HEADER_BYTES);
        let word = |header: &[u8], at: usize| {
            let bytes = header[at..at + 4].try_into().expect("four bytes");
            usize::try_from(u32::from_le_bytes(bytes)).expect("32 bits fit")
        };
        let length = word(header, 8);
        let entries = match FrameKind::try_from(header[5]) {
            Ok(FrameKind::Control) => length,
            Ok(kind) => {
                let entry = usize::try_from(kind.entry_bytes()).expect("32 bits fit");
                word(header, 12).saturating_mul(entry)
            }
            Err(_) => 0,
        };
        header[..4].copy_from_slice(&MAGIC);
        header[4] = WIRE_VERSION;
        let checksum = crc32fast::hash(&body[..entries.min(body.len())]);
        header[32..36].copy_from_slice(&checksum.to_le_bytes());
        let checksum = crc32fast::hash(&header[..36]);
        header[36..].copy_from_slice(&checksum.to_le_bytes());
        let next = length.min(body.len());
        rest = &mut body[next..];
    }
}

/// A frame of this kind around these bytes, with checksums that fit.
pub(crate) fn frame(kind: FrameKind, count: u32, body: &[u8]) -> Vec<u8> {
    let header = Header {
        kind,
        length: u32::try_from(body.len()).expect("a short body"),
        count,
        stream: 0,
        sequence: 0,
        body_checksum: crc32fast::hash(body),
    };
    [&header.encode()[..], body].concat()
}
