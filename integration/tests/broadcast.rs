//! One queue to all consumers of all nodes: real servers, real shared memory, the wire counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, ReadError, read_all, read_some, write_all};
use integration::node::NodeOptions;
use integration::oracle::Counts;
use integration::script::{Channel, Command, Happened};
use integration::stamp::{Lengths, SOURCE, partition};
use integration::wait::{until, within};
use shuffle_client::{Gate, GateSpec, PartitionSpec, Session};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::partition::{Lifetime, PartitionKind, Pressure, Readiness};
use shuffle_protocol::{NodeAddress, ShuffleError};
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(60);
const JOB: u64 = SOURCE.job;

/// Declared consumers: by node, how many.
type Consumers<'a> = &'a [(&'a NodeAddress, u32)];

fn spec(edge: &Edge, consumers: Consumers) -> PartitionSpec {
    let spec = PartitionSpec::broadcast(edge.source.partition_id());
    consumers.iter().fold(spec, |spec, (node, count)| {
        spec.consumers(Some((*node).clone()), *count)
    })
}

fn gate(edge: &Edge, told_of: u32) -> GateSpec {
    GateSpec::new().broadcast(edge.from.clone(), edge.source.partition_id(), told_of)
}

type Reading = JoinHandle<Result<Counts, ReadError>>;

/// A consumer in a session of its own.
async fn reader(cluster: &Cluster, node: usize, edge: &Edge, told_of: u32) -> Reading {
    let (edge, session) = (edge.clone(), cluster.attach(node, JOB).await);
    tokio::spawn(async move {
        let mut gate = session.open_gate(gate(&edge, told_of)).await?;
        read_all(&mut gate, &[edge.source], &mut edge.oracle()).await
    })
}

async fn outcome(reading: Reading) -> Result<Counts, ReadError> {
    within(LIMIT, "a consumer", reading).await.expect("no panic")
}

async fn produce(edge: &Edge, session: &Session, spec: PartitionSpec) -> Counts {
    let mut writer = session.create_partition(spec).await.expect("created");
    let counts = write_all(&mut writer, edge.source, 1, edge.records, &edge.lengths).await;
    writer.finish().await.expect("finished");
    counts.expect("written")
}

fn mixed_lengths() -> Lengths {
    Lengths::Cycle(vec![100, 0, 5000, 1, 30_000, 4096])
}

/// F18, F17: every kind, three consumers on each of two nodes, records that span buffers.
#[tokio::test]
async fn every_kind_reaches_every_consumer_and_crosses_the_wire_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = |name: &str| {
        NodeOptions::new()
            .pool(256, 4096)
            .flag("storage-directories", folder.path().join(name).display())
    };
    let cluster = Cluster::start(binaries!(), [options("a"), options("b")]).await;
    let (here, there) = (cluster.node(0).address(), cluster.node(1).address());
    let producer = cluster.attach(0, JOB).await;
    let far = cluster.attach(1, JOB).await;
    let kinds = PartitionKind::all().filter(|kind| kind.validate().is_ok());
    for (round, kind) in (0..).zip(kinds) {
        let edge = Edge::new(Some(here.clone()), partition(round), 300).lengths(mixed_lengths());
        let before = (
            producer.status().await.expect("alive"),
            far.status().await.expect("alive"),
        );
        let mut readers = Vec::new();
        for node in [0, 0, 0, 1, 1, 1] {
            readers.push(reader(&cluster, node, &edge, 3).await);
        }
        let spec = spec(&edge, &[(&here, 3), (&there, 3)]).kind(kind);
        let made = within(LIMIT, "the broadcast", produce(&edge, &producer, spec)).await;
        for one in readers {
            assert_eq!(outcome(one).await.expect("everything, in order"), made, "{kind}");
        }
        if kind.lifetime == Lifetime::Ephemeral {
            let after = (
                producer.status().await.expect("alive"),
                far.status().await.expect("alive"),
            );
            let grown = |side: fn(&(Status, Status)) -> &Status, name: &str| side(&after)[name] - side(&before)[name];
            let made = grown(|both| &both.0, "buffers_produced");
            assert_eq!(grown(|both| &both.0, "buffers_sent"), made, "{kind}: once on the wire");
            assert_eq!(grown(|both| &both.1, "buffers_received"), made);
            assert_eq!(grown(|both| &both.1, "relays_opened"), 1);
        }
    }
    producer.release_job().await.expect("released");
    drop((producer, far));
    cluster.assert_base().await;
    cluster.shut_down().await;
}

type Status = std::collections::BTreeMap<String, u64>;

/// F18: seven are fast and one has stopped with views in its hands; a pool of 16 buffers, and another partition in between.
#[tokio::test]
async fn a_consumer_that_has_stopped_keeps_its_bytes_and_no_other_partition_waits() {
    let options = || NodeOptions::new().pool(48, 4096);
    let cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let here = cluster.node(0).address();
    let producer = cluster.attach(0, JOB).await;
    let edge = Edge::new(Some(here.clone()), partition(1), 400);
    let stopped = cluster.attach(0, JOB).await;
    let spec = spec(&edge, &[(&here, 8)]).buffers(2, 16);
    let writes = {
        let (edge, producer) = (edge.clone(), producer.clone());
        tokio::spawn(async move { produce(&edge, &producer, spec).await })
    };
    let mut slow = stopped.open_gate(gate(&edge, 8)).await.expect("a gate");
    let mut oracle = edge.oracle();
    let sources = [edge.source];
    let first = read_some(&mut slow, &sources, &mut oracle, 1);
    assert!(within(LIMIT, "the first record", first).await.expect("right"));
    let mut fast = Vec::new();
    for _ in 0..7 {
        fast.push(reader(&cluster, 0, &edge, 8).await);
    }
    until(LIMIT, "the producer is held up", async || {
        let status = producer.status().await.expect("alive");
        (status["buffers_queued"] >= 10).then_some(())
    })
    .await;
    for round in 0..3 {
        cluster.assert_serves(round).await;
    }
    assert!(!writes.is_finished() && fast.iter().all(|one| !one.is_finished()));
    let rest = within(LIMIT, "the rest", read_all(&mut slow, &sources, &mut oracle)).await;
    let made = within(LIMIT, "the writer", writes).await.expect("no panic");
    assert_eq!(rest.expect("its bytes were not touched"), made);
    for one in fast {
        assert_eq!(outcome(one).await.expect("everything"), made);
    }
    drop((slow, stopped, producer));
    cluster.assert_base().await;
    cluster.shut_down().await;
}

/// One consumer of a node reads a little and stops, another comes when the others are through: where the producer spills, nobody waits.
#[tokio::test]
async fn the_others_of_a_node_go_on_without_one_that_has_stopped_or_not_come() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = |name: &str| {
        NodeOptions::new()
            .pool(256, 4096)
            .flag("storage-directories", folder.path().join(name).display())
    };
    let cluster = Cluster::start(binaries!(), [options("a"), options("b")]).await;
    let there = cluster.node(1).address();
    let (producer, far) = (cluster.attach(0, JOB).await, cluster.attach(1, JOB).await);
    let edge = Edge::new(Some(cluster.node(0).address()), partition(1), 2000);
    let spilling = PartitionKind {
        pressure: Pressure::Spilling,
        ..PartitionKind::PIPELINE
    };
    let spec = spec(&edge, &[(&there, 4)]).kind(spilling).buffers(2, 8);
    let mut slow = far.open_gate(gate(&edge, 4)).await.expect("a gate");
    let quick = [reader(&cluster, 1, &edge, 4).await, reader(&cluster, 1, &edge, 4).await];
    let writes = {
        let (edge, producer) = (edge.clone(), producer.clone());
        tokio::spawn(async move { produce(&edge, &producer, spec).await })
    };
    let (sources, mut oracle) = ([edge.source], edge.oracle());
    let first = read_some(&mut slow, &sources, &mut oracle, 1);
    assert!(within(LIMIT, "the first record", first).await.expect("right"));
    let made = within(LIMIT, "the writer", writes).await.expect("no panic");
    for one in quick {
        assert_eq!(outcome(one).await.expect("everything, in order"), made);
    }
    let relays = far.status().await.expect("alive")["relays_opened"];
    assert!(
        relays >= 3,
        "{relays}: one for who has stopped, one for who has not come"
    );
    let late = reader(&cluster, 1, &edge, 4).await;
    assert_eq!(outcome(late).await.expect("everything, in order"), made);
    let rest = within(LIMIT, "the rest", read_all(&mut slow, &sources, &mut oracle)).await;
    assert_eq!(rest.expect("its bytes were not touched"), made);
    assert!(far.status().await.expect("alive")["refetch_bytes"] > 0);
    drop((slow, far, producer));
    cluster.assert_base().await;
    cluster.shut_down().await;
}

