//! Channels and the demultiplexer against streams that the test cuts, repeats and falsifies.

use bytes::Bytes;
use proptest::prelude::*;
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::frame::{EndEntry, SlotEntry};
use shuffle_protocol::ids::{
    NodeAddress, PartitionId, ResultId, Sequence, StreamId, SubpartitionIndex, SubpartitionRange,
};
use shuffle_protocol::partition::Totals;

use super::channel::{Channel, Source};
use super::demux::{Arrival, Demux, Item, Output};
use super::mismatch::Payload;

const WINDOW: u64 = 100;

impl Payload for Bytes {
    fn renew(&mut self, repeated: Self) {
        *self = repeated;
    }
}

fn source(index: u32, range: SubpartitionRange) -> Source {
    Source {
        stream: StreamId::new(70 + index),
        node: NodeAddress::parse("far:7").unwrap(),
        partition: PartitionId {
            result: ResultId::new(7),
            index: 11,
            attempt: 5,
        },
        range,
        window: WINDOW,
    }
}

fn demux(channels: u32, range: SubpartitionRange) -> Demux<Bytes> {
    Demux::new((0..channels).map(|index| Channel::new(source(index, range))).collect())
}

fn range(first: u32, count: u32) -> SubpartitionRange {
    SubpartitionRange::new(first, count).unwrap()
}

/// Writes one channel.
#[derive(Default)]
struct Stream {
    next: u64,
    totals: Vec<(u32, Totals)>,
}

impl Stream {
    fn sequence(&mut self) -> Sequence {
        self.next += 1;
        Sequence::new(self.next - 1)
    }

    fn buffer(&mut self, subpartition: u32, payload: &[u8]) -> Arrival<Bytes> {
        let entry = SlotEntry {
            sequence: self.sequence(),
            subpartition: SubpartitionIndex::new(subpartition),
            length: u32::try_from(payload.len()).unwrap(),
            checksum: crc32fast::hash(payload),
            records: 1,
            ..SlotEntry::default()
        };
        if !self.totals.iter().any(|(known, _)| *known == subpartition) {
            self.totals.push((subpartition, Totals::default()));
        }
        let (_, totals) = self
            .totals
            .iter_mut()
            .find(|(known, _)| *known == subpartition)
            .unwrap();
        totals.add_buffer(entry.length, entry.checksum, entry.records, entry.kind);
        Arrival::Buffer(entry, Bytes::copy_from_slice(payload))
    }

    fn end(&mut self, subpartition: u32, last: bool) -> Arrival<Bytes> {
        let totals = self.totals.iter().find(|(known, _)| *known == subpartition);
        let totals = totals.map(|(_, totals)| *totals).unwrap_or_default();
        Arrival::End(EndEntry {
            sequence: self.sequence(),
            subpartition: SubpartitionIndex::new(subpartition),
            totals,
            last,
            ..EndEntry::default()
        })
    }
}

fn drain(demux: &mut Demux<Bytes>) -> Result<Vec<Output<Bytes>>> {
    let mut outputs = Vec::new();
    loop {
        demux.check_invariants();
        match demux.poll_item()? {
            None => return Ok(outputs),
            Some(output) => outputs.push(output),
        }
    }
}

fn run(arrivals: Vec<Arrival<Bytes>>, range: SubpartitionRange) -> Result<Vec<Output<Bytes>>> {
    let mut demux = demux(1, range);
    let mut outputs = Vec::new();
    for arrival in arrivals {
        demux.handle_arrival(0, arrival)?;
        outputs.extend(drain(&mut demux)?);
    }
    assert_eq!(
        demux.is_finished(),
        outputs.iter().any(|output| matches!(output.item, Item::EndOfChannel))
    );
    Ok(outputs)
}

fn assert_located(error: &ShuffleError, subpartition: Option<u32>) {
    let location = error.location();
    assert_eq!(location.partition.map(|partition| partition.index), Some(11));
    assert_eq!(location.node.as_ref().map(NodeAddress::as_str), Some("far:7"));
    assert_eq!(location.stream, Some(StreamId::new(70)));
    assert_eq!(location.subpartition.map(SubpartitionIndex::value), subpartition);
}

fn sample() -> Vec<Arrival<Bytes>> {
    let mut stream = Stream::default();
    vec![
        stream.buffer(13, b"one"),
        stream.buffer(14, b"two"),
        stream.buffer(13, b"three"),
        stream.end(13, false),
        stream.end(15, false),
        stream.end(14, true),
    ]
}

#[test]
fn a_whole_stream_comes_out_and_is_acknowledged() {
    let outputs = run(sample(), range(13, 3)).unwrap();
    assert_eq!(outputs.len(), 7);
    let acks: Vec<u64> = outputs.iter().map(|output| output.ack.1.value()).collect();
    assert_eq!(acks, [1, 2, 3, 4, 5, 6, 6]);
    assert!(matches!(outputs[6].item, Item::EndOfChannel));
}

