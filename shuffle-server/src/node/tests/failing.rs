//! What fails, whom it concerns, and that nobody else notices.

use std::time::Duration;

use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::partition::Totals;

use super::harness::Scene;
use super::parts::{group, partition};

#[test]
fn each_absence_has_its_own_answer() {
    let mut scene = Scene::new(1, 32);
    let session = scene.attach(0);
    let reader = scene.attach(0);
    scene.open(0, reader, 0, partition(0), None);
    assert!(scene.received(0, reader).2.is_empty(), "it may still come");
    scene.pass(Duration::from_millis(1010));
    let (_, _, errors) = scene.received(0, reader);
    assert!(
        matches!(errors[0].kind(), ErrorKind::NotRegistered { waited } if *waited >= Duration::from_secs(1)),
        "{errors:?}"
    );

    scene.create(0, session, partition(1), 1, 1, None);
    scene.finish(0, session, partition(1), &Totals::default());
    scene.open(0, reader, 0, partition(1), None);
    let (entries, end, errors) = scene.received(0, reader);
    assert!(
        entries.is_empty() && errors.is_empty() && end == Some(Totals::default()),
        "truly empty"
    );
    scene.ack(0, reader, shuffle_protocol::StreamId::new(101), 1);
    scene.close_gate(0, reader, partition(1));
    scene.open(0, reader, 0, partition(1), None);
    assert_eq!(scene.received(0, reader).2[0].kind(), &ErrorKind::Released);

    scene.create(0, session, partition(2), 1, 1, None);
    scene.ask(
        0,
        session,
        Message::AbortPartition(control::AbortPartition {
            request: 90,
            writer: 2,
            cause: None,
        }),
    );
    scene.open(0, reader, 0, partition(2), None);
    let (_, _, errors) = scene.received(0, reader);
    assert_eq!(errors[0].kind(), &ErrorKind::PartitionFailed);
    assert_eq!(errors[0].first_cause().kind(), &ErrorKind::Aborted);

    scene.create(0, session, partition(9), 1, 1, None);
    scene.open(0, reader, 0, partition(3), None);
    assert_eq!(
        scene.received(0, reader).2[0].kind(),
        &ErrorKind::Superseded { by_attempt: 9 }
    );

    scene.finish(0, session, partition(9), &Totals::default());
    scene.pass(scene.nodes[0].config().unread_expiry);
    scene.open(0, reader, 0, partition(9), None);
    assert_eq!(scene.received(0, reader).2[0].kind(), &ErrorKind::Expired);
    scene.assert_all_home(&[(0, session), (0, reader)]);
}

#[test]
fn a_fenced_attempt_keeps_its_buffers_to_itself_until_it_gives_them_back() {
    let mut scene = Scene::new(1, 32);
    let old = scene.attach(0);
    let new = scene.attach(0);
    scene.create(0, old, partition(0), 1, 2, None);
    let slots = scene.demand(0, old, partition(0), 2);
    scene.create(0, new, partition(1), 1, 2, None);
    let (_, _, errors) = scene.received(0, old);
    assert_eq!(errors[0].kind(), &ErrorKind::Superseded { by_attempt: 1 });
    assert_eq!(scene.nodes[0].books().quarantined, 2);
    let granted = scene.demand(0, new, partition(1), 6);
    assert!(
        granted.iter().all(|slot| !slots.contains(slot)),
        "a quarantined slot is never granted"
    );
    scene.hand_over(0, old, partition(0), 0, slots[0]);
    assert_eq!(
        scene.nodes[0].books().quarantined,
        1,
        "a late hand-over is refused, and its slot is home"
    );
    scene.nodes[0].handle_session_closed(scene.now, old, true);
    assert_eq!(scene.nodes[0].books().quarantined, 1, "the process lives");
    scene.nodes[0].handle_process_exited(scene.now, old);
    assert_eq!(scene.nodes[0].books().quarantined, 0);
    scene.assert_all_home(&[(0, new)]);
}

#[test]
fn one_more_writer_than_the_pool_can_guarantee_is_refused_with_numbers() {
    let mut scene = Scene::new(1, 32);
    let session = scene.attach(0);
    for attempt in 0..5 {
        let id = shuffle_protocol::PartitionId {
            index: attempt,
            ..partition(attempt)
        };
        scene.create(0, session, id, 1, 6, None);
    }
    assert!(
        scene.received(0, session).2.is_empty(),
        "the fifth waits for buffers to come home"
    );
    scene.pass(Duration::from_millis(1000));
    let (_, _, errors) = scene.received(0, session);
    assert_eq!(errors.len(), 1);
    let ErrorKind::InsufficientBuffers {
        need: 6,
        total,
        ref holders,
        ..
    } = *errors[0].kind()
    else {
        panic!("{errors:?}")
    };
    assert!(total <= 32 && holders.contains("writer of"), "{holders}");
    scene.assert_all_home(&[(0, session)]);
}

#[test]
fn a_group_fails_as_one_with_the_first_cause_on_every_node() {
    let mut scene = Scene::new(3, 32);
    let group = group(3, 2);
    let producer = scene.attach(0);
    let reader = scene.attach(1);
    let bystander = scene.attach(2);
    scene.create(0, producer, partition(5), 1, 1, Some(&group));
    scene.create(2, bystander, partition(6), 1, 1, Some(&group));
    scene.open(1, reader, 0, partition(5), Some(&group));
    scene.exchange();
    scene.nodes[0].handle_session_closed(scene.now, producer, false);
    scene.exchange();
    for (node, session) in [(1, reader), (2, bystander)] {
        let (_, _, errors) = scene.received(node, session);
        assert!(
            errors
                .iter()
                .all(|error| error.first_cause().kind() == &ErrorKind::ExecutorDied),
            "{errors:?}"
        );
        assert_eq!(errors.len(), 1, "each member is told once: {errors:?}");
    }
    scene.open(
        1,
        reader,
        0,
        shuffle_protocol::PartitionId {
            index: 8,
            ..partition(7)
        },
        Some(&group),
    );
    assert_eq!(
        scene.received(1, reader).2[0].first_cause().kind(),
        &ErrorKind::ExecutorDied,
        "late members too"
    );
    scene.assert_all_home(&[(1, reader), (2, bystander)]);
}

#[test]
fn a_peer_that_never_answers_is_given_up_once_for_all_and_then_at_once() {
    let mut scene = Scene::new(1, 64);
    let reader = scene.attach(0);
    for attempt in 0..4 {
        scene.open(0, reader, 9, partition(attempt), None);
    }
    let dial = scene.nodes[0].poll_dial(scene.now).unwrap();
    assert!(
        scene.nodes[0].poll_dial(scene.now).is_none(),
        "one connection for all channels"
    );
    let silent = shuffle_protocol::ShuffleError::new(ErrorKind::NodeUnreachable, "no answer");
    scene.nodes[0].handle_dial_failed(scene.now, &dial, silent, false);
    scene.pass(Duration::from_secs(15));
    let (_, _, errors) = scene.received(0, reader);
    assert_eq!(errors.len(), 4);
    assert!(
        errors
            .iter()
            .all(|error| matches!(error.kind(), ErrorKind::PeerLost { .. })),
        "{errors:?}"
    );
    scene.open(0, reader, 9, partition(7), None);
    assert_eq!(
        scene.received(0, reader).2.len(),
        1,
        "nobody waits for it a second time"
    );
    assert!(scene.nodes[0].poll_dial(scene.now).is_some(), "but it is tried again");
    scene.assert_all_home(&[(0, reader)]);
}
