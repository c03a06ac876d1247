//! How bytes leave a server: the way that was asked for, noticed when it silently becomes another, and safe while the
//! kernel still reads what was sent.

use std::collections::BTreeMap;
use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, read_all, read_some};
use integration::node::NodeOptions;
use integration::stamp::{Lengths, Source};
use integration::wait::{until, within};
use rustix::process::Signal;
use shuffle_client::Session;
use shuffle_protocol::ShuffleError;
use shuffle_protocol::error::ErrorKind;

const LIMIT: Duration = Duration::from_secs(60);
const SOURCE: Source = Source {
    job: 7,
    result: 30,
    partition: 3,
    attempt: 1,
};

fn sending(how: &str) -> NodeOptions {
    NodeOptions::new().flag("transport-send", how)
}

async fn status(session: &Session) -> BTreeMap<String, u64> {
    session.status().await.expect("a server that lives answers")
}

/// Waits until a value of the status is what it should be.
async fn until_status(session: &Session, name: &str, is: impl Fn(u64) -> bool) -> u64 {
    until(LIMIT, name, async || {
        let value = status(session).await[name];
        is(value).then_some(value)
    })
    .await
}

/// F138: a strategy that is forced is the one that is used: by the connections' count, and by how the payload went.
#[tokio::test]
async fn a_forced_strategy_is_the_one_that_sends() {
    // Every payload byte is counted in the column of the strategy that is meant; auto is copy (docs/performance.md).
    for (how, is) in [
        ("copy", "copy"),
        ("sendfile", "sendfile"),
        ("uring", "uring"),
        ("auto", "copy"),
    ] {
        let cluster = Cluster::start(binaries!(), [sending(how), sending(how)]).await;
        let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
        let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 20_000);
        edge.run(&producer, &consumer, LIMIT).await;
        for session in [&producer, &consumer] {
            let status = status(session).await;
            for other in ["copy", "sendfile", "uring"] {
                let connections = status[&format!("peer_connections_{other}")];
                assert_eq!(connections, u64::from(other == is), "{how}: connections by {other}");
            }
            assert_eq!(status["send_fallbacks"], 0, "{how}");
        }
        let status = status(&producer).await;
        let sent = status["bytes_sent"];
        let [copied, uncopied, uring] =
            ["copied", "uncopied", "uring"].map(|column| status[&format!("send_bytes_{column}")]);
        assert!(sent > 20_000_000, "{how}: {sent} bytes were sent");
        assert_eq!(
            copied + uncopied + uring,
            sent,
            "{how}: every byte went one of three ways"
        );
        match is {
            "copy" => assert_eq!(copied, sent, "{how}"),
            "uring" => assert_eq!(uring, sent, "{how}"),
            // Buffers that left before they were full are copied.
            _ => assert!(uncopied > sent / 2 && uring == 0, "{how}: {uncopied} of {sent}"),
        }
        drop((producer, consumer));
        cluster.shut_down().await;
    }
}

/// F02: a small pool whose buffers are written again as soon as they are free, and a slow reader.
#[tokio::test]
async fn sendfile_never_sends_what_is_written_later() {
    let options = || sending("sendfile").pool(8, 32 << 10).flag("extent-buffers", 1);
    let cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge =
        Edge::new(Some(cluster.node(0).address()), SOURCE, 30_000).lengths(Lengths::Spread { least: 0, most: 3000 });
    let read = async {
        let mut oracle = edge.oracle();
        let mut gate = consumer.open_gate(edge.gate().credits(1, 2)).await.expect("a gate");
        // Behind for a while again and again: then buffers lie in the kernel for longer than it takes to free them.
        for _ in 0..20 {
            read_some(&mut gate, &[SOURCE], &mut oracle, 500)
                .await
                .expect("records");
            cluster.node(1).process().signal(Signal::STOP);
            tokio::time::sleep(Duration::from_millis(5)).await;
            cluster.node(1).process().signal(Signal::CONT);
        }
        read_all(&mut gate, &[SOURCE], &mut oracle).await
    };
    let both = async { tokio::join!(edge.produce(&producer), read) };
    let (produced, consumed) = within(LIMIT, "one edge", both).await;
    assert_eq!(
        produced.expect("produced"),
        consumed.expect("every byte as it was written")
    );
    assert!(status(&producer).await["send_bytes_uncopied"] > 10_000_000);
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// A partition fails while its buffers lie in sockets. Nobody may write into them before the other server has read them:
/// its reader would see a wrong checksum in place of the cause.
#[tokio::test]
async fn buffers_of_a_failed_partition_are_the_kernels_until_they_are_read() {
    for how in ["sendfile", "copy", "uring"] {
        let options = || sending(how).pool(32, 32 << 10).flag("extent-buffers", 1);
        let cluster = Cluster::start(binaries!(), [options(), options()]).await;
        let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
        let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 1000);
        let mut writer = producer.create_partition(edge.partition()).await.expect("created");
        let mut gate = consumer.open_gate(edge.gate().credits(6, 1)).await.expect("a gate");
        let mut oracle = edge.oracle();
        let warm = Edge {
            records: 1,
            ..edge.clone()
        };
        warm.write(&mut writer).await.expect("written");
        writer.flush().await.expect("flushed");
        read_some(&mut gate, &[SOURCE], &mut oracle, 1)
            .await
            .expect("the first record");

        cluster.node(1).process().signal(Signal::STOP);
        let rest = integration::flow::write_range(&mut writer, SOURCE, 1, 1..200, &edge.lengths);
        rest.await.expect("so much fits into the credits");
        writer.flush().await.expect("flushed");
        until_status(&producer, "buffers_sent", |sent| sent >= 5).await;
        let cause = ShuffleError::new(ErrorKind::Aborted, "the task failed");
        writer.abort(cause).await.expect("aborted");
        if how == "sendfile" {
            until_status(&producer, "buffers_kernel", |kernel| kernel > 0).await;
        }

        // Everything that can be had is written with other bytes.
        let other = Source { partition: 4, ..SOURCE };
        let spec = Edge::new(None, other, 0).subpartitions(4);
        let mut writer = producer.create_partition(spec.partition()).await.expect("created");
        let flood = integration::flow::write_all(&mut writer, other, 4, 1000, &Lengths::Fixed(3000));
        let blocked = tokio::time::timeout(Duration::from_millis(300), flood).await;
        assert!(blocked.is_err(), "{how}: the pool is smaller than what is written");

        cluster.node(1).process().signal(Signal::CONT);
        let error = within(LIMIT, "the end", async {
            loop {
                match read_some(&mut gate, &[SOURCE], &mut oracle, 1).await {
                    Ok(true) => {}
                    Ok(false) => panic!("{how}: an end in place of an error"),
                    Err(error) => return error.into_service(),
                }
            }
        })
        .await;
        assert!(
            matches!(error.first_cause().kind(), ErrorKind::Aborted),
            "{how}: {error}"
        );
        until_status(&producer, "buffers_kernel", |kernel| kernel == 0).await;
        drop((writer, gate, producer, consumer));
        cluster.shut_down().await;
    }
}
