//! Frames there and back.

mod model;
mod samples;

use bytes::BytesMut;
use model::deframer::{encode, events};
use proptest::prelude::*;
use shuffle_protocol::frame::{
    Arena, Batch, Deframer, EndEntry, Event, Frame, FrameError, FrameKind, GrantEntry, HEADER_BYTES, NumberEntry,
    ReleaseEntry, SlotEntry, encode_data_head, encode_grants, encode_numbers, encode_slots,
};
use shuffle_protocol::ids::{Sequence, StreamId, SubpartitionIndex, WriterId};
use shuffle_protocol::limits::{MAX_BATCH_ENTRIES, MAX_BUFFER_BYTES};
use shuffle_protocol::partition::{BufferKind, Codec, Digest, Totals};

fn decode_all(wire: &[u8]) -> Vec<Event> {
    let (found, end) = events(&mut Deframer::new(), wire, wire.len());
    assert_eq!(end, Ok(true));
    found.into_iter().map(|(event, _)| event).collect()
}

fn decode_error(wire: &[u8]) -> Option<FrameError> {
    events(&mut Deframer::new(), wire, wire.len()).1.err()
}

// ------------------------------------------------------------------------------- there and back

prop_compose! {
    fn slots()(
        numbers: [u32; 4], sequence: u64, place in (0..=MAX_BUFFER_BYTES).prop_flat_map(|offset|
            (Just(offset), 0..=MAX_BUFFER_BYTES - offset)),
        records: u32, backlog: u32, flags: [bool; 6], codec in 0..3usize,
    ) -> SlotEntry {
        SlotEntry {
            stream: StreamId::new(numbers[0]),
            subpartition: SubpartitionIndex::new(numbers[1]),
            sequence: Sequence::new(sequence),
            slot: numbers[2],
            offset: place.0,
            length: place.1,
            checksum: numbers[3],
            records,
            backlog,
            arena: if flags[0] { Arena::Read } else { Arena::Write },
            kind: if flags[1] { BufferKind::Event } else { BufferKind::Data },
            continues: flags[2],
            partial_start: flags[3],
            unchecked: flags[4],
            more_slices: flags[5],
            codec: [Codec::Plain, Codec::Lz4, Codec::Zstd][codec],
        }
    }
}

prop_compose! {
    fn ends()(numbers: [u32; 2], sequence: u64, counts: [u64; 4], last: bool) -> EndEntry {
        let [buffers, records, bytes, digest] = counts;
        EndEntry {
            stream: StreamId::new(numbers[0]),
            subpartition: SubpartitionIndex::new(numbers[1]),
            sequence: Sequence::new(sequence),
            totals: Totals { buffers, records, bytes, digest: Digest::new(digest) },
            last,
        }
    }
}

fn releases() -> impl Strategy<Value = ReleaseEntry> {
    any::<(u32, u32, bool)>().prop_map(|(stream, slot, read)| ReleaseEntry {
        stream: StreamId::new(stream),
        slot,
        arena: if read { Arena::Read } else { Arena::Write },
    })
}

fn numbers() -> impl Strategy<Value = NumberEntry> {
    any::<(u32, u32, u64)>().prop_map(|(stream, subpartition, number)| NumberEntry {
        stream: StreamId::new(stream),
        subpartition: SubpartitionIndex::new(subpartition),
        number,
    })
}

fn grants() -> impl Strategy<Value = GrantEntry> {
    any::<(u32, u32)>().prop_map(|(writer, slot)| GrantEntry {
        writer: WriterId::new(writer),
        slot,
    })
}

fn batch<T: shuffle_protocol::frame::Entry + std::fmt::Debug>(
    entry: impl Strategy<Value = T>,
) -> impl Strategy<Value = Batch<T>> {
    prop::collection::vec(entry, 1..30).prop_map(|entries| Batch::from_entries(&entries))
}

