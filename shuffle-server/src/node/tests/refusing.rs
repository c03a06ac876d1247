//! Broadcasts that are not read: what each consumer is told, and that nothing is left.

use std::time::Duration;

use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::partition::PartitionKind;

use super::harness::Scene;
use super::listeners::{Broadcast, Listener, home};
use super::parts::{address, partition};

#[test]
fn the_two_sides_must_have_been_told_the_same() {
    let mut scene = Scene::new(2, 64);
    let broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(0, 1), (1, 2)]);
    let ok = Listener::opened(&mut scene, 0, 1);
    assert!(ok.errors.is_empty(), "{:?}", ok.errors);
    let refused = |scene: &mut Scene, node, told_of, message: &str| {
        let listener = Listener::opened(scene, node, told_of);
        let [error] = &listener.errors[..] else {
            panic!("{:?}", listener.errors)
        };
        assert!(matches!(error.kind(), ErrorKind::InvalidRequest), "{error}");
        assert!(error.to_string().contains(message), "{error}");
        listener
    };
    let a = refused(
        &mut scene,
        0,
        1,
        "all 1 consumers declared for node0:70 have come already",
    );
    let b = refused(
        &mut scene,
        0,
        4,
        "told of 4 consumers there, the broadcast was declared with 1",
    );
    let c = refused(
        &mut scene,
        1,
        3,
        "told of 3 consumers there, the broadcast was declared with 2",
    );
    let reader = scene.attach(0);
    scene.open(0, reader, 0, partition(5), None);
    let (_, _, errors) = scene.received(0, reader);
    assert!(errors[0].to_string().contains("is broadcast"), "{errors:?}");
    home(&mut scene, &broadcast, &[&ok, &a, &b, &c]);
}

#[test]
fn a_consumer_of_a_node_that_was_given_up_is_told_at_once() {
    let mut scene = Scene::new(2, 64);
    let mut first = Listener::opened(&mut scene, 1, 1);
    scene.kill(0);
    for _ in 0..40 {
        scene.pass(Duration::from_secs(1));
        scene.exchange();
        first.look(&mut scene);
        if !first.errors.is_empty() {
            break;
        }
    }
    assert!(
        matches!(first.errors[0].kind(), ErrorKind::PeerLost { .. }),
        "{:?}",
        first.errors
    );
    let second = Listener::opened(&mut scene, 1, 1);
    assert!(
        matches!(second.errors[0].kind(), ErrorKind::PeerLost { .. }),
        "{:?}",
        second.errors
    );
    assert_eq!(scene.nodes[1].relays.len(), 0);
    scene.assert_all_home(&[(1, first.session), (1, second.session)]);
}

#[test]
fn a_range_that_a_broadcast_cannot_have_leaves_no_relay() {
    let mut scene = Scene::new(2, 64);
    let session = scene.attach(1);
    let channel = control::ChannelRequest {
        stream: 400,
        node: address(0).to_string(),
        partition: Some(partition(5).into()),
        range: Some(control::SubpartitionRange { first: 0, count: 2 }),
        broadcast: Some(control::Broadcast { consumers: 3 }),
    };
    let gate = control::OpenGate {
        request: 901,
        gate: 1,
        exclusive: 2,
        channels: vec![channel],
        timeout_ms: 1000,
        ..control::OpenGate::default()
    };
    scene.ask(1, session, Message::OpenGate(gate));
    let (_, _, errors) = scene.received(1, session);
    assert!(errors[0].to_string().contains("the partition has 1"), "{errors:?}");
    assert_eq!(scene.nodes[1].relays.len() + scene.nodes[1].partitions.len(), 0);
    scene.assert_all_home(&[(1, session)]);
}

#[test]
fn a_finished_relay_whose_producing_node_is_lost_tells_its_readers() {
    let mut scene = Scene::new(2, 64);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(1, 2)]);
    let mut readers = [1, 1].map(|node| Listener::opened(&mut scene, node, 2));
    for _ in 0..3 {
        broadcast.write(&mut scene);
    }
    scene.finish(0, broadcast.session, partition(5), &broadcast.totals);
    scene.exchange();
    for reader in &mut readers {
        reader.look(&mut scene);
        assert_eq!(
            (reader.had.len(), reader.end),
            (3, Some(broadcast.totals)),
            "all is there, and nothing acknowledged"
        );
    }
    scene.kill(0);
    for _ in 0..40 {
        scene.pass(Duration::from_secs(1));
        scene.exchange();
    }
    for reader in &mut readers {
        reader.look(&mut scene);
        assert!(
            matches!(reader.errors[0].kind(), ErrorKind::PeerLost { .. }),
            "{:?}",
            reader.errors
        );
    }
    assert_eq!(scene.nodes[1].relays.len() + scene.nodes[1].partitions.len(), 0);
    let sessions = readers.map(|reader| (1, reader.session));
    scene.assert_all_home(&sessions);
}

#[test]
fn nobody_waits_for_consumers_of_a_lost_node_that_have_not_come() {
    let mut scene = Scene::new(2, 64);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(0, 1), (1, 2)]);
    let mut here = Listener::opened(&mut scene, 0, 1);
    scene.open(0, here.session, 1, partition(9), None);
    scene.exchange();
    for _ in 0..4 {
        broadcast.write(&mut scene);
        here.take_all(&mut scene);
    }
    assert_eq!(scene.nodes[0].books().queued, 4, "two are awaited from the other node");
    scene.kill(1);
    for _ in 0..40 {
        scene.pass(Duration::from_secs(1));
        scene.exchange();
    }
    here.look(&mut scene);
    assert!(
        matches!(here.errors.remove(0).kind(), ErrorKind::PeerLost { .. }),
        "of the other channel"
    );
    assert_eq!(scene.nodes[0].books().queued, 0, "they will not come");
    broadcast.stream(&mut scene, 12, &mut [&mut here]);
    broadcast.finish(&mut scene, &mut [&mut here]);
    home(&mut scene, &broadcast, &[&here]);
}
