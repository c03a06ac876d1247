//! Whoever stops, dies or cancels costs what it holds and nothing of the others.

use std::time::Duration;

use integration::binaries;
use integration::cluster::{BASE_WITHIN, Cluster};
use integration::flow::{Edge, write_range};
use integration::node::{Books, NodeOptions};
use integration::procfs;
use integration::profile::Profile;
use integration::raw::Raw;
use integration::script::{Channel, Command, Happened};
use integration::stamp::{Lengths, SOURCE, Source, partition};
use integration::wait::{timed, until, until_true, within};
use shuffle_protocol::NodeAddress;
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(60);

/// F43, F44: 64 writers and readers on one connection; one reader never reads on. The others finish,
/// and it holds its own credits and its writer's queue, no more.
#[tokio::test]
async fn one_stopped_reader_among_64_costs_only_its_own_credits() {
    const EDGES: u32 = 64;
    let records = Profile::current().choose(300, 10_000);
    let options = || NodeOptions::new().pool(512, 4096);
    let cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = |index| {
        let edge = Edge::new(Some(cluster.node(0).address()), partition(index), records);
        edge.lengths(Lengths::Spread { least: 1, most: 1000 })
    };
    let mut writers = JoinSet::new();
    for index in 0..EDGES {
        let (edge, session) = (edge(index), producer.clone());
        writers.spawn(async move {
            let spec = edge.partition().buffers(1, 8);
            let mut writer = session.create_partition(spec).await?;
            edge.write(&mut writer).await?;
            writer.finish().await.map(|_| index)
        });
    }
    let mut stopped = consumer.open_gate(edge(0).gate()).await.expect("a gate");
    let first = within(LIMIT, "its first buffer", stopped.next_buffer())
        .await
        .expect("no error");
    let mut readers = JoinSet::new();
    for index in 1..EDGES {
        let (edge, session) = (edge(index), consumer.clone());
        readers.spawn(async move { edge.consume(&session).await });
    }
    let counts = within(
        Profile::current().choose(LIMIT, LIMIT * 30),
        "63 readers",
        readers.join_all(),
    )
    .await;
    for count in counts {
        assert_eq!(count.expect("everything").records, records);
    }
    for _ in 1..EDGES {
        let ended = within(LIMIT, "63 writers", writers.join_next())
            .await
            .expect("a writer");
        assert_ne!(ended.expect("no panic").expect("finished"), 0);
    }
    // What the finished edges still had to acknowledge has gone when only this is left: a writer of 8
    // buffers there, 2 exclusive and 8 floating credits here.
    for (session, most) in [(&producer, 8), (&consumer, 10)] {
        until(BASE_WITHIN, "only the stopped edge holds buffers", || async {
            let books = Books::of(&session.status().await.expect("alive"));
            (books.held() > 0 && books.held() <= most).then_some(())
        })
        .await;
    }
    drop((first, stopped));
    let unblocked = within(LIMIT, "the blocked writer", writers.join_next()).await;
    unblocked.expect("a writer").expect("no panic").ok();
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F48: some wait for what does not come, others register and release at the same time.
#[tokio::test]
async fn waiting_readers_do_not_hold_up_those_who_register() {
    let patient = || NodeOptions::new().flag("request-timeout", "5m");
    let cluster = Cluster::start(binaries!(), [patient(), patient()]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let mut waiting = JoinSet::new();
    for index in 0..100 {
        let edge = Edge::new(Some(cluster.node(0).address()), partition(10_000 + index), 1);
        let session = consumer.clone();
        waiting.spawn(async move { edge.consume(&session).await.map(drop) });
    }
    // All of them have reached the producing node and wait there.
    until(LIMIT, "a hundred wait", || async {
        let status = producer.status().await.expect("alive");
        (status["channels_serving"] == 100).then_some(())
    })
    .await;
    for index in 0..50 {
        let edge = Edge::new(Some(cluster.node(0).address()), partition(index), 5);
        edge.run(&producer, &consumer, Duration::from_secs(5)).await;
    }
    let answered = waiting.try_join_next();
    assert!(answered.is_none(), "one of a hundred does not wait: {answered:?}");
    let status = consumer.status().await.expect("alive");
    assert_eq!(status["channels_fetching"], 100, "they still wait");
    waiting.shutdown().await;
    drop((producer, consumer));
    cluster.shut_down().await;
}

fn consume(task: u32, node: Option<NodeAddress>, source: Source, stop_after: Option<u64>) -> Command {
    let channel = Channel {
        node: node.map(|node| node.to_string()),
        source,
        first: 0,
        count: 1,
        told_of: None,
    };
    Command::Consume {
        task,
        channels: vec![channel],
        records: 100_000,
        lengths: Lengths::Fixed(1000),
        credits: None,
        group: None,
        stop_after,
    }
}

/// F64: the reader dies while it holds every credit and the producer is blocked.
#[tokio::test]
async fn a_killed_reader_unblocks_its_producer() {
    for near in [true, false] {
        let mut cluster = Cluster::pair(binaries!()).await;
        let producer = cluster.attach(0, 7).await;
        let mut reader = cluster.executor(usize::from(!near), 7).await;
        let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 100_000);
        let node = (!near).then(|| cluster.node(0).address());
        let spec = edge.partition();
        let mut writer = producer.create_partition(spec).await.expect("created");
        let written = std::cell::Cell::new(0u64);
        let write = async {
            for sequence in 0..edge.records {
                let one = sequence..sequence + 1;
                if write_range(&mut writer, SOURCE, 1, one, &edge.lengths).await.is_err() {
                    // It may fail with its reader; it may not wait for the dead.
                    written.set(u64::MAX);
                    break;
                }
                written.set(sequence);
            }
            written.set(u64::MAX);
        };
        let kill = async {
            reader.tell(&consume(1, node, SOURCE, Some(10))).await;
            reader
                .hear_until(LIMIT, |event| matches!(event, Happened::Holding { .. }))
                .await;
            let mut before = u64::MAX;
            within(LIMIT, "the producer is blocked", async {
                while written.get() != before {
                    before = written.get();
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
            })
            .await;
            assert!(before < edge.records - 1, "the producer is blocked, not done");
            reader.kill().await;
            until_true(Duration::from_secs(2), "the producer goes on", || {
                written.get() > before
            })
            .await;
        };
        tokio::select! {
            () = kill => {}
            () = async { write.await; std::future::pending::<()>().await } => {}
        }
        drop(writer);
        drop(producer);
        cluster.shut_down().await;
    }
}

/// F122: without descriptors the server keeps quiet and its streams run; it recovers at once.
#[tokio::test]
async fn without_descriptors_streams_run_and_nothing_spins() {
    let narrow = NodeOptions::new()
        .under(&["prlimit", "--nofile=64"])
        .flag("handshake-timeout", "30s");
    let cluster = Cluster::start(binaries!(), [narrow, NodeOptions::new()]).await;
    let node = cluster.node(0);
    assert_eq!(procfs::open_files_limit(node.pid()), Some(64), "the limit is in force");
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = |index| Edge::new(Some(node.address()), partition(index), 200);
    edge(1).run(&producer, &consumer, LIMIT).await;
    let mut held = Vec::new();
    for _ in 0..200 {
        if let Ok(connection) = Raw::tcp(node.listens_on()).await {
            held.push(connection);
        }
    }
    until_true(LIMIT, "descriptors are used up", || {
        procfs::open_files(node.pid()) >= 60
    })
    .await;
    let busy = procfs::cpu_time(node.pid()).expect("alive");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let busy = procfs::cpu_time(node.pid()).expect("alive") - busy;
    assert!(busy <= Duration::from_millis(100), "{busy:?} of two seconds");
    edge(2).run(&producer, &consumer, LIMIT).await;
    drop(held);
    let (fresh, took) = timed(node.try_attach(7)).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    drop(fresh.expect("there are descriptors again"));
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F43: the executor behind a stopped process is alive: what it holds is not given to others before
/// it is dead, and then at once.
#[tokio::test]
async fn what_a_stopped_process_views_comes_home_when_it_dies() {
    let mut cluster = Cluster::pair(binaries!()).await;
    let producer = cluster.attach(0, 7).await;
    let mut reader = cluster.executor(0, 7).await;
    let edge = Edge::new(None, SOURCE, 100_000);
    let writer = tokio::spawn({
        let (edge, session) = (edge.clone(), producer.clone());
        async move { edge.produce(&session).await }
    });
    reader.tell(&consume(1, None, SOURCE, Some(10))).await;
    reader
        .hear_until(LIMIT, |event| matches!(event, Happened::Holding { .. }))
        .await;
    reader.stop();
    let held = Books::of(&producer.status().await.expect("alive")).held();
    assert!(held > 0);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        Books::of(&producer.status().await.expect("alive")).held() > 0,
        "a stopped process keeps its views"
    );
    reader.kill().await;
    drop(within(LIMIT, "the writer", writer).await);
    cluster.node(0).assert_base(BASE_WITHIN).await;
    drop(producer);
    cluster.shut_down().await;
}
