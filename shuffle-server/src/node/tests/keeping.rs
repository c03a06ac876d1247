//! Persistent partitions: read by many, released, expired, and served again by a later start of the server.

use std::time::Duration;

use shuffle_protocol::PartitionId;
use shuffle_protocol::control;
use shuffle_protocol::error::ErrorKind;

use super::harness::Scene;
use super::parts::{JOB, partition};
use super::storing::{FILE, LOG, PACED_LOG, assert_whole, create, keep, read, read_after, write};
use crate::spill::{Index, StoreNo};

#[test]
fn what_is_kept_is_read_by_many_each_from_the_beginning_and_outlives_its_writer() {
    for kind in [LOG, PACED_LOG, FILE] {
        let mut scene = Scene::new(2, 64);
        let id = partition(1);
        let writer = scene.attach(0);
        let early = scene.attach(1);
        create(&mut scene, 0, writer, id, kind);
        scene.open(1, early, 0, id, None);
        let limit = if kind == PACED_LOG { 10 } else { u64::MAX };
        let (written, totals) = write(&mut scene, 0, writer, id, limit.min(100), u64::MAX);
        assert_eq!(written, limit.min(100), "{kind}");
        scene.finish(0, writer, id, &totals);
        let (entries, end) = read(&mut scene, 1, early);
        assert_whole(&entries, written);
        assert_eq!(end, Some(totals));
        assert!(!scene.disks[0].sealed.is_empty());
        scene.nodes[0].handle_session_closed(scene.now, writer, false);
        for node in [0, 1, 0] {
            let late = scene.attach(node);
            scene.open(node, late, 0, id, None);
            let (entries, end) = read(&mut scene, node, late);
            assert_whole(&entries, written);
            assert_eq!(end, Some(totals));
            scene.nodes[node].handle_session_closed(scene.now, late, false);
        }
        assert!(!scene.disks[0].is_empty());
        scene.assert_all_home(&[(1, early)]);
    }
}

#[test]
fn a_paced_log_waits_for_its_slowest_reader_and_not_for_nobody() {
    let mut scene = Scene::new(1, 64);
    let id = partition(1);
    let (writer, fast, slow) = (scene.attach(0), scene.attach(0), scene.attach(0));
    create(&mut scene, 0, writer, id, PACED_LOG);
    let limit = |scene: &Scene| {
        let partition = scene.nodes[0].partitions.values().next().unwrap();
        partition.limit_of(0)
    };
    let (written, _) = write(&mut scene, 0, writer, id, 10, u64::MAX);
    assert_eq!(written, 10, "ten may wait");
    scene.demand(0, writer, id, 11);
    scene.spin_disks();
    assert_eq!(limit(&scene), 20, "nobody reads: what is on disk is in nobody's way");
    scene.open(0, fast, 0, id, None);
    scene.open(0, slow, 0, id, None);
    assert_eq!(read(&mut scene, 0, fast).0.len(), 10);
    for ordinal in 10..20 {
        for slot in scene.demand(0, writer, id, ordinal + 2) {
            scene.hand_over(0, writer, id, ordinal, slot);
        }
        scene.spin_disks();
    }
    assert_eq!(read_after(&mut scene, 0, fast, 10).0.len(), 10);
    assert_eq!(limit(&scene), 20, "one has read all of it, the other nothing");
    assert_eq!(read(&mut scene, 0, slow).0.len(), 20);
    assert_eq!(limit(&scene), 30);
}

#[test]
fn what_is_released_while_it_is_read_is_read_to_its_end_and_refused_to_others() {
    let mut scene = Scene::new(1, 64);
    let id = partition(1);
    let (writer, reader) = (scene.attach(0), scene.attach(0));
    let totals = keep(&mut scene, writer, id, FILE, 50);
    scene.open(0, reader, 0, id, None);
    let (first, ..) = scene.received(0, reader);
    scene.ask(
        0,
        writer,
        control::control::Message::ReleasePartition(control::ReleasePartition {
            request: 900,
            partition: Some(id.into()),
        }),
    );
    let late = scene.attach(0);
    scene.open(0, late, 0, id, None);
    let (_, _, errors) = scene.received(0, late);
    assert!(matches!(errors[0].kind(), ErrorKind::Released), "{errors:?}");
    for entry in &first {
        scene.take(0, reader, entry);
    }
    let (rest, end) = read_after(&mut scene, 0, reader, first.len() as u64);
    assert_eq!(first.len() + rest.len(), 50);
    assert_eq!(end, Some(totals));
    scene.spin_disks();
    assert!(scene.disks[0].is_empty());
    scene.assert_all_home(&[(0, writer), (0, reader), (0, late)]);
}

#[test]
fn a_job_that_is_over_is_released_whole_and_no_other() {
    let mut scene = Scene::new(1, 64);
    let session = scene.attach(0);
    let (id, others) = (partition(1), [1, 2].map(|index| PartitionId { index, ..partition(7) }));
    for one in others.into_iter().chain([id]) {
        keep(&mut scene, session, one, FILE, 20);
    }
    let elsewhere = crate::node::SessionInfo {
        job: shuffle_protocol::JobId::new(8),
        name: "another job".to_owned(),
        inline: false,
        packed: true,
    };
    let other = scene.nodes[0].handle_session_opened(scene.now, elsewhere).unwrap();
    keep(&mut scene, other, id, FILE, 20);
    let over = control::control::Message::ReleaseJob(control::ReleaseJob { request: 900 });
    scene.ask(0, session, over);
    let left: Vec<_> = scene.nodes[0].partitions.values().map(|of| of.job).collect();
    assert_eq!(left, [shuffle_protocol::JobId::new(8)]);
    let late = scene.attach(0);
    scene.open(0, late, 0, id, None);
    let (_, _, errors) = scene.received(0, late);
    assert!(matches!(errors[0].kind(), ErrorKind::Released), "{errors:?}");
}

