//! What an operator meets: sockets that are there already, signals, limits, modes, versions, clocks.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::Edge;
use integration::node::{Node, NodeOptions};
use integration::profile::{Profile, may_run_as_root};
use integration::raw::{Heard, Raw, executor_hello};
use integration::stamp::{SOURCE, partition};
use integration::wait::{timed, until, within};
use integration::{procfs, script};
use rustix::process::Signal;
use shuffle_client::PartitionSpec;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::ErrorKind;

const LIMIT: Duration = Duration::from_secs(30);

async fn refused_to_start(cluster: &Cluster, name: &str, options: NodeOptions) -> String {
    let mut node = Node::spawn(binaries!(), name, cluster.folder(), options, None);
    let status = node.process_mut().exit(Duration::from_secs(10)).await;
    let log = node.process().log();
    assert!(!status.success() && status.code().is_some(), "{status}: {log}");
    let line = node.process_mut().line(LIMIT).await;
    assert_eq!(line, None, "never ready");
    log
}

/// F123: a stale socket is taken over, as often as it takes.
#[tokio::test]
async fn a_killed_server_starts_again_on_its_stale_socket() {
    let rounds = Profile::current().choose(5, 50);
    let mut cluster = Cluster::single(binaries!()).await;
    for _ in 0..rounds {
        cluster.node_mut(0).process_mut().kill().await;
        assert!(cluster.node(0).socket().exists(), "kill -9 leaves the socket");
        cluster.node_mut(0).restart().await;
        drop(cluster.attach(0, 7).await);
    }
    cluster.shut_down().await;
}

/// F123: a live server's socket, a foreign file and a symlink are left alone.
#[tokio::test]
async fn what_is_not_a_stale_socket_is_left_alone() {
    let cluster = Cluster::single(binaries!()).await;
    let live = cluster.node(0).socket().to_owned();
    let log = refused_to_start(&cluster, "second", NodeOptions::new().flag("socket", live.display())).await;
    assert!(log.contains("node-0.sock"), "it names the socket: {log}");
    let session = cluster.attach(0, 7).await;
    Edge::new(None, SOURCE, 10).run(&session, &session, LIMIT).await;

    let file = cluster.folder().join("third.sock");
    std::fs::write(&file, "mine").expect("a file");
    refused_to_start(&cluster, "third", NodeOptions::new()).await;
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "mine");

    let link = cluster.folder().join("fourth.sock");
    std::os::unix::fs::symlink(&file, &link).expect("a symlink");
    refused_to_start(&cluster, "fourth", NodeOptions::new()).await;
    assert!(
        std::fs::symlink_metadata(&link)
            .expect("still there")
            .file_type()
            .is_symlink()
    );
    drop(session);
    cluster.shut_down().await;
}

/// F132: a port in use is an exit status and a message, and never "ready".
#[tokio::test]
async fn a_port_in_use_is_said_before_anyone_is_told_ready() {
    let cluster = Cluster::single(binaries!()).await;
    let taken = cluster.node(0).listens_on();
    let log = refused_to_start(&cluster, "second", NodeOptions::new().flag("listen", taken)).await;
    assert!(log.contains(&taken.to_string()), "it names the address: {log}");
    assert!(!cluster.folder().join("second.sock").exists(), "it leaves no socket");
    cluster.shut_down().await;
}

/// F132: whoever connects at the moment the server says that it is ready is served.
#[tokio::test]
async fn a_server_that_says_ready_serves() {
    let cluster = Cluster::start(binaries!(), []).await;
    for round in 0..Profile::current().choose(5, 100) {
        let name = format!("fresh-{round}");
        let mut node = Node::start(binaries!(), &name, cluster.folder(), NodeOptions::new()).await;
        let tcp = Raw::tcp(node.listens_on()).await;
        assert!(tcp.is_ok(), "the TCP port is open");
        drop(node.attach(7).await);
        drop(tcp);
        node.stop(LIMIT).await;
    }
    cluster.shut_down().await;
}

