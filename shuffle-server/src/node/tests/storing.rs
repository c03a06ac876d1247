//! Partitions that go to disk: what spills, what is kept, and what survives.

use shuffle_protocol::control;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::{Arena, Batch, Frame, SlotEntry};
use shuffle_protocol::partition::{BufferKind, Lifetime, PartitionKind, Pressure, Readiness, Totals};
use shuffle_protocol::{PartitionId, ShuffleError, StreamId};

use super::harness::Scene;
use super::parts::partition;
use crate::node::SessionId;

pub(super) const SPILLING: PartitionKind = PartitionKind {
    lifetime: Lifetime::Ephemeral,
    readiness: Readiness::Pipelined,
    pressure: Pressure::Spilling,
};
pub(super) const BATCH: PartitionKind = PartitionKind {
    readiness: Readiness::Blocking,
    ..SPILLING
};
pub(super) const LOG: PartitionKind = PartitionKind {
    lifetime: Lifetime::Persistent,
    ..SPILLING
};
pub(super) const PACED_LOG: PartitionKind = PartitionKind {
    pressure: Pressure::Bounded,
    ..LOG
};
pub(super) const FILE: PartitionKind = PartitionKind {
    readiness: Readiness::Blocking,
    ..LOG
};

pub(super) fn create(scene: &mut Scene, node: usize, session: SessionId, id: PartitionId, kind: PartitionKind) {
    let creation = control::CreatePartition {
        writer: id.attempt,
        partition: Some(id.into()),
        subpartitions: 1,
        min_buffers: 4,
        max_buffers: 8,
        timeout_ms: 1000,
        ..control::CreatePartition::default()
    };
    scene.create_as(node, session, creation.with_kind(kind));
}

/// Writes as many as grants and limits allow, up to `count` in all, with the disks running; gives what was written.
pub(super) fn write(
    scene: &mut Scene,
    node: usize,
    session: SessionId,
    id: PartitionId,
    count: u64,
    limit: u64,
) -> (u64, Totals) {
    let (mut written, mut totals) = (0, Totals::default());
    let mut idle = 0;
    while written < count && idle < 3 {
        let slots = scene.demand(node, session, id, (written + 4).min(count));
        idle = if slots.is_empty() { idle + 1 } else { 0 };
        for slot in slots {
            if written == limit {
                return (written, totals);
            }
            let one = scene.hand_over(node, session, id, written, slot);
            totals.add_buffer(
                u32::try_from(one.bytes).unwrap(),
                0xC0DE + id.attempt,
                1,
                BufferKind::Data,
            );
            written += 1;
        }
        scene.spin_disks();
    }
    (written, totals)
}

/// Writes a partition of node 0 to its end, and has it sealed if it is to be kept; gives what was written.
pub(super) fn keep(scene: &mut Scene, session: SessionId, id: PartitionId, kind: PartitionKind, count: u64) -> Totals {
    create(scene, 0, session, id, kind);
    let (written, totals) = write(scene, 0, session, id, count, u64::MAX);
    assert_eq!(written, count);
    scene.finish(0, session, id, &totals);
    scene.spin_disks();
    totals
}

/// Reads until nothing comes any more; gives the buffers, and the end if it came.
pub(super) fn read(scene: &mut Scene, node: usize, session: SessionId) -> (Vec<SlotEntry>, Option<Totals>) {
    read_after(scene, node, session, 0)
}

/// The same by a reader that has had `before` buffers.
pub(super) fn read_after(
    scene: &mut Scene,
    node: usize,
    session: SessionId,
    before: u64,
) -> (Vec<SlotEntry>, Option<Totals>) {
    let (mut all, mut end) = (Vec::new(), None);
    loop {
        scene.exchange();
        let (slots, ended, errors) = scene.received(node, session);
        assert!(errors.is_empty(), "{errors:?}");
        end = end.or(ended);
        if slots.is_empty() && ended.is_none() && !scene.spin_disks() {
            return (all, end);
        }
        for entry in &slots {
            scene.take(node, session, entry);
        }
        all.extend(slots);
        if ended.is_some() {
            // The end marker stands behind all buffers.
            scene.ack(node, session, StreamId::new(101), all.len() as u64 + before + 1);
        }
    }
}

pub(super) fn assert_whole(entries: &[SlotEntry], count: u64) {
    let lengths: Vec<u64> = entries.iter().map(|entry| u64::from(entry.length) - 1000).collect();
    assert_eq!(lengths, (0..count).collect::<Vec<_>>(), "each once, in order");
}

