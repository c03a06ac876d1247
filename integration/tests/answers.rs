//! What a consumer is told when there is nothing to read: each reason has its own answer, in time,
//! with the cause that came first.

use std::collections::BTreeSet;
use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, kinds};
use integration::node::{Books, NodeOptions};
use integration::procfs;
use integration::profile::Profile;
use integration::script::{Command, Happened, Then};
use integration::stamp::{Lengths, SOURCE, Source, partition};
use integration::wait::{timed, until, within};
use rustix::process::Signal;
use shuffle_client::{GateSpec, PartitionSpec, Session};
use shuffle_protocol::error::{ErrorKind, Initiator};
use shuffle_protocol::{GroupId, GroupRef, NodeAddress, ShuffleError, SubpartitionRange};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(30);

fn impatient() -> NodeOptions {
    NodeOptions::new()
        .flag("request-timeout", "1s")
        .flag("unread-expiry", "1s")
}

async fn refusal(session: &Session, edge: &Edge) -> ShuffleError {
    let answer = within(LIMIT, "an answer", edge.consume(session)).await;
    answer.expect_err("there is nothing to read").into_service()
}

/// F25: none of these is ever an empty input.
#[tokio::test]
async fn each_reason_for_no_data_has_its_own_answer() {
    let cluster = Cluster::start(binaries!(), [impatient(), impatient()]).await;
    let producer = cluster.attach(0, 7).await;
    let near = cluster.attach(0, 7).await;
    let far = cluster.attach(1, 7).await;
    let address = cluster.node(0).address();
    for (round, (reader, from)) in [(&near, None), (&far, Some(address.clone()))].into_iter().enumerate() {
        let base = u32::try_from(round).expect("small") * 100;
        let edge = |index, records| Edge::new(from.clone(), partition(base + index), records);

        let never = refusal(reader, &edge(1, 1)).await;
        assert!(matches!(never.kind(), ErrorKind::NotRegistered { .. }), "{never}");

        edge(2, 10).run(&producer, reader, LIMIT).await;
        let again = refusal(reader, &edge(2, 10)).await;
        assert!(matches!(again.kind(), ErrorKind::Released), "{again}");

        edge(3, 1).produce(&producer).await.expect("finished without a reader");
        until(LIMIT, "it expires and its buffers come home", || async {
            let books = Books::of(&producer.status().await.expect("alive"));
            (books.get("queued") == 0).then_some(())
        })
        .await;
        let expired = refusal(reader, &edge(3, 1)).await;
        assert!(matches!(expired.kind(), ErrorKind::Expired), "{expired}");

        let group = GroupRef {
            id: GroupId::new(u64::from(base) + 4),
            home: address.clone(),
            nodes: vec![address.clone(), cluster.node(1).address()],
        };
        let member = edge(4, 1).partition().group(group.clone());
        let writer = producer.create_partition(member).await.expect("created");
        let cause = ShuffleError::new(ErrorKind::Aborted, "the driver gave up").by(Initiator::Caller);
        producer.fail_group(&group, cause).await.expect("told");
        let failed = refusal(reader, &edge(4, 1)).await;
        assert!(kinds(&failed).contains(&"GroupFailed".to_owned()), "{failed}");
        assert!(
            failed.first_cause().to_string().contains("the driver gave up"),
            "{failed}"
        );
        drop(writer);

        let mut writer = producer
            .create_partition(edge(7, 1).partition())
            .await
            .expect("created");
        edge(7, 1).write(&mut writer).await.expect("written");
        let cause = ShuffleError::new(ErrorKind::Aborted, "the producer gave up");
        writer.abort(cause).await.expect("aborted");
        let aborted = refusal(reader, &edge(7, 1)).await;
        assert!(
            aborted.first_cause().to_string().contains("the producer gave up"),
            "{aborted}"
        );

        let newer = Source {
            attempt: 6,
            ..partition(base + 5)
        };
        let _newer = producer
            .create_partition(PartitionSpec::new(newer.partition_id(), 1))
            .await
            .expect("the newer attempt");
        let superseded = refusal(reader, &edge(5, 1)).await;
        assert!(
            matches!(superseded.kind(), ErrorKind::Superseded { by_attempt: 6 }),
            "{superseded}"
        );

        let empty = edge(6, 0).run(&producer, reader, LIMIT).await;
        assert_eq!(empty.records, 0, "truly empty is not an error");

        let refusals = [&never, &again, &expired, &failed, &aborted, &superseded];
        let different: BTreeSet<Vec<String>> = refusals.iter().map(|error| kinds(error)).collect();
        assert_eq!(different.len(), refusals.len(), "{different:?}");
        // A reader may come before its producer, so it is never told "unknown". Who gives a partition up may not.
        let nothing = producer.release_partition(edge(8, 1).source.partition_id()).await;
        let unknown = nothing.expect_err("nobody has registered it");
        assert!(matches!(unknown.kind(), ErrorKind::Unknown), "{unknown}");
    }
    drop((producer, near, far));
    cluster.shut_down().await;
}

