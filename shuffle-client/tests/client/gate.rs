//! The gate against a server that does only what the test says.

use std::time::Duration;

use crate::fake::{BUFFER_BYTES, attach, error_of, one_channel, partition, soon, sub};
use crate::feed::{Feed, encoded};
use bytes::Bytes;
use shuffle_client::{BufferOrEvent, Gate, RecordOrEvent};
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::{Arena, SlotEntry};
use shuffle_protocol::ids::SubpartitionRange;
use shuffle_protocol::partition::BufferKind;
use tokio::time::timeout;

const MOMENT: Duration = Duration::from_millis(50);

pub(crate) async fn records(gate: &mut Gate, count: usize) -> Vec<Bytes> {
    let mut records = Vec::new();
    while records.len() < count {
        records.push(
            soon("a record", gate.next_record())
                .await
                .unwrap()
                .expect("a record, not the end")
                .bytes,
        );
    }
    records
}

#[tokio::test]
async fn records_come_in_place_and_go_back_when_dropped() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel().credits(3, 5)).await;
    assert_eq!((open.exclusive, open.floating, open.channels.len()), (3, 5, 1));
    assert_eq!(open.channels[0].partition, Some(partition().into()));
    let mut feed = Feed::new(open.channels[0].stream);
    let entry = feed.records(&fake, 6, &[b"one", b"", b"three"]);
    fake.deliver(&[entry]).await;
    let came = records(&mut gate, 3).await;
    assert_eq!(came, [&b"one"[..], b"", b"three"]);
    fake.take_ack(1).await;
    fake.end(feed.end(true)).await;
    assert!(soon("the end", gate.next_record()).await.unwrap().is_none());
    fake.take_ack(2).await;
    assert!(gate.next_record().await.unwrap().is_none(), "and it stays the end");
    // The records are still there, and the buffer is not back.
    assert_eq!(came[2], &b"three"[..]);
    drop(came);
    let release = fake.take_releases(1).await[0];
    assert_eq!(
        (release.slot, release.arena, release.stream.value()),
        (6, Arena::Read, open.channels[0].stream)
    );
    assert_eq!(
        (
            gate.stats().buffers,
            gate.stats().remote_bytes,
            gate.stats().local_bytes
        ),
        (1, 20, 0)
    );
}

#[tokio::test]
async fn views_outlive_gate_and_session_and_go_back_from_any_thread() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    feed.arena = Arena::Write;
    let (first, second) = (feed.records(&fake, 1, &[b"kept"]), feed.records(&fake, 2, &[b"queued"]));
    fake.deliver(&[first, second]).await;
    let kept = records(&mut gate, 1).await.pop().unwrap();
    assert_eq!(gate.stats().local_bytes, 8);
    drop(gate);
    drop(session);
    assert_eq!(
        fake.take_releases(1).await[0].slot,
        2,
        "what nobody took goes back at once"
    );
    assert!(matches!(fake.next_message().await, Message::CloseGate(_)));
    let reader = std::thread::spawn(move || assert_eq!(kept, &b"kept"[..]));
    let release = fake.take_releases(1).await[0];
    assert_eq!((release.slot, release.arena), (1, Arena::Write));
    reader.join().unwrap();
    assert!(
        matches!(fake.next_message().await, Message::Goodbye(_)),
        "only now the session ends"
    );
}

#[tokio::test]
async fn records_span_buffers() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let long: Vec<u8> = (0..=250).cycle().take(10_000).collect();
    let stream = encoded(&[b"a", &long, b"b"]);
    let mut starts = [2, 0, 1].into_iter();
    for (slot, piece) in (0..).zip(stream.chunks(BUFFER_BYTES as usize)) {
        let mut entry = feed.buffer(&fake, slot, piece, starts.next().unwrap());
        entry.partial_start = slot > 0;
        fake.deliver(&[entry]).await;
    }
    let came = records(&mut gate, 3).await;
    assert!(came[0] == b"a"[..] && came[1] == long && came[2] == b"b"[..]);
    // The middle of the long record is a copy: its buffer is free though all records are held.
    assert_eq!(fake.take_releases(1).await[0].slot, 1);
    fake.end(feed.end(true)).await;
    assert!(soon("the end", gate.next_record()).await.unwrap().is_none());
}

#[tokio::test]
async fn buffers_events_and_ends_come_in_stream_order() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let event = |mut entry: SlotEntry, continues| {
        entry.kind = BufferKind::Event;
        entry.continues = continues;
        entry
    };
    let data = feed.buffer(&fake, 0, b"raw", 1);
    let before = feed.totals;
    let first = event(feed.buffer(&fake, 1, b"ev", 0), true);
    let second = event(feed.buffer(&fake, 2, b"ent", 0), false);
    // The feed counted them as data.
    feed.totals = before;
    feed.totals.add_buffer(2, first.checksum, 0, BufferKind::Event);
    feed.totals.add_buffer(3, second.checksum, 0, BufferKind::Event);
    fake.deliver(&[data, first, second]).await;
    fake.end(feed.end(true)).await;
    let Some(BufferOrEvent::Buffer(buffer)) = gate.next_buffer().await.unwrap() else {
        panic!("a buffer")
    };
    assert_eq!(
        (&buffer.bytes[..], buffer.records, buffer.partial_start, buffer.channel),
        (&b"raw"[..], 1, false, 0)
    );
    let Some(BufferOrEvent::Event(event)) = gate.next_buffer().await.unwrap() else {
        panic!("an event")
    };
    assert_eq!((&event.bytes[..], event.subpartition), (&b"event"[..], sub(0)));
    let Some(BufferOrEvent::EndOfSubpartition(end)) = gate.next_buffer().await.unwrap() else {
        panic!("an end")
    };
    assert_eq!((end.totals, end.subpartition), (feed.totals, sub(0)));
    assert!(matches!(
        gate.next_buffer().await.unwrap(),
        Some(BufferOrEvent::EndOfChannel { channel: 0 })
    ));
    assert!(gate.next_buffer().await.unwrap().is_none());
    let error = error_of(gate.next_record().await);
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest), "{error}");
}