#[test]
fn what_spills_goes_on_without_a_reader_and_is_read_without_gap_or_repeat() {
    for (kind, reader_node) in [(SPILLING, 0), (SPILLING, 1), (BATCH, 0), (BATCH, 1)] {
        let mut scene = Scene::new(2, 64);
        let id = partition(1);
        let writer = scene.attach(0);
        let reader = scene.attach(reader_node);
        create(&mut scene, 0, writer, id, kind);
        let (written, totals) = write(&mut scene, 0, writer, id, 200, u64::MAX);
        assert_eq!(written, 200, "{kind}: nobody reads, and the writer goes on");
        assert!(scene.disks[0].writes > 0);
        scene.open(reader_node, reader, 0, id, None);
        let (before, end) = read(&mut scene, reader_node, reader);
        assert_eq!(end, None);
        if kind == BATCH {
            assert_eq!(before.len(), 0, "a blocking partition is read once it is finished");
        } else {
            assert_whole(&before, 200);
        }
        scene.finish(0, writer, id, &totals);
        let (after, end) = read_after(&mut scene, reader_node, reader, before.len() as u64);
        assert_eq!(end, Some(totals));
        let all: Vec<_> = before.into_iter().chain(after).collect();
        assert_whole(&all, 200);
        scene.assert_all_home(&[(0, writer), (reader_node, reader)]);
        assert!(scene.disks[0].is_empty(), "nothing is left on the disk");
    }
}

#[test]
fn a_reader_that_keeps_up_reads_from_memory() {
    let mut scene = Scene::new(1, 64);
    let id = partition(1);
    let session = scene.attach(0);
    create(&mut scene, 0, session, id, SPILLING);
    scene.open(0, session, 0, id, None);
    for ordinal in 0..100 {
        let slot = scene.demand(0, session, id, ordinal + 1)[0];
        scene.hand_over(0, session, id, ordinal, slot);
        let (entries, _) = read(&mut scene, 0, session);
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].arena, Arena::Write);
    }
    assert_eq!(scene.disks[0].writes, 0);
}

#[test]
fn the_seam_between_memory_and_disk_moves_with_the_reader() {
    let mut scene = Scene::new(1, 64);
    let id = partition(1);
    let (writer, reader) = (scene.attach(0), scene.attach(0));
    create(&mut scene, 0, writer, id, SPILLING);
    scene.open(0, reader, 0, id, None);
    let (mut written, mut got) = (0, Vec::new());
    // Bursts that are longer than the pool, and a reader that takes a part of each.
    for burst in 0..20 {
        for _ in 0..(5 + burst) {
            for slot in scene.demand(0, writer, id, written + 1) {
                scene.hand_over(0, writer, id, written, slot);
                written += 1;
            }
            scene.spin_disks();
        }
        let (slots, _, errors) = scene.received(0, reader);
        assert!(errors.is_empty(), "{errors:?}");
        for entry in &slots {
            scene.take(0, reader, entry);
        }
        got.extend(slots);
    }
    got.extend(read(&mut scene, 0, reader).0);
    assert_whole(&got, written);
    let from_disk = got.iter().filter(|entry| entry.arena == Arena::Read).count();
    assert!(
        from_disk > 0 && from_disk < got.len(),
        "{from_disk} of {} came from disk",
        got.len()
    );
    scene.assert_all_home(&[(0, writer), (0, reader)]);
}

#[test]
fn a_producer_goes_on_when_nothing_but_heads_is_in_memory() {
    let mut scene = Scene::new(1, 64);
    let id = partition(1);
    let (writer, reader) = (scene.attach(0), scene.attach(0));
    let creation = control::CreatePartition {
        writer: id.attempt,
        partition: Some(id.into()),
        subpartitions: 2,
        min_buffers: 4,
        max_buffers: 4,
        ..control::CreatePartition::default()
    };
    scene.create_as(0, writer, creation.with_kind(SPILLING));
    let channel = |index| control::ChannelRequest {
        stream: 100 + index,
        node: String::new(),
        partition: Some(id.into()),
        range: Some(control::SubpartitionRange { first: index, count: 1 }),
        broadcast: None,
    };
    let gate = control::OpenGate {
        request: 800,
        exclusive: 2,
        channels: vec![channel(0), channel(1)],
        ..control::OpenGate::default()
    };
    // It never looks.
    scene.ask(0, reader, control::control::Message::OpenGate(gate));
    let mut free = scene.demand(0, writer, id, 4);
    // What comes behind a head is written before the next head is there.
    let mut ordinals = [0u64; 2];
    for written in 0..40u64 {
        let index = usize::try_from(written / 3 % 2).unwrap();
        let slot = free.pop().unwrap_or_else(|| panic!("no buffer for the {written}th"));
        let mut entry = super::parts::filled(id, ordinals[index], slot);
        ordinals[index] += 1;
        entry.subpartition = shuffle_protocol::SubpartitionIndex::new(u32::try_from(index).unwrap());
        scene.say(0, writer, Frame::Slots(Batch::from_entries(&[entry])));
        scene.spin_disks();
        free.extend(scene.demand(0, writer, id, written + 5));
        scene.spin_disks();
        free.extend(scene.demand(0, writer, id, written + 5));
    }
    scene.assert_all_home(&[(0, writer), (0, reader)]);
}

