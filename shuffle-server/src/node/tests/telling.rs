//! What drivers are told of partitions, and when.

use std::time::Duration;

use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::notify::{PartitionChange, PartitionState, Unpacker};
use shuffle_protocol::partition::Totals;
use shuffle_protocol::{PartitionId, ShuffleError};

use super::harness::Scene;
use super::parts::partition;
use crate::node::{Output, SessionId, Wake};

pub(super) const LINGER: Duration = Duration::from_millis(100);

/// What a driver was told, message by message, and whether the snapshot was complete.
pub(super) fn told(scene: &mut Scene, driver: SessionId) -> (Vec<Vec<PartitionChange>>, bool) {
    told_by(scene, 0, driver)
}

/// As [`told`], by any node.
pub(super) fn told_by(scene: &mut Scene, node: usize, driver: SessionId) -> (Vec<Vec<PartitionChange>>, bool) {
    let (mut messages, mut complete, mut unpacker) = (Vec::new(), false, Unpacker::default());
    for output in scene.outputs(node, driver) {
        if let Output::Control(message) = output
            && let Message::PartitionEvents(message) = *message
        {
            complete |= message.snapshot_complete;
            let changes = message
                .events
                .into_iter()
                .map(|event| unpacker.handle_event(event).unwrap());
            messages.push(changes.flatten().collect());
        }
    }
    (messages, complete)
}

pub(super) fn seen(scene: &mut Scene, driver: SessionId, number: u64) {
    scene.ask(0, driver, Message::EventsSeen(control::EventsSeen { number }));
}

pub(super) fn subscribe(scene: &mut Scene) -> SessionId {
    subscribe_to(scene, 0)
}

pub(super) fn subscribe_to(scene: &mut Scene, node: usize) -> SessionId {
    let driver = scene.attach(node);
    let linger_ms = u32::try_from(LINGER.as_millis()).unwrap();
    scene.ask(
        node,
        driver,
        Message::Subscribe(control::Subscribe { request: 1, linger_ms }),
    );
    driver
}

/// A driver that has heard and seen the snapshot.
fn driver(scene: &mut Scene) -> SessionId {
    let driver = subscribe(scene);
    assert_eq!(told(scene, driver), (vec![vec![]], true));
    seen(scene, driver, 1);
    driver
}

pub(super) fn create_blocking(scene: &mut Scene, writer: SessionId, id: PartitionId) {
    let mut creation = control::CreatePartition {
        writer: id.attempt,
        partition: Some(id.into()),
        subpartitions: 2,
        min_buffers: 1,
        max_buffers: 4,
        ..control::CreatePartition::default()
    };
    creation.set_readiness(control::Readiness::Blocking);
    creation.set_pressure(control::Pressure::Spilling);
    scene.create_as(0, writer, creation);
}

fn fill(scene: &mut Scene, writer: SessionId, id: PartitionId) -> Totals {
    let slot = scene.demand(0, writer, id, 1)[0];
    scene.hand_over(0, writer, id, 0, slot)
}

pub(super) fn release(scene: &mut Scene, session: SessionId, id: PartitionId) {
    let release = control::ReleasePartition {
        request: 800,
        partition: Some(id.into()),
    };
    scene.ask(0, session, Message::ReleasePartition(release));
}

pub(super) fn finished(sizes: &[u64]) -> PartitionState {
    PartitionState::Finished { bytes: sizes.into() }
}

pub(super) fn change(partition: PartitionId, state: PartitionState) -> PartitionChange {
    PartitionChange { partition, state }
}

pub(super) fn other(index: u32, attempt: u32) -> PartitionId {
    PartitionId {
        index,
        ..partition(attempt)
    }
}

