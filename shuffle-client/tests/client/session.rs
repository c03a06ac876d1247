//! The session: handshake, replies, keepalive, and every way it can end.

use std::time::Duration;

use crate::fake::{Fake, JOB, NODE, attach, attach_with, error_of, one_channel, partition, soon, sub, welcome};
use bytes::BytesMut;
use shuffle_client::{AttachOptions, PartitionSpec, Session};
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{self, Welcome};
use shuffle_protocol::error::{ErrorKind, ShuffleError};
use shuffle_protocol::frame::{Frame, FrameKind, encode_control, encode_ping};
use shuffle_protocol::ids::{GroupId, JobId, NodeAddress};
use shuffle_protocol::partition::GroupRef;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;

fn spec() -> PartitionSpec {
    PartitionSpec::new(partition(), 2)
}

#[tokio::test]
async fn the_handshake_settles_the_facts() {
    let (session, fake) = attach().await;
    assert_eq!(session.node().as_str(), NODE);
    assert_eq!(session.job().value(), JOB);
    assert_eq!(session.buffer_bytes(), crate::fake::BUFFER_BYTES);
    assert_eq!(session.max_record_bytes(), crate::fake::MAX_RECORD_BYTES);
    assert_eq!(
        (fake.hello.job, &fake.hello.token[..], &fake.hello.name[..]),
        (JOB, &b"secret"[..], "tester")
    );
    assert!(!format!("{:?}", AttachOptions::new(JobId::new(1)).token(*b"secret")).contains("115"));
}

#[tokio::test]
async fn nobody_there_is_said_with_the_path() {
    let error = error_of(Session::attach(AttachOptions::new(JobId::new(JOB)).socket("/nowhere/at/all")).await);
    assert!(matches!(error.kind(), ErrorKind::NodeUnreachable), "{error}");
    assert_eq!(error.location().path.as_deref(), Some("/nowhere/at/all"));
    assert!(error.is_retryable());
}

/// Attaches to a socket where `answer` is said to whatever comes, and the connection closed if that is asked for.
async fn attach_to(answer: Vec<u8>, close: bool) -> ShuffleError {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let options = AttachOptions::new(JobId::new(JOB))
        .socket(&socket)
        .timeout(Duration::from_millis(300));
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&answer).await.unwrap();
        if !close {
            tokio::time::sleep(crate::fake::SOON).await;
        }
    };
    let attached = async {
        tokio::select! {
            attached = Session::attach(options) => attached,
            never = async { serve.await; std::future::pending().await } => never,
        }
    };
    let error = error_of(soon("an answer", attached).await);
    assert_eq!(error.location().job, Some(JobId::new(JOB)));
    assert_eq!(error.location().path.as_deref(), socket.to_str());
    error
}

fn encoded(message: Message) -> Vec<u8> {
    let mut frame = BytesMut::new();
    encode_control(&message, &mut frame).unwrap();
    frame.to_vec()
}

#[tokio::test]
async fn a_server_that_refuses_is_quoted() {
    let denied = ShuffleError::new(ErrorKind::Denied, "a token of another job");
    let reject = encoded(Message::Reject(control::Reject {
        error: Some((&denied).into()),
    }));
    let error = attach_to(reject, true).await;
    assert!(matches!(error.kind(), ErrorKind::Denied));
    assert_eq!(error.message(), "a token of another job");
}

#[tokio::test]
async fn a_server_that_is_none_is_an_error_in_time() {
    assert!(matches!(
        attach_to(
            b"HTTP/1.1 400 Bad Request\r\nno shuffle server at all\r\n".to_vec(),
            false
        )
        .await
        .kind(),
        ErrorKind::Protocol
    ));
    assert!(matches!(
        attach_to(Vec::new(), true).await.kind(),
        ErrorKind::ConnectionLost
    ));
    assert!(matches!(
        attach_to(Vec::new(), false).await.kind(),
        ErrorKind::TimedOut { .. }
    ));
    // Cut after every byte.
    let whole = encoded(Message::Welcome(welcome()));
    for cut in (0..whole.len()).step_by(7) {
        assert!(matches!(
            attach_to(whole[..cut].to_vec(), true).await.kind(),
            ErrorKind::ConnectionLost
        ));
    }
    // Without the arenas.
    assert!(matches!(attach_to(whole, false).await.kind(), ErrorKind::Protocol));
    let strange = Welcome {
        version: 9,
        ..welcome()
    };
    let error = attach_to(encoded(Message::Welcome(strange)), false).await;
    assert!(matches!(error.kind(), ErrorKind::Protocol), "{error}");
}

