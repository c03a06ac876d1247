//! What is written arrives: each record once, in order, unchanged, and the end after all of them.

use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, read_all};
use integration::node::NodeOptions;
use integration::oracle::Oracle;
use integration::profile::Profile;
use integration::stamp::{Lengths, SOURCE, Source, partition};
use integration::wait::{timed, within};
use integration::way::Way;
use shuffle_client::{FlushInterval, GateSpec, PartitionSpec};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{SubpartitionIndex, SubpartitionRange};

const LIMIT: Duration = Duration::from_secs(60);

const BUFFERS: u32 = 64;

fn small_pool(buffer_bytes: u32) -> NodeOptions {
    NodeOptions::new().pool(BUFFERS, buffer_bytes)
}

/// F49, F35: the edges of every size there is.
fn awkward_lengths(buffer_bytes: u32) -> Lengths {
    let buffer = usize::try_from(buffer_bytes).expect("small");
    let pool = buffer * usize::try_from(BUFFERS).expect("small");
    Lengths::Cycle(vec![
        0,
        1,
        buffer - 5,
        buffer - 4,
        buffer - 1,
        buffer,
        buffer + 1,
        3 * pool,
        0,
        48,
    ])
}

#[tokio::test]
async fn records_of_every_awkward_length_arrive_on_the_same_node() {
    let cluster = Cluster::start(binaries!(), [small_pool(4096)]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(0, 7).await);
    let edge = Edge::new(None, SOURCE, 20).lengths(awkward_lengths(4096));
    edge.run(&producer, &consumer, LIMIT).await;
    drop((producer, consumer));
    cluster.shut_down().await;
}

#[tokio::test]
async fn records_of_every_awkward_length_arrive_from_another_node() {
    for way in Way::of_this_run() {
        // Large enough to be sent by reference.
        for buffer_bytes in [4096, 16 << 10] {
            let options = || small_pool(buffer_bytes).send(way);
            let cluster = Cluster::start(binaries!(), [options(), options()]).await;
            let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
            let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 20).lengths(awkward_lengths(buffer_bytes));
            edge.run(&producer, &consumer, LIMIT).await;
            if buffer_bytes > 4096 {
                way.assert_was_taken(&producer.status().await.expect("alive"));
            }
            drop((producer, consumer));
            cluster.shut_down().await;
        }
    }
}

/// Two producers on each of two nodes, two gates on each, every gate reads a range of all of them.
#[tokio::test]
async fn all_to_all_over_two_nodes_delivers_everything_once() {
    const SUBPARTITIONS: u32 = 8;
    let records = Profile::current().choose(300, 10_000);
    let lengths = Lengths::Spread { least: 1, most: 6000 };
    let cluster = Cluster::pair(binaries!()).await;
    let sessions = [cluster.attach(0, 7).await, cluster.attach(1, 7).await];
    let produce = |index: u32| {
        let session = &sessions[usize::from(index >= 2)];
        let edge = Edge::new(None, partition(index), records)
            .subpartitions(SUBPARTITIONS)
            .lengths(lengths.clone());
        async move { edge.produce(session).await.expect("produced") }
    };
    let consume = |consumer: u32| {
        let session = &sessions[usize::from(consumer >= 2)];
        let mut spec = GateSpec::new();
        let mut oracle = Oracle::new(lengths.clone());
        let range = SubpartitionRange {
            first: consumer * 2,
            count: 2,
        };
        for index in 0..4u32 {
            let node = cluster.node(usize::from(index >= 2)).address();
            spec = spec.channel(Some(node), partition(index).partition_id(), range);
            oracle.expect(partition(index), range.first, records);
            oracle.expect(partition(index), range.first + 1, records);
        }
        async move {
            let mut gate = session.open_gate(spec).await.expect("a gate");
            let sources: Vec<Source> = (0..4).map(partition).collect();
            read_all(&mut gate, &sources, &mut oracle)
                .await
                .expect("everything, in order")
        }
    };
    let work = async {
        tokio::join!(
            async { tokio::join!(produce(0), produce(1), produce(2), produce(3)) },
            async { tokio::join!(consume(0), consume(1), consume(2), consume(3)) },
        )
    };
    let (produced, consumed) = within(Profile::current().choose(LIMIT, LIMIT * 30), "all to all", work).await;
    let total = |counts: [u64; 4]| counts.iter().sum::<u64>();
    let sent = total([produced.0, produced.1, produced.2, produced.3].map(|one| one.bytes));
    let got = total([consumed.0, consumed.1, consumed.2, consumed.3].map(|one| one.bytes));
    assert_eq!(sent, got);
    drop(sessions);
    cluster.shut_down().await;
}

