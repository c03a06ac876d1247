//! Single bits that change, on every path: each is found, with its verdict, and what its producer's node holds intact is fetched
//! once more (F16, F17).

mod broadcast;
mod parts;

use std::path::Path;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flip::{data_file, flip_in_arena, flip_in_file};
use integration::proxy::{Action, Direction, Trigger, kind};
use integration::stamp::{Place, Source};
use integration::wait::until;
use shuffle_client::{AttachOptions, Session};
use shuffle_protocol::JobId;
use shuffle_protocol::error::Verdict;

use parts::{
    BUFFER_BYTES, BUFFERS, Chance, KEPT, LIMIT, RECORD_BYTES, RECORDS, assert_verdict, counter, edge, finish, first_of,
    flips, in_payload, options, read, source,
};

/// A producer writes into a buffer that it has handed over: found by readers on its own node, and on another one.
#[tokio::test]
async fn a_bit_that_changes_in_shared_memory_is_the_producers() {
    const JOB: u64 = 7;
    let cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let producer = cluster.attach(0, JOB).await;
    let readers = [cluster.attach(0, JOB).await, cluster.attach(1, JOB).await];
    let address = cluster.node(0).address();
    let (mut chance, rounds) = (Chance::new(), flips());
    for (path, reader) in readers.iter().enumerate() {
        for round in 0..rounds {
            let source = source(JOB, round, path);
            let edge = edge(source, Some(address.clone()));
            finish(&edge, edge.partition(), &producer).await;
            let place = Place {
                sequence: chance.below(RECORDS),
                ..first_of(source)
            };
            let bit = chance.bit(u64::try_from(RECORD_BYTES).expect("small"));
            flip_in_arena(place, RECORD_BYTES, bit).expect("a bit that is there");
            let (outcome, stats) = read(&edge, edge.gate(), reader).await;
            let error = outcome.expect_err("a changed bit").into_service();
            let buffer = place.sequence / (RECORDS / BUFFERS);
            assert_verdict(&error, Verdict::ProducerMemory, source, &address, Some(buffer));
            assert_eq!((stats.buffers, stats.refetched_buffers), (buffer, 0));
        }
        println!("shared memory, reader on node {path}: {rounds} of {rounds} found");
        let found = u64::from(rounds) * (1 + u64::try_from(path).expect("small"));
        assert_eq!(counter(&producer, "mismatches_producer_memory").await, found);
    }
    for reader in &readers {
        assert_eq!(counter(reader, "buffers_refetched").await, 0);
        assert!(counter(reader, "payload_bytes_read").await > 0, "to trace it");
    }
    drop((producer, readers));
    cluster.shut_down().await;
}

/// A bit that changes between two servers, or between a server and an executor that has none, costs one more transfer.
#[tokio::test]
async fn a_bit_that_changes_on_the_wire_is_fetched_once_more() {
    const JOB: u64 = 8;
    let cluster = Cluster::start(
        binaries!(),
        [options().behind_proxy().flag("executor-tcp", true), options()],
    )
    .await;
    let producer = cluster.attach(0, JOB).await;
    let proxy = cluster.node(0).proxy();
    let inline = AttachOptions::new(JobId::new(JOB)).tcp(proxy.address().to_string());
    let inline = Session::attach(inline).await.expect("attached over TCP");
    let far = cluster.attach(1, JOB).await;
    let address = cluster.node(0).address();
    let (mut chance, rounds) = (Chance::new(), flips());
    for (path, reader) in [&far, &inline].into_iter().enumerate() {
        let refetched = counter(reader, "buffers_refetched").await;
        let fired = proxy.fired();
        for round in 0..rounds {
            let source = source(JOB, round, path);
            let edge = edge(source, Some(address.clone()));
            finish(&edge, edge.partition(), &producer).await;
            let trigger = Trigger::Frame {
                kind: kind::DATA,
                nth: 1 + chance.below(BUFFERS),
                after: in_payload(&mut chance),
            };
            proxy.inject(Direction::Down, trigger, Action::Flip);
            let (outcome, stats) = read(&edge, edge.gate(), reader).await;
            outcome.expect("every record, as it was written");
            assert_eq!((stats.buffers, stats.refetched_buffers), (BUFFERS, 1));
            assert_eq!(proxy.fired() - fired, u64::from(round) + 1, "the bit was changed");
        }
        println!("wire, path {path}: {rounds} of {rounds} found and fetched once more");
        assert_eq!(
            counter(reader, "buffers_refetched").await - refetched,
            u64::from(rounds)
        );
        assert_eq!(counter(reader, "mismatches_wire").await, u64::from(rounds));
    }
    assert_eq!(counter(&producer, "mismatches_producer_memory").await, 0);
    assert_eq!(counter(&producer, "mismatches_disk").await, 0);
    drop((producer, far, inline));
    cluster.shut_down().await;
}

