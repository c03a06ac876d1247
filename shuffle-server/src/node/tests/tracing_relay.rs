//! Buffers of a broadcast that do not have their checksum at the readers of a relay.

use shuffle_protocol::ShuffleError;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::{ErrorKind, Verdict};
use shuffle_protocol::partition::PartitionKind;

use super::harness::Scene;
use super::listeners::{Broadcast, Listener, home};
use super::parts::partition;
use super::tracing::{RIGHT, WRONG, report_of};

/// Answers the next sum that is wanted on a node.
fn look(scene: &mut Scene, node: usize, sum: u32) {
    let verify = scene.nodes[node].poll_verify().expect("a sum is wanted");
    scene.nodes[node].handle_verified(scene.now, verify.ticket, Ok(sum));
    scene.nodes[node].check_invariants();
    scene.exchange();
}

/// A broadcast that has come to a relay, and two of its readers that find the same mismatch.
fn at_relay() -> (Scene, Broadcast, [Listener; 2]) {
    let mut scene = Scene::new(2, 64);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(1, 2)]);
    let mut readers = [(); 2].map(|()| Listener::opened(&mut scene, 1, 2));
    assert!(broadcast.write(&mut scene));
    scene.exchange();
    for reader in &mut readers {
        reader.look(&mut scene);
        let report = report_of(&reader.had[0]);
        scene.ask(1, reader.session, Message::ReportMismatch(report));
    }
    scene.exchange();
    (scene, broadcast, readers)
}

#[test]
fn a_relay_fetches_once_for_all_of_its_readers() {
    let (mut scene, mut broadcast, mut readers) = at_relay();
    look(&mut scene, 1, WRONG);
    look(&mut scene, 1, WRONG);
    look(&mut scene, 0, RIGHT);
    assert!(scene.nodes[0].poll_verify().is_none(), "it was asked once");
    for reader in &mut readers {
        look(&mut scene, 1, RIGHT);
        reader.look(&mut scene);
    }
    for reader in &mut readers {
        reader.look(&mut scene);
        assert_eq!(reader.had.len(), 2, "{:?}", reader.errors);
        let (first, again) = (reader.had[0], reader.had.pop().unwrap());
        assert_eq!((first.slot, first.sequence), (again.slot, again.sequence));
    }
    assert_eq!(scene.nodes[0].counters().buffers_resent, 1);
    assert_eq!(scene.nodes[1].counters().buffers_refetched, 2);
    let [one, two] = &mut readers;
    broadcast.stream(&mut scene, 20, &mut [one, two]);
    broadcast.finish(&mut scene, &mut [one, two]);
    home(&mut scene, &broadcast, &[one, two]);
}

#[test]
fn what_the_producer_of_a_broadcast_holds_wrong_fails_its_readers() {
    for finished in [false, true] {
        let (mut scene, broadcast, mut readers) = at_relay();
        if finished {
            scene.finish(0, broadcast.session, partition(5), &broadcast.totals);
            scene.exchange();
        }
        look(&mut scene, 1, WRONG);
        look(&mut scene, 1, WRONG);
        look(&mut scene, 0, WRONG);
        for reader in &mut readers {
            reader.look(&mut scene);
            let verdict = |error: &ShuffleError| match error.kind() {
                ErrorKind::ChecksumMismatch { verdict, .. } => Some(*verdict),
                _ => None,
            };
            let verdicts: Vec<_> = reader.errors.iter().map(verdict).collect();
            assert_eq!(verdicts, [Some(Verdict::ProducerMemory)], "{:?}", reader.errors);
        }
        assert_eq!(scene.nodes[0].counters().mismatches_producer_memory, 1);
        let [one, two] = &readers;
        home(&mut scene, &broadcast, &[one, two]);
    }
}

#[test]
fn a_reader_of_a_relay_that_leaves_meanwhile_leaves_nothing() {
    let (mut scene, mut broadcast, mut readers) = at_relay();
    look(&mut scene, 1, WRONG);
    look(&mut scene, 1, WRONG);
    let leaves = &readers[0];
    scene.nodes[1].handle_session_closed(scene.now, leaves.session, false);
    scene.nodes[1].check_invariants();
    look(&mut scene, 0, RIGHT);
    look(&mut scene, 1, RIGHT);
    assert!(scene.nodes[1].poll_verify().is_none());
    let stays = &mut readers[1];
    stays.look(&mut scene);
    assert_eq!(stays.had.len(), 2);
    stays.had.pop();
    broadcast.stream(&mut scene, 20, &mut [stays]);
    broadcast.finish(&mut scene, &mut [stays]);
    home(&mut scene, &broadcast, &[&readers[1]]);
}