#[test]
fn nothing_can_be_lost_or_repeated() {
    for lost in 0..6 {
        let mut arrivals = sample();
        arrivals.remove(lost);
        match run(arrivals, range(13, 3)) {
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Protocol)),
            Ok(outputs) => {
                assert_eq!(lost, 5, "only the loss of the last leaves the channel open");
                assert!(!outputs.iter().any(|output| matches!(output.item, Item::EndOfChannel)));
            }
        }
    }
    let mut arrivals = sample();
    arrivals.insert(1, sample().remove(0));
    let error = run(arrivals, range(13, 3)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Protocol));
    assert_located(&error, Some(13));
}

#[test]
fn every_count_is_checked_and_named() {
    type Falsify = fn(&mut Totals);
    let falsifications: [(&str, Falsify); 4] = [
        ("buffers", |totals| totals.buffers += 1),
        ("records", |totals| totals.records -= 1),
        ("bytes", |totals| totals.bytes += 8),
        ("digest", |totals| {
            totals.digest = totals.digest.mix(0, 0, Default::default())
        }),
    ];
    for (name, falsify) in falsifications {
        let mut arrivals = sample();
        let Arrival::End(end) = &mut arrivals[3] else {
            panic!("an end")
        };
        falsify(&mut end.totals);
        let error = run(arrivals, range(13, 3)).unwrap_err();
        let ErrorKind::CountMismatch { what, expected, got } = error.kind() else {
            panic!("{error}")
        };
        assert_eq!(what, name);
        assert_ne!(expected, got);
        assert_located(&error, Some(13));
    }
}

#[test]
fn a_channel_does_not_end_before_all_its_subpartitions() {
    let mut stream = Stream::default();
    let arrivals = vec![stream.end(13, false), stream.end(14, true)];
    let error = run(arrivals, range(13, 3)).unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::CountMismatch {
                expected: 3,
                got: 2,
                ..
            }
        ),
        "{error}"
    );
    assert_located(&error, None);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut stream = Stream::default();
    let after_end = vec![stream.end(13, false), stream.buffer(13, b"x")];
    let mut stream = Stream::default();
    let twice = vec![stream.end(13, false), stream.end(13, false)];
    let mut stream = Stream::default();
    let elsewhere = vec![stream.buffer(99, b"x")];
    let mut stream = Stream::default();
    let after_last = vec![stream.end(13, false), stream.end(14, true), stream.buffer(13, b"x")];
    for arrivals in [after_end, twice, elsewhere] {
        assert!(matches!(
            run(arrivals, range(13, 2)).unwrap_err().kind(),
            ErrorKind::Protocol
        ));
    }
    let mut demux = demux(1, range(13, 2));
    let results: Vec<_> = after_last
        .into_iter()
        .map(|arrival| demux.handle_arrival(0, arrival))
        .collect();
    assert!(results[1].is_ok() && results[2].is_err());
    assert!(demux.handle_arrival(1, sample().remove(0)).is_err());
}

fn flipped(arrival: &Arrival<Bytes>, bit: usize) -> Arrival<Bytes> {
    let Arrival::Buffer(entry, payload) = arrival else {
        panic!("a buffer")
    };
    let mut flipped = payload.to_vec();
    flipped[bit / 8] ^= 1 << (bit % 8);
    Arrival::Buffer(*entry, flipped.into())
}

/// What comes out, and what is to be reported: channel and sequence.
fn deliver(demux: &mut Demux<Bytes>, index: u32, arrival: Arrival<Bytes>) -> (Vec<u32>, Vec<(u32, u64)>) {
    demux.handle_arrival(index, arrival).unwrap();
    let outputs = drain(demux).unwrap();
    let reported = demux.take_mismatches();
    let named = |mismatch: &super::mismatch::Mismatch| (mismatch.stream.value(), mismatch.entry.sequence.value());
    (
        outputs.iter().map(|output| output.channel).collect(),
        reported.iter().map(named).collect(),
    )
}

#[test]
fn a_flipped_bit_holds_up_its_channel_until_it_comes_once_more() {
    for bit in 0..24 {
        let mut demux = demux(2, range(13, 3));
        let mut first = sample();
        let good = first.remove(0);
        let report = (vec![], vec![(70, 0)]);
        assert_eq!(deliver(&mut demux, 0, flipped(&good, bit)), report);
        for arrival in first {
            assert_eq!(deliver(&mut demux, 0, arrival), (vec![], vec![]), "order is kept");
        }
        for arrival in sample() {
            let out = deliver(&mut demux, 1, arrival);
            assert!(out.0.iter().all(|channel| *channel == 1) && !out.0.is_empty() && out.1.is_empty());
        }
        // Once more the same, and then as it was.
        assert_eq!(deliver(&mut demux, 0, flipped(&good, bit)), report);
        let (out, reported) = deliver(&mut demux, 0, good);
        assert_eq!((out.len(), reported.len()), (7, 0), "six, and the end of the channel");
        assert_eq!(demux.refetched(), 2);
        assert!(demux.is_finished());
    }
}