/// F52: nothing at all, empty records, and one full subpartition among a thousand.
#[tokio::test]
async fn empty_inputs_end_at_once() {
    let cluster = Cluster::pair(binaries!()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let from = Some(cluster.node(0).address());
    let soon = Duration::from_secs(5);

    let nothing = Edge::new(from.clone(), SOURCE, 0).subpartitions(3);
    assert_eq!(nothing.run(&producer, &consumer, soon).await.records, 0);

    let no_bytes = partition(14);
    let edge = Edge::new(from.clone(), no_bytes, 1000).lengths(Lengths::Fixed(0));
    assert_eq!(edge.run(&producer, &consumer, soon).await.records, 1000);

    let mut no_channels = consumer
        .open_gate(GateSpec::new())
        .await
        .expect("a gate without channels");
    let end = within(soon, "the end", no_channels.next_record())
        .await
        .expect("no error");
    assert!(end.is_none());

    let narrow = Source {
        partition: 15,
        ..SOURCE
    };
    let no_subpartitions = async {
        let spec = PartitionSpec::new(narrow.partition_id(), 0);
        let mut writer = producer.create_partition(spec).await.expect("created");
        let refused = writer.write(b"key", b"record").await.expect_err("nowhere to go");
        assert!(matches!(refused.kind(), ErrorKind::InvalidRequest), "{refused}");
        writer.finish().await.expect("finished")
    };
    let report = within(soon, "a partition without subpartitions", no_subpartitions).await;
    assert!(report.subpartitions.is_empty());
    let nothing = SubpartitionRange::new(0, 0).expect("all of it");
    let spec = GateSpec::new().channel(from, narrow.partition_id(), nothing);
    let mut gate = consumer.open_gate(spec).await.expect("a gate");
    let end = within(soon, "the end", gate.next_record()).await.expect("no error");
    assert!(end.is_none());
    drop((producer, consumer, no_channels, gate));
    cluster.shut_down().await;
}

#[tokio::test]
async fn one_full_subpartition_among_a_thousand_empty_ones() {
    const SUBPARTITIONS: u32 = 1000;
    let cluster = Cluster::pair(binaries!()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 0).subpartitions(SUBPARTITIONS);
    let write = async {
        let mut writer = producer
            .create_partition(edge.partition().buffers(8, None))
            .await
            .expect("created");
        writer
            .write_to(SubpartitionIndex::new(500), b"the only one")
            .await
            .expect("written");
        writer.finish().await.expect("finished");
    };
    let read = async {
        let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
        let mut records = Vec::new();
        while let Some(record) = gate.next_record().await.expect("a record or the end") {
            records.push((record.subpartition.value(), record.bytes.to_vec()));
        }
        records
    };
    let ((), records) = within(LIMIT, "the only record", async { tokio::join!(write, read) }).await;
    assert_eq!(records, [(500, b"the only one".to_vec())]);
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F47: one buffer a hand-over, each a wake-up on both sides; nothing may stall, and the last thing
/// is an end marker alone.
#[tokio::test]
async fn a_queue_of_one_buffer_never_loses_a_wake_up() {
    let records = Profile::current().choose(5_000, 1_000_000);
    let cluster = Cluster::pair(binaries!()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let from = Some(cluster.node(0).address());
    for (index, from) in (20..).zip([None, from]) {
        let edge = Edge::new(from.clone(), partition(index), records).lengths(Lengths::Fixed(60));
        let reader = if from.is_none() { &producer } else { &consumer };
        let spec = edge
            .partition()
            .buffers(2, 2)
            .max_queued(1)
            .flush_interval(FlushInterval::AfterEachRecord);
        let write = async {
            let mut writer = producer.create_partition(spec).await.expect("created");
            edge.write(&mut writer).await.expect("written");
            // Everything has left; the end marker goes alone.
            writer.flush().await.expect("flushed");
            writer.finish().await.expect("finished");
        };
        let limit = Profile::current().choose(LIMIT, Duration::from_secs(1800));
        let ((), counts) = within(limit, "the hand-overs", async {
            tokio::join!(write, edge.consume(reader))
        })
        .await;
        assert_eq!(counts.expect("everything").records, records);
    }
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F02: a pool of 8 buffers behind a reader that takes its time, so that each buffer
/// is used again at once; debug builds poison it when it goes home.
#[tokio::test]
async fn buffers_that_are_reused_at_once_keep_their_bytes() {
    for way in Way::of_this_run() {
        reuse_at_once(way).await;
    }
}

async fn reuse_at_once(way: Way) {
    // With 4 KiB the kernel's own timers make this slow; the full profile has the patience.
    let (records, receive) = Profile::current().choose((20, "32KiB"), (40, "4KiB"));
    let options = || {
        NodeOptions::new()
            .pool(8, 32 << 10)
            .flag("extent-buffers", 1)
            .flag("read-reserve", 4)
            .send(way)
    };
    let narrow = options().flag("receive-buffer", receive);
    let cluster = Cluster::start(binaries!(), [options(), narrow]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, records).lengths(Lengths::Fixed(512 << 10));
    let write = async {
        let mut writer = producer
            .create_partition(edge.partition().buffers(2, None))
            .await
            .expect("created");
        edge.write(&mut writer).await.expect("written");
        writer.finish().await.expect("finished");
    };
    let read = async {
        let mut gate = consumer.open_gate(edge.gate().credits(1, 1)).await.expect("a gate");
        let mut oracle = edge.oracle();
        read_all(&mut gate, &[SOURCE], &mut oracle).await.expect("its bytes")
    };
    let ((), counts) = within(Profile::current().choose(LIMIT, LIMIT * 60), "large records", async {
        tokio::join!(write, read)
    })
    .await;
    assert_eq!(counts.records, records);
    way.assert_was_taken(&producer.status().await.expect("alive"));
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// A record of one byte leaves after the flush interval, and the reader has it long before the end.
#[tokio::test]
async fn a_partial_buffer_leaves_after_the_flush_interval() {
    let cluster = Cluster::pair(binaries!()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 1).lengths(Lengths::Fixed(1));
    let mut writer = producer.create_partition(edge.partition()).await.expect("created");
    let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
    edge.write(&mut writer).await.expect("written");
    let (record, took) = timed(within(LIMIT, "the record", gate.next_record())).await;
    assert!(record.expect("no error").is_some());
    assert!(
        took < Duration::from_secs(1),
        "the flush interval is 100 ms, it took {took:?}"
    );
    writer.finish().await.expect("finished");
    assert!(gate.next_record().await.expect("no error").is_none());
    drop((producer, consumer, gate));
    cluster.shut_down().await;
}

/// F35: two jobs use the same numbers at the same time and never meet.
#[tokio::test]
async fn two_jobs_with_the_same_ids_never_meet() {
    let cluster = Cluster::pair(binaries!()).await;
    let mut sessions = Vec::new();
    for job in [7, 8] {
        sessions.push((cluster.attach(0, job).await, cluster.attach(1, job).await));
    }
    let edge = |job| Edge::new(Some(cluster.node(0).address()), Source { job, ..SOURCE }, 2000);
    let (seven, eight) = (edge(7), edge(8));
    tokio::join!(
        seven.run(&sessions[0].0, &sessions[0].1, LIMIT),
        eight.run(&sessions[1].0, &sessions[1].1, LIMIT),
    );
    drop(sessions);
    cluster.shut_down().await;
}
