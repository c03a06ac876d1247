//! The pool is the memory: minimums are possession, what cannot be had is refused with numbers, and
//! everything comes home.

use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, read_all};
use integration::node::{Books, NodeOptions};
use integration::procfs;
use integration::stamp::{Lengths, Place, SOURCE, Source, fill, partition};
use integration::wait::{timed, until, within};
use shuffle_client::{PartitionSpec, Session};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{ShuffleError, SubpartitionIndex};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(60);

/// A pool in which writers can have exactly `writers` buffers.
fn pool_for(writers: u32, readers: u32) -> NodeOptions {
    patient_pool_for(writers, readers, "1s")
}

/// As [`pool_for`], where a creation may wait so long for buffers.
fn patient_pool_for(writers: u32, readers: u32, patience: &str) -> NodeOptions {
    NodeOptions::new()
        .pool(writers + readers, 4096)
        .flag("extent-buffers", 1)
        .flag("read-reserve", readers)
        .flag("request-timeout", patience)
}

fn refused<T>(answer: Result<T, ShuffleError>) -> ShuffleError {
    match answer {
        Ok(_) => panic!("it must be refused"),
        Err(error) => error,
    }
}

/// Eight writers on a pool that can guarantee four: the fifth is refused with numbers, four finish.
#[tokio::test]
async fn eight_writers_on_a_pool_for_four() {
    const EACH: u32 = 4;
    let cluster = Cluster::start(binaries!(), [pool_for(4 * EACH, 16)]).await;
    let session = cluster.attach(0, 7).await;
    let edge = |index| Edge::new(None, partition(index), 200);
    let mut writers = Vec::new();
    for index in 0..4 {
        let spec = edge(index).partition().buffers(EACH, None);
        writers.push(session.create_partition(spec).await.expect("one of four"));
    }
    for index in 4..8 {
        let spec = edge(index).partition().buffers(EACH, None);
        let (answer, took) = timed(session.create_partition(spec)).await;
        let error = refused(answer);
        assert!(took < Duration::from_secs(3), "{took:?}");
        match error.kind() {
            ErrorKind::InsufficientBuffers {
                need,
                available,
                total,
                holders,
            } => {
                assert_eq!((*need, *available), (EACH, 0), "{error}");
                assert!(*total >= 4 * EACH && !holders.is_empty(), "{error}");
            }
            _ => panic!("{error}"),
        }
    }
    let mut readers = JoinSet::new();
    for index in 0..4 {
        let session = session.clone();
        readers.spawn(async move { edge(index).consume(&session).await.expect("everything") });
    }
    for (index, mut writer) in (0..4).zip(writers) {
        edge(index).write(&mut writer).await.expect("written");
        writer.finish().await.expect("finished");
    }
    let counts = within(LIMIT, "four readers", readers.join_all()).await;
    assert!(counts.iter().all(|one| one.records == 200));
    drop(session);
    cluster.shut_down().await;
}

/// F39: exactly at the minimum it works, one below it is refused at creation, long before a request may give up waiting.
#[tokio::test]
async fn at_the_minimum_it_works_and_one_below_it_is_refused() {
    for subpartitions in [1u32, 2, 64, 1000] {
        let cluster = Cluster::start(binaries!(), [patient_pool_for(subpartitions, 8, "10m")]).await;
        let session = cluster.attach(0, 7).await;
        let edge = Edge::new(None, SOURCE, 2)
            .subpartitions(subpartitions)
            .lengths(Lengths::Fixed(100));
        let spec =
            |source: Source, least| PartitionSpec::new(source.partition_id(), subpartitions).buffers(least, None);

        let refusal = session.create_partition(spec(partition(99), subpartitions + 1));
        let error = refused(within(LIMIT, "a refusal at once", refusal).await);
        let exact = matches!(error.kind(), ErrorKind::InsufficientBuffers { need, .. }
            if *need == subpartitions + 1);
        assert!(exact && !error.is_retryable(), "{error}");

        let write = async {
            let spec = spec(SOURCE, subpartitions);
            let mut writer = session.create_partition(spec).await.expect("the minimum is there");
            edge.write(&mut writer).await.expect("written");
            writer.finish().await.expect("finished");
        };
        let both = async { tokio::join!(write, edge.consume(&session)) };
        let ((), counts) = within(LIMIT, "the minimum", both).await;
        assert_eq!(counts.expect("everything").records, 2 * u64::from(subpartitions));
        drop(session);
        cluster.shut_down().await;
    }
}

