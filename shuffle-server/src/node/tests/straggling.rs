//! Who holds up the others of its node: they go on without it where what it lacks can be fetched again.

use std::time::Duration;

use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::partition::{Lifetime, PartitionKind, Pressure};

use super::harness::Scene;
use super::listeners::{Broadcast, Listener, home};

const SPILLING: PartitionKind = PartitionKind {
    pressure: Pressure::Spilling,
    ..PartitionKind::PIPELINE
};

/// Longer than a reader is held up by another.
const LONG: Duration = Duration::from_millis(1050);

/// Writes so many, and lets these readers take what comes.
fn write(scene: &mut Scene, broadcast: &mut Broadcast, count: usize, readers: &mut [&mut Listener]) {
    for _ in 0..count {
        broadcast.write(scene);
        scene.exchange();
        take(scene, readers);
    }
}

fn take(scene: &mut Scene, readers: &mut [&mut Listener]) {
    for reader in readers.iter_mut() {
        reader.take_all(scene);
    }
    scene.exchange();
}

/// Lets time go by, and these readers take what comes, until all of them have everything that was written.
fn until_taken(scene: &mut Scene, broadcast: &Broadcast, readers: &mut [&mut Listener]) {
    for _ in 0..200 {
        take(scene, readers);
        if readers
            .iter()
            .all(|reader| reader.taken as u64 == broadcast.totals.buffers)
        {
            return;
        }
        scene.pass(LONG / 10);
    }
    let had: Vec<_> = readers.iter().map(|reader| (reader.taken, &reader.errors)).collect();
    panic!("{had:?} of {}", broadcast.totals.buffers);
}

fn bytes_of(ordinals: std::ops::Range<u64>) -> u64 {
    ordinals.map(|ordinal| 1000 + ordinal).sum()
}

#[test]
fn the_others_go_on_without_a_slow_one_which_fetches_again() {
    for lifetime in [Lifetime::Ephemeral, Lifetime::Persistent] {
        let mut scene = Scene::new(2, 128);
        let mut broadcast = Broadcast::create(&mut scene, PartitionKind { lifetime, ..SPILLING }, &[(1, 3)]);
        let mut quick = Listener::opened(&mut scene, 1, 3);
        let mut other = Listener::opened(&mut scene, 1, 3);
        let mut slow = Listener::opened(&mut scene, 1, 3);
        write(&mut scene, &mut broadcast, 3, &mut [&mut quick, &mut other, &mut slow]);
        write(&mut scene, &mut broadcast, 60, &mut [&mut quick, &mut other]);
        let until = quick.taken;
        slow.look(&mut scene);
        assert_eq!(slow.had.len(), 7, "four are in its hands");
        assert_eq!(broadcast.totals.buffers, 63);
        assert!(
            until < 63,
            "{lifetime:?}: held up behind the relay's window, not at {until}"
        );
        assert_eq!(scene.nodes[1].counters().relays_opened, 1);
        until_taken(&mut scene, &broadcast, &mut [&mut quick, &mut other]);
        assert_eq!(scene.nodes[1].counters().relays_opened, 2, "{lifetime:?}");
        assert_eq!(slow.taken, 3, "nobody has taken anything from it");
        until_taken(&mut scene, &broadcast, &mut [&mut slow]);
        // What it held in its hands it has; the rest it had not been given came twice.
        let twice = bytes_of(7..until as u64);
        assert_eq!(scene.nodes[1].counters().refetch_bytes, twice, "{lifetime:?}");
        write(&mut scene, &mut broadcast, 10, &mut [&mut quick, &mut other, &mut slow]);
        let mut readers = [&mut quick, &mut other, &mut slow];
        broadcast.finish(&mut scene, &mut readers);
        assert_eq!(scene.nodes[1].relays.len(), 0);
        let release = control::ReleaseJob { request: 5 };
        scene.ask(0, broadcast.session, Message::ReleaseJob(release));
        home(&mut scene, &broadcast, &[&quick, &other, &slow]);
        assert!(scene.disks[0].is_empty());
    }
}

