//! F144: records of one byte, each flushed, from one server to another: what is ready goes together. Told by counts of the kernel:
//! how often a server wrote, read and went to sleep.

use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, write_range};
use integration::profile::Profile;
use integration::stamp::{Lengths, partition};
use integration::wait::within;
use shuffle_client::Session;
use shuffle_protocol::ShuffleError;
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(300);
const WRITERS: u32 = 16;

async fn write_and_flush_each(edge: Edge, session: Session) -> Result<(), ShuffleError> {
    let mut writer = session.create_partition(edge.partition()).await?;
    for record in 0..edge.records {
        write_range(&mut writer, edge.source, 1, record..record + 1, &edge.lengths).await?;
        writer.flush().await?;
    }
    writer.finish().await.map(drop)
}

#[tokio::test]
async fn records_of_one_byte_with_a_flush_each_travel_together() {
    let each = Profile::current().choose(1250, 12_500);
    let cluster = Cluster::pair(binaries!()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let (mut writers, mut readers) = (JoinSet::new(), JoinSet::new());
    for index in 0..WRITERS {
        let edge = Edge::new(Some(cluster.node(0).address()), partition(index), each);
        let edge = edge.lengths(Lengths::Fixed(1));
        writers.spawn(write_and_flush_each(edge.clone(), producer.clone()));
        let session = consumer.clone();
        readers.spawn(async move { edge.consume(&session).await });
    }
    for written in within(LIMIT, "the writers", writers.join_all()).await {
        written.expect("written");
    }
    for read in within(LIMIT, "the readers", readers.join_all()).await {
        assert_eq!(read.expect("everything").records, each);
    }
    let records = u64::from(WRITERS) * each;
    let status = producer.status().await.expect("alive");
    assert_eq!(status["buffers_sent"], records, "each flush lets a buffer go");
    for node in [0, 1] {
        let pid = cluster.node(node).pid();
        let counts = [writes(pid), reads(pid), sleeps(pid)];
        println!("{records} records: node {node} wrote, read and slept {counts:?} times");
        let [writes, reads, sleeps] = counts;
        assert!(writes < records / 3, "node {node} wrote {writes} times");
        assert!(sleeps < records / 3, "node {node} slept {sleeps} times");
        // Payload is read straight into its buffer.
        assert!(reads < records + records / 4, "node {node} read {reads} times");
    }
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// Writes to sockets that gather, by the whole process.
fn writes(pid: u32) -> u64 {
    number(&format!("/proc/{pid}/io"), "syscw:")
}

fn reads(pid: u32) -> u64 {
    number(&format!("/proc/{pid}/io"), "syscr:")
}

/// How often its threads had nothing to do: as often they were woken.
fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    let status = |task: std::fs::DirEntry| task.path().join("status").to_string_lossy().into_owned();
    let of = |task| number(&status(task), "voluntary_ctxt_switches:");
    tasks.flatten().map(of).sum()
}

fn number(file: &str, key: &str) -> u64 {
    let text = std::fs::read_to_string(file).expect("a process that lives");
    let value = text.lines().find_map(|line| line.strip_prefix(key));
    value.and_then(|value| value.trim().parse().ok()).expect("a count")
}
