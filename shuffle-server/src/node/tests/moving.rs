//! Buffers that arrive.

use std::time::Duration;

use shuffle_protocol::partition::Totals;

use super::harness::Scene;
use super::parts::partition;

/// Writes `count` buffers as grants and limits allow while the reader takes what comes; gives the totals that were written.
fn stream(
    scene: &mut Scene,
    writer: (usize, crate::node::SessionId),
    reader: (usize, crate::node::SessionId),
    count: u64,
) -> Totals {
    let id = partition(5);
    let mut totals = Totals::default();
    let (mut written, mut read) = (0, 0);
    let mut slots = scene.demand(writer.0, writer.1, id, 2);
    while read < count {
        while written < count && written < read + 4 {
            let Some(slot) = slots.pop() else { break };
            let one = scene.hand_over(writer.0, writer.1, id, written, slot);
            totals.add_buffer(
                u32::try_from(one.bytes).unwrap(),
                0xC0DE + id.attempt,
                1,
                shuffle_protocol::partition::BufferKind::Data,
            );
            written += 1;
        }
        scene.exchange();
        let (entries, _, errors) = scene.received(reader.0, reader.1);
        assert!(errors.is_empty(), "{errors:?}");
        for entry in entries {
            assert_eq!(entry.length, 1000 + u32::try_from(read).unwrap());
            assert_eq!(entry.sequence.value(), read);
            scene.take(reader.0, reader.1, &entry);
            read += 1;
        }
        scene.exchange();
        slots.extend(scene.demand(writer.0, writer.1, id, written + 2));
    }
    totals
}

fn whole_life(nodes: usize, from: usize, to: usize) {
    let mut scene = Scene::new(nodes, 32);
    let producer = scene.attach(from);
    let consumer = scene.attach(to);
    let id = partition(5);
    scene.open(to, consumer, from, id, None);
    scene.exchange();
    scene.create(from, producer, id, 1, 2, None);
    let totals = stream(&mut scene, (from, producer), (to, consumer), 40);
    scene.finish(from, producer, id, &totals);
    scene.exchange();
    let (entries, end, errors) = scene.received(to, consumer);
    assert!(entries.is_empty() && errors.is_empty(), "{entries:?} {errors:?}");
    assert_eq!(end, Some(totals));
    scene.ack(to, consumer, shuffle_protocol::StreamId::new(105), 41);
    scene.exchange();
    assert_eq!(scene.nodes[from].counters().partitions_released, 1);
    assert_eq!(scene.nodes[from].counters().buffers_discarded, 0);
    scene.close_gate(to, consumer, id);
    scene.assert_all_home(&[(from, producer), (to, consumer)]);
}

#[test]
fn a_partition_crosses_a_node() {
    whole_life(1, 0, 0);
}

#[test]
fn a_partition_crosses_two_nodes_in_either_direction() {
    whole_life(2, 0, 1);
    whole_life(2, 1, 0);
}

#[test]
fn a_cut_in_the_middle_of_a_buffer_loses_and_repeats_nothing() {
    let mut scene = Scene::new(2, 32);
    let producer = scene.attach(0);
    let consumer = scene.attach(1);
    let id = partition(5);
    scene.open(1, consumer, 0, id, None);
    scene.create(0, producer, id, 1, 4, None);
    scene.exchange();
    let slots = scene.demand(0, producer, id, 4);
    let mut totals = Totals::default();
    for (ordinal, slot) in (0..).zip(slots) {
        let one = scene.hand_over(0, producer, id, ordinal, slot);
        totals.add_buffer(
            u32::try_from(one.bytes).unwrap(),
            0xC0DE + 5,
            1,
            shuffle_protocol::partition::BufferKind::Data,
        );
    }
    scene.cut(1);
    scene.finish(0, producer, id, &totals);
    scene.pass(Duration::from_millis(100));
    let mut seen = 0;
    for _ in 0..10 {
        scene.exchange();
        let (entries, end, errors) = scene.received(1, consumer);
        assert!(errors.is_empty(), "{errors:?}");
        for entry in entries {
            assert_eq!(entry.sequence.value(), seen);
            scene.take(1, consumer, &entry);
            seen += 1;
        }
        if let Some(end) = end {
            assert_eq!(end, totals);
            scene.ack(1, consumer, shuffle_protocol::StreamId::new(105), 5);
        }
        if seen == 2 {
            scene.cut(1);
            scene.pass(Duration::from_millis(100));
        }
    }
    assert_eq!(seen, 4);
    assert!(scene.nodes[0].counters().channels_resumed > 0, "the fault fired");
    assert_eq!(scene.nodes[0].counters().partitions_released, 1);
    scene.assert_all_home(&[(0, producer), (1, consumer)]);
}

#[test]
fn a_reader_that_holds_its_views_stops_its_own_channel_and_gets_the_rest_later() {
    let mut scene = Scene::new(1, 32);
    let session = scene.attach(0);
    let id = partition(5);
    scene.create(0, session, id, 1, 8, None);
    scene.open(0, session, 0, id, None);
    let slots = scene.demand(0, session, id, 8);
    for (ordinal, slot) in (0..).zip(slots) {
        scene.hand_over(0, session, id, ordinal, slot);
    }
    let (held, _, _) = scene.received(0, session);
    assert_eq!(held.len(), 4, "two exclusive and two floating");
    scene.take(0, session, &held[2]);
    let (more, _, _) = scene.received(0, session);
    assert_eq!(more.len(), 1, "views may be dropped in any order, each is one credit");
    scene.assert_all_home(&[(0, session)]);
}
