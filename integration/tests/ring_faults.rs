//! Where io_uring cannot be had, or stands in the way: the server says why once and sends in another way, or ends in time.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::time::Duration;

use integration::binaries;
use integration::cluster::{BASE_WITHIN, Cluster};
use integration::flow::{Edge, write_range};
use integration::node::{Node, NodeOptions};
use integration::profile::may_run_as_root;
use integration::raw::Raw;
use integration::stamp::{Lengths, SOURCE, partition};
use integration::wait::{timed, until, until_true, within};
use integration::way::Way;
use integration::{Binaries, procfs};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};
use shuffle_client::Session;

const LIMIT: Duration = Duration::from_secs(60);
const COPIED: &str = "payload is copied: ";
const NOBODY: u32 = 65534;

fn uring() -> NodeOptions {
    NodeOptions::new().send(Way::Uring)
}

async fn status(session: &Session) -> BTreeMap<String, u64> {
    session.status().await.expect("a server that lives answers")
}

/// `sender` cannot have rings. It sends to two servers all the same, and says why once, in one line with these words.
async fn sends_by_copy_and_says_why_once(cluster: &Cluster, sender: &Node, words: &[&str]) {
    let producer = sender.attach(7).await;
    for (round, reader) in [(0, 0), (1, 1)] {
        let edge = Edge::new(Some(sender.address()), partition(round), 3000);
        let consumer = cluster.attach(reader, 7).await;
        edge.run(&producer, &consumer, LIMIT).await;
    }
    let status = status(&producer).await;
    let sent = status["bytes_sent"];
    assert!(sent > 6_000_000 && status["send_bytes_copied"] == sent, "{status:?}");
    assert_eq!(status["peer_connections_uring"], 0);
    assert_eq!(status["send_fallbacks"], status["peer_connections"], "each is counted");
    assert!(status["peer_connections"] >= 2);

    let log = sender.process().log();
    let said: Vec<&str> = log.lines().filter(|line| line.contains(COPIED)).collect();
    assert_eq!(said.len(), 1, "said once: {log}");
    for word in words {
        assert!(said[0].contains(word), "{word:?} is not in {:?}", said[0]);
    }
    drop(producer);
    sender.assert_base(BASE_WITHIN).await;
}

/// F121: a seccomp profile refuses one of io_uring's calls.
#[tokio::test]
async fn a_server_to_which_seccomp_refuses_io_uring_copies_and_says_why_once() {
    let cluster = Cluster::start(binaries!(), [NodeOptions::new(), NodeOptions::new()]).await;
    for (name, call, error, words) in [
        (
            "setup-eperm",
            "io_uring_setup",
            "EPERM",
            ["(EPERM)", "seccomp", "io_uring_setup"],
        ),
        (
            "setup-enosys",
            "io_uring_setup",
            "ENOSYS",
            ["(ENOSYS)", "Linux 6.1", "seccomp"],
        ),
        (
            "register-eperm",
            "io_uring_register",
            "EPERM",
            ["io_uring", "cannot probe", "not permitted"],
        ),
    ] {
        let options = uring().may_fall_back();
        let options = options.under(&[env!("CARGO_BIN_EXE_without"), call, error]);
        let mut sender = Node::start(binaries!(), name, cluster.folder(), options).await;
        sends_by_copy_and_says_why_once(&cluster, &sender, &words).await;
        sender.stop(LIMIT).await;
    }
    cluster.shut_down().await;
}

