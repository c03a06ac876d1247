//! Every way in which a writer can end, and what a dropped future leaves behind.

use std::time::Duration;

use crate::fake::{BUFFER_BYTES, Fake, attach, error_of, partition, soon, sub};
use shuffle_client::{PartitionSpec, Session};
use shuffle_protocol::control::WriterFailed;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::{ErrorKind, ShuffleError};
use shuffle_protocol::frame::Frame;

use tokio::time::timeout;

use crate::writer::{accept_finish, spec};

const CAPACITY: usize = BUFFER_BYTES as usize;
const MOMENT: Duration = Duration::from_millis(50);

#[tokio::test]
async fn a_failed_commit_gives_the_buffer_back() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(1)).await;
    let (mut other, _) = fake.writer(&session, spec(1)).await;
    fake.grant(id, [8]).await;
    let mut buffer = writer.reserve(sub(0)).await.unwrap();
    buffer[..4].copy_from_slice(b"mine");
    let (error, buffer) = other.commit(buffer, 4, 1).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest));
    let (error, buffer) = writer.commit(buffer, CAPACITY + 1, 1).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest));
    assert_eq!(&buffer[..4], b"mine");
    let failure = ShuffleError::new(ErrorKind::Superseded { by_attempt: 6 }, "");
    fake.say(Message::WriterFailed(WriterFailed {
        writer: id,
        error: Some((&failure).into()),
    }))
    .await;
    let error = error_of(soon("the failure", writer.reserve(sub(0))).await);
    assert!(matches!(error.kind(), ErrorKind::Superseded { by_attempt: 6 }));
    let (error, buffer) = writer.commit(buffer, 4, 1).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Superseded { by_attempt: 6 }));
    drop(buffer);
    let releases = fake.take_releases(1).await;
    assert_eq!((releases[0].slot, releases[0].stream.value()), (8, id));
}

#[tokio::test]
async fn the_first_failure_is_kept_and_wakes_who_waits() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(1)).await;
    let first =
        ShuffleError::new(ErrorKind::GroupFailed, "").because(ShuffleError::new(ErrorKind::ExecutorDied, "him"));
    let (blocked, ()) = soon("a wake-up", async {
        tokio::join!(writer.write_to(sub(0), b"x"), async {
            tokio::time::sleep(MOMENT).await;
            for error in [&first, &ShuffleError::new(ErrorKind::Io, "later")] {
                fake.say(Message::WriterFailed(WriterFailed {
                    writer: id,
                    error: Some(error.into()),
                }))
                .await;
            }
        })
    })
    .await;
    for error in [
        error_of(blocked),
        error_of(writer.flush().await),
        error_of(writer.write(b"", b"").await),
    ] {
        assert!(matches!(error.kind(), ErrorKind::GroupFailed), "{error}");
        assert!(matches!(error.first_cause().kind(), ErrorKind::ExecutorDied));
        assert_eq!(error.location().partition, Some(partition()));
    }
    // A grant that was on its way goes back.
    fake.grant(id, [2]).await;
    assert_eq!(fake.take_releases(1).await[0].slot, 2);
    let error = error_of(writer.finish().await);
    assert!(matches!(error.kind(), ErrorKind::GroupFailed), "{error}");
    assert!(
        matches!(fake.next_message().await, Message::AbortPartition(_)),
        "the server learns that it is known"
    );
}

#[tokio::test]
async fn a_dropped_writer_aborts_and_gives_everything_back() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(1)).await;
    fake.grant(id, [0, 1]).await;
    writer.write_to(sub(0), b"lost").await.unwrap();
    drop(writer);
    let mut slots: Vec<u32> = fake.take_releases(2).await.iter().map(|release| release.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1]);
    let Message::AbortPartition(abort) = fake.next_message().await else {
        panic!("an abort")
    };
    let cause = ShuffleError::from(abort.cause.unwrap());
    assert!(matches!(cause.kind(), ErrorKind::Cancelled));
    assert_eq!((abort.writer, cause.location().partition), (id, Some(partition())));
}

#[tokio::test]
async fn abort_names_its_cause() {
    let (session, mut fake) = attach().await;
    let (writer, id) = fake.writer(&session, spec(1)).await;
    let cause = ShuffleError::new(ErrorKind::Io, "the input file is broken");
    let (aborted, ()) = tokio::join!(writer.abort(cause), async {
        let Message::AbortPartition(abort) = fake.next_message().await else {
            panic!("an abort")
        };
        assert_eq!(
            (abort.writer, &abort.cause.unwrap().message[..]),
            (id, "the input file is broken")
        );
        fake.reply(abort.request, None).await;
    });
    aborted.unwrap();
}

#[tokio::test]
async fn a_refused_creation_is_typed_and_aborts_nothing() {
    let (session, mut fake) = attach().await;
    let refused = ShuffleError::new(
        ErrorKind::InsufficientBuffers {
            need: 8,
            available: 3,
            total: 16,
            holders: "others".to_owned(),
        },
        "",
    );
    let (created, ()) = tokio::join!(session.create_partition(spec(1)), async {
        let Message::CreatePartition(create) = fake.message().await else {
            panic!("a creation")
        };
        fake.reply(create.request, Some(&refused)).await;
    });
    let error = error_of(created);
    assert_eq!(error.kind(), refused.kind());
    assert_eq!(error.location().partition, Some(partition()));
    for bad in [PartitionSpec::new(partition(), u32::MAX), spec(1).buffers(3, 2)] {
        error_of(session.create_partition(bad).await);
    }
    assert_eq!(
        quiet_until_status(&session, &mut fake).await,
        0,
        "nothing else was said"
    );
}

