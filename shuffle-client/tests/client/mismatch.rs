//! Buffers that do not have their checksum: what the server is told, and what becomes of its answer.

use shuffle_client::Gate;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{ChannelFailed, ReportMismatch};
use shuffle_protocol::error::{ErrorKind, ShuffleError, Verdict};
use shuffle_protocol::frame::SlotEntry;
use shuffle_protocol::ids::StreamId;

use crate::fake::{Fake, attach, attach_tcp, error_of, one_channel, soon};
use crate::feed::{Feed, encoded};

/// What is reported while the gate is read.
async fn reported(fake: &mut Fake, gate: &mut Gate) -> ReportMismatch {
    let report = async {
        match fake.next_message().await {
            Message::ReportMismatch(report) => report,
            other => panic!("{other:?}"),
        }
    };
    tokio::select! {
        report = soon("the report", report) => report,
        item = gate.next_record() => panic!("{item:?} came out"),
    }
}

fn assert_report(report: &ReportMismatch, entry: &SlotEntry, payload: &[u8]) {
    let expected = ReportMismatch {
        stream: entry.stream.value(),
        sequence: entry.sequence.value(),
        subpartition: entry.subpartition.value(),
        slot: entry.slot,
        write_arena: false,
        length: entry.length,
        expected: entry.checksum,
        got: crc32fast::hash(payload),
        offset: entry.offset,
    };
    assert_eq!(*report, expected);
}

async fn flip(fake: &Fake, slot: u32) {
    let mut memory = fake.read.writable(slot).unwrap();
    memory[5] ^= 1;
    memory.hand_over();
}

#[tokio::test]
async fn what_comes_once_more_is_read_in_its_place_and_given_back_once() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let first = feed.records(&fake, 3, &[b"first"]);
    let second = feed.records(&fake, 4, &[b"second"]);
    flip(&fake, 3).await;
    fake.deliver(&[first, second]).await;
    let report = reported(&mut fake, &mut gate).await;
    let mut payload = encoded(&[b"first"]);
    payload[5] ^= 1;
    assert_report(&report, &first, &payload);
    flip(&fake, 3).await;
    fake.deliver(&[first]).await;
    for expected in [&b"first"[..], b"second"] {
        let record = soon("a record", gate.next_record()).await.unwrap().unwrap();
        assert_eq!(&record.bytes[..], expected);
    }
    fake.end(feed.end(true)).await;
    assert!(soon("the end", gate.next_record()).await.unwrap().is_none());
    assert_eq!((gate.stats().buffers, gate.stats().refetched_buffers), (2, 1));
    let mut back: Vec<u32> = fake.take_releases(2).await.iter().map(|entry| entry.slot).collect();
    back.sort_unstable();
    assert_eq!(back, [3, 4], "each once");
}

#[tokio::test]
async fn the_servers_verdict_fails_the_gate() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let mut entry = feed.records(&fake, 0, &[b"x"]);
    entry.checksum ^= 1;
    fake.deliver(&[entry]).await;
    let report = reported(&mut fake, &mut gate).await;
    assert_report(&report, &entry, &encoded(&[b"x"]));
    let kind = ErrorKind::ChecksumMismatch {
        expected: report.expected,
        got: report.got,
        sequence: report.sequence,
        verdict: Verdict::ProducerMemory,
    };
    let error = Some((&ShuffleError::new(kind.clone(), "traced")).into());
    let stream = report.stream;
    fake.say(Message::ChannelFailed(ChannelFailed { stream, error })).await;
    let error = error_of(soon("the failure", gate.next_record()).await);
    assert_eq!(*error.kind(), kind);
    assert_eq!(error.location().stream, Some(StreamId::new(stream)));
    assert_eq!(fake.take_releases(1).await[0].slot, 0);
}

/// The answer and the reader's farewell cross: the slot is given back once all the same.
#[tokio::test]
async fn what_comes_once_more_for_a_gate_that_is_gone_is_not_given_back_again() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let entry = feed.records(&fake, 3, &[b"first"]);
    flip(&fake, 3).await;
    fake.deliver(&[entry]).await;
    reported(&mut fake, &mut gate).await;
    drop(gate);
    fake.deliver(&[entry]).await;
    assert_eq!(fake.take_releases(1).await[0].slot, 3);
    assert!(matches!(fake.next_message().await, Message::CloseGate(_)));
    // Whatever it says to that comes before what it says to this.
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let other = feed.records(&fake, 4, &[b"other"]);
    fake.deliver(&[other]).await;
    fake.end(feed.end(true)).await;
    let record = soon("a record", gate.next_record()).await.unwrap().unwrap();
    assert_eq!(&record.bytes[..], b"other");
    drop(record);
    assert!(soon("the end", gate.next_record()).await.unwrap().is_none());
    assert_eq!(fake.take_releases(1).await[0].slot, 4);
}

#[tokio::test]
async fn payload_that_came_inline_comes_inline_once_more() {
    let (session, mut fake) = attach_tcp().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let (good, mut bad) = (encoded(&[b"first"]), encoded(&[b"first"]));
    bad[5] ^= 1;
    let entry = feed.entry(3, &good, 1);
    fake.data(entry, &bad).await;
    let report = reported(&mut fake, &mut gate).await;
    assert_report(&report, &entry, &bad);
    fake.data(entry, &good).await;
    let record = soon("a record", gate.next_record()).await.unwrap().unwrap();
    assert_eq!(&record.bytes[..], b"first");
    drop(record);
    fake.end(feed.end(true)).await;
    assert!(soon("the end", gate.next_record()).await.unwrap().is_none());
    assert_eq!(fake.take_releases(1).await[0].slot, 3);
}
