//! Many channels share one connection: it stays one, and no credit gets lost on it.

use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::Edge;
use integration::node::NodeOptions;
use integration::procfs;
use integration::profile::Profile;
use integration::stamp::{Lengths, SOURCE, Source, partition};
use integration::wait::{timed, within};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(60);

fn proxied() -> [NodeOptions; 2] {
    [NodeOptions::new().behind_proxy(), NodeOptions::new()]
}

/// F46: on an idle connection a single credit goes out at once.
#[tokio::test]
async fn a_credit_returned_late_on_an_idle_connection_is_progress_at_once() {
    let cluster = Cluster::start(binaries!(), proxied()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 40).lengths(Lengths::Fixed(32 << 10));
    let writer = tokio::spawn({
        let (edge, session) = (edge.clone(), producer.clone());
        async move { edge.produce(&session).await }
    });
    let mut gate = consumer.open_gate(edge.gate().credits(1, 0)).await.expect("a gate");
    let mut held = vec![within(LIMIT, "a buffer", gate.next_buffer()).await.expect("no error")];
    while let Ok(buffer) = tokio::time::timeout(Duration::from_millis(300), gate.next_buffer()).await {
        held.push(buffer.expect("no error"));
    }
    // Every credit is used up and nothing moves. Now one view is dropped.
    tokio::time::sleep(Profile::current().choose(Duration::from_secs(1), Duration::from_secs(5))).await;
    held.pop();
    let (next, took) = timed(within(LIMIT, "progress", gate.next_buffer())).await;
    assert!(
        next.expect("no error").is_some() && took < Duration::from_secs(1),
        "{took:?}"
    );
    drop((held, gate));
    writer.abort();
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// Channels opened, read once and cancelled over and over on one connection: no credit is lost.
#[tokio::test]
async fn channels_opened_read_once_and_cancelled_lose_no_credit() {
    let rounds = Profile::current().choose(1_000, 100_000);
    // What has ended is forgotten while others end, again and again.
    let options = proxied().map(|one| one.flag("unread-expiry", "1s"));
    let cluster = Cluster::start(binaries!(), options).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    for round in 0..rounds {
        let edge = Edge::new(Some(cluster.node(0).address()), partition(round), 1);
        let work = async {
            let mut writer = producer.create_partition(edge.partition()).await.expect("created");
            edge.write(&mut writer).await.expect("written");
            writer.flush().await.expect("flushed");
            let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
            assert!(gate.next_record().await.expect("no error").is_some());
            drop(gate);
            drop(writer);
        };
        within(LIMIT, "one round", work).await;
    }
    cluster.assert_base().await;
    assert_eq!(
        cluster.node(0).proxy().connections(),
        1,
        "one connection carried them all"
    );
    let edge = Edge::new(Some(cluster.node(0).address()), partition(u32::MAX), 2000);
    edge.run(&producer, &consumer, LIMIT).await;
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// All channels of all executors between two nodes share one connection.
#[tokio::test]
async fn two_nodes_have_one_connection_however_many_executors_there_are() {
    let cluster = Cluster::pair(binaries!()).await;
    let mut work = JoinSet::new();
    for index in 0..16 {
        let (producer, consumer) = (cluster.attach(0, index).await, cluster.attach(1, index).await);
        let source = Source { job: index, ..SOURCE };
        let there = Edge::new(Some(cluster.node(0).address()), source, 200);
        let back = Edge::new(Some(cluster.node(1).address()), Source { result: 2, ..source }, 200);
        work.spawn(async move {
            there.run(&producer, &consumer, LIMIT).await;
            back.run(&consumer, &producer, LIMIT).await;
        });
    }
    let mut most = 0;
    while !work.is_empty() {
        let between = procfs::established(cluster.node(1).pid()).len();
        most = most.max(between);
        let done = tokio::time::timeout(Duration::from_millis(20), work.join_next()).await;
        if let Ok(Some(result)) = done {
            result.expect("an edge");
        }
    }
    assert_eq!(most, 1, "one connection between two nodes");
    cluster.shut_down().await;
}