fn frames() -> impl Strategy<Value = Frame> {
    let control = (0..samples::messages().len())
        .prop_map(|index| Frame::Control(Box::new(samples::messages().swap_remove(index))));
    prop_oneof![
        control,
        batch(slots()).prop_map(Frame::Slots),
        batch(releases()).prop_map(Frame::Release),
        batch(numbers()).prop_map(Frame::Ack),
        batch(numbers()).prop_map(Frame::Credit),
        batch(numbers()).prop_map(Frame::Backlog),
        batch(numbers()).prop_map(Frame::Demand),
        batch(grants()).prop_map(Frame::Grant),
        batch(ends()).prop_map(Frame::End),
        any::<u64>().prop_map(Frame::Ping),
        any::<u64>().prop_map(Frame::Pong),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_come_back(frames in prop::collection::vec(frames(), 1..8), piece in 1usize..200) {
        let frames: Vec<_> = frames.into_iter().map(Event::Frame).collect();
        let mut wire = BytesMut::new();
        frames.iter().for_each(|frame| encode(frame, &mut wire));
        prop_assert_eq!(&decode_all(&wire), &frames);
        let (pieces, end) = events(&mut Deframer::new(), &wire, piece);
        prop_assert_eq!(end, Ok(true));
        prop_assert!(pieces.iter().map(|(event, _)| event).eq(&frames));
    }

    #[test]
    fn data_comes_back(first in slots(), lengths in prop::collection::vec(0u32..5000, 1..40)) {
        let slices: Vec<_> = (0..).zip(&lengths).map(|(i, length)| SlotEntry {
            sequence: Sequence::new((first.sequence.value() >> 1) + i),
            offset: 0,
            length: *length,
            ..first
        }).collect();
        let mut wire = BytesMut::new();
        encode_data_head(first.stream, slices[0].sequence, &slices, &mut wire);
        let payload: u32 = lengths.iter().sum();
        wire.resize(wire.len() + usize::try_from(payload)?, 0xA5);

        let events = decode_all(&wire);
        let [Event::Data(head)] = &events[..] else { panic!("{events:?}") };
        prop_assert_eq!(head.payload_bytes, payload);
        prop_assert_eq!(head.stream, first.stream);
        prop_assert_eq!(head.sequence, slices[0].sequence);
        prop_assert_eq!(head.slots.iter().collect::<Vec<_>>(), slices);
    }

    #[test]
    fn noise_is_refused_at_once(noise in prop::collection::vec(any::<u8>(), HEADER_BYTES..200)) {
        // Only one in 2^32 of them begins as a frame does.
        prop_assert!(decode_error(&noise).is_some());
    }
}

/// The example of docs/protocol.md, byte by byte.
#[test]
fn the_documented_frame_is_what_is_sent() {
    let mut wire = BytesMut::new();
    let ack = NumberEntry {
        stream: StreamId::new(3),
        number: 42,
        ..NumberEntry::default()
    };
    encode_numbers(FrameKind::Ack, &[ack], &mut wire);
    let lines: Vec<String> = wire
        .chunks(16)
        .map(|line| {
            line.iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/protocol.md");
    let page = std::fs::read_to_string(page).unwrap();
    for line in &lines {
        assert!(page.contains(line), "docs/protocol.md lacks {lines:#?}");
    }
}

#[test]
fn long_batches_are_split() {
    let most = usize::try_from(MAX_BATCH_ENTRIES).unwrap();
    let entries = vec![GrantEntry::default(); 2 * most + 1];
    let mut wire = BytesMut::new();
    encode_grants(&entries, &mut wire);
    let lengths = decode_all(&wire).into_iter().map(|event| match event {
        Event::Frame(Frame::Grant(batch)) => batch.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(lengths.collect::<Vec<_>>(), [most, most, 1]);
    wire.clear();
    encode_slots(&[], &mut wire);
    assert!(wire.is_empty(), "no entries are no frame");
}
