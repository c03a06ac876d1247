//! One queue that many read: once on the wire, once on each node, each reader at its own pace.

use std::time::Duration;

use shuffle_protocol::StreamId;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::partition::{Lifetime, PartitionKind, Pressure};

use super::harness::Scene;
use super::listeners::{Broadcast, Listener, home};
use super::parts::partition;

#[test]
fn every_consumer_reads_everything_and_the_wire_carries_it_once_for_each_node() {
    let mut scene = Scene::new(3, 64);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(0, 2), (1, 3), (2, 1)]);
    let mut readers: Vec<Listener> = [(0, 2), (0, 2), (1, 3), (1, 3), (1, 3), (2, 1)]
        .into_iter()
        .map(|(node, told_of)| Listener::opened(&mut scene, node, told_of))
        .collect();
    let mut readers: Vec<&mut Listener> = readers.iter_mut().collect();
    broadcast.stream(&mut scene, 40, &mut readers);
    broadcast.finish(&mut scene, &mut readers);
    assert_eq!(scene.nodes[0].counters().buffers_sent, 80, "40 to each of two nodes");
    assert_eq!(scene.nodes[1].counters().buffers_received, 40);
    assert_eq!(scene.nodes[1].counters().relays_opened, 1);
    let slots = |reader: &Listener| reader.had.iter().map(|entry| entry.slot).collect::<Vec<_>>();
    assert_eq!(slots(readers[2]), slots(readers[3]), "the same memory");
    assert_eq!(slots(readers[2]), slots(readers[4]));
    assert_eq!(slots(readers[0]), slots(readers[1]));
    assert_eq!(scene.nodes[0].counters().partitions_released, 1);
    let readers: Vec<&Listener> = readers.iter().map(|reader| &**reader).collect();
    home(&mut scene, &broadcast, &readers);
}

#[test]
fn a_consumer_that_comes_late_reads_everything_and_the_others_wait_for_it() {
    let mut scene = Scene::new(2, 64);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(0, 1), (1, 2)]);
    let mut first = Listener::opened(&mut scene, 1, 2);
    let mut here = Listener::opened(&mut scene, 0, 1);
    for _ in 0..4 {
        assert!(broadcast.write(&mut scene));
        scene.exchange();
        first.take_all(&mut scene);
        here.take_all(&mut scene);
        scene.exchange();
    }
    assert_eq!((first.taken, here.taken), (4, 4));
    assert_eq!(scene.nodes[0].books().queued, 4, "kept for who is to come");
    let mut late = Listener::opened(&mut scene, 1, 2);
    late.take_all(&mut scene);
    scene.exchange();
    assert_eq!(late.taken, 4);
    assert_eq!(scene.nodes[0].books().queued, 0, "all have passed it");
    broadcast.stream(&mut scene, 20, &mut [&mut first, &mut here, &mut late]);
    broadcast.finish(&mut scene, &mut [&mut first, &mut here, &mut late]);
    assert_eq!(scene.nodes[0].counters().buffers_sent, 20);
    home(&mut scene, &broadcast, &[&first, &here, &late]);
}

#[test]
fn a_slow_consumer_holds_up_the_producer_until_it_is_gone() {
    for how in ["dies", "closes its gate", "is cancelled"] {
        let mut scene = Scene::new(2, 64);
        let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(0, 1), (1, 2)]);
        let mut quick = Listener::opened(&mut scene, 1, 2);
        let mut here = Listener::opened(&mut scene, 0, 1);
        let mut slow = Listener::opened(&mut scene, 1, 2);
        for _ in 0..4 {
            broadcast.write(&mut scene);
            scene.exchange();
            quick.take_all(&mut scene);
            here.take_all(&mut scene);
            scene.exchange();
        }
        slow.look(&mut scene);
        assert_eq!(slow.had.len(), 4);
        assert_eq!(
            scene.nodes[0].books().queued,
            4,
            "{how}: the slow one has passed nothing"
        );
        match how {
            "dies" => scene.nodes[1].handle_session_closed(scene.now, slow.session, false),
            "closes its gate" => {
                let close = control::CloseGate { request: 77, gate: 400 };
                scene.ask(1, slow.session, Message::CloseGate(close));
            }
            _ => {
                let cancel = control::CancelChannel {
                    request: 77,
                    stream: 400,
                };
                scene.ask(1, slow.session, Message::CancelChannel(cancel));
            }
        }
        scene.exchange();
        assert_eq!(scene.nodes[0].books().queued, 0, "{how}: it counts no more");
        let held = scene.nodes[1].books().quarantined;
        assert_eq!(
            held,
            if how == "dies" { 0 } else { 4 },
            "{how}: its process may still read these"
        );
        if how != "dies" {
            // What it still gives back is home then, and it is told of no breach.
            for entry in slow.had.clone() {
                scene.take(1, slow.session, &entry);
            }
            assert_eq!(scene.nodes[1].books().quarantined, 0);
        }
        broadcast.stream(&mut scene, 30, &mut [&mut quick, &mut here]);
        broadcast.finish(&mut scene, &mut [&mut quick, &mut here]);
        home(&mut scene, &broadcast, &[&quick, &here]);
    }
}

