//! What drivers are told of partitions that have one queue: everything by the producer's node, and nothing by those that hold a copy.

use std::time::Duration;

use shuffle_protocol::ShuffleError;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::notify::{PartitionChange, PartitionState};
use shuffle_protocol::partition::{Lifetime, PartitionKind, Pressure, Readiness};

use super::harness::Scene;
use super::listeners::{Broadcast, Listener, home};
use super::parts::partition;
use super::telling::{LINGER, change, finished, release, subscribe_to, told_by};
use crate::node::SessionId;

/// Drivers of two nodes, who have heard that nothing is there.
struct Drivers {
    sessions: [SessionId; 2],
    heard: [u64; 2],
}

impl Drivers {
    fn subscribe(scene: &mut Scene) -> Self {
        let mut drivers = Self {
            sessions: [0, 1].map(|node| subscribe_to(scene, node)),
            heard: [0; 2],
        };
        assert_eq!(drivers.hear(scene), [vec![], vec![]], "nothing is there");
        assert_eq!(drivers.heard, [1; 2], "as the snapshots say");
        drivers
    }

    /// What they are told once everything has waited as long as it may.
    fn hear(&mut self, scene: &mut Scene) -> [Vec<PartitionChange>; 2] {
        scene.pass(LINGER * 60);
        scene.exchange();
        self.hear_now(scene)
    }

    fn hear_now(&mut self, scene: &mut Scene) -> [Vec<PartitionChange>; 2] {
        [0, 1].map(|node| {
            let (messages, _) = told_by(scene, node, self.sessions[node]);
            self.heard[node] += messages.len() as u64;
            let number = self.heard[node];
            let seen = Message::EventsSeen(control::EventsSeen { number });
            scene.ask(node, self.sessions[node], seen);
            messages.concat()
        })
    }
}

fn of_5(state: PartitionState) -> Vec<PartitionChange> {
    vec![change(partition(5), state)]
}

#[test]
fn each_state_of_every_kind_is_told_by_the_producers_node_alone() {
    let kinds = PartitionKind::all().filter(|kind| kind.validate().is_ok());
    for kind in kinds {
        let mut scene = Scene::new(2, 64);
        let mut drivers = Drivers::subscribe(&mut scene);
        let mut broadcast = Broadcast::create(&mut scene, kind, &[(0, 1), (1, 2)]);
        assert_eq!(
            drivers.hear(&mut scene),
            [of_5(PartitionState::Registered), vec![]],
            "{kind}"
        );

        let mut readers = [(0, 1), (1, 2), (1, 2)].map(|(node, told_of)| Listener::opened(&mut scene, node, told_of));
        assert_eq!(drivers.hear(&mut scene), [vec![], vec![]], "{kind}: a relay is no news");
        for _ in 0..3 {
            assert!(broadcast.write(&mut scene), "{kind}");
            scene.exchange();
        }
        assert_eq!(
            drivers.hear(&mut scene),
            [of_5(PartitionState::FirstBuffer), vec![]],
            "{kind}"
        );

        let mut readers: Vec<&mut Listener> = readers.iter_mut().collect();
        let bytes = broadcast.totals.bytes;
        if kind.lifetime == Lifetime::Persistent {
            broadcast.finish(&mut scene, &mut readers);
            assert_eq!(drivers.hear(&mut scene), [of_5(finished(&[bytes])), vec![]], "{kind}");
            release(&mut scene, broadcast.session, partition(5));
            scene.exchange();
            assert_eq!(
                drivers.hear(&mut scene),
                [of_5(PartitionState::Released), vec![]],
                "{kind}"
            );
        } else {
            broadcast.finish(&mut scene, &mut readers);
            let both = [of_5(finished(&[bytes])), of_5(PartitionState::Released)].concat();
            assert_eq!(
                drivers.hear(&mut scene),
                [both, vec![]],
                "{kind}: it was gone before that was said"
            );
        }
        let readers: Vec<&Listener> = readers.iter().map(|reader| &**reader).collect();
        home(&mut scene, &broadcast, &readers);
    }
}

#[test]
fn one_that_fails_is_told_once_with_its_cause() {
    let mut scene = Scene::new(2, 64);
    let mut drivers = Drivers::subscribe(&mut scene);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(1, 1)]);
    let mut reader = Listener::opened(&mut scene, 1, 1);
    broadcast.stream(&mut scene, 3, &mut [&mut reader]);
    drivers.hear(&mut scene);
    let cause = ShuffleError::new(ErrorKind::Aborted, "the source cannot be read");
    let abort = control::AbortPartition {
        writer: 5,
        cause: Some((&cause).into()),
        ..control::AbortPartition::default()
    };
    scene.ask(0, broadcast.session, Message::AbortPartition(abort));
    scene.exchange();
    let [here, there] = drivers.hear_now(&mut scene);
    let [failed] = &here[..] else { panic!("{here:?}") };
    let PartitionState::Failed { cause: told } = &failed.state else {
        panic!("{failed:?}")
    };
    assert_eq!(failed.partition, partition(5));
    assert_eq!(told.first_cause().message(), cause.message());
    reader.look(&mut scene);
    assert_eq!(reader.errors[0].first_cause().message(), cause.message());
    assert_eq!(there, [], "its relay has failed as well, and that is not said");
    assert_eq!(drivers.hear(&mut scene), [vec![], vec![]], "nothing is said twice");
}

#[test]
fn a_driver_that_comes_late_is_told_nothing_of_a_relay_and_does_not_wait_for_it() {
    let mut scene = Scene::new(2, 64);
    let blocking = PartitionKind {
        readiness: Readiness::Blocking,
        pressure: Pressure::Spilling,
        ..PartitionKind::PIPELINE
    };
    let mut broadcast = Broadcast::create(&mut scene, blocking, &[(1, 1)]);
    let mut reader = Listener::opened(&mut scene, 1, 1);
    assert!(broadcast.write(&mut scene));
    scene.exchange();
    assert_eq!(scene.nodes[1].counters().relays_opened, 1);
    let driver = subscribe_to(&mut scene, 1);
    assert_eq!(told_by(&mut scene, 1, driver), (vec![vec![]], true));
    scene.ask(1, driver, Message::EventsSeen(control::EventsSeen { number: 1 }));

    // Another partition of the same result, here: with its end all of them that are produced here are there.
    let writer = scene.attach(1);
    let id = shuffle_protocol::PartitionId {
        index: 9,
        ..partition(1)
    };
    let mut creation = control::CreatePartition {
        writer: 1,
        partition: Some(id.into()),
        subpartitions: 1,
        min_buffers: 1,
        ..control::CreatePartition::default()
    };
    creation.set_readiness(control::Readiness::Blocking);
    creation.set_pressure(control::Pressure::Spilling);
    scene.create_as(1, writer, creation);
    scene.pass(Duration::from_millis(1));
    assert_eq!(told_by(&mut scene, 1, driver), (vec![], false));
    scene.finish(1, writer, id, &shuffle_protocol::partition::Totals::default());
    scene.exchange();
    let at_once = vec![vec![change(id, finished(&[0]))]];
    assert_eq!(
        told_by(&mut scene, 1, driver),
        (at_once, false),
        "nothing more is produced here"
    );

    broadcast.finish(&mut scene, &mut [&mut reader]);
}
