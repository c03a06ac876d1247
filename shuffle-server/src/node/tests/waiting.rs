//! Creations that wait for buffers, and what is armed meanwhile.

use std::time::Duration;

use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::partition::Totals;
use shuffle_protocol::{PartitionId, ShuffleError};

use super::harness::Scene;
use super::parts::{address, group, partition};
use crate::node::SessionId;

fn other(index: u32) -> PartitionId {
    PartitionId {
        index,
        ..partition(index)
    }
}

fn create(writer: u32, min_buffers: u32) -> Message {
    Message::CreatePartition(control::CreatePartition {
        request: u64::from(writer) + 1000,
        writer,
        partition: Some(other(writer).into()),
        subpartitions: 1,
        min_buffers,
        ..control::CreatePartition::default()
    })
}

fn abort(scene: &mut Scene, session: SessionId, writer: u32) {
    let abort = control::AbortPartition {
        request: u64::from(writer) + 2000,
        writer,
        cause: None,
    };
    scene.ask(0, session, Message::AbortPartition(abort));
}

/// That somebody asks for more than there can ever be is told at once, and concerns nobody else.
fn assert_never(errors: &[ShuffleError], least: u32, most: u32) {
    let [error] = errors else {
        panic!("refused at once: {errors:?}")
    };
    let ErrorKind::InsufficientBuffers { need, total, .. } = *error.kind() else {
        panic!("{error}")
    };
    assert!(need >= least && total == most, "{error}");
    assert!(!error.is_retryable(), "{error}");
}

#[test]
fn what_can_never_be_guaranteed_is_refused_at_once_and_shrinks_nobody() {
    let mut scene = Scene::new(1, 32);
    let session = scene.attach(0);
    scene.create(0, session, partition(1), 1, 4, None);
    scene.ask(0, session, create(50, 25));
    assert_never(&scene.received(0, session).2, 25, 24);
    let gate = |exclusive, channels| {
        Message::OpenGate(control::OpenGate {
            request: 3000,
            gate: 60,
            exclusive,
            channels: (0..channels)
                .map(|stream| control::ChannelRequest {
                    stream,
                    node: address(9).to_string(),
                    partition: Some(partition(3).into()),
                    range: Some(control::SubpartitionRange { first: 0, count: 1 }),
                    broadcast: None,
                })
                .collect(),
            ..control::OpenGate::default()
        })
    };
    scene.ask(0, session, gate(33, 1));
    assert_never(&scene.received(0, session).2, 33, 32);
    scene.ask(0, session, gate(1 << 16, 1 << 16));
    assert_never(&scene.received(0, session).2, u32::MAX, 32);
    assert_eq!(
        scene.demand(0, session, partition(1), 8).len(),
        8,
        "nobody gave anything up for these"
    );
    scene.assert_all_home(&[(0, session)]);
}

#[test]
fn newcomers_stand_behind_who_waits_for_the_same() {
    let mut scene = Scene::new(1, 32);
    let session = scene.attach(0);
    scene.ask(0, session, create(1, 20));
    scene.ask(0, session, create(2, 8));
    scene.ask(0, session, create(3, 2));
    scene.ask(0, session, create(4, 2));
    let created = |scene: &Scene| scene.nodes[0].counters().partitions_created;
    assert_eq!(created(&scene), 1, "four buffers are left, but the second came first");
    abort(&mut scene, session, 2);
    assert_eq!(created(&scene), 3, "who stood in front gave up");
    abort(&mut scene, session, 1);
    scene.ask(0, session, create(5, 20));
    assert_eq!(created(&scene), 4, "nobody waits and there is enough");
    scene.ask(0, session, create(6, 20));
    abort(&mut scene, session, 5);
    assert_eq!(created(&scene), 5, "what came home goes to who waits");
    scene.assert_all_home(&[(0, session)]);
}

#[test]
fn a_session_that_ends_lets_those_behind_it_through() {
    let mut scene = Scene::new(1, 32);
    let (first, second) = (scene.attach(0), scene.attach(0));
    scene.ask(0, second, create(1, 20));
    scene.ask(0, first, create(2, 8));
    scene.ask(0, second, create(3, 2));
    scene.nodes[0].handle_session_closed(scene.now, first, false);
    assert_eq!(scene.nodes[0].counters().partitions_created, 2);
    scene.assert_all_home(&[(0, second)]);
}

#[test]
fn a_group_that_fails_takes_its_pending_creations_along() {
    let mut scene = Scene::new(1, 32);
    let group = group(1, 0);
    let (session, driver) = (scene.attach(0), scene.attach(0));
    scene.ask(0, session, create(1, 20));
    scene.create(0, session, partition(2), 1, 8, Some(&group));
    assert!(scene.received(0, session).2.is_empty(), "it waits");
    let fail = control::FailGroup {
        request: 1,
        group: Some((&group).into()),
        cause: None,
    };
    scene.ask(0, driver, Message::FailGroup(fail));
    let (_, _, errors) = scene.received(0, session);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].kind(), &ErrorKind::GroupFailed);
    scene.assert_all_home(&[(0, session), (0, driver)]);
}

/// However much is asked and however often: one timer for each thing that needs one.
#[test]
fn timers_are_as_many_as_things() {
    let mut scene = Scene::new(1, 32);
    let session = scene.attach(0);
    let armed = |scene: &Scene| scene.nodes[0].timers.armed().count();
    scene.ask(0, session, create(1, 20));
    for writer in 2..200 {
        scene.ask(0, session, create(writer, 8));
        scene.pass(Duration::from_millis(1));
    }
    assert!(armed(&scene) <= 2, "{} for those who wait", armed(&scene));
    scene.pass(Duration::from_secs(31));
    assert_eq!(scene.received(0, session).2.len(), 198);
    for attempt in 300..400 {
        scene.open(0, session, 0, other(attempt), None);
        scene.close_gate(0, session, other(attempt));
    }
    assert!(armed(&scene) <= 2, "{} though nobody waits", armed(&scene));
    abort(&mut scene, session, 1);
    for index in 500..550 {
        scene.create(0, session, other(index), 1, 1, None);
        scene.finish(0, session, other(index), &Totals::default());
        let release = control::ReleasePartition {
            request: u64::from(index) + 4000,
            partition: Some(other(index).into()),
        };
        scene.ask(0, session, Message::ReleasePartition(release));
    }
    assert_eq!(scene.nodes[0].counters().partitions_released, 50);
    assert!(armed(&scene) <= 1, "{} though all is released", armed(&scene));
    scene.assert_all_home(&[(0, session)]);
}

#[test]
fn a_partition_without_subpartitions_needs_no_buffer_and_ends_at_once() {
    let mut scene = Scene::new(1, 32);
    let session = scene.attach(0);
    scene.ask(0, session, create(1, 24));
    scene.create(0, session, partition(7), 0, 1, None);
    assert!(scene.demand(0, session, partition(7), 4).is_empty());
    scene.finish(0, session, partition(7), &Totals::default());
    assert!(scene.received(0, session).2.is_empty());
    assert_eq!(scene.nodes[0].counters().partitions_released, 1);
    scene.assert_all_home(&[(0, session)]);
}