#[test]
fn two_consumers_of_one_executor_hold_the_same_slot_and_give_it_back_twice() {
    let mut scene = Scene::new(2, 64);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(1, 2)]);
    let one = Listener::opened(&mut scene, 1, 2);
    let mut two = Listener {
        stream: StreamId::new(401),
        had: Vec::new(),
        errors: Vec::new(),
        ..one
    };
    two.open(&mut scene, 2);
    broadcast.write(&mut scene);
    scene.exchange();
    let (slots, _, _) = scene.received(1, one.session);
    assert_eq!(slots.len(), 2);
    assert_eq!(slots[0].slot, slots[1].slot);
    assert_ne!(slots[0].stream, slots[1].stream);
    for entry in &slots {
        assert_eq!(scene.nodes[1].books().queued + scene.nodes[1].books().viewed, 1);
        scene.take(1, one.session, entry);
    }
    scene.exchange();
    assert_eq!(scene.nodes[1].books().queued + scene.nodes[1].books().viewed, 0);
    assert_eq!(scene.nodes[0].books().queued, 0);
    home(&mut scene, &broadcast, &[&one]);
}

#[test]
fn what_ends_a_broadcast_is_told_to_every_consumer() {
    let mut scene = Scene::new(2, 64);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(0, 1), (1, 2)]);
    let mut readers = [(1, 2), (1, 2), (0, 1)].map(|(node, told_of)| Listener::opened(&mut scene, node, told_of));
    broadcast.write(&mut scene);
    scene.exchange();
    let abort = control::AbortPartition {
        request: 66,
        writer: 5,
        cause: None,
    };
    scene.ask(0, broadcast.session, Message::AbortPartition(abort));
    scene.exchange();
    for reader in &mut readers {
        reader.look(&mut scene);
        assert_eq!(reader.errors.len(), 1, "{:?}", reader.errors);
        assert!(matches!(reader.errors[0].kind(), ErrorKind::PartitionFailed));
    }
    let [a, b, c] = &readers;
    home(&mut scene, &broadcast, &[a, b, c]);
}

#[test]
fn a_lost_node_does_not_hold_up_the_others_and_its_consumers_are_told() {
    let mut scene = Scene::new(3, 64);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(1, 1), (2, 1)]);
    let mut lost = Listener::opened(&mut scene, 1, 1);
    let mut other = Listener::opened(&mut scene, 2, 1);
    broadcast.stream(&mut scene, 5, &mut [&mut lost, &mut other]);
    scene.kill(1);
    for _ in 0..40 {
        scene.pass(Duration::from_secs(1));
        scene.exchange();
    }
    assert_eq!(scene.nodes[0].counters().peers_lost, 1);
    broadcast.stream(&mut scene, 30, &mut [&mut other]);
    broadcast.finish(&mut scene, &mut [&mut other]);
    home(&mut scene, &broadcast, &[&other]);
}

#[test]
fn a_broken_connection_goes_on_where_it_was() {
    let mut scene = Scene::new(2, 64);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(1, 2)]);
    let mut readers = [1, 1].map(|node| Listener::opened(&mut scene, node, 2));
    let [a, b] = &mut readers;
    broadcast.stream(&mut scene, 6, &mut [a, b]);
    for round in 1..6 {
        broadcast.write(&mut scene);
        broadcast.write(&mut scene);
        scene.cut(1);
        scene.exchange();
        let [a, b] = &mut readers;
        a.take_all(&mut scene);
        b.take_all(&mut scene);
        scene.exchange();
        assert_eq!(scene.nodes[0].counters().channels_resumed, round);
    }
    let [a, b] = &mut readers;
    broadcast.finish(&mut scene, &mut [a, b]);
    let [a, b] = &readers;
    home(&mut scene, &broadcast, &[a, b]);
}

