//! Partitions that lie on disk: spilled through a pool that is too small, kept, and served again by the next server.

use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, read_all, write_all};
use integration::node::NodeOptions;
use integration::stamp::SOURCE;
use integration::wait::within;
use shuffle_client::{PartitionSpec, Session};
use shuffle_protocol::error::{ErrorKind, Initiator};
use shuffle_protocol::partition::{Lifetime, PartitionKind, Pressure, Readiness};

const LIMIT: Duration = Duration::from_secs(60);
const KEPT: PartitionKind = PartitionKind {
    lifetime: Lifetime::Persistent,
    readiness: Readiness::Blocking,
    pressure: Pressure::Spilling,
};

fn spec(edge: &Edge) -> PartitionSpec {
    edge.partition().kind(KEPT)
}

async fn finish(edge: &Edge, session: &Session) -> Result<(), shuffle_protocol::ShuffleError> {
    let mut writer = session.create_partition(spec(edge)).await?;
    write_all(
        &mut writer,
        edge.source,
        edge.subpartitions,
        edge.records,
        &edge.lengths,
    )
    .await?;
    writer.finish().await?;
    Ok(())
}

async fn read(edge: &Edge, session: &Session) {
    let read = async {
        let mut gate = session.open_gate(edge.gate()).await.expect("a gate");
        read_all(&mut gate, &[edge.source], &mut edge.oracle())
            .await
            .expect("every record")
    };
    within(LIMIT, "reading what was kept", read).await;
}

/// F06: sixteen times the pool goes to disk and comes back, twice; then the server is killed and another one serves the same, on
/// its own node and to another, and a third one again.
#[tokio::test]
async fn a_finished_partition_outlives_servers_that_are_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let directories = ["a", "b"]
        .map(|name| folder.path().join(name).display().to_string())
        .join(",");
    let options = NodeOptions::new()
        .pool(64, 4096)
        .flag("storage-directories", directories);
    let other = NodeOptions::new().pool(64, 4096);
    let mut cluster = Cluster::start(binaries!(), [options, other]).await;
    let session = cluster.attach(0, 7).await;
    let edge = Edge::new(None, SOURCE, 1000).subpartitions(4);
    within(LIMIT, "writing", finish(&edge, &session))
        .await
        .expect("finished");
    read(&edge, &session).await;
    read(&edge, &session).await;
    let status = session.status().await.expect("a status");
    assert!(
        status["disk_bytes_written"] >= 4_000_000 && status["disk_bytes_read"] >= 2 * 4_000_000 * 9 / 10,
        "{status:?}"
    );
    assert_eq!((status["disk_errors"], status["disk_directories_usable"]), (0, 2));
    drop(session);
    for _ in 0..2 {
        cluster.node_mut(0).process_mut().kill().await;
        cluster.node_mut(0).restart().await;
        let near = cluster.attach(0, 7).await;
        read(&edge, &near).await;
        let far = cluster.attach(1, 7).await;
        let from = Edge {
            from: Some(cluster.node(0).address()),
            ..edge.clone()
        };
        read(&from, &far).await;
    }
}

/// F126: there is less space than is written; the partition fails by name, and the next one has its place.
#[tokio::test]
async fn a_limit_fails_what_is_beyond_it_and_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = NodeOptions::new()
        .pool(64, 4096)
        .flag("storage-directories", folder.path().display())
        .flag("storage-limit", "1MiB");
    let cluster = Cluster::start(binaries!(), [options]).await;
    let session = cluster.attach(0, 7).await;
    let large = Edge::new(None, SOURCE, 4000);
    let error = within(LIMIT, "writing", finish(&large, &session))
        .await
        .expect_err("too much");
    let first = error.first_cause();
    assert!(matches!(first.kind(), ErrorKind::NoSpace { .. }), "{error:#?}");
    assert_eq!(first.initiator(), Initiator::Disk);
    let path = first.location().path.clone().expect("a path");
    assert!(path.starts_with(folder.path().to_str().expect("text")), "{path}");
    let small = Edge::new(None, integration::stamp::partition(1), 500);
    within(LIMIT, "writing", finish(&small, &session))
        .await
        .expect("there is space again");
    read(&small, &session).await;
}
