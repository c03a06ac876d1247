//! F129: each timeout is what it says, neither shorter nor longer.

use std::time::{Duration, Instant};

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, kinds, read_some, read_to_error};
use integration::node::{Books, NodeOptions};
use integration::raw::{Heard, Raw, executor_hello};
use integration::stamp::SOURCE;
use integration::wait::{until, within};
use rustix::process::Signal;
use shuffle_client::PartitionSpec;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::Frame;
use shuffle_protocol::{GroupId, GroupRef, ShuffleError};

const LIMIT: Duration = Duration::from_secs(30);

/// A fifth less is too early. A fifth more, and what a busy machine may add, is too late.
#[track_caller]
fn near(took: Duration, wanted: Duration, what: &str) {
    let (least, most) = (wanted.mul_f64(0.8), wanted.mul_f64(1.2) + Duration::from_millis(500));
    assert!(
        took >= least && took <= most,
        "{what} took {took:?} instead of {wanted:?}"
    );
}

#[tokio::test]
async fn a_request_a_handshake_and_a_drain_last_as_long_as_they_say() {
    const REQUEST: Duration = Duration::from_secs(2);
    let options = || {
        NodeOptions::new()
            .flag("request-timeout", "2s")
            .flag("handshake-timeout", "1500ms")
            .flag("drain-timeout", "2500ms")
    };
    let mut cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let session = cluster.attach(1, 7).await;
    for (from, what) in [(None, "here"), (Some(cluster.node(0).address()), "there")] {
        let edge = Edge::new(from, SOURCE, 1);
        let start = Instant::now();
        let answer = within(LIMIT, "an answer", edge.consume(&session)).await;
        near(start.elapsed(), REQUEST, what);
        let error = answer.expect_err("never registered").into_service();
        match error.kind() {
            ErrorKind::NotRegistered { waited } => near(*waited, REQUEST, "what the error says"),
            _ => panic!("{error}"),
        }
    }

    let start = Instant::now();
    let mut silent = Raw::tcp(cluster.node(0).listens_on()).await.expect("the port");
    assert!(silent.is_closed_within(LIMIT).await);
    near(start.elapsed(), Duration::from_millis(1500), "the handshake");

    let spec = PartitionSpec::new(SOURCE.partition_id(), 1);
    let writer = session.create_partition(spec).await.expect("created");
    let start = Instant::now();
    cluster.node(1).process().signal(Signal::TERM);
    cluster.node_mut(1).process_mut().exit(LIMIT).await;
    near(start.elapsed(), Duration::from_millis(2500), "the drain");
    drop((writer, session));
    cluster.shut_down().await;
}

#[tokio::test]
async fn an_executor_that_is_silent_over_tcp_is_pinged_and_then_given_up() {
    let options = NodeOptions::new()
        .flag("keepalive", "1s")
        .flag("dead-peer-timeout", "3500ms")
        .flag("executor-tcp", true);
    let cluster = Cluster::start(binaries!(), [options]).await;
    let mut silent = Raw::tcp(cluster.node(0).listens_on()).await.expect("the port");
    let start = Instant::now();
    silent.send_control(&Message::Hello(executor_hello(7))).await;
    assert!(matches!(silent.hear(LIMIT).await, Heard::Frame(_)), "welcome");
    for ping in 1..=2 {
        let heard = silent.hear(LIMIT).await;
        assert!(matches!(heard, Heard::Frame(Frame::Ping(_))), "{heard:?}");
        near(start.elapsed(), Duration::from_secs(ping), "the keepalive");
    }
    assert!(silent.is_closed_within(LIMIT).await);
    near(start.elapsed(), Duration::from_millis(3500), "the dead-peer time");
    cluster.shut_down().await;
}

