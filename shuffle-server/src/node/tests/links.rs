//! Connections between nodes: which one stays, and what outlives them.

use std::time::Duration;

use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{Generation, Incarnation, ShuffleError};

use super::harness::Scene;
use super::parts::{address, group, partition};
use crate::node::PeerInfo;

fn peer(of: usize, generation: u32, dialled: bool) -> PeerInfo {
    PeerInfo {
        node: address(of),
        incarnation: Incarnation::new(of as u64 + 1),
        generation: Generation::new(generation),
        stripe: 0,
        dialled,
    }
}

#[test]
fn an_older_connection_never_replaces_a_newer_one() {
    let mut scene = Scene::new(1, 32);
    let now = scene.now;
    let node = &mut scene.nodes[0];
    let newer = node.handle_link_opened(now, &peer(1, 5, false)).unwrap();
    let late = node.handle_link_opened(now, &peer(1, 4, false)).unwrap_err();
    assert_eq!(late.kind(), &ErrorKind::AlreadyExists);
    assert!(node.links.contains_key(newer), "the newer one stays");
    let newest = node.handle_link_opened(now, &peer(1, 6, false)).unwrap();
    assert!(node.links.contains_key(newest) && !node.links.contains_key(newer));
    let restarted = PeerInfo {
        incarnation: Incarnation::new(99),
        ..peer(1, 0, false)
    };
    let first = node.handle_link_opened(now, &restarted).unwrap();
    assert!(
        node.links.contains_key(first),
        "another start of that server counts anew"
    );
    node.check_invariants();
}

/// A node whose dials are refused since the connections cross asks often; the other side arms no timer for each.
#[test]
fn asking_a_doubted_connection_again_arms_nothing_new() {
    let mut scene = Scene::new(1, 32);
    let now = scene.now;
    let node = &mut scene.nodes[0];
    node.handle_link_opened(now, &peer(1, 0, true)).unwrap();
    let before = node.timers.armed().count();
    for generation in 0..100 {
        let refused = node.handle_link_opened(now, &peer(1, generation, false)).unwrap_err();
        assert_eq!(refused.kind(), &ErrorKind::AlreadyExists);
    }
    assert_eq!(node.timers.armed().count(), before);
    scene.pass(Duration::from_millis(1001));
    assert!(scene.nodes[0].links.is_empty(), "it was asked and did not answer");
}

/// However much else waits for the other node: that a channel is closed is not lost.
#[test]
fn a_closed_channel_is_closed_there_too_whatever_else_waits() {
    let mut scene = Scene::new(2, 32);
    let (producer, reader) = (scene.attach(0), scene.attach(1));
    scene.create(0, producer, partition(5), 1, 2, None);
    scene.open(1, reader, 0, partition(5), None);
    scene.exchange();
    assert_eq!(scene.nodes[0].outlets.len(), 1);
    scene.cut(1);
    let now = scene.now;
    for _ in 0..70_000 {
        let notice = control::FenceNotice {
            job: 99,
            partition: Some(partition(3).into()),
        };
        scene.nodes[1].tell_node(now, &address(0), Message::FenceNotice(notice));
    }
    assert!(scene.nodes[1].counters().refused > 0, "too many wait");
    scene.close_gate(1, reader, partition(5));
    scene.pass(Duration::from_millis(100));
    scene.exchange();
    assert_eq!(scene.nodes[0].outlets.len(), 0, "it was told");
    scene.exchange();
    assert!(
        scene.nodes[1].paths.values().all(|path| path.is_quiet()),
        "and has said so"
    );
    scene.assert_all_home(&[(0, producer), (1, reader)]);
}

/// The home server is gone for good: node 0 reads from there, node 2 only serves node 0. All see one first cause.
#[test]
fn a_group_fails_as_one_without_its_home() {
    for order in [[0, 1, 2], [2, 1, 0]] {
        let mut scene = Scene::new(3, 32);
        let mut group = group(3, 1);
        group.nodes = order.map(address).to_vec();
        let reader = scene.attach(0);
        let (home, producer) = (scene.attach(1), scene.attach(2));
        scene.create(1, home, partition(5), 1, 1, Some(&group));
        scene.create(2, producer, partition(6), 1, 1, Some(&group));
        scene.open(0, reader, 1, partition(5), Some(&group));
        scene.open(0, reader, 2, partition(6), Some(&group));
        scene.exchange();
        scene.kill(1);
        for _ in 0..200 {
            scene.pass(Duration::from_millis(100));
            scene.exchange();
        }
        let mut causes: Vec<ShuffleError> = Vec::new();
        for (node, session, members) in [(0, reader, 2), (2, producer, 1)] {
            let (_, _, errors) = scene.received(node, session);
            assert_eq!(errors.len(), members, "each member of node {node} once: {errors:?}");
            assert!(errors.iter().all(|error| error.kind() == &ErrorKind::GroupFailed));
            causes.extend(errors.iter().map(|error| error.first_cause().clone()));
        }
        assert_eq!(causes[0].kind(), &ErrorKind::ConnectionLost, "{causes:?}");
        assert!(causes.iter().all(|cause| *cause == causes[0]), "{causes:?}");
        scene.assert_all_home(&[(0, reader), (2, producer)]);
    }
}

/// Both that live read from the dead home, and each notices for itself: one of them decides for both.
#[test]
fn two_who_notice_at_once_see_one_cause() {
    let mut scene = Scene::new(3, 32);
    let group = group(3, 1);
    let home = scene.attach(1);
    let readers = [(0, scene.attach(0)), (2, scene.attach(2))];
    for (attempt, (node, session)) in (5..).zip(readers) {
        let id = shuffle_protocol::PartitionId {
            index: attempt,
            ..partition(attempt)
        };
        scene.create(1, home, id, 1, 1, Some(&group));
        scene.open(node, session, 1, id, Some(&group));
    }
    scene.exchange();
    scene.kill(1);
    for _ in 0..200 {
        scene.pass(Duration::from_millis(100));
        scene.exchange();
    }
    let mut causes = Vec::new();
    for (node, session) in readers {
        let (_, _, errors) = scene.received(node, session);
        assert_eq!(errors.len(), 1, "{errors:?}");
        causes.push(errors[0].first_cause().clone());
    }
    assert_eq!(causes[0], causes[1]);
    scene.assert_all_home(&readers);
}