#[test]
fn it_expires_when_nobody_has_read_it_for_its_time_and_not_before() {
    let mut scene = Scene::new(1, 64);
    let id = partition(1);
    let (writer, reader) = (scene.attach(0), scene.attach(0));
    keep(&mut scene, writer, id, FILE, 50);
    scene.open(0, reader, 0, id, None);
    scene.pass(Duration::from_secs(601));
    scene.spin_disks();
    assert!(!scene.disks[0].is_empty(), "somebody reads it");
    read(&mut scene, 0, reader);
    scene.pass(Duration::from_secs(601));
    scene.spin_disks();
    assert!(scene.disks[0].is_empty(), "nobody has read it for ten minutes");
    let late = scene.attach(0);
    scene.open(0, late, 0, id, None);
    let (_, _, errors) = scene.received(0, late);
    assert!(matches!(errors[0].kind(), ErrorKind::Expired), "{errors:?}");
}

#[test]
fn what_was_sealed_is_served_by_the_next_start_and_the_one_after() {
    let mut scene = Scene::new(2, 64);
    let id = partition(1);
    let writer = scene.attach(0);
    let totals = keep(&mut scene, writer, id, LOG, 100);
    for _ in 0..3 {
        scene.restart(0);
        for (store, index) in scene.disks[0].sealed.clone() {
            let index = Index::decode(&index).unwrap();
            scene.nodes[0].adopt(scene.now, store, index).unwrap();
        }
        let reader = scene.attach(1);
        scene.open(1, reader, 0, id, None);
        let (entries, end) = read(&mut scene, 1, reader);
        assert_whole(&entries, 100);
        assert_eq!(end, Some(totals));
        scene.nodes[1].handle_session_closed(scene.now, reader, false);
    }
    let newer = PartitionId { attempt: 2, ..id };
    let session = scene.attach(0);
    scene.create(0, session, newer, 1, 1, None);
    scene.spin_disks();
    assert!(scene.disks[0].is_empty(), "a newer attempt takes its place");
}

#[test]
fn what_is_lost_is_named_to_who_asks() {
    let mut scene = Scene::new(1, 64);
    let id = partition(1);
    let name = crate::spill::StoreName {
        job: JOB,
        partition: id,
    };
    scene.nodes[0].handle_lost(scene.now, name, "its index is damaged".to_owned());
    let reader = scene.attach(0);
    scene.open(0, reader, 0, id, None);
    let (_, _, errors) = scene.received(0, reader);
    assert!(matches!(errors[0].kind(), ErrorKind::DataLost), "{errors:?}");
}

#[test]
fn of_two_sealed_attempts_the_newer_one_is_served_in_whichever_order_they_are_found() {
    let index = |attempt| Index {
        job: JOB,
        partition: partition(attempt),
        kind: FILE,
        is_broadcast: false,
        buffer_bytes: 4096,
        subpartitions: 1,
        data_bytes: 0,
        groups: Vec::new(),
    };
    for order in [[1, 2], [2, 1], [2, 2]] {
        let mut scene = Scene::new(1, 64);
        for (store, attempt) in (1..).zip(order) {
            let adopted = scene.nodes[0].adopt(scene.now, StoreNo(store), index(attempt));
            adopted.expect("served, or not needed");
            scene.nodes[0].check_invariants();
        }
        let served: Vec<u32> = scene.nodes[0].partitions.values().map(|of| of.id.attempt).collect();
        assert_eq!(served, [2], "{order:?}");
        let reader = scene.attach(0);
        scene.open(0, reader, 0, partition(2), None);
        assert_eq!(read(&mut scene, 0, reader).1, Some(Default::default()));
    }
    let mut scene = Scene::new(1, 64);
    let larger = Index {
        buffer_bytes: 8192,
        ..index(1)
    };
    let error = scene.nodes[0].adopt(scene.now, StoreNo(1), larger).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConfigMismatch { .. }), "{error}");
}

#[test]
fn the_time_to_live_begins_when_the_last_reader_has_gone() {
    let mut scene = Scene::new(1, 64);
    let id = partition(1);
    let writer = scene.attach(0);
    keep(&mut scene, writer, id, FILE, 20);
    for _ in 0..4 {
        scene.pass(Duration::from_secs(400));
        let reader = scene.attach(0);
        scene.open(0, reader, 0, id, None);
        assert_whole(&read(&mut scene, 0, reader).0, 20);
        scene.nodes[0].handle_session_closed(scene.now, reader, false);
    }
    scene.pass(Duration::from_secs(599));
    assert_eq!(scene.nodes[0].partitions.len(), 1);
    scene.pass(Duration::from_secs(2));
    assert!(scene.nodes[0].partitions.is_empty());
}