#[test]
fn a_full_disk_fails_that_partition_and_no_other() {
    for kind in [SPILLING, FILE] {
        let mut scene = Scene::new(1, 64);
        let (id, other) = (partition(1), partition(2));
        let other = PartitionId { index: 4, ..other };
        let session = scene.attach(0);
        create(&mut scene, 0, session, id, kind);
        create(&mut scene, 0, session, other, kind);
        let full = ErrorKind::NoSpace {
            needed: 1 << 20,
            free: 0,
        };
        scene.disks[0].fault = Some(ShuffleError::new(full.clone(), "/spill: full"));
        let (mut slots, mut errors) = (scene.demand(0, session, id, 8), Vec::new());
        for ordinal in 0..4 {
            scene.hand_over(0, session, id, ordinal, slots.pop().unwrap());
        }
        scene.demand(0, session, id, 40);
        let mut totals = Totals::default();
        if kind == FILE {
            for ordinal in 0..4u32 {
                totals.add_buffer(1000 + ordinal, 0xC0DE + id.attempt, 1, BufferKind::Data);
            }
            scene.finish(0, session, id, &totals);
        }
        scene.spin_disks();
        errors.extend(scene.received(0, session).2);
        assert!(
            !errors.is_empty() && errors.iter().all(|error| *error.kind() == full),
            "{errors:?}"
        );
        let (written, totals) = write(&mut scene, 0, session, other, 50, u64::MAX);
        assert_eq!(written, 50, "the other one spills");
        scene.finish(0, session, other, &totals);
        scene.spin_disks();
        scene.open(0, session, 0, other, None);
        let (entries, ..) = scene.received(0, session);
        scene.spin_disks();
        let (more, ..) = scene.received(0, session);
        assert_eq!(entries.len() + more.len(), 4, "as much as it may hold");
    }
}

#[test]
fn a_disk_that_cannot_be_read_fails_that_reader() {
    let mut scene = Scene::new(2, 64);
    let id = partition(1);
    let writer = scene.attach(0);
    keep(&mut scene, writer, id, FILE, 50);
    let unlucky = scene.attach(1);
    scene.open(1, unlucky, 0, id, None);
    scene.disks[0].fault = Some(ShuffleError::new(ErrorKind::Io, "/spill: input/output error"));
    scene.exchange();
    let (_, _, errors) = scene.received(1, unlucky);
    assert!(matches!(errors[0].kind(), ErrorKind::Io), "{errors:?}");
    let other = scene.attach(1);
    scene.open(1, other, 0, id, None);
    assert_whole(&read(&mut scene, 1, other).0, 50);
    scene.assert_all_home(&[(0, writer), (1, unlucky), (1, other)]);
}

#[test]
fn slots_of_a_disk_that_does_not_answer_are_never_granted_again() {
    let mut scene = Scene::new(1, 64);
    let id = partition(1);
    let (writer, reader) = (scene.attach(0), scene.attach(0));
    keep(&mut scene, writer, id, FILE, 50);
    scene.disks[0].stopped = true;
    scene.open(0, reader, 0, id, None);
    scene.outputs(0, reader);
    scene.nodes[0].handle_session_closed(scene.now, reader, false);
    assert!(scene.nodes[0].books().kernel > 0, "they are being filled");
    scene.disks[0].stopped = false;
    scene.spin_disks();
    assert_eq!(scene.nodes[0].books().kernel, 0);
    scene.assert_all_home(&[(0, writer)]);
}

#[test]
fn without_a_disk_what_may_need_one_is_refused_with_the_key() {
    let mut scene = Scene::new(1, 64);
    scene.nodes[0].config.disks = false;
    for kind in PartitionKind::all() {
        let session = scene.attach(0);
        create(&mut scene, 0, session, partition(1), kind);
        let (_, _, errors) = scene.received(0, session);
        scene.nodes[0].handle_session_closed(scene.now, session, false);
        match errors.first() {
            None => assert_eq!(kind, PartitionKind::PIPELINE),
            Some(error) if kind.readiness == Readiness::Blocking && kind.pressure == Pressure::Bounded => {
                assert!(matches!(error.kind(), ErrorKind::InvalidRequest), "{error}");
            }
            Some(error) => {
                assert!(matches!(error.kind(), ErrorKind::Unsupported), "{error}");
                assert!(error.to_string().contains("storage.directories"), "{error}");
            }
        }
    }
}