/// F121: the rings can be made and not used. A connection that was to go through it breaks; nothing is lost.
#[tokio::test]
async fn a_ring_that_cannot_be_entered_costs_its_connection_and_no_data() {
    let refused = uring()
        .may_fall_back()
        .under(&[env!("CARGO_BIN_EXE_without"), "io_uring_enter", "EPERM"]);
    let cluster = Cluster::start(binaries!(), [refused, NodeOptions::new()]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 3000);
    edge.run(&producer, &consumer, LIMIT).await;
    // The one that broke counts until its slots are given back.
    let status = until(LIMIT, "it is left", async || {
        let status = status(&producer).await;
        (status["peer_connections_uring"] == 0).then_some(status)
    })
    .await;
    assert!(status["send_bytes_copied"] >= 3_000_000);
    let log = cluster.node(0).process().log();
    let said = log.matches("an io_uring thread has ended").count();
    assert!(said == 1 && log.contains("not permitted"), "{log}");
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F120: an ordinary user may lock 64 KiB. As root the limit would not count.
#[tokio::test]
async fn an_ordinary_user_with_64_kib_to_lock_copies_and_is_told_limit_value_and_remedy() {
    if !may_run_as_root("an_ordinary_user_with_64_kib_to_lock_copies_and_is_told_limit_value_and_remedy") {
        return;
    }
    let cluster = Cluster::start(binaries!(), [NodeOptions::new(), NodeOptions::new()]).await;
    std::fs::set_permissions(cluster.folder(), PermissionsExt::from_mode(0o755)).expect("a folder for all");
    let folder = cluster.folder().join("nobody");
    std::fs::create_dir(&folder).expect("a folder");
    chown(&folder, Some(NOBODY), Some(NOBODY)).expect("its owner");
    let program = folder.join("node");
    std::fs::copy(binaries!().node, &program).expect("a copy that everybody may run");
    let of_nobody = Binaries {
        node: program.to_string_lossy().into_owned().leak(),
        ..binaries!()
    };
    let identity = format!("--reuid={NOBODY}");
    let as_nobody = |options: NodeOptions| {
        let words = [
            "setpriv",
            &identity,
            "--regid=65534",
            "--clear-groups",
            "--bounding-set=-all",
        ];
        options.under(&[&words[..], &["prlimit", "--memlock=65536:65536"]].concat())
    };
    let mut sender = Node::start(of_nobody, "forced", &folder, as_nobody(uring().may_fall_back())).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", sender.pid())).expect("its limits");
    let locked = limits.lines().find(|line| line.starts_with("Max locked memory"));
    assert!(locked.is_some_and(|line| line.contains(" 65536 ")), "{limits}");
    let words = [
        "RLIMIT_MEMLOCK is 64KiB",
        "8MiB",
        "ulimit -l",
        "LimitMEMLOCK=",
        "CAP_IPC_LOCK",
    ];
    sends_by_copy_and_says_why_once(&cluster, &sender, &words).await;
    sender.stop(LIMIT).await;

    // Who lets the server choose has asked for nothing that he does not get.
    let options = NodeOptions::new().flag("transport-send", "auto");
    let mut sender = Node::start(of_nobody, "auto", &folder, as_nobody(options)).await;
    let (producer, consumer) = (sender.attach(7).await, cluster.attach(0, 7).await);
    let edge = Edge::new(Some(sender.address()), partition(2), 1000);
    edge.run(&producer, &consumer, LIMIT).await;
    assert_eq!(status(&producer).await["send_fallbacks"], 0);
    assert!(!sender.process().log().contains(COPIED));
    drop((producer, consumer));
    sender.stop(LIMIT).await;
    cluster.shut_down().await;
}

/// The rings of a process, held here as well: what a child forked off it would have.
fn hold_rings(pid: u32) -> Vec<OwnedFd> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    let process = pidfd_open(raw, PidfdFlags::empty()).expect("a pidfd");
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
    let rings = entries.flatten().filter(|entry| {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        target.to_string_lossy() == "anon_inode:[io_uring]"
    });
    let number = |name: std::ffi::OsString| name.to_string_lossy().parse().expect("a number");
    let take = |number| pidfd_getfd(process.as_fd(), number, PidfdGetfdFlags::empty()).expect("a descriptor");
    rings.map(|entry| take(number(entry.file_name()))).collect()
}

/// As `fdinfo` lists what has been armed: the numbers of `IORING_OP_POLL_ADD` and `IORING_OP_SENDMSG`.
const POLL_ADD: &str = "op=6,";
const SENDMSG: &str = "op=9,";

/// What the kernel says of the operations that wait in a ring.
fn waiting_in(ring: &OwnedFd) -> String {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", ring.as_raw_fd())).expect("its fdinfo");
    let (_, list) = info.split_once("PollList:").unwrap_or_default();
    list.to_owned()
}

