//! The same over TCP: payload inline, nothing else differs.

use crate::fake::{BUFFER_BYTES, attach_tcp, error_of, one_channel, partition, soon, sub};
use crate::feed::{Feed, encoded};
use shuffle_client::{FlushInterval, PartitionSpec};
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::{DataHead, Event, Frame};

fn spec() -> PartitionSpec {
    PartitionSpec::new(partition(), 1).flush_interval(FlushInterval::WhenFull)
}

#[tokio::test]
async fn written_buffers_travel_with_their_payload() {
    let (session, mut fake) = attach_tcp().await;
    let (mut writer, id) = fake.writer(&session, spec()).await;
    fake.grant(id, [4, 5, 6]).await;
    let big = vec![9; BUFFER_BYTES as usize + 100];
    writer.write_to(sub(0), b"small").await.unwrap();
    writer.write_to(sub(0), &big).await.unwrap();
    writer.write_event(None, b"").await.unwrap();
    let mut came: Vec<(DataHead, Vec<u8>)> = Vec::new();
    while came.len() < 3 {
        match fake.event().await {
            Some(Event::Data(head)) => {
                let payload = fake.payload(&head).await;
                came.push((head, payload));
            }
            Some(Event::Frame(Frame::Demand(_))) => {}
            other => panic!("{other:?}"),
        }
    }
    let stream: Vec<u8> = came.iter().flat_map(|(_, payload)| payload.clone()).collect();
    assert_eq!(stream, encoded(&[b"small", &big]));
    for (number, (head, payload)) in came.iter().enumerate() {
        let entry = head.slots.iter().next().unwrap();
        assert_eq!((entry.stream.value(), entry.sequence.value()), (id, number as u64));
        assert_eq!(entry.checksum, crc32fast::hash(payload));
    }
}

#[tokio::test]
async fn received_payload_is_checked_and_released_like_shared_memory() {
    let (session, mut fake) = attach_tcp().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let long = vec![7; 3000];
    let payload = encoded(&[b"one", &long]);
    let entry = feed.entry(12, &payload, 2);
    fake.data(entry, &payload).await;
    let empty = feed.entry(13, b"", 0);
    fake.data(empty, b"").await;
    let first = soon("a record", gate.next_record()).await.unwrap().unwrap();
    let second = soon("a record", gate.next_record()).await.unwrap().unwrap();
    assert_eq!((&first.bytes[..], &second.bytes[..]), (&b"one"[..], &long[..]));
    fake.end(feed.end(true)).await;
    assert!(soon("the end", gate.next_record()).await.unwrap().is_none());
    assert_eq!(fake.take_releases(1).await[0].slot, 13);
    drop((first, second));
    assert_eq!(
        fake.take_releases(1).await[0].slot,
        12,
        "the slot is echoed, though it was never mapped here"
    );
}

#[tokio::test]
async fn a_descriptor_without_payload_makes_no_sense_here() {
    let (session, mut fake) = attach_tcp().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let entry = feed.entry(1, b"where?", 1);
    fake.deliver(&[entry]).await;
    let error = error_of(soon("the failure", gate.next_record()).await);
    assert!(matches!(error.kind(), ErrorKind::Protocol), "{error}");
    assert!(matches!(fake.next_message().await, Message::Goodbye(_)));
}

#[tokio::test]
async fn a_connection_cut_in_the_middle_of_payload_is_lost() {
    let (session, mut fake) = attach_tcp().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let entry = feed.entry(1, &[1; 1000], 1);
    fake.data(entry, &[1; 500]).await;
    drop(fake);
    let error = error_of(soon("the failure", gate.next_record()).await);
    assert!(matches!(error.kind(), ErrorKind::ConnectionLost), "{error}");
}