/// Messages and entries that come before the answer to a status request.
async fn quiet_until_status(session: &Session, fake: &mut Fake) -> usize {
    let (status, said) = tokio::join!(session.status(), async {
        let mut said = 0;
        loop {
            match fake.frame().await {
                Frame::Control(message) => match *message {
                    Message::Status(status) => {
                        fake.reply(status.request, None).await;
                        return said;
                    }
                    _ => said += 1,
                },
                _ => said += 1,
            }
        }
    });
    status.unwrap();
    said
}

#[tokio::test]
async fn a_creation_that_nobody_waits_for_is_undone() {
    let (session, mut fake) = attach().await;
    assert!(timeout(MOMENT, session.create_partition(spec(1))).await.is_err());
    let Message::CreatePartition(create) = fake.message().await else {
        panic!("a creation")
    };
    let Message::AbortPartition(abort) = fake.message().await else {
        panic!("an abort")
    };
    assert_eq!(abort.writer, create.writer);
    // The server made it although it was told not to.
    fake.reply(create.request, None).await;
    let Message::AbortPartition(again) = fake.message().await else {
        panic!("the abort again")
    };
    assert_eq!(again.writer, create.writer);
    assert_eq!(quiet_until_status(&session, &mut fake).await, 0);
}

#[tokio::test]
async fn a_future_dropped_while_it_waits_loses_no_buffer() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(1).max_queued(1)).await;
    assert!(timeout(MOMENT, writer.reserve(sub(0))).await.is_err());
    assert!(timeout(MOMENT, writer.write_to(sub(0), b"x")).await.is_err());
    assert!(timeout(MOMENT, writer.write_event(None, b"x")).await.is_err());
    fake.grant(id, [0, 1]).await;
    let first = soon("a buffer", writer.reserve(sub(0))).await.unwrap();
    let second = soon("a buffer", writer.reserve(sub(0))).await.unwrap();
    writer.commit(first, 5, 1).await.unwrap();
    assert!(
        timeout(MOMENT, writer.commit(second, 5, 1)).await.is_err(),
        "the queue is full"
    );
    drop(
        soon("the buffer of the dropped commit", writer.reserve(sub(0)))
            .await
            .unwrap(),
    );
    fake.limit(id, 0, 2).await;
    soon("a record", writer.write_to(sub(0), b"goes on")).await.unwrap();
    let (report, _) = tokio::join!(writer.finish(), accept_finish(&mut fake));
    assert_eq!(report.unwrap().subpartitions[0].buffers, 2);
}

#[tokio::test]
async fn a_long_record_dropped_in_its_middle_stops_the_writer() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(2)).await;
    fake.grant(id, [0]).await;
    let long = vec![1; 3 * CAPACITY];
    assert!(timeout(MOMENT, writer.write_to(sub(1), &long)).await.is_err());
    let error = error_of(writer.write_to(sub(0), b"x").await);
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    assert_eq!(error.location().subpartition, Some(sub(1)));
    let error = error_of(writer.finish().await);
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    assert!(matches!(fake.next_message().await, Message::AbortPartition(_)));
}

#[tokio::test]
async fn a_finish_that_is_refused_or_dropped_aborts() {
    let (session, mut fake) = attach().await;
    let (writer, _) = fake.writer(&session, spec(1)).await;
    let refused = ShuffleError::new(ErrorKind::Superseded { by_attempt: 6 }, "");
    let (finished, ()) = tokio::join!(writer.finish(), async {
        let Message::FinishPartition(finish) = fake.next_message().await else {
            panic!("a finish")
        };
        fake.reply(finish.request, Some(&refused)).await;
    });
    assert_eq!(error_of(finished).kind(), refused.kind());
    assert!(matches!(fake.next_message().await, Message::AbortPartition(_)));
    let (writer, _) = fake.writer(&session, spec(1)).await;
    assert!(timeout(MOMENT, writer.finish()).await.is_err());
    assert!(matches!(fake.next_message().await, Message::FinishPartition(_)));
    assert!(matches!(fake.next_message().await, Message::AbortPartition(_)));
}

/// Whoever spawns a task needs every future to be `Send`.
#[test]
fn futures_may_move_between_threads() {
    fn check<T: Send + 'static>(_: impl FnOnce(&'static mut T)) {}
    fn send<T: Send>(_: T) {}
    check(|writer: &mut shuffle_client::Writer| {
        send(writer.write(b"", b""));
        send(writer.write_to(sub(0), b""));
        send(writer.write_event(None, b""));
        send(writer.reserve(sub(0)));
        send(writer.flush());
    });
    check(|gate: &mut shuffle_client::Gate| {
        send(gate.next_buffer());
        send(gate.next_record());
        send(gate.next_record_or_event());
    });
    check(|session: &mut Session| {
        send(session.create_partition(spec(1)));
        send(session.open_gate(crate::fake::one_channel()));
        send(session.status());
    });
}
