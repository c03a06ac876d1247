//! Partitions that are lost after their producers have finished, on real servers: the consumer's error names what it could not read,
//! the coordinator has exactly that made again, and the job comes out right.

mod engine;

use coordinator::{Config, EdgeSpec, Indeterminate, JobGraph, Outcome, Stage};
use integration::binaries;
use integration::cluster::Cluster;
use integration::flip::{Bit, data_file, flip_in_file};
use integration::node::NodeOptions;
use integration::stamp::{Place, Source};
use shuffle_protocol::error::ErrorKind;

use engine::{Engine, JOB};

const SCAN: u32 = 0;
const COUNT: u32 = 1;

/// Pools that do not hold what the tasks write.
async fn cluster(folder: &tempfile::TempDir, nodes: usize) -> Cluster {
    let options = |node: usize| {
        NodeOptions::new()
            .pool(128, 4096)
            .flag("storage-directories", folder.path().join(node.to_string()).display())
            .flag("refused-grace", "300ms")
            .flag("keepalive", "1s")
            .flag("dead-peer-timeout", "3s")
    };
    Cluster::start(binaries!(), (0..nodes).map(options)).await
}

fn keyed() -> JobGraph {
    JobGraph::builder()
        .stage(Stage::new("scan").fixed(4))
        .stage(Stage::new("count").fixed(2))
        .edge(EdgeSpec::keyed("scan", "count"))
        .build()
        .expect("a valid graph")
}

fn rebalanced() -> JobGraph {
    JobGraph::builder()
        .stage(Stage::new("scan").fixed(3))
        .stage(Stage::new("count").fixed(3))
        .edge(EdgeSpec::rebalance("scan", "count"))
        .build()
        .expect("a valid graph")
}

/// All producers have finished, and the consumers are to begin.
async fn scanned(engine: &mut Engine) {
    engine
        .run_until(|engine| {
            engine
                .orders
                .front()
                .is_some_and(|order| order.task.stage.value() == COUNT)
        })
        .await;
    assert_eq!(engine.coordinator.outcome(), None);
}

/// Tasks of the scan whose partitions are on this node.
fn scanned_on(engine: &Engine, node: usize) -> Vec<u32> {
    let address = engine.cluster.node(node).address();
    let there = engine.finished.iter().filter(|(_, on)| *on == address);
    there.map(|(task, _)| task.index).collect()
}

#[tokio::test]
async fn what_a_killed_server_had_is_made_again_on_a_living_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut engine = Engine::start(cluster(&folder, 2).await, keyed(), Config::default(), &[3, 3]).await;
    scanned(&mut engine).await;
    let (lost, address) = (scanned_on(&engine, 1), engine.cluster.node(1).address());
    assert_eq!(lost.len(), 2, "two of four");
    engine.kill(1).await;
    engine.run_until(|_| false).await;

    engine.assert_complete(4, COUNT);
    let (partition, cause) = engine
        .fetch_failures
        .first()
        .expect("a consumer that could not read")
        .clone();
    assert!(
        lost.contains(&partition.index) && partition.attempt == 0,
        "{partition} is one of {lost:?}"
    );
    assert_eq!(cause.location().node, Some(address.clone()), "{cause}");
    let kinds = [ErrorKind::NodeUnreachable.code(), ErrorKind::ConnectionLost.code(), 9];
    assert!(kinds.contains(&cause.first_cause().kind().code()), "{cause}");
    assert_eq!(engine.nodes_lost, [address]);
    for (index, attempts) in engine.attempts(SCAN) {
        assert_eq!(
            attempts.len(),
            1 + usize::from(lost.contains(&index)),
            "scan {index}: {attempts:?}"
        );
    }
    engine.end().await;
}