/// F115: the mode is the configured one, whatever the umask.
#[tokio::test]
async fn the_socket_has_its_configured_mode_under_any_umask() {
    let cluster = Cluster::start(binaries!(), []).await;
    for umask in ["000", "077"] {
        for mode in ["0600", "0660"] {
            let name = format!("mode-{umask}-{mode}");
            let line = format!("umask {umask}; exec \"$0\" \"$@\"");
            let options = NodeOptions::new().flag("socket-mode", mode).under(&["sh", "-c", &line]);
            let mut node = Node::start(binaries!(), &name, cluster.folder(), options).await;
            let meta = std::fs::symlink_metadata(node.socket()).expect("the socket");
            assert!(meta.file_type().is_socket());
            assert_eq!(
                meta.permissions().mode() & 0o7777,
                u32::from_str_radix(mode, 8).expect("octal"),
                "{umask}"
            );
            assert_eq!(meta.uid(), rustix::process::geteuid().as_raw());
            node.stop(LIMIT).await;
        }
    }
    cluster.shut_down().await;
}

/// F115: nobody else can put another socket in the place of ours, also where the umask is wide.
#[tokio::test]
async fn the_sockets_directory_is_closed_to_others() {
    let cluster = Cluster::start(binaries!(), []).await;
    let directory = cluster.folder().join("fresh/deep");
    let options = || {
        let options = NodeOptions::new().flag("socket", directory.join("s.sock").display());
        options.under(&["sh", "-c", "umask 000; exec \"$0\" \"$@\""])
    };
    let mut node = Node::spawn(binaries!(), "made", cluster.folder(), options(), None);
    let line = node.process_mut().line(LIMIT).await.unwrap_or_default();
    assert!(line.starts_with("ready "), "{line}{}", node.process().log());
    for made in [&directory, &cluster.folder().join("fresh")] {
        let mode = std::fs::metadata(made).expect("the directory").permissions().mode();
        assert_eq!(mode & 0o7777, 0o755, "{}", made.display());
    }
    node.stop(LIMIT).await;

    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o777)).expect("open to all");
    let log = refused_to_start(&cluster, "open", options()).await;
    assert!(log.contains("chmod go-w") && log.contains("fresh/deep"), "{log}");
    cluster.shut_down().await;
}

/// F115: another user is refused, by the mode and, where the mode lets him in, by his credentials.
#[tokio::test]
async fn another_user_is_refused() {
    if !may_run_as_root("another_user_is_refused") {
        return;
    }
    let cluster = Cluster::start(binaries!(), []).await;
    std::fs::set_permissions(cluster.folder(), PermissionsExt::from_mode(0o755)).expect("a folder for all");
    for (mode, name) in [("0600", "closed"), ("0666", "open")] {
        let options = NodeOptions::new().flag("socket-mode", mode);
        let mut node = Node::start(binaries!(), name, cluster.folder(), options).await;
        let program = binary_for_all(cluster.folder());
        let output = std::process::Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .arg("--socket")
            .arg(node.socket())
            .args(["--job=7", "--name=stranger"])
            .stdin(std::process::Stdio::null())
            .output()
            .expect("setpriv");
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(!output.status.success(), "{mode}: a stranger was let in");
        let denied = said.contains("denied") || said.contains("not allowed");
        assert!(denied, "{mode}: {said}");
        drop(node.attach(7).await);
        node.stop(LIMIT).await;
    }
    cluster.shut_down().await;
}

/// The executor's program where every user may run it.
fn binary_for_all(folder: &Path) -> std::path::PathBuf {
    let program = folder.join("executor");
    if !program.exists() {
        std::fs::copy(binaries!().executor, &program).expect("a copy");
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("runnable");
    }
    program
}

/// F93, F94: no one can shrink or grow what the server maps; a try is EPERM and changes nothing.
#[tokio::test]
async fn an_arena_cannot_be_truncated_by_anyone() {
    let cluster = Cluster::single(binaries!()).await;
    let session = cluster.attach(0, 7).await;
    let pid = cluster.node(0).pid();
    let mut tried = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("descriptors")
        .flatten()
    {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if !target.to_string_lossy().starts_with("/memfd:") {
            continue;
        }
        let Ok(file) = std::fs::File::options().write(true).open(entry.path()) else {
            continue;
        };
        let length = file.metadata().expect("a length").len();
        for wanted in [0, length / 2, length * 2 + 4096] {
            let error = file.set_len(wanted).expect_err("sealed");
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::PermissionDenied,
                "{}: {error}",
                target.display()
            );
        }
        let seals = rustix::fs::fcntl_get_seals(&file).expect("a memfd");
        assert!(
            seals.contains(rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW | rustix::fs::SealFlags::SEAL)
        );
        tried += 1;
    }
    assert!(tried >= 2, "a write arena and a read arena, at least: {tried}");
    Edge::new(None, SOURCE, 100).run(&session, &session, LIMIT).await;
    drop(session);
    cluster.shut_down().await;
}