#[test]
fn a_snapshot_first_and_then_changes_that_fall_together_until_they_are_seen() {
    let mut scene = Scene::new(1, 64);
    let writer = scene.attach(0);
    scene.create(0, writer, partition(1), 2, 1, None);
    let totals = fill(&mut scene, writer, partition(1));
    scene.create(0, writer, other(4, 2), 2, 1, None);
    let driver = subscribe(&mut scene);
    let there = vec![
        change(partition(1), PartitionState::FirstBuffer),
        change(other(4, 2), PartitionState::Registered),
    ];
    assert_eq!(told(&mut scene, driver), (vec![there], true));
    scene.finish(0, writer, partition(1), &totals);
    fill(&mut scene, writer, other(4, 2));
    scene.create(0, writer, other(5, 3), 1, 1, None);
    scene.pass(LINGER);
    assert_eq!(
        told(&mut scene, driver),
        (vec![], false),
        "the snapshot was not seen yet"
    );
    seen(&mut scene, driver, 1);
    let news = vec![
        change(partition(1), finished(&[totals.bytes, 0])),
        change(other(4, 2), PartitionState::FirstBuffer),
        change(other(5, 3), PartitionState::Registered),
    ];
    assert_eq!(told(&mut scene, driver), (vec![news], false));
    release(&mut scene, writer, partition(1));
    scene.assert_all_home(&[(0, writer), (0, driver)]);
}

#[test]
fn blocking_ones_wait_for_the_last_producer_of_their_result_or_for_the_linger() {
    let mut scene = Scene::new(1, 64);
    let (writer, driver) = (scene.attach(0), driver(&mut scene));
    for (index, attempt) in [(0, 1), (1, 2)] {
        create_blocking(&mut scene, writer, other(index, attempt));
        scene.finish(0, writer, other(index, attempt), &Totals::default());
        if index == 0 {
            let first = vec![change(other(0, 1), finished(&[0, 0]))];
            assert_eq!(told(&mut scene, driver).0, [first], "nobody else was producing");
            seen(&mut scene, driver, 2);
            create_blocking(&mut scene, writer, other(2, 3));
        }
    }
    assert_eq!(told(&mut scene, driver).0, Vec::<Vec<_>>::new(), "2 is still produced");
    scene.pass(LINGER - Duration::from_millis(1));
    assert_eq!(told(&mut scene, driver).0, Vec::<Vec<_>>::new());
    scene.pass(Duration::from_millis(1));
    let waited = vec![
        change(other(2, 3), PartitionState::Registered),
        change(other(1, 2), finished(&[0, 0])),
    ];
    assert_eq!(told(&mut scene, driver).0, [waited]);
    seen(&mut scene, driver, 3);
    create_blocking(&mut scene, writer, other(7, 4));
    scene.pass(10 * LINGER);
    assert_eq!(
        told(&mut scene, driver).0,
        Vec::<Vec<_>>::new(),
        "nobody waits for that"
    );
    scene.pass(40 * LINGER);
    let alone = vec![change(other(7, 4), PartitionState::Registered)];
    assert_eq!(told(&mut scene, driver).0, [alone]);
    seen(&mut scene, driver, 4);
    scene.finish(0, writer, other(7, 4), &Totals::default());
    scene.pass(LINGER);
    told(&mut scene, driver);
    seen(&mut scene, driver, 5);
    scene.finish(0, writer, other(2, 3), &Totals::default());
    assert_eq!(
        told(&mut scene, driver).0,
        [vec![change(other(2, 3), finished(&[0, 0]))]]
    );
}

#[test]
fn pipelined_ones_leave_at_once_but_not_more_often_than_the_linger_and_failures_in_any_case() {
    let mut scene = Scene::new(1, 64);
    let (writer, driver) = (scene.attach(0), driver(&mut scene));
    scene.pass(LINGER);
    scene.create(0, writer, other(0, 1), 1, 1, None);
    assert_eq!(told(&mut scene, driver).0.len(), 1);
    seen(&mut scene, driver, 2);
    scene.create(0, writer, other(1, 2), 1, 1, None);
    assert_eq!(told(&mut scene, driver).0.len(), 0, "so soon after the last");
    let abort = control::AbortPartition {
        request: 9,
        writer: 1,
        cause: Some((&ShuffleError::new(ErrorKind::Io, "the disk of the source")).into()),
    };
    scene.ask(0, writer, Message::AbortPartition(abort));
    let (messages, _) = told(&mut scene, driver);
    let [message] = &messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!(message[0], change(other(1, 2), PartitionState::Registered));
    let PartitionState::Failed { cause } = &message[1].state else {
        panic!("{message:?}")
    };
    assert_eq!(cause.first_cause().message(), "the disk of the source");
}