/// F41: producers that fill the pool cannot keep their own readers out.
#[tokio::test]
async fn a_full_pool_still_lets_readers_in() {
    let cluster = Cluster::start(binaries!(), [pool_for(32, 16), pool_for(32, 16)]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 400);
    let near = Edge::new(None, partition(14), 400);
    let fill = |edge: Edge| {
        let session = producer.clone();
        async move {
            let spec = edge.partition().max_queued(1000);
            let mut writer = session.create_partition(spec).await.expect("created");
            edge.write(&mut writer).await.expect("written");
            writer.finish().await.expect("finished");
        }
    };
    let writers = [tokio::spawn(fill(edge.clone())), tokio::spawn(fill(near.clone()))];
    until(LIMIT, "the writers fill their share", || async {
        let books = Books::of(&producer.status().await.ok()?);
        (books.get("queued") + books.get("granted") >= 32).then_some(())
    })
    .await;
    assert!(
        !writers[0].is_finished() && !writers[1].is_finished(),
        "both wait for buffers"
    );
    let both = async { tokio::join!(edge.consume(&consumer), near.consume(&producer)) };
    let (far, near) = within(LIMIT, "both readers", both).await;
    assert_eq!(far.expect("everything").records, 400);
    assert_eq!(near.expect("everything").records, 400);
    for writer in writers {
        within(LIMIT, "the writers end", writer).await.expect("no panic");
    }
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F49: too large is said at once, before anything waits for it.
#[tokio::test]
async fn a_record_over_the_limit_is_refused_at_once() {
    let cluster = Cluster::start(binaries!(), [NodeOptions::new().flag("max-record", "1MiB")]).await;
    let session = cluster.attach(0, 7).await;
    let spec = PartitionSpec::new(SOURCE.partition_id(), 1);
    let mut writer = session.create_partition(spec).await.expect("created");
    let record = vec![1; (1 << 20) + 1];
    let (answer, took) = timed(writer.write_to(SubpartitionIndex::new(0), &record)).await;
    let error = refused(answer);
    let exact = matches!(error.kind(), ErrorKind::RecordTooLarge { bytes, max_bytes }
        if (*bytes, *max_bytes) == ((1 << 20) + 1, 1 << 20));
    assert!(exact && took < Duration::from_secs(1), "{error} after {took:?}");
    drop(writer);
    drop(session);
    cluster.shut_down().await;
}

/// F49: nodes that do not agree on the buffer size say so, with both sizes.
#[tokio::test]
async fn nodes_with_different_buffer_sizes_refuse_each_other() {
    let options = |size| NodeOptions::new().pool(64, size).flag("request-timeout", "3s");
    let cluster = Cluster::start(binaries!(), [options(4096), options(8192)]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 0);
    edge.produce(&producer).await.expect("produced");
    let (answer, took) = timed(within(LIMIT, "an answer", edge.consume(&consumer))).await;
    let error = answer.expect_err("they do not fit").into_service();
    let mismatch = error.first_cause();
    assert!(matches!(mismatch.kind(), ErrorKind::ConfigMismatch { .. }), "{error}");
    let text = mismatch.to_string();
    assert!(text.contains("4096") && text.contains("8192"), "{text}");
    assert!(took < Duration::from_secs(4), "{took:?}");
    producer
        .release_partition(SOURCE.partition_id())
        .await
        .expect("nobody will read it");
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F57: pressure goes up and down at random; whatever it did, reading goes on.
#[tokio::test]
async fn reading_goes_on_after_every_kind_of_pressure() {
    let walks = integration::profile::Profile::current().choose(10, 1000);
    let cluster = Cluster::start(binaries!(), [pool_for(16, 16), pool_for(16, 16)]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let mut seed = 0x5EED_u64;
    for walk in 0..walks {
        let edge = Edge::new(Some(cluster.node(0).address()), partition(walk), 100);
        let read = async {
            let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
            let mut held = Vec::new();
            let mut records = 0u64;
            while let Some(buffer) = gate.next_buffer().await.expect("no error") {
                records += 1;
                held.push(buffer);
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let keep = usize::try_from((seed >> 33) % 6).expect("small");
                held.truncate(keep);
                tokio::task::yield_now().await;
            }
            records
        };
        let both = async { tokio::join!(edge.produce(&producer), read) };
        let (produced, buffers) = within(LIMIT, "one walk", both).await;
        produced.expect("the writer is not forgotten");
        assert!(
            buffers >= 25,
            "100 records of 1000 bytes in buffers of 4 KiB: {buffers}"
        );
    }
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F72: the readers go while the writer writes; nothing of it shows up elsewhere.
#[tokio::test]
async fn a_cancelled_neighbour_never_writes_into_another_partition() {
    let cluster = Cluster::start(binaries!(), [pool_for(24, 16)]).await;
    let session = cluster.attach(0, 7).await;
    let steady = Edge::new(None, partition(1), 2000);
    let run = async {
        let edge = steady.clone();
        tokio::join!(edge.produce(&session), edge.consume(&session))
    };
    let disturb = async {
        for index in 100..130u32 {
            cancel_while_written(&session, partition(index)).await;
        }
    };
    let ((produced, consumed), ()) = within(LIMIT, "the steady edge", async { tokio::join!(run, disturb) }).await;
    produced.expect("produced");
    assert_eq!(consumed.expect("no foreign byte").records, 2000);
    drop(session);
    cluster.shut_down().await;
}

async fn cancel_while_written(session: &Session, source: Source) {
    let edge = Edge::new(None, source, 1000);
    let spec = edge.partition().buffers(1, 4);
    let mut writer = session.create_partition(spec).await.expect("created");
    let mut gate = session.open_gate(edge.gate()).await.expect("a gate");
    let write = async {
        let mut record = vec![0; 1000];
        for sequence in 0..1000 {
            fill(
                &mut record,
                Place {
                    source,
                    subpartition: 0,
                    sequence,
                },
            );
            if writer.write_to(SubpartitionIndex::new(0), &record).await.is_err() {
                return;
            }
        }
    };
    let cancel = async {
        gate.next_record().await.expect("no error").expect("a record");
        drop(gate);
    };
    // A cancelled reader may leave the writer blocked; it is dropped inside write() then.
    let _ = tokio::time::timeout(Duration::from_millis(200), async { tokio::join!(write, cancel) }).await;
}

/// F95: a pool that the machine does not have is refused at the start, in numbers, not by a signal
/// later. The file limit keeps this machine safe if the check is missing.
#[tokio::test]
async fn a_pool_larger_than_the_machine_is_refused_at_the_start() {
    let cluster = Cluster::start(binaries!(), []).await;
    let memory = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let total_kib: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok())
        .expect("MemTotal");
    let buffers = total_kib * 2 / 16_384 / 8 * 8;
    let options = NodeOptions::new()
        .flag("buffers", buffers)
        .flag("buffer-size", "16MiB")
        .under(&["prlimit", "--fsize=1073741824"]);
    let mut node = integration::node::Node::spawn(binaries!(), "greedy", cluster.folder(), options, None);
    let status = node.process_mut().exit(Duration::from_secs(10)).await;
    let log = node.process().log();
    assert_eq!(status.code(), Some(4), "{status}: {log}");
    let needed = buffers << 24;
    let figures = format!("needs {needed} bytes, there are");
    assert!(log.contains(&figures), "what it needs and what there is: {log}");
    cluster.shut_down().await;
}

/// The books and the kernel agree: no arena ever holds more than the pool, and the server's private
/// memory stays a constant.
#[tokio::test]
async fn server_memory_is_the_pool_and_a_constant() {
    let pool = 64 * 32 * 1024;
    let options = || NodeOptions::new().pool(64, 32 << 10);
    let cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 3000).lengths(Lengths::Fixed(5000));
    let writer = tokio::spawn({
        let (edge, session) = (edge.clone(), producer.clone());
        async move { edge.produce(&session).await.expect("produced") }
    });
    let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
    let mut oracle = edge.oracle();
    let counts = {
        let mut read = std::pin::pin!(read_all(&mut gate, &[SOURCE], &mut oracle));
        loop {
            tokio::select! {
                counts = &mut read => break counts.expect("everything"),
                () = tokio::time::sleep(Duration::from_millis(20)) => {
                    for node in 0..2 {
                        let pid = cluster.node(node).pid();
                        let arenas = procfs::memfd_bytes(pid, "");
                        assert!(arenas <= pool, "{arenas} bytes in memfds, the pool is {pool}");
                        let private = procfs::private_bytes(pid).expect("a living server");
                        assert!(private <= 32 << 20, "{private} private bytes");
                    }
                }
            }
        }
    };
    assert_eq!(counts.records, 3000);
    within(LIMIT, "the writer", writer).await.expect("no panic");
    drop((gate, producer, consumer));
    cluster.shut_down().await;
}