#[tokio::test]
async fn a_partition_that_went_away_underneath_is_made_again_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut engine = Engine::start(cluster(&folder, 1).await, keyed(), Config::default(), &[4]).await;
    scanned(&mut engine).await;
    let order = engine.orders.front().expect("a consumer").clone();
    let gone = engine.input_of_the_next(2);
    engine
        .session(&order.node)
        .release_partition(gone)
        .await
        .expect("released");
    engine.run_until(|_| false).await;

    engine.assert_complete(4, COUNT);
    let (partition, cause) = engine.fetch_failures.first().expect("a consumer that could not read");
    assert_eq!(*partition, gone, "{cause}");
    assert!(matches!(cause.first_cause().kind(), ErrorKind::Released), "{cause}");
    let attempts: Vec<Vec<u32>> = engine.attempts(SCAN).into_values().collect();
    assert_eq!(attempts, [vec![0], vec![0], vec![0, 1], vec![0]]);
    engine.end().await;
}

#[tokio::test]
async fn a_partition_that_was_damaged_on_disk_is_made_again_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut engine = Engine::start(cluster(&folder, 1).await, keyed(), Config::default(), &[4]).await;
    scanned(&mut engine).await;
    let damaged = engine.input_of_the_next(1);
    let source = Source {
        job: JOB.value(),
        result: damaged.result.value(),
        partition: damaged.index,
        attempt: damaged.attempt,
    };
    let place = Place {
        source,
        subpartition: 0,
        sequence: 0,
    };
    let (path, bytes) = data_file(&folder.path().join("0"), place).expect("a data file");
    assert!(bytes > 100_000, "all of it is on disk: {bytes}");
    for at in (2000..bytes).step_by(4096) {
        flip_in_file(&path, Bit { at, bit: 3 }).expect("a bit that is there");
    }
    engine.run_until(|_| false).await;

    engine.assert_complete(4, COUNT);
    let (partition, cause) = engine.fetch_failures.first().expect("a consumer that could not read");
    assert_eq!(*partition, damaged, "{cause}");
    let attempts: Vec<Vec<u32>> = engine.attempts(SCAN).into_values().collect();
    assert_eq!(attempts, [vec![0], vec![0, 1], vec![0], vec![0]]);
    engine.end().await;
}

/// One consumer has read everything and is done; then a server is killed, and another consumer cannot read.
async fn half_read(engine: &mut Engine) {
    scanned(engine).await;
    engine.run_until(|engine| engine.attempts(COUNT).len() == 1).await;
    assert_eq!(scanned_on(engine, 1).len(), 1, "one of three");
    engine.kill(1).await;
}

#[tokio::test]
async fn an_indeterminate_producer_takes_all_who_have_read_along() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut engine = Engine::start(cluster(&folder, 2).await, rebalanced(), Config::default(), &[4, 2]).await;
    half_read(&mut engine).await;
    let (done, _) = engine.finished.last().expect("a consumer that is done").clone();
    assert_eq!((done.stage.value(), done.attempt), (COUNT, 0));
    engine.run_until(|_| false).await;

    engine.assert_complete(3, COUNT);
    assert!(!engine.fetch_failures.is_empty());
    let attempts = engine.attempts(COUNT);
    let [0, again] = attempts[&done.index][..] else {
        panic!("{attempts:?}: it had read what was made again otherwise")
    };
    assert!(again > 0);
    engine.end().await;
}

#[tokio::test]
async fn an_indeterminate_producer_ends_the_job_where_that_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = Config {
        indeterminate: Indeterminate::Abort,
        ..Config::default()
    };
    let mut engine = Engine::start(cluster(&folder, 2).await, rebalanced(), config, &[4, 2]).await;
    half_read(&mut engine).await;
    engine.run_until(|_| false).await;
    let (partition, cause) = engine.fetch_failures.first().expect("a consumer that could not read");
    assert_eq!(
        engine.coordinator.outcome(),
        Some(&Outcome::Failed(cause.clone())),
        "{partition}"
    );
    assert_eq!(engine.attempts(COUNT).len(), 1, "nobody ran again");
    engine.end().await;
}