/// F131: versions that have nothing in common are refused, and both are named.
#[tokio::test]
async fn a_foreign_version_is_refused_with_both_versions() {
    let cluster = Cluster::single(binaries!()).await;
    let mut raw = Raw::unix(cluster.node(0).socket()).await.expect("the socket");
    let hello = shuffle_protocol::control::Hello {
        version_min: 41,
        version_max: 42,
        ..executor_hello(7)
    };
    raw.send_control(&Message::Hello(hello)).await;
    let Heard::Frame(shuffle_protocol::frame::Frame::Control(answer)) = raw.hear(LIMIT).await else {
        panic!("an answer");
    };
    let Message::Reject(reject) = *answer else {
        panic!("{answer:?}")
    };
    let error = shuffle_protocol::ShuffleError::from(reject.error.expect("a reason"));
    assert_eq!(script::kind_name(error.kind()), "VersionMismatch");
    let text = error.to_string();
    assert!(
        text.contains("41") && text.contains("42") && text.contains("1..=1"),
        "{text}"
    );

    // A range that reaches into ours is served.
    let mut raw = Raw::unix(cluster.node(0).socket()).await.expect("the socket");
    let hello = shuffle_protocol::control::Hello {
        version_min: 1,
        version_max: 42,
        features: u64::MAX,
        ..executor_hello(7)
    };
    raw.send_control(&Message::Hello(hello)).await;
    assert!(format!("{:?}", raw.hear(LIMIT).await).contains("Welcome"));
    drop(raw);
    cluster.shut_down().await;
}

/// F133: SIGTERM lets readers finish and lets nobody new in.
#[tokio::test]
async fn sigterm_drains_and_lets_readers_finish() {
    let mut cluster = Cluster::pair(binaries!()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 2000);
    let spec = edge.partition().max_queued(5);
    let mut writer = producer.create_partition(spec).await.expect("created");
    let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
    let mut oracle = edge.oracle();
    let first = Edge {
        records: 5,
        ..edge.clone()
    };
    first.write(&mut writer).await.expect("written");
    writer.flush().await.expect("flushed");
    integration::flow::read_some(&mut gate, &[SOURCE], &mut oracle, 5)
        .await
        .expect("read");
    cluster.node(0).process().signal(Signal::TERM);
    let refused = until(LIMIT, "nothing new", || async {
        let spec = PartitionSpec::new(partition(99).partition_id(), 1);
        producer.create_partition(spec).await.err()
    })
    .await;
    assert!(matches!(refused.kind(), ErrorKind::Draining), "{refused}");
    let write = async {
        integration::flow::write_range(&mut writer, SOURCE, 1, 5..2000, &edge.lengths)
            .await
            .expect("written");
        writer.finish().await.expect("finished");
    };
    let read = integration::flow::read_all(&mut gate, &[SOURCE], &mut oracle);
    let ((), counts) = within(LIMIT, "the open reader", async { tokio::join!(write, read) }).await;
    assert_eq!(counts.expect("everything").records, 2000);
    drop((gate, producer));
    let status = cluster.node_mut(0).process_mut().exit(LIMIT).await;
    assert!(status.success(), "{status}");
    assert!(!cluster.node(0).socket().exists());
    drop(consumer);
    cluster.shut_down().await;
}

/// F133: a second SIGTERM ends it now.
#[tokio::test]
async fn a_second_sigterm_exits_at_once() {
    let mut cluster = Cluster::start(binaries!(), [NodeOptions::new().flag("drain-timeout", "60s")]).await;
    let session = cluster.attach(0, 7).await;
    let spec = PartitionSpec::new(SOURCE.partition_id(), 1);
    let writer = session.create_partition(spec).await.expect("created");
    cluster.node(0).process().signal(Signal::TERM);
    until(LIMIT, "it drains", || async {
        let spec = PartitionSpec::new(partition(99).partition_id(), 1);
        session.create_partition(spec).await.err()
    })
    .await;
    assert!(
        procfs::is_alive(cluster.node(0).pid()),
        "it waits for the open partition"
    );
    cluster.node(0).process().signal(Signal::TERM);
    let (_, took) = timed(cluster.node_mut(0).process_mut().exit(LIMIT)).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(!cluster.node(0).socket().exists(), "it still cleans up");
    drop((writer, session));
    cluster.shut_down().await;
}
