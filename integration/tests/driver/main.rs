//! What a job's driver is told by real servers, over both kinds of socket, and what it tells them.

mod broadcast;

use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::node::NodeOptions;
use integration::wait::{until_true, within};
use shuffle_client::{AttachOptions, DriverEvent, FinishReport, JobDriver, JobDriverOptions, PartitionSpec, Session};
use shuffle_protocol::error::{ErrorKind, ShuffleError};
use shuffle_protocol::notify::{PartitionChange, PartitionState};
use shuffle_protocol::{GroupId, GroupRef, JobId, NodeAddress, PartitionId, ResultId, SubpartitionIndex};

const JOB: JobId = JobId::new(41);
const LIMIT: Duration = Duration::from_secs(30);
const LOST_WITHIN: Duration = Duration::from_secs(2);

fn partition(result: u64, index: u32, attempt: u32) -> PartitionId {
    PartitionId {
        result: ResultId::new(result),
        index,
        attempt,
    }
}

/// Executors and drivers may come over TCP; peers and they come through a proxy.
fn options() -> NodeOptions {
    NodeOptions::new().flag("executor-tcp", "true").behind_proxy()
}

fn over_tcp(cluster: &Cluster, node: usize) -> AttachOptions {
    AttachOptions::new(JOB).tcp(cluster.node(node).address().to_string())
}

async fn connect(nodes: Vec<AttachOptions>) -> JobDriver {
    let options = JobDriverOptions::new(JOB, nodes)
        .reconnect_within(LOST_WITHIN)
        .linger(Duration::from_millis(2));
    within(LIMIT, "connecting", JobDriver::connect(options))
        .await
        .expect("servers that take drivers")
}

/// Changes of one node until one is as wanted.
async fn changes_until(
    driver: &mut JobDriver,
    node: &NodeAddress,
    wanted: impl Fn(&PartitionChange) -> bool,
) -> Vec<PartitionChange> {
    let mut all = Vec::new();
    while !all.iter().any(&wanted) {
        let event = driver.next_event(LIMIT).await;
        let Some(DriverEvent::Partitions { node: from, changes }) = event else {
            panic!("{event:?} after {all:?}");
        };
        assert_eq!(&from, node);
        all.extend(changes);
    }
    all
}

fn is_finished(change: &PartitionChange) -> bool {
    matches!(change.state, PartitionState::Finished { .. })
}

fn is_failed(change: &PartitionChange) -> bool {
    matches!(change.state, PartitionState::Failed { .. })
}

fn is_released(change: &PartitionChange) -> bool {
    change.state == PartitionState::Released
}

/// Writes some records of different lengths to three subpartitions, the last of which stays empty.
async fn produce(session: &Session, id: PartitionId) -> FinishReport {
    let mut writer = session
        .create_partition(PartitionSpec::new(id, 3))
        .await
        .expect("a writer");
    for (subpartition, length) in [(0, 10), (1, 5000), (0, 0), (1, 70)] {
        let to = SubpartitionIndex::new(subpartition);
        writer.write_to(to, &vec![7; length]).await.expect("room for a record");
    }
    writer.finish().await.expect("a partition that ends")
}

fn sizes(report: &FinishReport) -> PartitionState {
    PartitionState::Finished {
        bytes: report.subpartitions.iter().map(|totals| totals.bytes).collect(),
    }
}

