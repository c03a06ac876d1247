//! Every way in which a gate can fail.

use std::time::Duration;

use crate::fake::{BUFFER_BYTES, Fake, JOB, attach, error_of, one_channel, partition, soon};
use crate::feed::{Feed, encoded};
use shuffle_client::{Gate, GateSpec};
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{self, ChannelFailed};
use shuffle_protocol::error::{ErrorKind, ShuffleError};

use shuffle_protocol::ids::{JobId, NodeAddress, StreamId, SubpartitionRange};

use crate::gate::records;

const MOMENT: Duration = Duration::from_millis(50);

async fn fails(fake: &mut Fake, gate: &mut Gate, check: impl Fn(&ErrorKind) -> bool) {
    let error = error_of(soon("the failure", gate.next_record()).await);
    assert!(check(error.kind()), "{error}");
    let location = error.location();
    assert_eq!(
        (location.job, location.partition),
        (Some(JobId::new(JOB)), Some(partition()))
    );
    assert_eq!(location.node.as_ref().map(NodeAddress::as_str), Some(crate::fake::NODE));
    assert!(location.stream.is_some());
    assert_eq!(error_of(gate.next_record().await), error, "the same from then on");
    let _ = fake;
}

#[tokio::test]
async fn a_buffer_without_checksum_is_not_checked_but_counted() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let mut entry = feed.records(&fake, 0, &[b"x"]);
    (entry.unchecked, entry.checksum) = (true, 0);
    fake.deliver(&[entry]).await;
    assert_eq!(records(&mut gate, 1).await, [&b"x"[..]]);
    fake.end(feed.end(true)).await;
    fails(
        &mut fake,
        &mut gate,
        |kind| matches!(kind, ErrorKind::CountMismatch { what, .. } if what == "digest"),
    )
    .await;
}

#[tokio::test]
async fn what_was_not_sent_so_is_an_error() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let entry = feed.records(&fake, 1, &[b"x"]);
    let lost = feed.records(&fake, 2, &[b"lost"]);
    feed.sequence = 1;
    fake.deliver(&[entry]).await;
    fake.end(feed.end(true)).await;
    assert_eq!(records(&mut gate, 1).await, [&b"x"[..]]);
    fails(
        &mut fake,
        &mut gate,
        |kind| matches!(kind, ErrorKind::CountMismatch { what, expected: 2, got: 1 } if what == "buffers"),
    )
    .await;
    let _ = lost;

    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let mut entry = feed.records(&fake, 3, &[b"x"]);
    entry.sequence = entry.sequence.next().unwrap();
    fake.deliver(&[entry]).await;
    fails(&mut fake, &mut gate, |kind| matches!(kind, ErrorKind::Protocol)).await;

    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let entry = feed.buffer(&fake, 4, &encoded(&[b"x", b"y"]), 1);
    fake.deliver(&[entry]).await;
    assert_eq!(records(&mut gate, 2).await.len(), 2);
    fails(&mut fake, &mut gate, |kind| {
        matches!(
            kind,
            ErrorKind::CountMismatch {
                expected: 1,
                got: 2,
                ..
            }
        )
    })
    .await;

    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let entry = feed.buffer(&fake, 5, &[0, 0, 0, 0x7F, 1], 1);
    fake.deliver(&[entry]).await;
    fails(&mut fake, &mut gate, |kind| {
        matches!(kind, ErrorKind::RecordTooLarge { .. })
    })
    .await;
}

