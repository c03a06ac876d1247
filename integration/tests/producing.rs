//! What a producer can rely on beside plain records: events in order, selectors, tokens, and the same
//! service without a server on its own node.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, read_all};
use integration::node::NodeOptions;
use integration::oracle::Oracle;
use integration::stamp::{Lengths, Place, SOURCE, fill, partition};
use integration::wait::within;
use shuffle_client::{AttachOptions, GateSpec, PartitionSpec, RecordOrEvent, Selector, Session};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::session::{JobToken, Secret};
use shuffle_protocol::{JobId, SubpartitionIndex, SubpartitionRange};

const LIMIT: Duration = Duration::from_secs(60);

async fn remote_executor(address: SocketAddr) -> Session {
    let options = AttachOptions::new(JobId::new(7))
        .tcp(address.to_string())
        .name("remote");
    Session::attach(options.timeout(Duration::from_secs(10)))
        .await
        .expect("attached over TCP")
}

/// The same API with one copy more: an executor on a node without a server writes and reads over TCP.
#[tokio::test]
async fn an_executor_without_a_server_has_the_same_service_over_tcp() {
    let options = || NodeOptions::new().pool(128, 4096).flag("executor-tcp", true);
    let cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let lengths = Lengths::Cycle(vec![0, 1, 4091, 4092, 4095, 4096, 4097, 600_000, 48, 7]);
    let addresses = [cluster.node(0).listens_on(), cluster.node(1).listens_on()];
    let far = [remote_executor(addresses[0]).await, remote_executor(addresses[1]).await];
    let near = [cluster.attach(0, 7).await, cluster.attach(1, 7).await];
    let from = cluster.node(0).address();
    let pairs = [
        (&far[0], &near[0]),
        (&near[0], &far[0]),
        (&far[0], &far[1]),
        (&far[0], &near[1]),
    ];
    for (index, (producer, consumer)) in (0..).zip(pairs) {
        let source = partition(index);
        let edge = Edge::new(Some(from.clone()), source, 40).lengths(lengths.clone());
        edge.run(producer, consumer, LIMIT).await;
    }
    drop((far, near));
    cluster.shut_down().await;
}