/// A consumer's process is killed while it holds everybody up; then a node with all its consumers is.
#[tokio::test]
async fn consumers_and_nodes_that_are_killed_hold_up_nobody() {
    let options = || {
        NodeOptions::new()
            .flag("keepalive", "300ms")
            .flag("dead-peer-timeout", "1500ms")
    };
    let mut cluster = Cluster::start(binaries!(), [options(), options(), options()]).await;
    let nodes: Vec<NodeAddress> = (0..3).map(|node| cluster.node(node).address()).collect();
    let producer = cluster.attach(0, JOB).await;
    let edge = Edge::new(Some(nodes[0].clone()), partition(1), 20_000);
    let mut victims = Vec::new();
    for node in [1, 2] {
        let mut victim = cluster.executor(node, JOB).await;
        let channel = Channel {
            node: Some(nodes[0].to_string()),
            source: edge.source,
            first: 0,
            count: 1,
            told_of: Some(2),
        };
        let command = Command::Consume {
            task: 1,
            channels: vec![channel],
            records: edge.records,
            lengths: edge.lengths.clone(),
            credits: None,
            group: None,
            stop_after: Some(50),
        };
        victim.tell(&command).await;
        victims.push(victim);
    }
    let near = reader(&cluster, 0, &edge, 1).await;
    let middle = reader(&cluster, 1, &edge, 2).await;
    let far = reader(&cluster, 2, &edge, 2).await;
    let spec = spec(&edge, &[(&nodes[0], 1), (&nodes[1], 2), (&nodes[2], 2)]);
    let kills = async {
        for victim in &mut victims {
            let stopped = |happened: &Happened| matches!(happened, Happened::Progress { records: 50, .. });
            victim.hear_until(LIMIT, stopped).await;
        }
        until(LIMIT, "the producer is held up", async || {
            let status = producer.status().await.expect("alive");
            (status["buffers_queued"] >= 10).then_some(())
        })
        .await;
        victims[0].kill().await;
        cluster.node_mut(2).process_mut().kill().await;
    };
    let both = async { tokio::join!(produce(&edge, &producer, spec), kills) };
    let (made, ()) = within(LIMIT, "all of it", both).await;
    assert_eq!(outcome(near).await.expect("the producer's node"), made);
    assert_eq!(outcome(middle).await.expect("the other consumer of the node"), made);
    outcome(far).await.expect_err("its node is gone");
    victims[1].kill().await;
    drop(producer);
    cluster.assert_base().await;
    cluster.shut_down().await;
}

