//! Slots that are handed over in slices.

use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::frame::{Batch, Frame, SlotEntry};
use shuffle_protocol::limits::MAX_SLICES_OF_SLOT;
use shuffle_protocol::{PartitionId, Sequence, SubpartitionIndex};

use super::harness::Scene;
use super::parts::{address, filled, partition};
use crate::node::SessionId;

const WIDTH: u32 = 3;

/// The slice at `place` of its slot: for subpartition `place`, the first there.
fn slice(id: PartitionId, place: u32, slot: u32, more_slices: bool) -> SlotEntry {
    SlotEntry {
        subpartition: SubpartitionIndex::new(place),
        sequence: Sequence::new(0),
        offset: place * 8,
        length: 8,
        more_slices,
        ..filled(id, 0, slot)
    }
}

fn slices(entries: &[SlotEntry]) -> Frame {
    Frame::Slots(Batch::from_entries(entries))
}

fn open_all(scene: &mut Scene, node: usize, session: SessionId, from: usize, id: PartitionId) {
    scene.ask(
        node,
        session,
        Message::OpenGate(control::OpenGate {
            request: 900,
            gate: id.attempt,
            exclusive: 2,
            floating: 2,
            channels: vec![control::ChannelRequest {
                stream: 100 + id.attempt,
                node: address(from).to_string(),
                partition: Some(id.into()),
                range: Some(control::SubpartitionRange { first: 0, count: WIDTH }),
                broadcast: None,
            }],
            timeout_ms: 1000,
            ..control::OpenGate::default()
        }),
    );
}

/// A scene with a partition of three subpartitions, one slot of which is handed over in slices.
fn sliced(nodes: usize) -> (Scene, SessionId, SessionId, PartitionId, u32) {
    let mut scene = Scene::new(nodes, 32);
    let (producer, consumer) = (scene.attach(0), scene.attach(nodes - 1));
    let id = partition(5);
    scene.create(0, producer, id, WIDTH, 2, None);
    let slot = scene.demand(0, producer, id, 1)[0];
    open_all(&mut scene, nodes - 1, consumer, 0, id);
    scene.exchange();
    (scene, producer, consumer, id, slot)
}

#[test]
fn a_slot_goes_home_with_the_last_of_its_slices() {
    for nodes in [1, 2] {
        let (mut scene, producer, consumer, id, slot) = sliced(nodes);
        // In two frames: what has come is read before the rest is there.
        scene.say(
            0,
            producer,
            slices(&[slice(id, 0, slot, true), slice(id, 1, slot, true)]),
        );
        scene.exchange();
        let (mut entries, _, errors) = scene.received(nodes - 1, consumer);
        assert!(entries.len() == 2 && errors.is_empty(), "{errors:?}");
        let first = entries.remove(0);
        scene.take(nodes - 1, consumer, &first);
        scene.exchange();
        scene.say(0, producer, slices(&[slice(id, 2, slot, false)]));
        scene.exchange();
        entries.extend(scene.received(nodes - 1, consumer).0);
        let of: Vec<u32> = entries.iter().map(|entry| entry.subpartition.value()).collect();
        assert_eq!(of, [1, 2]);
        let last = entries.pop().unwrap();
        for entry in entries {
            scene.take(nodes - 1, consumer, &entry);
        }
        scene.exchange();
        let held = |scene: &Scene| scene.nodes[0].books().queued + scene.nodes[0].books().viewed;
        assert_eq!(held(&scene), 1, "one slice is still out");
        scene.take(nodes - 1, consumer, &last);
        scene.exchange();
        assert_eq!(held(&scene), 0);
        scene.assert_all_home(&[(0, producer), (nodes - 1, consumer)]);
    }
}

#[test]
fn what_still_comes_of_a_failed_writer_is_thrown_away() {
    for died in [false, true] {
        let (mut scene, producer, consumer, id, slot) = sliced(2);
        scene.say(0, producer, slices(&[slice(id, 0, slot, true)]));
        scene.ask(
            0,
            producer,
            Message::AbortPartition(control::AbortPartition {
                request: 901,
                writer: id.attempt,
                cause: None,
            }),
        );
        scene.exchange();
        assert_eq!(scene.nodes[0].books().quarantined, 1, "its process may still name it");
        if !died {
            scene.say(0, producer, slices(&[slice(id, 1, slot, true)]));
            assert_eq!(scene.nodes[0].books().quarantined, 1);
            scene.say(0, producer, slices(&[slice(id, 2, slot, false)]));
            assert_eq!(scene.nodes[0].books().quarantined, 0);
        }
        scene.assert_all_home(&[(0, producer), (1, consumer)]);
    }
}

#[test]
fn a_writer_that_dies_between_two_slices_leaves_nothing() {
    let (mut scene, producer, consumer, id, slot) = sliced(1);
    scene.say(0, producer, slices(&[slice(id, 0, slot, true)]));
    let viewed = scene.received(0, consumer).0;
    assert_eq!(viewed.len(), 1);
    let now = scene.now;
    scene.nodes[0].handle_session_closed(now, producer, false);
    scene.nodes[0].check_invariants();
    assert_eq!(
        scene.nodes[0].books().viewed + scene.nodes[0].books().quarantined,
        1,
        "its reader holds it"
    );
    scene.assert_all_home(&[(0, consumer)]);
}

#[test]
fn slices_that_may_not_be_are_refused() {
    let (mut scene, producer, consumer, id, slot) = sliced(1);
    let now = scene.now;
    scene.say(0, producer, slices(&[slice(id, 0, slot, true)]));
    let mut stranger = slice(id, 1, slot, true);
    let refused = scene.nodes[0].handle_session_frame(now, consumer, slices(&[stranger]));
    assert!(refused.is_err(), "a slice of somebody else's slot");
    stranger.slot += 1;
    let refused = scene.nodes[0].handle_session_frame(now, producer, slices(&[stranger]));
    assert!(refused.is_err(), "a slice of a slot that was not granted");

    let mut scene = Scene::new(1, 32);
    let producer = scene.attach(0);
    let creation = control::CreatePartition {
        writer: id.attempt,
        partition: Some(id.into()),
        subpartitions: 1,
        min_buffers: 2,
        max_queued_per_subpartition: 1000,
        timeout_ms: 1000,
        ..control::CreatePartition::default()
    };
    scene.create_as(0, producer, creation);
    let slot = scene.demand(0, producer, id, 1)[0];
    let now = scene.now;
    let handed = (0..).take_while(|ordinal| {
        let entry = SlotEntry {
            sequence: Sequence::new(*ordinal),
            ..slice(id, 0, slot, true)
        };
        scene.nodes[0]
            .handle_session_frame(now, producer, slices(&[entry]))
            .is_ok()
    });
    assert_eq!(
        handed.count(),
        MAX_SLICES_OF_SLOT as usize - 1,
        "the next one had to be the last"
    );
}