#[tokio::test]
async fn what_becomes_of_partitions_on_two_nodes_is_told_with_exact_sizes() {
    let cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let (a, b) = (cluster.node(0).address(), cluster.node(1).address());
    let writers = [
        cluster.attach(0, JOB.value()).await,
        cluster.attach(1, JOB.value()).await,
    ];
    let early = produce(&writers[0], partition(1, 0, 0)).await;
    // One over the Unix socket, one over TCP.
    let mut driver = connect(vec![cluster.node(0).attach_options(0), over_tcp(&cluster, 1)]).await;
    assert!(driver.nodes().eq(std::collections::BTreeSet::from([&a, &b])));
    let there = changes_until(&mut driver, &a, |_| true).await;
    let finished = |id, report: &FinishReport| PartitionChange {
        partition: id,
        state: sizes(report),
    };
    assert_eq!(there, [finished(partition(1, 0, 0), &early)], "what was there before");

    let late = produce(&writers[1], partition(1, 1, 0)).await;
    let told = changes_until(&mut driver, &b, is_finished).await;
    assert_eq!(told.last(), Some(&finished(partition(1, 1, 0), &late)));
    let PartitionState::Finished { bytes } = sizes(&late) else {
        unreachable!()
    };
    assert_eq!(
        &bytes[..],
        [4 + 10 + 4, 4 + 5000 + 4 + 70, 0],
        "records with their length prefixes"
    );

    let mut aborted = writers[1]
        .create_partition(PartitionSpec::new(partition(2, 5, 3), 1))
        .await
        .expect("a writer");
    aborted
        .write_to(SubpartitionIndex::new(0), b"half")
        .await
        .expect("room");
    aborted
        .abort(ShuffleError::new(ErrorKind::Io, "the source cannot be read"))
        .await
        .expect("an end");
    let told = changes_until(&mut driver, &b, is_failed).await;
    let Some(PartitionChange {
        partition: failed,
        state: PartitionState::Failed { cause },
    }) = told.last()
    else {
        panic!("{told:?}")
    };
    assert_eq!(*failed, partition(2, 5, 3));
    assert_eq!(cause.first_cause().message(), "the source cannot be read");

    for (node, index) in [(&a, 0), (&b, 1)] {
        driver.release_result(node, ResultId::new(1)).await.expect("released");
        let told = changes_until(&mut driver, node, is_released).await;
        assert_eq!(told.last().map(|change| change.partition), Some(partition(1, index, 0)));
    }
    let traffic = driver.traffic(&b);
    assert!(
        traffic.messages_in >= 4 && traffic.bytes_in > 40 * traffic.messages_in,
        "{traffic:?}"
    );
    assert_eq!((traffic.requests, traffic.connections), (1, 1));
    drop((driver, writers));
    cluster.shut_down().await;
}

#[tokio::test]
async fn a_connection_that_breaks_is_made_again_and_nothing_is_told_twice_or_missed() {
    let cluster = Cluster::start(binaries!(), [options()]).await;
    let node = cluster.node(0).address();
    let writer = cluster.attach(0, JOB.value()).await;
    let mut driver = connect(vec![over_tcp(&cluster, 0)]).await;
    produce(&writer, partition(1, 0, 0)).await;
    changes_until(&mut driver, &node, is_finished).await;
    let mut reports = Vec::new();
    for round in 1..=5 {
        // It may still be on its way back from the last cut.
        until_true(LIMIT, "the driver's connection", || {
            cluster.node(0).proxy().cut_all() > 0
        })
        .await;
        // Finished and gone while nobody listens.
        let report = produce(&writer, partition(1, round, 0)).await;
        writer
            .release_partition(partition(1, round, 0))
            .await
            .expect("released");
        reports.push(report);
    }
    let mut told = changes_until(&mut driver, &node, |change| {
        is_released(change) && change.partition == partition(1, 5, 0)
    })
    .await;
    told.retain(|change| is_finished(change) || is_released(change));
    told.sort_by_key(|change| (change.partition, is_released(change)));
    let expected = (1..).zip(&reports).flat_map(|(index, report)| {
        [sizes(report), PartitionState::Released].map(|state| PartitionChange {
            partition: partition(1, index, 0),
            state,
        })
    });
    assert_eq!(told, expected.collect::<Vec<_>>());
    driver.status(&node).await.expect("a connection that is there again");
    assert!(driver.traffic(&node).connections > 1, "it was cut");
    driver.release_job(&node).await.expect("released");
    drop((driver, writer));
    cluster.shut_down().await;
}

#[tokio::test]
async fn a_node_that_is_lost_is_an_event_with_its_cause() {
    let mut cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let (a, b) = (cluster.node(0).address(), cluster.node(1).address());
    let mut driver = connect(vec![over_tcp(&cluster, 0), over_tcp(&cluster, 1)]).await;
    cluster.node_mut(1).process_mut().kill().await;
    let lost = within(LIMIT, "noticing", driver.next_event(LIMIT)).await;
    let Some(DriverEvent::NodeLost { node, cause }) = lost else {
        panic!("{lost:?}")
    };
    assert_eq!(node, b);
    assert_eq!(cause.location().node.as_ref(), Some(&b), "{cause}");
    let refused = driver.release_job(&b).await.expect_err("nobody is there");
    assert_eq!(refused, cause, "and later requests say why");

    cluster.node_mut(0).process_mut().kill().await;
    cluster.node_mut(0).restart().await;
    let lost = within(LIMIT, "noticing", driver.next_event(LIMIT)).await;
    let Some(DriverEvent::NodeLost { node, cause }) = lost else {
        panic!("{lost:?}")
    };
    assert_eq!(node, a);
    assert!(matches!(cause.kind(), ErrorKind::PeerRestarted), "{cause}");
    assert_eq!(driver.next_event(LIMIT).await, None, "nobody is left to say anything");
    drop(driver);
    cluster.shut_down().await;
}