#[tokio::test]
async fn a_failed_channel_fails_the_gate_with_its_first_cause() {
    let (session, mut fake) = attach().await;
    let far = NodeAddress::parse("far:9").unwrap();
    let range = SubpartitionRange::new(4, 1).unwrap();
    let spec = one_channel().channel(Some(far.clone()), partition(), range);
    let (mut gate, open) = fake.gate(&session, spec).await;
    assert_eq!(
        (&open.channels[1].node[..], open.channels[0].node.is_empty()),
        ("far:9", true)
    );
    let mut feed = Feed::new(open.channels[0].stream);
    let entry = feed.records(&fake, 0, &[b"never seen"]);
    fake.deliver(&[entry]).await;
    let cause =
        ShuffleError::new(ErrorKind::PartitionFailed, "").because(ShuffleError::new(ErrorKind::ExecutorDied, "he"));
    let failed = ChannelFailed {
        stream: open.channels[1].stream,
        error: Some((&cause).into()),
    };
    fake.say(Message::ChannelFailed(failed)).await;
    tokio::time::sleep(MOMENT).await;
    let error = error_of(soon("the failure", gate.next_record()).await);
    assert!(matches!(error.kind(), ErrorKind::PartitionFailed));
    assert!(matches!(error.first_cause().kind(), ErrorKind::ExecutorDied));
    assert_eq!(error.location().node, Some(far));
    assert_eq!(error.location().stream, Some(StreamId::new(open.channels[1].stream)));
    assert_eq!(error_of(gate.next_record().await), error);
    assert_eq!(fake.take_releases(1).await[0].slot, 0, "what was queued goes back");
    // What comes later goes back as well.
    let late = feed.records(&fake, 1, &[b"late"]);
    fake.deliver(&[late]).await;
    assert_eq!(fake.take_releases(1).await[0].slot, 1);
}

#[tokio::test]
async fn a_failure_wakes_who_waits() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let cause = ShuffleError::new(ErrorKind::NotRegistered { waited: MOMENT }, "");
    let (read, ()) = soon("a wake-up", async {
        tokio::join!(gate.next_buffer(), async {
            tokio::time::sleep(MOMENT).await;
            let failed = ChannelFailed {
                stream: open.channels[0].stream,
                error: Some((&cause).into()),
            };
            fake.say(Message::ChannelFailed(failed)).await;
        })
    })
    .await;
    assert_eq!(error_of(read).kind(), cause.kind());
}

#[tokio::test]
async fn a_refused_gate_is_typed_and_an_empty_one_has_ended() {
    let (session, mut fake) = attach().await;
    let refused = ShuffleError::new(ErrorKind::Draining, "going down");
    let (opened, ()) = tokio::join!(session.open_gate(one_channel()), async {
        let Message::OpenGate(open) = fake.message().await else {
            panic!("a gate")
        };
        fake.reply(open.request, Some(&refused)).await;
    });
    let error = error_of(opened);
    assert_eq!(
        (error.kind(), error.location().job),
        (refused.kind(), Some(JobId::new(JOB)))
    );
    let mut empty = session.open_gate(GateSpec::new()).await.unwrap();
    assert!(empty.next_record().await.unwrap().is_none());
    error_of(session.open_gate(one_channel().credits(0, 0)).await);
    error_of(session.open_gate(one_channel().credits(u32::MAX, 1)).await);
    // F52: what has no subpartitions has ended.
    let nothing = SubpartitionRange { first: 0, count: 0 };
    let spec = GateSpec::new().channel(None, partition(), nothing);
    let mut ended = session.open_gate(spec).await.unwrap();
    assert!(ended.next_record().await.unwrap().is_none());
}

#[tokio::test]
async fn more_than_all_credit_fails_the_gate() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel().credits(1, 0)).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let entries: Vec<_> = (0..8).map(|slot| feed.records(&fake, slot, &[b"x"])).collect();
    fake.deliver(&entries).await;
    tokio::time::sleep(MOMENT).await;
    let error = error_of(soon("the failure", gate.next_record()).await);
    assert!(matches!(error.kind(), ErrorKind::Protocol), "{error}");
    assert_eq!(fake.take_releases(8).await.len(), 8);
}

#[tokio::test]
async fn a_descriptor_outside_the_arena_ends_the_session() {
    let (session, mut fake) = attach().await;
    let (mut gate, open) = fake.gate(&session, one_channel()).await;
    let mut feed = Feed::new(open.channels[0].stream);
    let mut entry = feed.records(&fake, 0, &[b"x"]);
    (entry.offset, entry.length) = (BUFFER_BYTES, 1);
    fake.deliver(&[entry]).await;
    let error = error_of(soon("the failure", gate.next_record()).await);
    assert!(matches!(error.kind(), ErrorKind::Protocol), "{error}");
    let Message::Goodbye(control::Goodbye { reason: Some(reason) }) = fake.next_message().await else {
        panic!("why")
    };
    assert_eq!(reason.code, ErrorKind::Protocol.code());
}