/// Events of any size stay where they were written between the records.
#[tokio::test]
async fn events_of_any_size_keep_their_place_in_the_stream() {
    let options = || NodeOptions::new().pool(64, 4096);
    let cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 0).subpartitions(2);
    let sizes = [0usize, 1, 4095, 4096, 4097, 3 * 64 * 4096];
    let bytes = |index: usize, size: usize| {
        let sequence = u64::try_from(index).expect("small");
        let mut bytes = vec![0; size];
        fill(
            &mut bytes,
            Place {
                source: SOURCE,
                subpartition: 0,
                sequence,
            },
        );
        bytes
    };
    let write = async {
        let mut writer = producer.create_partition(edge.partition()).await.expect("created");
        for (index, &size) in sizes.iter().enumerate() {
            let record = bytes(index, 100);
            writer
                .write_to(SubpartitionIndex::new(0), &record)
                .await
                .expect("written");
            writer
                .write_event(None, &bytes(index, size))
                .await
                .expect("an event to each");
        }
        writer.finish().await.expect("finished");
    };
    let read = async {
        let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
        let mut seen = [Vec::new(), Vec::new()];
        while let Some(item) = gate.next_record_or_event().await.expect("no error") {
            match item {
                RecordOrEvent::Record(one) => seen[0].push(one.bytes.to_vec()),
                RecordOrEvent::Event(one) => seen[usize::from(one.subpartition.value() == 1)].push(one.bytes.to_vec()),
                _ => {}
            }
        }
        seen
    };
    let ((), [mixed, events]) = within(LIMIT, "events", async { tokio::join!(write, read) }).await;
    assert_eq!((mixed.len(), events.len()), (12, 6));
    for (index, &size) in sizes.iter().enumerate() {
        assert_eq!(mixed[2 * index], bytes(index, 100), "record {index}");
        assert_eq!(
            mixed[2 * index + 1],
            bytes(index, size),
            "event {index} behind its record"
        );
        assert_eq!(events[index], bytes(index, size), "event {index}");
    }
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F43: round-robin goes past a subpartition whose reader has stopped; a keyed writer would wait.
#[tokio::test]
async fn round_robin_goes_past_a_blocked_subpartition() {
    let cluster = Cluster::pair(binaries!()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let gate = |subpartition| {
        let range = SubpartitionRange {
            first: subpartition,
            count: 1,
        };
        let node = Some(cluster.node(0).address());
        GateSpec::new()
            .channel(node, SOURCE.partition_id(), range)
            .credits(1, 1)
    };
    let spec = PartitionSpec::new(SOURCE.partition_id(), 2)
        .selector(Selector::RoundRobin)
        .max_queued(2);
    let mut writer = producer.create_partition(spec).await.expect("created");
    let stopped = consumer.open_gate(gate(0)).await.expect("a gate");
    let mut moving = consumer.open_gate(gate(1)).await.expect("a gate");
    let record = vec![7; 20_000];
    let write = async {
        for _ in 0..300 {
            writer.write(b"", &record).await.expect("written");
        }
    };
    let read = async {
        let mut records = 0u32;
        while records < 250 {
            records += u32::from(moving.next_record().await.expect("no error").is_some());
        }
        // The writer needs no more from here on: what is left is in queues that have room, or is read.
        while moving.next_record().await.is_ok_and(|record| record.is_some()) {}
    };
    tokio::select! {
        () = within(LIMIT, "300 records", write) => {}
        () = read => panic!("an end before the last record"),
    }
    drop((writer, stopped, moving));
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// A token opens its own job and nothing else, and none of it reaches a log.
#[tokio::test]
async fn a_token_opens_its_own_job_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("secret");
    let text = "correct horse battery staple";
    std::fs::write(&path, text).expect("a secret");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("private");
    let options = || {
        NodeOptions::new()
            .flag("secret-file", path.display())
            .flag("log", "trace")
    };
    let cluster = Cluster::start_with_secret(binaries!(), [options(), options()], text).await;
    let secret = Secret::new(text).expect("long enough");
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let token = |job, expires| JobToken::mint(&secret, JobId::new(job), expires).to_bytes().to_vec();
    let attach = |job: u64, token: Vec<u8>| {
        let options = AttachOptions::new(JobId::new(job))
            .socket(cluster.node(0).socket())
            .token(token);
        Session::attach(options.timeout(Duration::from_secs(5)))
    };
    let mut forged = token(7, now + 100);
    *forged.last_mut().expect("bytes") ^= 1;
    let wrong = [Vec::new(), token(8, now + 100), token(7, now - 100), forged];
    for token in wrong {
        let error = attach(7, token).await.expect_err("it must be refused");
        assert!(matches!(error.kind(), ErrorKind::Denied), "{error}");
    }
    let good = token(7, now + 100);
    let session = attach(7, good.clone()).await.expect("the right token");
    let far = cluster.attach(1, 7).await;
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 100);
    edge.run(&session, &far, LIMIT).await;
    let hex: String = good[good.len() - 8..]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    for node in 0..2 {
        let log = cluster.node(node).process().log();
        assert!(
            !log.contains(text) && !log.to_lowercase().contains(&hex),
            "secrets never reach a log"
        );
    }
    drop((session, far));
    cluster.shut_down().await;
}

/// What one gate reads of many producers comes in the order of each.
#[tokio::test]
async fn one_gate_over_many_producers_is_fair_and_in_order() {
    const PRODUCERS: u32 = 16;
    let records = 200;
    let cluster = Cluster::pair(binaries!()).await;
    let producers = [cluster.attach(0, 7).await, cluster.attach(1, 7).await];
    let consumer = cluster.attach(1, 7).await;
    let lengths = Lengths::Spread { least: 10, most: 3000 };
    let mut spec = GateSpec::new();
    let mut oracle = Oracle::new(lengths.clone());
    let mut sources = Vec::new();
    let mut work = tokio::task::JoinSet::new();
    for index in 0..PRODUCERS {
        let node = usize::from(index % 2 == 1);
        let source = partition(index);
        let edge = Edge::new(Some(cluster.node(node).address()), source, records).lengths(lengths.clone());
        let range = SubpartitionRange { first: 0, count: 1 };
        spec = spec.channel(edge.from.clone(), source.partition_id(), range);
        oracle.expect(source, 0, records);
        sources.push(source);
        let session = producers[node].clone();
        work.spawn(async move { edge.produce(&session).await.expect("produced") });
    }
    let mut gate = consumer.open_gate(spec).await.expect("a gate");
    let counts = within(LIMIT, "all of them", read_all(&mut gate, &sources, &mut oracle)).await;
    assert_eq!(counts.expect("in order").records, u64::from(PRODUCERS) * records);
    within(LIMIT, "the producers", work.join_all()).await;
    drop((gate, producers, consumer));
    cluster.shut_down().await;
}