#[test]
fn a_bounded_one_has_everybody_wait() {
    let mut scene = Scene::new(2, 128);
    let mut broadcast = Broadcast::create(&mut scene, PartitionKind::PIPELINE, &[(1, 2)]);
    let mut quick = Listener::opened(&mut scene, 1, 2);
    let mut slow = Listener::opened(&mut scene, 1, 2);
    write(&mut scene, &mut broadcast, 4, &mut [&mut quick]);
    for _ in 0..20 {
        scene.pass(LONG);
        take(&mut scene, &mut [&mut quick]);
    }
    assert_eq!(scene.nodes[1].counters().relays_opened, 1);
    assert_eq!(scene.nodes[0].books().queued, 4);
    broadcast.stream(&mut scene, 20, &mut [&mut quick, &mut slow]);
    broadcast.finish(&mut scene, &mut [&mut quick, &mut slow]);
    home(&mut scene, &broadcast, &[&quick, &slow]);
}

#[test]
fn consumers_may_run_in_waves_where_the_producer_spills() {
    let mut scene = Scene::new(2, 128);
    let mut broadcast = Broadcast::create(&mut scene, SPILLING, &[(1, 3)]);
    let mut first = Listener::opened(&mut scene, 1, 3);
    write(&mut scene, &mut broadcast, 60, &mut [&mut first]);
    until_taken(&mut scene, &broadcast, &mut [&mut first]);
    broadcast.finish(&mut scene, &mut [&mut first]);
    assert_eq!(scene.nodes[1].counters().relays_opened, 2);
    for wave in 0..2 {
        let mut next = Listener::opened(&mut scene, 1, 3);
        until_taken(&mut scene, &broadcast, &mut [&mut next]);
        for _ in 0..4 {
            take(&mut scene, &mut [&mut next]);
        }
        assert_eq!(next.end, Some(broadcast.totals), "wave {wave}");
        assert!(next.errors.is_empty(), "{:?}", next.errors);
    }
    assert_eq!(scene.nodes[0].counters().partitions_released, 1, "all have read it");
    let late = Listener::opened(&mut scene, 1, 3);
    assert_eq!(late.errors.len(), 1, "three were declared, and have read it");
    home(&mut scene, &broadcast, &[&first]);
    assert!(scene.disks[0].is_empty());
}

#[test]
fn whoever_goes_while_the_others_part_from_it_leaves_nothing_behind() {
    for how in [
        "the slow one dies",
        "the quick one dies",
        "the producer dies",
        "the connection breaks",
    ] {
        let mut scene = Scene::new(2, 128);
        let mut broadcast = Broadcast::create(&mut scene, SPILLING, &[(1, 2)]);
        let mut quick = Listener::opened(&mut scene, 1, 2);
        let mut slow = Listener::opened(&mut scene, 1, 2);
        write(&mut scene, &mut broadcast, 60, &mut [&mut quick]);
        scene.pass(LONG);
        assert_eq!(
            scene.nodes[1].counters().relays_opened,
            2,
            "{how}: asked for, not there yet"
        );
        match how {
            "the slow one dies" => scene.nodes[1].handle_session_closed(scene.now, slow.session, false),
            "the quick one dies" => scene.nodes[1].handle_session_closed(scene.now, quick.session, false),
            "the producer dies" => scene.nodes[0].handle_session_closed(scene.now, broadcast.session, false),
            _ => scene.cut(1),
        }
        scene.exchange();
        let mut readers = match how {
            "the slow one dies" => vec![&mut quick],
            "the quick one dies" => vec![&mut slow],
            "the producer dies" => {
                take(&mut scene, &mut [&mut quick, &mut slow]);
                assert_eq!((quick.errors.len(), slow.errors.len()), (1, 1), "each is told, once");
                assert_eq!(scene.nodes[1].relays.len(), 0);
                continue;
            }
            _ => vec![&mut quick, &mut slow],
        };
        until_taken(&mut scene, &broadcast, &mut readers);
        broadcast.finish(&mut scene, &mut readers);
        assert_eq!(scene.nodes[0].counters().partitions_released, 1, "{how}");
        assert_eq!(scene.nodes[1].relays.len(), 0, "{how}");
        home(&mut scene, &broadcast, &[]);
        assert!(scene.disks[0].is_empty(), "{how}");
    }
}