#[test]
fn what_comes_once_more_is_the_buffer_that_was_reported() {
    let wrongs: [fn(&mut Arrival<Bytes>); 2] = [
        |arrival| *arrival = Stream::default().end(13, false),
        |arrival| {
            let Arrival::Buffer(entry, _) = arrival else { panic!() };
            entry.length += 1;
        },
    ];
    for wrong in wrongs {
        let mut demux = demux(1, range(13, 3));
        let mut once_more = sample().remove(0);
        deliver(&mut demux, 0, flipped(&once_more, 3));
        wrong(&mut once_more);
        let error = demux.handle_arrival(0, once_more).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Protocol), "{error}");
        assert_located(&error, Some(13));
    }
}

#[test]
fn a_channel_that_is_given_up_awaits_nothing() {
    let mut demux = demux(1, range(13, 3));
    let good = sample().remove(0);
    deliver(&mut demux, 0, flipped(&good, 3));
    assert!(demux.cancel(0));
    assert_eq!(deliver(&mut demux, 0, good), (vec![], vec![]));
    assert!(demux.is_finished());
}

#[test]
fn more_than_the_credit_is_refused() {
    let mut stream = Stream::default();
    let mut demux = demux(1, range(13, 1));
    for _ in 0..WINDOW {
        demux.handle_arrival(0, stream.buffer(13, b"")).unwrap();
    }
    let error = demux.handle_arrival(0, stream.buffer(13, b"")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Protocol));
}

#[test]
fn channels_take_turns() {
    let mut demux = demux(3, range(13, 1));
    for index in 0..3 {
        let mut stream = Stream::default();
        for _ in 0..10 {
            demux.handle_arrival(index, stream.buffer(13, b"x")).unwrap();
        }
    }
    let order: Vec<u32> = drain(&mut demux).unwrap().iter().map(|output| output.channel).collect();
    assert_eq!(order[..14], [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0]);
    assert_eq!(order.len(), 30);
}

#[test]
fn a_cancelled_channel_is_silent_and_the_others_end() {
    let mut demux = demux(2, range(13, 1));
    let (mut first, mut second) = (Stream::default(), Stream::default());
    demux.handle_arrival(0, first.buffer(13, b"x")).unwrap();
    demux.handle_arrival(1, second.buffer(13, b"y")).unwrap();
    assert!(demux.cancel(0) && !demux.cancel(0) && !demux.cancel(9));
    demux.handle_arrival(0, first.buffer(13, b"late")).unwrap();
    demux.handle_arrival(1, second.end(13, true)).unwrap();
    let outputs = drain(&mut demux).unwrap();
    assert!(outputs.iter().all(|output| output.channel == 1) && outputs.len() == 3);
    assert!(demux.is_finished());
}

proptest! {
    /// However arrivals of several channels interleave with reading, each channel comes out in order and whole.
    #[test]
    fn each_channel_comes_out_in_order(choices in prop::collection::vec((0usize..4, any::<bool>()), 0..200)) {
        let mut demux = demux(3, range(13, 1));
        let mut pending: Vec<Vec<Arrival<Bytes>>> = (0u8..3).map(|channel| {
            let mut stream = Stream::default();
            let mut arrivals: Vec<_> = (0..10).map(|n| stream.buffer(13, &[channel, n])).collect();
            arrivals.push(stream.end(13, true));
            arrivals.reverse();
            arrivals
        }).collect();
        let mut came: Vec<Vec<u8>> = vec![Vec::new(); 3];
        let mut ends = 0;
        let mut poll = |demux: &mut Demux<Bytes>| {
            demux.check_invariants();
            let output = demux.poll_item().unwrap();
            match output {
                None => return false,
                Some(Output { channel, item: Item::Buffer(_, payload), .. }) => came[channel as usize].push(payload[1]),
                Some(Output { item: Item::EndOfChannel, .. }) => ends += 1,
                Some(_) => {}
            }
            true
        };
        for (channel, read) in choices {
            if let Some(arrival) = pending.get_mut(channel).and_then(Vec::pop) {
                demux.handle_arrival(u32::try_from(channel).unwrap(), arrival).unwrap();
            }
            if read {
                poll(&mut demux);
            }
        }
        for (channel, rest) in (0u32..).zip(&mut pending) {
            while let Some(arrival) = rest.pop() {
                demux.handle_arrival(channel, arrival).unwrap();
            }
        }
        while poll(&mut demux) {}
        prop_assert_eq!(ends, 3);
        prop_assert!(demux.is_finished());
        for channel in came {
            prop_assert_eq!(channel, (0..10).collect::<Vec<u8>>());
        }
    }
}