#[tokio::test]
async fn the_record_layer_gives_events_to_who_wants_them() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let mut marker = feed.buffer(&fake, 0, b"marker", 0);
    marker.kind = BufferKind::Event;
    let data = feed.records(&fake, 1, &[b"r"]);
    fake.deliver(&[marker, data]).await;
    let Some(RecordOrEvent::Event(event)) = gate.next_record_or_event().await.unwrap() else {
        panic!("an event")
    };
    assert_eq!(&event.bytes[..], b"marker");
    assert_eq!(records(&mut gate, 1).await, [&b"r"[..]]);
}

#[tokio::test]
async fn a_cancelled_channel_goes_and_the_others_stay() {
    let (session, mut fake) = attach().await;
    let range = SubpartitionRange::new(0, 1).unwrap();
    let (mut gate, open) = fake
        .gate(&session, one_channel().channel(None, partition(), range))
        .await;
    let (mut first, mut second) = (Feed::new(open.channels[0].stream), Feed::new(open.channels[1].stream));
    let entries = [
        first.records(&fake, 0, &[b"a", b"b"]),
        second.records(&fake, 1, &[b"c"]),
    ];
    fake.deliver(&entries).await;
    assert_eq!(records(&mut gate, 1).await, [&b"a"[..]]);
    gate.cancel_channel(0);
    gate.cancel_channel(0);
    gate.cancel_channel(7);
    let Message::CancelChannel(cancel) = fake.next_message().await else {
        panic!("a cancel")
    };
    assert_eq!(cancel.stream, open.channels[0].stream);
    let late = first.records(&fake, 2, &[b"late"]);
    fake.deliver(&[late]).await;
    fake.end(second.end(true)).await;
    let record = soon("the other channel", gate.next_record()).await.unwrap().unwrap();
    assert_eq!((record.channel, &record.bytes[..]), (1, &b"c"[..]));
    assert!(
        soon("the end", gate.next_record()).await.unwrap().is_none(),
        "a cancelled channel need not end"
    );
}

#[tokio::test]
async fn a_gate_reads_its_channels_fairly() {
    let (session, mut fake) = attach().await;
    let range = SubpartitionRange::new(0, 1).unwrap();
    let (mut gate, open) = fake
        .gate(&session, one_channel().channel(None, partition(), range))
        .await;
    for (slots, channel) in [(0..8, 0), (8..16, 1)] {
        let mut feed = Feed::new(open.channels[channel].stream);
        let entries: Vec<_> = slots.map(|slot| feed.records(&fake, slot, &[b"x"])).collect();
        fake.deliver(&entries).await;
    }
    tokio::time::sleep(MOMENT).await;
    let mut order = Vec::new();
    for _ in 0..16 {
        order.push(soon("a record", gate.next_record()).await.unwrap().unwrap().channel);
    }
    let switches = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(switches >= 3, "{order:?}");
}

#[tokio::test]
async fn a_dropped_read_loses_nothing() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    assert!(timeout(MOMENT, gate.next_record()).await.is_err());
    let entry = feed.records(&fake, 0, &[b"a"]);
    fake.deliver(&[entry]).await;
    tokio::time::sleep(MOMENT).await;
    // Polled once with the data there, and again without.
    assert_eq!(records(&mut gate, 1).await, [&b"a"[..]]);
    assert!(timeout(MOMENT, gate.next_record()).await.is_err());
    fake.end(feed.end(true)).await;
    assert!(soon("the end", gate.next_record()).await.unwrap().is_none());
}

#[tokio::test]
async fn an_opening_that_nobody_waits_for_is_undone() {
    let (session, mut fake) = attach().await;
    assert!(timeout(MOMENT, session.open_gate(one_channel())).await.is_err());
    let Message::OpenGate(open) = fake.message().await else {
        panic!("a gate")
    };
    let mut feed = Feed::new(open.channels[0].stream);
    assert!(matches!(fake.message().await, Message::CloseGate(close) if close.gate == open.gate));
    fake.reply(open.request, None).await;
    assert!(matches!(fake.message().await, Message::CloseGate(close) if close.gate == open.gate));
    let entry = feed.records(&fake, 9, &[b"too late"]);
    fake.deliver(&[entry]).await;
    assert_eq!(fake.take_releases(1).await[0].slot, 9);
}

#[tokio::test]
async fn opening_and_cancelling_leaves_nothing_behind() {
    let (session, mut fake) = attach().await;
    for round in 0..200 {
        let (mut gate, open) = fake.gate(&session, one_channel()).await;
        let mut feed = Feed::new(open.channels[0].stream);
        let entry = feed.records(&fake, round % 16, &[b"x"]);
        fake.deliver(&[entry]).await;
        assert_eq!(records(&mut gate, 1).await.len(), 1);
        drop(gate);
        assert_eq!(fake.take_releases(1).await[0].slot, round % 16);
        assert!(matches!(fake.next_message().await, Message::CloseGate(_)));
    }
}
