//! Several buffers of one channel in one frame, and in one slot at its reader.

use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::frame::{Batch, Frame, SlotEntry};
use shuffle_protocol::{PartitionId, Sequence, SubpartitionIndex};

use super::harness::Scene;
use super::parts::{address, filled, head_of, partition};
use crate::node::{Output, SessionId};

const WIDTH: u32 = 6;

/// Hands a slot over whose slices are the next of each subpartition.
fn hand_over(scene: &mut Scene, producer: SessionId, id: PartitionId, slot: u32, ordinal: u64) {
    let slice = |place: u32| SlotEntry {
        subpartition: SubpartitionIndex::new(place),
        sequence: Sequence::new(ordinal),
        offset: place * 8,
        length: 8,
        more_slices: place + 1 < WIDTH,
        ..filled(id, 0, slot)
    };
    let entries: Vec<SlotEntry> = (0..WIDTH).map(slice).collect();
    scene.say(0, producer, Frame::Slots(Batch::from_entries(&entries)));
}

fn open(scene: &mut Scene, consumer: SessionId, id: PartitionId, exclusive: u32, floating: u32) {
    scene.ask(
        1,
        consumer,
        Message::OpenGate(control::OpenGate {
            request: 900,
            gate: id.attempt,
            exclusive,
            floating,
            channels: vec![control::ChannelRequest {
                stream: 100 + id.attempt,
                node: address(0).to_string(),
                partition: Some(id.into()),
                range: Some(control::SubpartitionRange { first: 0, count: WIDTH }),
                broadcast: None,
            }],
            timeout_ms: 1000,
            ..control::OpenGate::default()
        }),
    );
}

/// Two nodes, a partition here, its reader there; two slots were granted.
fn scene(exclusive: u32, floating: u32) -> (Scene, SessionId, SessionId, PartitionId, Vec<u32>) {
    let mut scene = Scene::new(2, 32);
    let (producer, consumer) = (scene.attach(0), scene.attach(1));
    let id = partition(5);
    scene.create(0, producer, id, WIDTH, 2, None);
    let slots = scene.demand(0, producer, id, 2);
    open(&mut scene, consumer, id, exclusive, floating);
    scene.exchange();
    (scene, producer, consumer, id, slots)
}

/// One credit brings all that waits; it is used again when the last of that is given back, and not before.
#[test]
fn one_credit_brings_what_waits_and_comes_back_with_the_last_view() {
    let (mut scene, producer, consumer, id, slots) = scene(0, 1);
    hand_over(&mut scene, producer, id, slots[0], 0);
    hand_over(&mut scene, producer, id, slots[1], 1);
    scene.exchange();
    let (entries, _, errors) = scene.received(1, consumer);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(entries.len(), 2 * WIDTH as usize, "all of both slots");
    let mut offset = 0;
    for (sequence, entry) in (0..).zip(&entries) {
        assert_eq!((entry.sequence.value(), entry.slot), (sequence, entries[0].slot));
        assert_eq!(entry.offset, offset, "one behind the other");
        offset += entry.length;
    }
    assert_eq!(scene.nodes[1].books().viewed, 1, "one slot");

    let third = scene.demand(0, producer, id, 3);
    let (last, others) = entries.split_last().expect("some");
    others.iter().for_each(|entry| scene.take(1, consumer, entry));
    scene.exchange();
    hand_over(&mut scene, producer, id, *third.last().expect("granted"), 2);
    scene.exchange();
    assert_eq!(scene.nodes[1].books().viewed, 1, "a view is still out");
    assert!(scene.received(1, consumer).0.is_empty(), "so there is no credit");
    scene.take(1, consumer, last);
    scene.exchange();
    let (more, _, _) = scene.received(1, consumer);
    assert_eq!(more.len(), WIDTH as usize);
    more.iter().for_each(|entry| scene.take(1, consumer, entry));
    scene.assert_all_home(&[(0, producer), (1, consumer)]);
}

/// Where there are credits for all that waits each goes alone, so that no credit is left over.
#[test]
fn no_credit_is_left_over() {
    for credits in [1, 2, WIDTH - 1, WIDTH, WIDTH + 3] {
        let (mut scene, producer, consumer, id, slots) = scene(credits, 0);
        hand_over(&mut scene, producer, id, slots[0], 0);
        scene.exchange();
        let (entries, _, _) = scene.received(1, consumer);
        assert_eq!(entries.len(), WIDTH as usize, "{credits} credits");
        let frames = credits.min(WIDTH);
        assert_eq!(scene.nodes[1].books().viewed, frames, "{credits} credits");
        entries.iter().for_each(|entry| scene.take(1, consumer, entry));
        scene.assert_all_home(&[(0, producer), (1, consumer)]);
    }
}

/// A reader that is cancelled, or dies, with views of a packed slot in its hands.
#[test]
fn a_packed_slot_comes_home_however_its_reader_ends() {
    for dies in [false, true] {
        let (mut scene, producer, consumer, id, slots) = scene(0, 1);
        hand_over(&mut scene, producer, id, slots[0], 0);
        scene.exchange();
        let (entries, _, _) = scene.received(1, consumer);
        scene.take(1, consumer, &entries[0]);
        if dies {
            let now = scene.now;
            scene.nodes[1].handle_session_closed(now, consumer, false);
        } else {
            let stream = entries[0].stream.value();
            let cancel = control::CancelChannel { request: 901, stream };
            scene.ask(1, consumer, Message::CancelChannel(cancel));
            assert_eq!(scene.nodes[1].books().quarantined, 1, "its process may still read it");
            for entry in &entries[1..] {
                scene.take(1, consumer, entry);
            }
        }
        scene.nodes[1].check_invariants();
        scene.exchange();
        let sessions = [(0, producer), (1, consumer)];
        scene.assert_all_home(&sessions[..if dies { 1 } else { 2 }]);
        assert_eq!(scene.nodes[1].books().held(), 0, "nothing is left there");
    }
}

/// Buffers in one frame that do not follow each other end the connection.
#[test]
fn a_gap_in_a_frame_is_refused() {
    let (mut scene, producer, _, id, slots) = scene(1, 0);
    hand_over(&mut scene, producer, id, slots[0], 0);
    let (from, here, _, there) = scene.links[0];
    assert_eq!(from, 1, "its reader has dialled");
    let (now, mut out) = (scene.now, Vec::new());
    scene.nodes[0].poll_link(now, there, 1 << 20, &mut out);
    let mut frame: Vec<_> = out.iter().filter_map(Output::buffer).collect();
    assert_eq!(frame.len(), WIDTH as usize, "for one credit");
    let mut say = |frame: &[_]| scene.nodes[1].handle_link_data_head(now, here, &head_of(frame));
    frame[3].0.sequence = Sequence::new(9);
    assert!(say(&frame).is_err());
    frame[3].0.sequence = Sequence::new(3);
    assert!(say(&frame).is_ok(), "as it was sent");
}