/// What contradicts itself is refused, with what to do.
#[tokio::test]
async fn what_could_not_work_is_refused() {
    let cluster = Cluster::single(binaries!()).await;
    let here = cluster.node(0).address();
    let session = cluster.attach(0, JOB).await;
    let edge = Edge::new(None, partition(1), 1);
    let refused = session
        .create_partition(spec(&edge, &[]))
        .await
        .expect_err("nobody is declared");
    assert!(matches!(refused.kind(), ErrorKind::InvalidRequest), "{refused}");
    assert!(refused.to_string().contains("declare how many there are"), "{refused}");
    let twice = spec(&edge, &[(&here, 1), (&here, 1)]);
    let refused = session
        .create_partition(twice)
        .await
        .expect_err("the node is declared twice");
    assert!(refused.to_string().contains("declared once"), "{refused}");
    let blocking = PartitionKind {
        readiness: Readiness::Blocking,
        pressure: Pressure::Bounded,
        ..PartitionKind::PIPELINE
    };
    let impossible = spec(&edge, &[(&here, 1)]).kind(blocking);
    session
        .create_partition(impossible)
        .await
        .expect_err("blocking and bounded");
    let writer = session
        .create_partition(spec(&edge, &[(&here, 1)]))
        .await
        .expect("created");
    let mut plain = session.open_gate(edge.gate()).await.expect("a gate");
    let error = within(LIMIT, "the refusal", plain.next_record())
        .await
        .expect_err("not asked for as one");
    assert!(error.to_string().contains("is broadcast"), "{error}");
    drop((writer, plain, session));
    cluster.shut_down().await;
}