/// F50: the consumer comes first and waits for its producer.
#[tokio::test]
async fn a_reader_that_comes_first_waits_for_its_producer() {
    let cluster = Cluster::pair(binaries!()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 100);
    let late = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        edge.produce(&producer).await.expect("produced");
    };
    let (consumed, ()) = within(LIMIT, "the late producer", async {
        tokio::join!(edge.consume(&consumer), late)
    })
    .await;
    assert_eq!(consumed.expect("everything").records, 100);
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F50: a producer that fails while readers wait is reported with its own cause, not with theirs.
#[tokio::test]
async fn the_producers_own_cause_reaches_its_readers() {
    let cluster = Cluster::pair(binaries!()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 100);
    let abort = async {
        let mut writer = producer.create_partition(edge.partition()).await.expect("created");
        edge.write(&mut writer).await.expect("written");
        writer.flush().await.expect("flushed");
        let cause = ShuffleError::new(ErrorKind::Aborted, "division by zero in row 17");
        writer.abort(cause).await.expect("aborted");
    };
    let (consumed, ()) = within(LIMIT, "the cause", async {
        tokio::join!(edge.consume(&consumer), abort)
    })
    .await;
    let error = consumed.expect_err("an aborted partition has no end").into_service();
    assert!(
        error.first_cause().to_string().contains("division by zero in row 17"),
        "{error}"
    );
    let after = refusal(&consumer, &edge).await;
    assert!(
        after.first_cause().to_string().contains("division by zero"),
        "also later: {after}"
    );
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F127: whoever reads from a producer that dies is told the same, as a type.
#[tokio::test]
async fn all_readers_of_a_killed_producer_see_the_same_first_cause() {
    const READERS: u32 = 64;
    let mut cluster = Cluster::pair(binaries!()).await;
    let mut producer = cluster.executor(0, 7).await;
    let sessions = [cluster.attach(0, 7).await, cluster.attach(1, 7).await];
    let from = cluster.node(0).address();
    producer
        .tell(&Command::Produce {
            task: 1,
            source: SOURCE,
            subpartitions: READERS,
            records: 3,
            lengths: Lengths::Fixed(100),
            buffers: Some((64, 0)),
            group: None,
            then: Then::Hold,
        })
        .await;
    producer
        .hear_until(LIMIT, |event| matches!(event, Happened::Holding { .. }))
        .await;

    let mut readers = JoinSet::new();
    for reader in 0..READERS {
        let session = sessions[usize::from(reader % 2 == 1)].clone();
        let range = SubpartitionRange {
            first: reader,
            count: 1,
        };
        let spec = GateSpec::new()
            .channel(Some(from.clone()), SOURCE.partition_id(), range)
            .credits(1, 1);
        readers.spawn(async move {
            let mut gate = session.open_gate(spec).await?;
            for _ in 0..3 {
                gate.next_record().await?.expect("not the end");
            }
            READ.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            gate.next_record()
                .await
                .map(|end| assert!(end.is_none(), "never an end"))
        });
    }
    let all_read = || READ.load(std::sync::atomic::Ordering::Relaxed) == READERS;
    integration::wait::until_true(LIMIT, "all have read", all_read).await;
    producer.kill().await;
    let (errors, took) = timed(within(LIMIT, "all errors", readers.join_all())).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    for error in errors {
        let error: ShuffleError = error.expect_err("the producer died");
        assert!(matches!(error.first_cause().kind(), ErrorKind::ExecutorDied), "{error}");
        assert_eq!(error.location().partition, Some(SOURCE.partition_id()), "{error}");
    }
    drop(sessions);
    cluster.shut_down().await;
}

static READ: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// F142: many who wait for the same producer are one wait.
#[tokio::test]
async fn thousands_who_wait_for_one_producer_cost_nothing() {
    let readers: u32 = Profile::current().choose(2_000, 10_000);
    let options = || {
        NodeOptions::new()
            .flag("max-channels", 20_000)
            .flag("request-timeout", "20s")
            .pool(512, 4096)
    };
    let cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let consumer = cluster.attach(1, 7).await;
    let mut spec = GateSpec::new().credits(0, 8);
    for subpartition in 0..readers {
        let range = SubpartitionRange {
            first: subpartition,
            count: 1,
        };
        spec = spec.channel(Some(cluster.node(0).address()), SOURCE.partition_id(), range);
    }
    let session = consumer.clone();
    let reading = tokio::spawn(async move {
        let mut gate = session.open_gate(spec).await?;
        gate.next_record().await.map(|record| record.is_none())
    });
    // Let the requests travel, then watch two seconds of nothing but waiting.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!reading.is_finished(), "they wait");
    let spent = || {
        let time = |node| procfs::cpu_time(cluster.node(node).pid()).expect("a living server");
        time(0) + time(1)
    };
    let before = spent();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let busy = spent() - before;
    assert!(!reading.is_finished(), "they still wait");
    assert!(
        busy < Duration::from_millis(200),
        "waiting took {busy:?} of two seconds"
    );

    let producer = cluster.attach(0, 7).await;
    let spec = PartitionSpec::new(SOURCE.partition_id(), readers);
    let writer = producer.create_partition(spec).await.expect("created");
    writer.finish().await.expect("finished");
    let ended = within(LIMIT, "all waits end", reading).await.expect("no panic");
    assert!(ended.expect("a clean end"), "an empty partition is empty");
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F141: a node that does not answer costs one timeout, however much is wanted from it.
#[tokio::test]
async fn a_frozen_server_costs_one_timeout_and_not_one_for_each_partition() {
    const PARTITIONS: u32 = 200;
    let options = || {
        NodeOptions::new()
            .flag("request-timeout", "3s")
            .flag("dead-peer-timeout", "3s")
            .flag("keepalive", "1s")
            .flag("handshake-timeout", "2s")
    };
    let mut cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let consumer = cluster.attach(1, 7).await;
    let from: NodeAddress = cluster.node(0).address();
    cluster.node(0).process().signal(Signal::STOP);
    let mut readers = JoinSet::new();
    for index in 0..PARTITIONS {
        let edge = Edge::new(Some(from.clone()), partition(index), 1);
        let session = consumer.clone();
        readers.spawn(async move {
            let mut gate = session.open_gate(edge.gate().credits(0, 1)).await?;
            gate.next_record().await.map(drop)
        });
    }
    let (answers, took) = timed(within(LIMIT, "all answers", readers.join_all())).await;
    for answer in answers {
        let error: ShuffleError = answer.expect_err("the node is frozen");
        assert!(error.is_retryable() || error.location().node.is_some(), "{error}");
    }
    assert!(
        took < Duration::from_secs(7),
        "one timeout is 3 s, {PARTITIONS} took {took:?}"
    );
    cluster.node(0).process().signal(Signal::CONT);
    drop(consumer);
    cluster.node_mut(0).process_mut();
    cluster.shut_down().await;
}
