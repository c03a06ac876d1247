//! A disk that is full for a while, under running jobs: a real file system, filled by another program.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, write_range};
use integration::node::NodeOptions;
use integration::procfs;
use integration::profile::{Profile, skip};
use integration::stamp::{SOURCE, Source, partition};
use integration::wait::{until, within};
use shuffle_client::{Session, Writer};
use shuffle_protocol::ShuffleError;
use shuffle_protocol::error::{ErrorKind, Initiator};
use shuffle_protocol::partition::{Lifetime, PartitionKind, Pressure};

const LIMIT: Duration = Duration::from_secs(60);
/// New partitions go to disk again within this time after there is space.
const SOON: Duration = Duration::from_secs(5);
const DISK_BYTES: u64 = 64 << 20;
const KEPT: PartitionKind = PartitionKind {
    lifetime: Lifetime::Persistent,
    pressure: Pressure::Spilling,
    ..PartitionKind::PIPELINE
};

/// A small file system of its own.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let size = format!("size={bytes}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(folder.path())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn edge(job: u64, index: u32, records: u64) -> Edge {
    let source = Source {
        job,
        ..partition(index)
    };
    Edge::new(None, source, records)
}

/// Writes so many more records and flushes them.
async fn write(writer: &mut Writer, edge: &Edge, range: std::ops::Range<u64>) -> Result<(), ShuffleError> {
    write_range(writer, edge.source, edge.subpartitions, range, &edge.lengths).await?;
    writer.flush().await
}

async fn keep(session: &Session, edge: &Edge) -> Result<(), ShuffleError> {
    let mut writer = session.create_partition(edge.partition().kind(KEPT)).await?;
    write(&mut writer, edge, 0..edge.records).await?;
    writer.finish().await.map(drop)
}

fn is_full(error: &ShuffleError, disk: &Path) -> bool {
    let first = error.first_cause();
    let path = first.location().path.clone().unwrap_or_default();
    matches!(first.kind(), ErrorKind::NoSpace { .. })
        && first.initiator() == Initiator::Disk
        && path.starts_with(disk.to_str().expect("text"))
}

/// F59: eight jobs run, six of them to disk, when another program fills it. Those that go there fail by name, each once, the
/// others go on; as long as it is full new ones fail as well, and soon after it is not they do no more.
#[tokio::test]
async fn eight_jobs_on_a_disk_that_is_full_for_a_while() {
    let Some(disk) = Small::mount(DISK_BYTES) else {
        assert!(!skip("disk_full", "no file system can be mounted here"));
        return;
    };
    let options = NodeOptions::new()
        .pool(512, 4096)
        .flag("storage-directories", disk.path().display());
    let cluster = Cluster::start(binaries!(), [options]).await;
    let mut spilling = Vec::new();
    for job in 1..=6 {
        let (session, edge) = (cluster.attach(0, job).await, edge(job, 1, 40_000));
        let spec = edge.partition().kind(KEPT).buffers(2, 32);
        let mut writer = session.create_partition(spec).await.expect("created");
        within(LIMIT, "the first records", write(&mut writer, &edge, 0..300))
            .await
            .expect("there is space");
        spilling.push((session, edge, writer));
    }
    let watcher = cluster.attach(0, 1).await;
    until(LIMIT, "every job has something on disk", async || {
        let written = watcher.status().await.expect("alive")["disk_bytes_written"];
        (written > 6 * 100_000).then_some(())
    })
    .await;

    let filler = disk.path().join("of-another-program");
    let mut filled = File::create(&filler).expect("a file");
    let full = std::io::copy(&mut std::io::repeat(1), &mut filled).expect_err("it is full now");
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let since = Instant::now();
    let long = Duration::from_secs(Profile::current().choose(1, 10));
    for (session, edge, mut writer) in spilling {
        let rest = async {
            write(&mut writer, &edge, 300..edge.records).await?;
            writer.finish().await.map(drop)
        };
        let error = within(LIMIT, "a job that spills", rest)
            .await
            .expect_err("the disk is full");
        assert!(is_full(&error, disk.path()), "job {}: {error:#?}", edge.source.job);
        drop(session);
    }
    let mut rounds = 0;
    while rounds < 2 || since.elapsed() < long {
        for job in [7, 8] {
            let (producer, consumer) = (cluster.attach(0, job).await, cluster.attach(0, job).await);
            edge(job, rounds, 500).run(&producer, &consumer, LIMIT).await;
        }
        let late = edge(9, rounds, 5000);
        let error = within(LIMIT, "a new one", keep(&cluster.attach(0, 9).await, &late))
            .await
            .expect_err("it is still full");
        assert!(is_full(&error, disk.path()), "{error:#?}");
        rounds += 1;
    }

    drop(filled);
    std::fs::remove_file(&filler).expect("it was there");
    let session = cluster.attach(0, 10).await;
    let attempts = AtomicU32::new(0);
    let kept = until(SOON, "a new one goes to disk", async || {
        let edge = edge(10, attempts.fetch_add(1, Ordering::Relaxed), 2000);
        match keep(&session, &edge).await {
            Ok(()) => Some(edge),
            Err(error) => {
                assert!(is_full(&error, disk.path()), "{error:#?}");
                None
            }
        }
    })
    .await;
    within(LIMIT, "what was kept", kept.consume(&session))
        .await
        .expect("every record");
    let status = session.status().await.expect("alive");
    assert_eq!(status["disk_directories_usable"], 1, "full is not broken");
    cluster.shut_down().await;
}

/// F84: files of partitions that are opened, read a little and cancelled, over and over, do not stay open.
#[tokio::test]
async fn files_that_are_read_and_cancelled_do_not_stay_open() {
    let rounds = Profile::current().choose(300, 20_000);
    let folder = tempfile::tempdir().expect("a folder");
    let options = NodeOptions::new()
        .pool(64, 4096)
        .flag("storage-directories", folder.path().display());
    let cluster = Cluster::start(binaries!(), [options]).await;
    let session = cluster.attach(0, SOURCE.job).await;
    let pid = cluster.node(0).pid();
    let mut open = Vec::new();
    for round in 0..rounds {
        let edge = Edge::new(None, partition(round), 40);
        within(LIMIT, "writing", keep(&session, &edge)).await.expect("kept");
        let mut gate = session.open_gate(edge.gate()).await.expect("a gate");
        let first = within(LIMIT, "the first record", gate.next_record()).await;
        assert!(first.expect("no error").is_some());
        drop(gate);
        let released = session.release_partition(edge.source.partition_id()).await;
        released.expect("released");
        open.push(procfs::open_files(pid));
    }
    let (early, late) = open.split_at(open.len() / 2);
    let most = |counts: &[usize]| counts.iter().copied().max();
    assert!(most(late) <= most(early).map(|files| files + 8), "{open:?}");
    until(LIMIT, "what was released is gone", async || {
        let left = std::fs::read_dir(folder.path()).map_or(0, Iterator::count);
        (left <= 2).then_some(())
    })
    .await;
    drop(session);
    cluster.shut_down().await;
}