#[tokio::test]
async fn a_silent_server_is_given_up_after_the_dead_peer_time() {
    const DEAD: Duration = Duration::from_secs(3);
    let options = || {
        NodeOptions::new()
            .flag("keepalive", "300ms")
            .flag("dead-peer-timeout", "3s")
            .flag("refused-grace", "20s")
    };
    let cluster = Cluster::start(binaries!(), [options().behind_proxy(), options()]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 10);
    let mut writer = producer.create_partition(edge.partition()).await.expect("created");
    edge.write(&mut writer).await.expect("written");
    writer.flush().await.expect("flushed");
    let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
    let read = read_some(&mut gate, &[SOURCE], &mut edge.oracle(), 10).await;
    read.expect("the first records");
    // The last word may have come a keepalive ago.
    let start = Instant::now();
    cluster.node(0).proxy().black_hole(true);
    let error = within(LIMIT, "the verdict", read_to_error(&mut gate)).await;
    near(start.elapsed(), DEAD, "the dead-peer time");
    match error.kind() {
        ErrorKind::PeerLost { silent_for } => near(*silent_for, DEAD, "what the error says"),
        _ => panic!("{error}"),
    }
    cluster.node(0).proxy().black_hole(false);
    drop((writer, gate, producer, consumer));
    cluster.shut_down().await;
}

#[tokio::test]
async fn a_node_that_refuses_connections_has_its_grace() {
    const GRACE: Duration = Duration::from_millis(2500);
    let options = || NodeOptions::new().flag("refused-grace", "2500ms");
    let mut cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let consumer = cluster.attach(1, 7).await;
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 1);
    cluster.node_mut(0).process_mut().kill().await;
    let start = Instant::now();
    let answer = within(LIMIT, "the verdict", edge.consume(&consumer)).await;
    near(start.elapsed(), GRACE, "the grace");
    let error = answer.expect_err("nobody is there").into_service();
    assert!(
        matches!(error.first_cause().kind(), ErrorKind::PeerLost { .. }),
        "{error}"
    );
    drop(consumer);
    cluster.shut_down().await;
}

#[tokio::test]
async fn a_group_waits_for_its_home_as_long_as_it_says() {
    const VERDICT: Duration = Duration::from_millis(2500);
    let options = || {
        NodeOptions::new()
            .flag("group-verdict-timeout", "2500ms")
            .flag("dead-peer-timeout", "20s")
    };
    let cluster = Cluster::start(binaries!(), [options().behind_proxy(), options()]).await;
    let session = cluster.attach(1, 7).await;
    let group = GroupRef {
        id: GroupId::new(1),
        home: cluster.node(0).address(),
        nodes: vec![cluster.node(0).address(), cluster.node(1).address()],
    };
    let edge = Edge::new(None, SOURCE, 1);
    let spec = edge.partition().group(group.clone());
    let writer = session.create_partition(spec).await.expect("created");
    let mut gate = session
        .open_gate(edge.gate().group(group.clone()))
        .await
        .expect("a gate");
    cluster.node(0).proxy().black_hole(true);
    let start = Instant::now();
    let cause = ShuffleError::new(ErrorKind::Aborted, "the driver gave up");
    session.fail_group(&group, cause).await.expect("told");
    let error = within(LIMIT, "the verdict", read_to_error(&mut gate)).await;
    near(start.elapsed(), VERDICT, "the wait for the home server");
    assert!(kinds(&error).contains(&"GroupFailed".to_owned()), "{error}");
    assert!(
        error.first_cause().to_string().contains("the driver gave up"),
        "{error}"
    );
    cluster.node(0).proxy().black_hole(false);
    drop((writer, gate, session));
    cluster.shut_down().await;
}

#[tokio::test]
async fn what_nobody_reads_is_kept_as_long_as_it_says() {
    let cluster = Cluster::start(binaries!(), [NodeOptions::new().flag("unread-expiry", "2500ms")]).await;
    let session = cluster.attach(0, 7).await;
    let edge = Edge::new(None, SOURCE, 1);
    let start = Instant::now();
    edge.produce(&session).await.expect("finished");
    until(LIMIT, "it expires", || async {
        let books = Books::of(&session.status().await.expect("alive"));
        (books.get("queued") == 0).then_some(())
    })
    .await;
    near(start.elapsed(), Duration::from_millis(2500), "the wait for readers");
    let error = edge.consume(&session).await.expect_err("expired").into_service();
    assert!(matches!(error.kind(), ErrorKind::Expired), "{error}");
    drop(session);
    cluster.shut_down().await;
}
