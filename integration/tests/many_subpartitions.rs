//! Writers with far more subpartitions than buffers: their records leave as slices of shared buffers.

use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, read_all, read_some, read_to_error};
use integration::node::NodeOptions;
use integration::oracle::Oracle;
use integration::script::{Command, Then};
use integration::stamp::{Lengths, SOURCE, partition};
use integration::wait::within;
use shuffle_client::{Compression, FlushInterval, GateSpec, PartitionSpec, Selector, Session};
use shuffle_protocol::SubpartitionRange;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::partition::PartitionKind;
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(240);
const MANY: u32 = 10_000;
const BUFFER_BYTES: u32 = 16 << 10;

fn small_pool() -> NodeOptions {
    NodeOptions::new().pool(128, BUFFER_BYTES)
}

fn sorted(edge: &Edge, buffers: u32) -> PartitionSpec {
    edge.partition().sorted(true).buffers(2, buffers)
}

async fn produce(session: &Session, edge: &Edge, spec: PartitionSpec) {
    let mut writer = session.create_partition(spec).await.expect("created");
    edge.write(&mut writer).await.expect("written");
    let report = writer.finish().await.expect("finished");
    let exact = report.subpartitions.iter().all(|one| one.records == edge.records);
    assert!(exact, "the totals of each subpartition");
}

/// Reads one range of an edge.
async fn consume_range(session: &Session, edge: &Edge, range: SubpartitionRange, credits: (u32, u32)) -> u64 {
    let spec = GateSpec::new().credits(credits.0, credits.1);
    let spec = spec.channel(edge.from.clone(), edge.source.partition_id(), range);
    let mut gate = session.open_gate(spec).await.expect("open");
    let mut oracle = Oracle::new(edge.lengths.clone());
    for subpartition in range.first..range.first + range.count {
        oracle.expect(edge.source, subpartition, edge.records);
    }
    let counts = read_all(&mut gate, &[edge.source], &mut oracle).await;
    counts.expect("everything").records
}

/// F38: 10 000 subpartitions through a few buffers, to four readers, on the same node and on another, and with floating
/// credits alone. Everything arrives, once and in order, and every buffer comes home.
#[tokio::test]
async fn ten_thousand_subpartitions_go_through_a_few_buffers() {
    for (reading, buffers, credits) in [(0, 8, (2, 8)), (1, 32, (0, 4))] {
        let cluster = Cluster::start(binaries!(), [small_pool(), small_pool()]).await;
        let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(reading, 7).await);
        let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 3)
            .subpartitions(MANY)
            .lengths(Lengths::Fixed(60));
        let mut readers = JoinSet::new();
        for quarter in 0..4 {
            let (edge, session) = (edge.clone(), consumer.clone());
            let range = SubpartitionRange::new(quarter * MANY / 4, MANY / 4).expect("a range");
            readers.spawn(async move { consume_range(&session, &edge, range, credits).await });
        }
        let write = produce(&producer, &edge, sorted(&edge, buffers));
        let both = async { tokio::join!(write, readers.join_all()) };
        let ((), read) = within(LIMIT, "all of them", both).await;
        assert_eq!(read.iter().sum::<u64>(), 3 * u64::from(MANY));
        let status = producer.status().await.expect("alive");
        assert!(status["buffers_produced"] >= u64::from(MANY), "slices, not buffers");
        drop((producer, consumer));
        cluster.assert_base().await;
        cluster.shut_down().await;
    }
}

/// What a writer does beside small records: records longer than a buffer, events, buffers of its own, flushes, compression.
#[tokio::test]
async fn a_sorted_writer_does_what_a_plain_one_does() {
    let cluster = Cluster::start(binaries!(), [small_pool(), small_pool()]).await;
    for (index, reading) in [(0, 0), (1, 1)] {
        let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(reading, 7).await);
        let whole = usize::try_from(BUFFER_BYTES).expect("a length");
        let lengths = Lengths::Cycle(vec![50, 0, 1, whole - 4, whole - 3, whole, 5000, 3 * whole]);
        let edge = Edge::new(Some(cluster.node(0).address()), partition(index), 5)
            .subpartitions(700)
            .lengths(lengths);
        let spec = sorted(&edge, 6)
            .flush_interval(FlushInterval::Every(Duration::from_millis(1)))
            .compression(Compression::Lz4);
        let write = produce(&producer, &edge, spec);
        let both = async { tokio::join!(write, edge.consume(&consumer)) };
        let ((), read) = within(LIMIT, "both", both).await;
        assert_eq!(read.expect("everything").records, 5 * 700);
    }
    cluster.assert_base().await;
    cluster.shut_down().await;
}