/// A wire that changes the same buffer twice fails the channel. F37: the error names job, partition, subpartition, buffer and peer,
/// and not checksums alone.
#[tokio::test]
async fn a_wire_that_changes_a_buffer_twice_is_named() {
    const JOB: u64 = 9;
    let cluster = Cluster::start(
        binaries!(),
        [options().behind_proxy().flag("executor-tcp", true), options()],
    )
    .await;
    let producer = cluster.attach(0, JOB).await;
    let proxy = cluster.node(0).proxy();
    let inline = AttachOptions::new(JobId::new(JOB)).tcp(proxy.address().to_string());
    let inline = Session::attach(inline).await.expect("attached over TCP");
    let far = cluster.attach(1, JOB).await;
    let address = cluster.node(0).address();
    let (mut chance, rounds) = (Chance::new(), flips());
    for (path, reader) in [&far, &inline].into_iter().enumerate() {
        for round in 0..rounds {
            let source = source(JOB, round, path);
            let edge = edge(source, Some(address.clone()));
            finish(&edge, edge.partition(), &producer).await;
            let (buffer, fired) = (chance.below(BUFFERS), proxy.fired());
            // With one credit, what is sent next is the same once more.
            for nth in [buffer + 1, buffer + 2] {
                let trigger = Trigger::Frame {
                    kind: kind::DATA,
                    nth,
                    after: in_payload(&mut chance),
                };
                proxy.inject(Direction::Down, trigger, Action::Flip);
            }
            let (outcome, stats) = read(&edge, edge.gate().credits(1, 0), reader).await;
            assert_eq!(proxy.fired() - fired, 2, "both bits were changed");
            let error = outcome.expect_err("two changed bits").into_service();
            assert_verdict(&error, Verdict::WireOrReceivingMemory, source, &address, Some(buffer));
            assert_eq!((stats.buffers, stats.refetched_buffers), (buffer, 1));
        }
        println!("wire twice, path {path}: {rounds} of {rounds} named");
    }
    drop((producer, far, inline));
    cluster.shut_down().await;
}

/// Keeps a partition on disk and flips a bit of it.
async fn keep_and_flip(directory: &Path, source: Source, session: &Session, chance: &mut Chance) -> u64 {
    let edge = edge(source, None);
    finish(&edge, edge.partition().kind(KEPT), session).await;
    let (path, bytes) = data_file(directory, first_of(source)).expect("its data file");
    assert_eq!(bytes, BUFFERS * u64::from(BUFFER_BYTES));
    let bit = chance.bit(bytes);
    flip_in_file(&path, bit).expect("a bit that is there");
    bit.at / u64::from(BUFFER_BYTES)
}

/// A bit that changes in a data file is the disk's, for readers on that node and on another one, also after the server was killed
/// and started again.
#[tokio::test]
async fn a_bit_that_changes_on_disk_is_the_disks_also_after_a_restart() {
    const JOB: u64 = 10;
    let folder = tempfile::tempdir().expect("a folder");
    let storing = options().flag("storage-directories", folder.path().display());
    let mut cluster = Cluster::start(binaries!(), [storing, options()]).await;
    let (mut chance, rounds) = (Chance::new(), flips());
    let far = cluster.attach(1, JOB).await;
    let mut near = cluster.attach(0, JOB).await;
    let address = cluster.node(0).address();
    for restarted in [false, true] {
        for from in (0..rounds).step_by(50) {
            let some = from..rounds.min(from + 50);
            let mut buffers = Vec::new();
            for round in some.clone() {
                let source = source(JOB, round, restarted.into());
                buffers.push((source, keep_and_flip(folder.path(), source, &near, &mut chance).await));
            }
            if restarted {
                drop(near);
                cluster.node_mut(0).process_mut().kill().await;
                let noticed = || async { (counter(&far, "peer_links").await == 0).then_some(()) };
                until(LIMIT, "the connection is gone", noticed).await;
                cluster.node_mut(0).restart().await;
                near = cluster.attach(0, JOB).await;
            }
            let before = counter(&near, "mismatches_disk").await;
            for (source, buffer) in &buffers {
                let edge = edge(*source, Some(address.clone()));
                for reader in [&near, &far] {
                    let (outcome, stats) = read(&edge, edge.gate(), reader).await;
                    let error = outcome.expect_err("a changed bit").into_service();
                    assert_verdict(&error, Verdict::Disk, *source, &address, Some(*buffer));
                    assert_eq!((stats.buffers, stats.refetched_buffers), (*buffer, 0));
                }
                near.release_partition(source.partition_id()).await.expect("released");
            }
            let found = u64::try_from(2 * buffers.len()).expect("small");
            assert_eq!(counter(&near, "mismatches_disk").await - before, found);
        }
        println!("disk, restarted {restarted}: {rounds} of {rounds} found, on this node and on another one");
    }
    drop((near, far));
    cluster.shut_down().await;
}