/// F68: a server ends in time whatever its ring waits for and whoever else holds it, and lets go of its sockets.
#[tokio::test]
async fn sigterm_ends_a_server_whose_ring_is_held_elsewhere() {
    for busy in [false, true] {
        let options = || {
            uring()
                .flag("drain-timeout", "1s")
                .flag("send-buffer", "64KiB")
                .flag("receive-buffer", "64KiB")
        };
        let mut cluster = Cluster::start(binaries!(), [options(), options()]).await;
        let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
        let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 1000);
        edge.run(&producer, &consumer, LIMIT).await;
        let held = hold_rings(cluster.node(0).pid());
        assert_eq!(held.len(), 1, "one ring, and it is held here too");
        until_true(LIMIT, "it listens", || waiting_in(&held[0]).contains(POLL_ADD)).await;

        // What is idle: a listener, a handshake, a session, an eventfd on the ring; timers: a request that waits.
        let silent = Raw::tcp(cluster.node(0).listens_on()).await.expect("the port");
        let never = Edge::new(None, partition(99), 1);
        let gate = producer.open_gate(never.gate()).await.expect("a gate");
        let mut writer = None;
        if busy {
            // The ring holds sends that the other side does not take.
            let late = Edge::new(Some(cluster.node(0).address()), partition(1), 400);
            let spec = late.partition().max_queued(100);
            let mut open = producer.create_partition(spec).await.expect("created");
            let gate = late.gate().credits(100, 1);
            let mut gate = consumer.open_gate(gate).await.expect("a gate");
            let lengths = Lengths::Fixed(8000);
            write_range(&mut open, late.source, 1, 0..1, &lengths)
                .await
                .expect("written");
            open.flush().await.expect("flushed");
            let first = within(LIMIT, "the first record", gate.next_record()).await;
            drop(first.expect("no error"));
            cluster.node(1).process().signal(Signal::STOP);
            let write = write_range(&mut open, late.source, 1, 1..300, &lengths);
            write.await.expect("so much fits into the queue");
            open.flush().await.expect("flushed");
            until_true(LIMIT, "a send waits in the ring", || {
                waiting_in(&held[0]).contains(SENDMSG)
            })
            .await;
            writer = Some((open, gate));
        }

        cluster.node(0).process().signal(Signal::TERM);
        let (ended, took) = timed(cluster.node_mut(0).process_mut().exit(LIMIT)).await;
        assert!(took < Duration::from_secs(5), "busy {busy}: {took:?}");
        // Some were reading still when the drain time was over.
        assert_eq!(ended.code(), Some(5), "{ended}");
        cluster.node(1).process().signal(Signal::CONT);
        // The ring that lives on here does not keep the connection open.
        let other = cluster.node(1).pid();
        until_true(Duration::from_secs(5), "the connection is closed", || {
            procfs::established(other).is_empty()
        })
        .await;
        drop((held, silent, gate, writer, producer, consumer));
        cluster.shut_down().await;
    }
}

/// F136: on loopback the kernel copies what was to go without a copy. One send finds out, none follows; small ones never try.
#[tokio::test]
async fn zero_copy_is_tried_once_on_loopback_and_never_with_small_frames() {
    const RECORDS: u64 = 4000;
    for (buffer_bytes, flushes, tries) in [
        (4 << 10, false, 0),
        (16 << 10, false, 0),
        (32 << 10, false, 1),
        (32 << 10, true, 0),
        (256 << 10, false, 1),
        (1 << 20, false, 1),
    ] {
        let options = || uring().pool(64, buffer_bytes).flag("extent-buffers", 4);
        let cluster = Cluster::start(binaries!(), [options(), options()]).await;
        let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
        let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, RECORDS);
        if flushes {
            write_with_flushes(&edge, &producer, &consumer).await;
        } else {
            edge.run(&producer, &consumer, LIMIT).await;
        }
        let status = status(&producer).await;
        let (what, sent) = (format!("{buffer_bytes} bytes, flushes {flushes}"), status["bytes_sent"]);
        assert!(
            sent > RECORDS * 1000 && status["send_bytes_uring"] == sent,
            "{what}: {sent}"
        );
        assert_eq!(status["peer_connections_uring"], 1, "{what}");
        assert_eq!(status["send_zero_copy_copied"], tries, "{what}: tried and copied");
        assert_eq!(status["send_zero_copy_uncopied"], 0, "{what}");
        assert_eq!(status["send_bytes_uring_uncopied"], 0, "{what}");
        drop((producer, consumer));
        cluster.shut_down().await;
    }
}

/// The whole edge, each record in a buffer of its own.
async fn write_with_flushes(edge: &Edge, producer: &Session, consumer: &Session) {
    let write = async {
        let mut writer = producer.create_partition(edge.partition()).await.expect("created");
        for record in 0..edge.records {
            let one = write_range(&mut writer, edge.source, 1, record..record + 1, &edge.lengths);
            one.await.expect("written");
            writer.flush().await.expect("flushed");
        }
        writer.finish().await.expect("finished");
    };
    let both = async { tokio::join!(write, edge.consume(consumer)) };
    let ((), read) = within(LIMIT, "one edge", both).await;
    assert_eq!(read.expect("everything").records, edge.records);
}