#[tokio::test]
async fn requests_get_their_own_replies_in_any_order() {
    let (session, mut fake) = attach().await;
    let node = NodeAddress::parse("there:8").unwrap();
    let group = GroupRef {
        id: GroupId::new(4),
        home: node.clone(),
        nodes: vec![node.clone()],
    };
    let nodes = [node];
    let calls = async {
        tokio::join!(
            session.status(),
            session.fence(partition(), &nodes),
            session.fail_group(&group, ShuffleError::new(ErrorKind::Cancelled, "the user")),
            session.release_partition(partition()),
        )
    };
    let serve = async {
        let mut messages = Vec::new();
        for _ in 0..4 {
            messages.push(fake.message().await);
        }
        let refused = ShuffleError::new(ErrorKind::Unknown, "no such group");
        for message in messages.into_iter().rev() {
            match message {
                Message::Status(status) => {
                    let counters = vec![control::Counter {
                        name: "buffers_free".to_owned(),
                        value: 12,
                    }];
                    let report = Some(control::StatusReport { counters });
                    fake.say(Message::Reply(control::Reply {
                        request: status.request,
                        error: None,
                        status: report,
                    }))
                    .await;
                }
                Message::Fence(fence) => {
                    assert_eq!(fence.nodes, ["there:8"]);
                    assert_eq!(fence.partition, Some(partition().into()));
                    fake.reply(fence.request, None).await;
                }
                Message::FailGroup(fail) => {
                    assert_eq!(fail.cause.unwrap().message, "the user");
                    fake.reply(fail.request, Some(&refused)).await;
                }
                Message::ReleasePartition(release) => fake.reply(release.request, None).await,
                other => panic!("{other:?}"),
            }
        }
    };
    let ((status, fence, fail, release), ()) = soon("replies", async { tokio::join!(calls, serve) }).await;
    assert_eq!(status.unwrap()["buffers_free"], 12);
    fence.unwrap();
    release.unwrap();
    let error = error_of(fail);
    assert!(matches!(error.kind(), ErrorKind::Unknown));
    assert_eq!(error.location().job, Some(JobId::new(JOB)));
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_waited_for_for_ever() {
    let (session, mut fake) = attach_with(Welcome {
        request_timeout_ms: 50,
        ..welcome()
    })
    .await;
    let (status, message) = tokio::join!(session.status(), fake.message());
    assert!(matches!(message, Message::Status(_)));
    let error = error_of(status);
    assert!(matches!(error.kind(), ErrorKind::TimedOut { .. }), "{error}");
    assert_eq!(error.location().node.as_ref().map(NodeAddress::as_str), Some(NODE));
}

#[tokio::test]
async fn pings_are_answered_and_sent() {
    let (session, mut fake) = attach_with(Welcome {
        keepalive_interval_ms: 100,
        dead_peer_after_ms: 800,
        ..welcome()
    })
    .await;
    fake.send(|out| encode_ping(FrameKind::Ping, 77, out)).await;
    let (mut ponged, mut pinged) = (false, false);
    while !(ponged && pinged) {
        match fake.frame().await {
            Frame::Pong(nonce) => ponged = nonce == 77,
            Frame::Ping(_) => pinged = true,
            other => panic!("{other:?}"),
        }
    }
    // Now the server is silent.
    let error = error_of(soon("the dead-peer time", session.status()).await);
    assert!(matches!(error.kind(), ErrorKind::PeerLost { .. }), "{error}");
}

#[tokio::test]
async fn a_runtime_that_was_held_up_does_not_blame_the_server() {
    let fast = Welcome {
        keepalive_interval_ms: 50,
        dead_peer_after_ms: 200,
        ..welcome()
    };
    let (session, mut fake) = attach_with(fast).await;
    std::thread::sleep(Duration::from_millis(600));
    let (status, ()) = tokio::join!(session.status(), async {
        let Message::Status(status) = fake.next_message().await else {
            panic!("a status request")
        };
        fake.reply(status.request, None).await;
    });
    status.unwrap();
}

/// Everything that is open fails with the same error, and so does everything after.
async fn ends(end: impl AsyncFnOnce(&mut Fake), check: impl Fn(&ShuffleError)) {
    let (session, mut fake) = attach().await;
    let (mut writer, _) = fake.writer(&session, spec()).await;
    let (mut gate, _) = fake.gate(&session, one_channel()).await;
    let (blocked, read, status, ()) = soon("the end of the session", async {
        tokio::join!(
            writer.write_to(sub(0), b"x"),
            gate.next_record(),
            session.status(),
            async {
                let _ = fake.next_message().await;
                end(&mut fake).await;
                drop(fake);
            }
        )
    })
    .await;
    let errors = [error_of(blocked), error_of(read), error_of(status)];
    for error in &errors {
        check(error);
        assert_eq!(
            error.location().node.as_ref().map(NodeAddress::as_str),
            Some(NODE),
            "{error}"
        );
        assert_eq!(error.location().job, Some(JobId::new(JOB)));
    }
    check(&error_of(writer.write_to(sub(1), b"y").await));
    check(&error_of(gate.next_record().await));
    check(&error_of(session.create_partition(spec()).await));
    check(&error_of(session.open_gate(one_channel()).await));
    check(&error_of(writer.finish().await));
    drop(gate);
    session.detach().await.unwrap();
}

#[tokio::test]
async fn a_lost_connection_fails_everything_alike() {
    ends(
        async |_| (),
        |error| assert!(matches!(error.kind(), ErrorKind::ConnectionLost), "{error}"),
    )
    .await;
}

#[tokio::test]
async fn a_goodbye_gives_its_reason() {
    let goodbye = async |fake: &mut Fake| {
        let reason = ShuffleError::new(ErrorKind::Draining, "maintenance");
        fake.say(Message::Goodbye(control::Goodbye {
            reason: Some((&reason).into()),
        }))
        .await;
    };
    ends(goodbye, |error| {
        assert!(matches!(error.kind(), ErrorKind::Draining), "{error}");
        assert_eq!(error.message(), "maintenance");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_breaks_the_protocol_is_left() {
    let garbage = async |fake: &mut Fake| fake.send_bytes(&[0x55; 64]).await;
    ends(garbage, |error| {
        assert!(matches!(error.kind(), ErrorKind::Protocol), "{error}")
    })
    .await;
    let bad_slot = async |fake: &mut Fake| fake.grant(1, [crate::fake::BUFFERS]).await;
    ends(bad_slot, |error| {
        assert!(matches!(error.kind(), ErrorKind::Protocol), "{error}")
    })
    .await;
    let twice = async |fake: &mut Fake| fake.grant(99, [3]).await;
    // A writer that is not there is no offence: its buffer goes back.
    let (session, mut fake) = attach().await;
    twice(&mut fake).await;
    let releases = fake.take_releases(1).await;
    assert_eq!((releases[0].slot, releases[0].stream.value()), (3, 99));
    drop(session);
}

#[tokio::test]
async fn the_last_handle_says_goodbye() {
    let (session, mut fake) = attach().await;
    let clone = session.clone();
    let (gate, _) = fake.gate(&session, one_channel()).await;
    drop(session);
    drop(clone);
    drop(gate);
    let Message::CloseGate(_) = fake.message().await else {
        panic!("the gate is closed first")
    };
    let Message::Goodbye(goodbye) = fake.message().await else {
        panic!("then a goodbye")
    };
    assert!(goodbye.reason.is_some());
    assert!(fake.event().await.is_none(), "and then the end");
}

#[tokio::test]
async fn detach_waits_for_what_is_held() {
    let (session, mut fake) = attach_with(Welcome {
        request_timeout_ms: 100,
        ..welcome()
    })
    .await;
    let (gate, _) = fake.gate(&session, one_channel()).await;
    let error = error_of(session.clone().detach().await);
    assert!(matches!(error.kind(), ErrorKind::TimedOut { .. }), "{error}");
    drop(gate);
    soon("detaching", session.detach()).await.unwrap();
}

#[test]
fn a_runtime_that_goes_takes_its_sessions_with_it() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (session, fake) = runtime.block_on(attach());
    runtime.shutdown_background();
    let other = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let error = error_of(other.block_on(session.status()));
    assert!(matches!(error.kind(), ErrorKind::SessionClosed), "{error}");
    drop(fake);
}