/// A kept broadcast is served again after the server was killed, to consumers that nobody declared.
#[tokio::test]
async fn a_kept_broadcast_outlives_its_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = NodeOptions::new()
        .pool(256, 4096)
        .flag("storage-directories", folder.path().display());
    let mut cluster = Cluster::start(binaries!(), [options, NodeOptions::new().pool(256, 4096)]).await;
    let edge = Edge::new(Some(cluster.node(0).address()), partition(1), 500).lengths(mixed_lengths());
    let kept = PartitionKind {
        lifetime: Lifetime::Persistent,
        readiness: Readiness::Blocking,
        pressure: Pressure::Spilling,
    };
    let made = produce(&edge, &cluster.attach(0, JOB).await, spec(&edge, &[]).kind(kept)).await;
    for _ in 0..2 {
        cluster.node_mut(0).process_mut().kill().await;
        cluster.node_mut(0).restart().await;
        for node in [0, 1, 1] {
            // The kernel may keep a killed server's connections for a moment; who asks through one is told of the restart.
            let read = until(LIMIT, "the new server is asked", async || {
                let read = outcome(reader(&cluster, node, &edge, 0).await).await;
                let is_early = |error: &ShuffleError| matches!(error.kind(), ErrorKind::PeerRestarted);
                (!matches!(&read, Err(ReadError::Service(error)) if is_early(error))).then_some(read)
            });
            assert_eq!(read.await.expect("everything"), made);
        }
    }
    cluster.shut_down().await;
}

/// Eight tasks of one executor share one cursor and one value; what builds it runs once, also when those who asked first are gone.
#[tokio::test]
async fn tasks_of_one_process_share_one_value_that_is_built_once() {
    let cluster = Cluster::pair(binaries!()).await;
    let (here, there) = (cluster.node(0).address(), cluster.node(1).address());
    let producer = cluster.attach(0, JOB).await;
    let edge = Edge::new(Some(here), partition(1), 300);
    let session = cluster.attach(1, JOB).await;
    let built = Arc::new(AtomicU32::new(0));
    let value = session.share(gate(&edge, 1), {
        let (edge, built) = (edge.clone(), Arc::clone(&built));
        async move |mut gate: Gate| {
            built.fetch_add(1, Ordering::Relaxed);
            match read_all(&mut gate, &[edge.source], &mut edge.oracle()).await {
                Ok(counts) => Ok(counts),
                Err(error) => Err(error.into_service()),
            }
        }
    });
    let impatient = tokio::time::timeout(Duration::from_millis(20), value.get()).await;
    assert!(impatient.is_err(), "nothing is written yet");
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let value = value.clone();
            tokio::spawn(async move { value.get().await })
        })
        .collect();
    let made = produce(&edge, &producer, spec(&edge, &[(&there, 1)])).await;
    let mut values = Vec::new();
    for task in tasks {
        let got = within(LIMIT, "the value", task).await.expect("no panic");
        values.push(got.expect("built"));
    }
    assert!(values.iter().all(|one| Arc::ptr_eq(one, &values[0]) && **one == made));
    assert_eq!(built.load(Ordering::Relaxed), 1);

    // Given up while it is being built, it leaves nothing behind, and its error is everybody's.
    let waits = Edge::new(edge.from.clone(), partition(2), 1);
    let given_up = session.share(gate(&waits, 1), async |mut gate: Gate| {
        gate.next_record().await.map(|_| ())
    });
    until(LIMIT, "it is asked for", async || {
        let status = session.status().await.expect("alive");
        (status["relays"] == 1).then_some(())
    })
    .await;
    drop(given_up);
    until(LIMIT, "it is given up", async || {
        let status = session.status().await.expect("alive");
        (status["relays"] == 0).then_some(())
    })
    .await;
    let soon = gate(&waits, 1).timeout(Duration::from_millis(100));
    let fails = session.share(soon, async |mut gate: Gate| gate.next_record().await.map(|_| ()));
    for _ in 0..2 {
        let error = within(LIMIT, "the error", fails.get())
            .await
            .expect_err("nobody writes it");
        assert!(matches!(error.kind(), ErrorKind::NotRegistered { .. }), "{error}");
    }
    drop((fails, value, session, producer));
    cluster.assert_base().await;
    cluster.shut_down().await;
}