#[tokio::test]
async fn it_fences_attempts_fails_groups_and_ends_jobs() {
    let cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let (a, b) = (cluster.node(0).address(), cluster.node(1).address());
    let writers = [
        cluster.attach(0, JOB.value()).await,
        cluster.attach(1, JOB.value()).await,
    ];
    let mut driver = connect(vec![over_tcp(&cluster, 0), over_tcp(&cluster, 1)]).await;

    let mut stale = writers[0]
        .create_partition(PartitionSpec::new(partition(1, 0, 0), 1))
        .await
        .expect("a writer");
    driver.fence(&a, partition(1, 0, 2)).await.expect("fenced");
    let to = SubpartitionIndex::new(0);
    let refused = loop {
        if let Err(error) = stale.write_to(to, &[7; 4000]).await {
            break error;
        }
    };
    assert!(
        matches!(refused.kind(), ErrorKind::Superseded { by_attempt: 2 }),
        "{refused}"
    );
    let told = changes_until(&mut driver, &a, is_failed).await;
    assert_eq!(told.last().map(|change| change.partition), Some(partition(1, 0, 0)));

    let group = GroupRef {
        id: GroupId::new(9),
        home: a.clone(),
        nodes: vec![a.clone(), b.clone()],
    };
    let member = writers[1]
        .create_partition(PartitionSpec::new(partition(2, 0, 0), 1).group(group.clone()))
        .await
        .expect("a member");
    let cause = ShuffleError::new(ErrorKind::Aborted, "a task of the other stage ran out of rows");
    driver.fail_group(&a, &group, cause.clone()).await.expect("failed");
    let told = changes_until(&mut driver, &b, is_failed).await;
    let Some(PartitionState::Failed { cause: seen }) = told.last().map(|change| &change.state) else {
        panic!("{told:?}")
    };
    assert_eq!(seen.first_cause().message(), cause.message(), "on the other node too");
    drop(member);

    produce(&writers[1], partition(3, 0, 0)).await;
    driver.release_job(&b).await.expect("released");
    let told = changes_until(&mut driver, &b, is_released).await;
    assert_eq!(told.last().map(|change| change.partition), Some(partition(3, 0, 0)));
    drop((driver, stale, writers));
    cluster.shut_down().await;
}

/// What a driver does not take in costs the server nothing that grows with events.
#[tokio::test]
async fn a_driver_that_asks_for_nothing_hears_the_last_states_when_it_does() {
    let cluster = Cluster::start(binaries!(), [options()]).await;
    let node = cluster.node(0).address();
    let writer = cluster.attach(0, JOB.value()).await;
    let mut driver = connect(vec![over_tcp(&cluster, 0)]).await;
    let mut expected = Vec::new();
    for attempt in 0..400 {
        let report = produce(&writer, partition(1, 0, attempt)).await;
        expected.push(PartitionChange {
            partition: partition(1, 0, attempt),
            state: sizes(&report),
        });
        writer
            .release_partition(partition(1, 0, attempt))
            .await
            .expect("released");
    }
    let last = partition(1, 0, 399);
    let mut told = changes_until(&mut driver, &node, |change| {
        is_released(change) && change.partition == last
    })
    .await;
    told.retain(is_finished);
    assert_eq!(told, expected, "every attempt, in order");
    let traffic = driver.traffic(&node);
    assert!(traffic.events <= 400 * 4, "{traffic:?}");
    drop((driver, writer));
    cluster.shut_down().await;
}

#[tokio::test]
async fn its_token_opens_its_own_job_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, text) = (folder.path().join("secret"), "a secret that is long enough");
    std::fs::write(&path, text).expect("a file");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("private");
    let options = NodeOptions::new().flag("secret-file", path.display());
    let cluster = Cluster::start_with_secret(binaries!(), [options], text).await;
    let own = cluster.node(0).attach_options(JOB.value());
    drop(connect(vec![own.clone()]).await);
    let other = JobDriverOptions::new(JobId::new(JOB.value() + 1), [own]);
    let refused = JobDriver::connect(other)
        .await
        .expect_err("the token is of another job");
    assert!(matches!(refused.kind(), ErrorKind::Denied), "{refused}");
    cluster.shut_down().await;
}