#[test]
fn whoever_never_comes_is_given_up_in_time() {
    let mut scene = Scene::new(2, 64);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(0, 2), (1, 2)]);
    let mut there = Listener::opened(&mut scene, 1, 2);
    let mut here = Listener::opened(&mut scene, 0, 2);
    for _ in 0..4 {
        broadcast.write(&mut scene);
    }
    broadcast.finish(&mut scene, &mut [&mut there, &mut here]);
    assert_eq!(scene.nodes[0].books().queued, 4);
    let expiry = scene.nodes[0].config().unread_expiry;
    for _ in 0..40 {
        scene.pass(expiry / 30);
        scene.exchange();
    }
    for node in &scene.nodes {
        assert_eq!(node.books().held(), 0);
        assert_eq!(node.relays.len() + node.partitions.len(), 0);
    }
    home(&mut scene, &broadcast, &[&there, &here]);
}

#[test]
fn a_spilling_broadcast_goes_to_disk_while_its_slowest_consumer_sleeps() {
    let mut scene = Scene::new(2, 64);
    let kind = PartitionKind {
        pressure: Pressure::Spilling,
        ..PartitionKind::PIPELINE
    };
    let mut broadcast = Broadcast::create(&mut scene, kind, &[(0, 2), (1, 1)]);
    let mut quick = Listener::opened(&mut scene, 0, 2);
    let mut slow = Listener::opened(&mut scene, 0, 2);
    let mut there = Listener::opened(&mut scene, 1, 1);
    broadcast.stream(&mut scene, 4, &mut [&mut quick, &mut slow, &mut there]);
    for _ in 0..60 {
        broadcast.write(&mut scene);
        scene.exchange();
        quick.take_all(&mut scene);
        there.take_all(&mut scene);
        scene.exchange();
    }
    quick.take_all(&mut scene);
    scene.exchange();
    quick.take_all(&mut scene);
    assert!(broadcast.totals.buffers > 50, "{:?}", broadcast.totals);
    assert!(scene.nodes[0].counters().bytes_spilled > 0);
    assert_eq!(quick.taken as u64, broadcast.totals.buffers, "it is not held up");
    for _ in 0..60 {
        slow.take_all(&mut scene);
        scene.exchange();
    }
    broadcast.finish(&mut scene, &mut [&mut quick, &mut slow, &mut there]);
    home(&mut scene, &broadcast, &[&quick, &slow, &there]);
    assert!(scene.disks[0].is_empty());
}

#[test]
fn a_kept_broadcast_is_read_by_whoever_comes_and_fetched_again_for_who_comes_late() {
    let mut scene = Scene::new(2, 64);
    let kind = PartitionKind {
        lifetime: Lifetime::Persistent,
        pressure: Pressure::Spilling,
        ..PartitionKind::PIPELINE
    };
    let mut broadcast = Broadcast::create(&mut scene, kind, &[]);
    let mut first = Listener::opened(&mut scene, 1, 0);
    for _ in 0..12 {
        broadcast.write(&mut scene);
        scene.exchange();
    }
    broadcast.finish(&mut scene, &mut [&mut first]);
    let mut late = Listener::opened(&mut scene, 1, 0);
    for _ in 0..12 {
        late.take_all(&mut scene);
        scene.exchange();
    }
    assert_eq!((late.taken, late.end), (12, Some(broadcast.totals)));
    assert_eq!(scene.nodes[1].counters().relays_opened, 2);
    scene.ask(
        0,
        broadcast.session,
        Message::ReleaseJob(control::ReleaseJob { request: 5 }),
    );
    home(&mut scene, &broadcast, &[&first, &late]);
}

#[test]
fn what_is_released_waits_for_nobody_who_has_not_come_on_any_node() {
    let mut scene = Scene::new(2, 64);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(0, 2), (1, 2)]);
    let mut there = Listener::opened(&mut scene, 1, 2);
    let mut here = Listener::opened(&mut scene, 0, 2);
    for _ in 0..4 {
        broadcast.write(&mut scene);
        scene.exchange();
        there.take_all(&mut scene);
        here.take_all(&mut scene);
        scene.exchange();
    }
    assert_eq!(scene.nodes[0].books().queued, 4);
    let release = control::ReleasePartition {
        request: 50,
        partition: Some(partition(5).into()),
    };
    scene.ask(0, broadcast.session, Message::ReleasePartition(release));
    scene.exchange();
    assert_eq!(scene.nodes[0].books().queued, 0, "nobody else counts");
    let late = Listener::opened(&mut scene, 1, 2);
    assert!(
        matches!(late.errors[0].kind(), ErrorKind::Released),
        "{:?}",
        late.errors
    );
    broadcast.stream(&mut scene, 20, &mut [&mut there, &mut here]);
    broadcast.finish(&mut scene, &mut [&mut there, &mut here]);
    assert_eq!(scene.nodes[0].counters().partitions_released, 1);
    home(&mut scene, &broadcast, &[&there, &here, &late]);
}