#[test]
fn what_ended_before_it_was_told_is_told_with_its_sizes() {
    let mut scene = Scene::new(1, 64);
    let writer = scene.attach(0);
    let driver = subscribe(&mut scene);
    told(&mut scene, driver);
    scene.create(0, writer, partition(1), 2, 1, None);
    let totals = fill(&mut scene, writer, partition(1));
    scene.finish(0, writer, partition(1), &totals);
    release(&mut scene, writer, partition(1));
    seen(&mut scene, driver, 1);
    scene.pass(LINGER);
    let whole_life = vec![
        change(partition(1), finished(&[totals.bytes, 0])),
        change(partition(1), PartitionState::Released),
    ];
    assert_eq!(told(&mut scene, driver).0, std::slice::from_ref(&whole_life));
    scene.nodes[0].handle_session_closed(scene.now, driver, false);
    let again = subscribe(&mut scene);
    assert_eq!(
        told(&mut scene, again),
        (vec![whole_life], true),
        "also to who comes back"
    );
    let next = subscribe(&mut scene);
    scene.create(0, writer, partition(2), 1, 1, None);
    let (messages, _) = told(&mut scene, next);
    assert_eq!(
        messages[0].last(),
        Some(&change(partition(2), PartitionState::Registered)),
        "an attempt behind the one that ended"
    );
}

#[test]
fn a_driver_that_takes_nothing_in_is_given_up_before_it_costs_more_than_its_bound() {
    let mut scene = Scene::new(1, 64);
    let writer = scene.attach(0);
    let (slow, quick) = (subscribe(&mut scene), driver(&mut scene));
    told(&mut scene, slow);
    while scene.nodes[0].poll_wake().is_some() {}
    let (mut dropped, mut number) = (None, 1);
    for attempt in 1..=12 {
        scene.create(0, writer, other(attempt, attempt), 131_072, 1, None);
        scene.finish(0, writer, other(attempt, attempt), &Totals::default());
        release(&mut scene, writer, other(attempt, attempt));
        scene.pass(LINGER);
        number += told(&mut scene, quick).0.len() as u64;
        seen(&mut scene, quick, number);
        while let Some(wake) = scene.nodes[0].poll_wake() {
            if let Wake::CloseSession(id, error) = wake {
                dropped = Some((attempt, id, error));
            }
        }
    }
    let (attempt, id, error) = dropped.expect("8 MiB are less than 12 partitions of a MiB of sizes");
    assert_eq!(
        (attempt, id),
        (7, slow),
        "seven for the one, and the seventh for the other"
    );
    assert!(matches!(error.kind(), ErrorKind::LimitExceeded { .. }) && error.is_retryable());
    assert_eq!(scene.nodes[0].counters().subscriptions_dropped, 1);
    let again = subscribe(&mut scene);
    assert!(!told(&mut scene, again).0.is_empty());
}

#[test]
fn the_fifth_driver_of_a_job_and_what_was_not_sent() {
    let mut scene = Scene::new(1, 64);
    let drivers: Vec<_> = (0..5).map(|_| subscribe(&mut scene)).collect();
    let (_, _, errors) = scene.received(0, drivers[4]);
    assert!(matches!(errors[0].kind(), ErrorKind::LimitExceeded { .. }));
    let ahead = control::EventsSeen { number: 7 };
    let frame = shuffle_protocol::frame::Frame::Control(Box::new(Message::EventsSeen(ahead)));
    let refused = scene.nodes[0].handle_session_frame(scene.now, drivers[0], frame);
    assert!(matches!(refused.unwrap_err().kind(), ErrorKind::Protocol));
}