/// Without a word a writer with far more subpartitions than buffers sorts, and what is staged leaves after the flush
/// interval, while the producer does nothing.
#[tokio::test]
async fn a_wide_writer_sorts_by_itself_and_flushes() {
    let cluster = Cluster::start(binaries!(), [small_pool()]).await;
    let session = cluster.attach(0, 7).await;
    let edge = Edge::new(None, SOURCE, 1)
        .subpartitions(1000)
        .lengths(Lengths::Fixed(50));
    let spec = edge
        .partition()
        .selector(Selector::custom(|key, _| u32::from(key[0])))
        .flush_interval(FlushInterval::Every(Duration::from_millis(5)));
    let mut writer = session.create_partition(spec).await.expect("created");
    let mut gate = session.open_gate(edge.gate()).await.expect("open");
    for key in [200u8, 3, 200] {
        writer.write(&[key], &[key; 9]).await.expect("written");
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        let record = within(LIMIT, "a flushed record", gate.next_record()).await;
        let record = record.expect("a record").expect("no end yet");
        seen.push((record.subpartition.value(), record.bytes.len()));
    }
    assert_eq!(seen, [(3, 9), (200, 9), (200, 9)], "ordered by subpartition");
    let status = session.status().await.expect("alive");
    assert_eq!(status["buffers_produced"], 2, "one slice for each subpartition");
    writer.finish().await.expect("finished");
    drop((gate, session));
    cluster.shut_down().await;
}

/// What may go to disk, and what is kept, goes there in slices too, and is read back.
#[tokio::test]
async fn sorted_partitions_of_every_kind_are_read_as_they_were_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk");
    let cluster = Cluster::start(binaries!(), [small_pool().flag("storage-directories", disk.display())]).await;
    let session = cluster.attach(0, 7).await;
    let kinds = PartitionKind::all().filter(|kind| kind.validate().is_ok());
    for (index, kind) in (0..).zip(kinds) {
        let edge = Edge::new(None, partition(index), 4)
            .subpartitions(2000)
            .lengths(Lengths::Fixed(300));
        // Two and a half MB: more than the pool.
        let write = produce(&session, &edge, sorted(&edge, 16).kind(kind));
        let both = async { tokio::join!(write, edge.consume(&session)) };
        let ((), read) = within(LIMIT, &format!("a partition that is {kind}"), both).await;
        assert_eq!(read.expect("everything").records, 4 * 2000, "{kind}");
    }
    drop(session);
    cluster.shut_down().await;
}

/// F40 in its way: a reader that stops keeps its views, and stops its writer; another writer of the same pool goes on, and when
/// the reader is gone everything comes home.
#[tokio::test]
async fn a_stopped_reader_stops_its_writer_and_no_other() {
    let cluster = Cluster::start(binaries!(), [small_pool()]).await;
    let session = cluster.attach(0, 7).await;
    let stopped = Edge::new(None, partition(0), 20)
        .subpartitions(1000)
        .lengths(Lengths::Fixed(200));
    let mut writer = session
        .create_partition(sorted(&stopped, 8).max_queued(2))
        .await
        .expect("created");
    let mut gate = session.open_gate(stopped.gate()).await.expect("open");
    let mut write = tokio::spawn({
        let edge = stopped.clone();
        async move { edge.write(&mut writer).await }
    });
    let mut oracle = stopped.oracle();
    let more = within(
        LIMIT,
        "some records",
        read_some(&mut gate, &[stopped.source], &mut oracle, 10),
    )
    .await;
    assert!(more.expect("the first records"));

    let other = Edge::new(None, partition(1), 6)
        .subpartitions(1000)
        .lengths(Lengths::Fixed(200));
    let pass = async { tokio::join!(produce(&session, &other, sorted(&other, 8)), other.consume(&session)) };
    let ((), read) = within(LIMIT, "the other writer", pass).await;
    assert_eq!(read.expect("everything").records, 6 * 1000);
    assert!(!write.is_finished(), "20 000 records of 200 bytes do not fit 8 buffers");

    write.abort();
    let ended = within(LIMIT, "the task's end", &mut write).await;
    assert!(ended.is_err_and(|error| error.is_cancelled()));
    drop((gate, session));
    cluster.assert_base().await;
    cluster.shut_down().await;
}

/// A writer that is killed, and a reader that is, in the middle of slices: the other side is told, and every buffer comes home.
#[tokio::test]
async fn killed_writers_and_readers_leave_no_buffer_behind() {
    for reading in [0, 1] {
        let mut cluster = Cluster::start(binaries!(), [small_pool(), small_pool()]).await;
        let mut victim = cluster.executor(0, 7).await;
        victim
            .tell(&Command::Produce {
                task: 1,
                source: SOURCE,
                subpartitions: 2000,
                records: 1_000_000,
                lengths: Lengths::Fixed(100),
                buffers: Some((2, 8)),
                group: None,
                then: Then::Finish,
            })
            .await;
        let session = cluster.attach(reading, 7).await;
        let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 1_000_000)
            .subpartitions(2000)
            .lengths(Lengths::Fixed(100));
        let mut gate = session.open_gate(edge.gate()).await.expect("open");
        let mut oracle = edge.oracle();
        let sources = [edge.source];
        let some = read_some(&mut gate, &sources, &mut oracle, 5000);
        assert!(within(LIMIT, "some records", some).await.expect("right records"));
        victim.kill().await;
        let error = within(LIMIT, "the end of the partition", read_to_error(&mut gate)).await;
        assert!(matches!(error.first_cause().kind(), ErrorKind::ExecutorDied), "{error}");
        drop((gate, session));
        cluster.assert_base().await;
        cluster.shut_down().await;
    }
}
