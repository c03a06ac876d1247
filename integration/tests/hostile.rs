//! Input from the other side: random bytes, half frames, absurd numbers, unknown kinds. The sender is
//! refused, the server lives on, and whoever else is there does not notice.

use std::time::{Duration, Instant};

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::Edge;
use integration::node::{BUFFER_BYTES, Node, NodeOptions};
use integration::procfs;
use integration::profile::{Profile, seed};
use integration::raw::{Heard, Raw, control_bytes, executor_hello, peer_hello, random_bytes};
use integration::stamp::SOURCE;
use integration::wait::{until_true, within};
use shuffle_client::{AttachOptions, Session};
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{AbortPartition, CreatePartition, Partition};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::HEADER_BYTES;
use shuffle_protocol::{JobId, NodeAddress, ShuffleError};

const LIMIT: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(1);

fn cluster_options() -> NodeOptions {
    NodeOptions::new()
        .flag("handshake-timeout", "2s")
        .flag("executor-tcp", true)
}

async fn connections(node: &Node) -> [Raw; 2] {
    let tcp = Raw::tcp(node.listens_on()).await.expect("the TCP port");
    let unix = Raw::unix(node.socket()).await.expect("the Unix socket");
    [tcp, unix]
}

/// F108, F98: what is no handshake at all, on both kinds of socket, many times over.
#[tokio::test]
async fn noise_on_the_ports_is_closed_and_costs_no_memory() {
    let rounds = Profile::current().choose(20, 200);
    let cluster = Cluster::start(binaries!(), [cluster_options(), cluster_options()]).await;
    cluster.assert_serves(0).await;
    let node = cluster.node(0);
    let mut noise: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3][..], &[0; 200]].concat(),
        vec![0xFF; 4096],
        vec![0; 4096],
    ];
    let seed = seed();
    for (index, length) in (0..).zip([64, 500, 4096, 10_000]) {
        noise.push(random_bytes(seed.wrapping_add(index), length));
    }
    for length in [u32::MAX, u32::MAX - 6, i32::MAX.unsigned_abs(), 1 << 30] {
        let mut frame = control_bytes(&Message::Hello(executor_hello(7))).to_vec();
        frame[8..12].copy_from_slice(&length.to_le_bytes());
        noise.push(frame);
    }
    let memory = procfs::private_bytes(node.pid()).expect("alive");
    for _ in 0..rounds {
        for bytes in &noise {
            for mut connection in connections(node).await {
                connection.send(bytes).await;
                assert!(connection.is_closed_within(SOON).await, "{:?}...", &bytes[..8]);
            }
        }
    }
    let grown = procfs::private_bytes(node.pid()).expect("alive").saturating_sub(memory);
    assert!(grown < 1 << 20, "{grown} bytes more");
    cluster.assert_serves(1).await;
    cluster.shut_down().await;
}

/// F61, F105: the connection ends after every single byte of what opens a session.
#[tokio::test]
async fn a_close_after_every_byte_is_noticed_at_once() {
    let cluster = Cluster::start(binaries!(), [cluster_options(), cluster_options()]).await;
    let node = cluster.node(0);
    let create = Message::CreatePartition(CreatePartition {
        request: 1,
        writer: 1,
        partition: Some(Partition {
            result: 5,
            index: 1,
            attempt: 0,
        }),
        subpartitions: 1,
        min_buffers: 1,
        ..CreatePartition::default()
    });
    let hello = control_bytes(&Message::Hello(executor_hello(7)));
    let session = [&hello[..], &control_bytes(&create)[..]].concat();
    let link = control_bytes(&Message::Hello(peer_hello("127.0.0.1:9", node, BUFFER_BYTES))).to_vec();
    let files = procfs::open_files(node.pid());
    let busy = procfs::cpu_time(node.pid()).expect("alive");
    let mut took = Vec::new();
    for bytes in [session, link] {
        for length in 0..bytes.len() {
            for mut connection in connections(node).await {
                connection.send(&bytes[..length]).await;
                let start = Instant::now();
                connection.shut().await;
                assert!(connection.is_closed_within(SOON).await, "cut after {length}");
                took.push(start.elapsed());
            }
        }
    }
    // On a busy machine a few come late, by chance. A timer would make them late as a rule.
    took.sort_unstable();
    let most = took[took.len() * 9 / 10];
    assert!(
        most < Duration::from_millis(200),
        "nine of ten are closed within {most:?}"
    );
    let spent = procfs::cpu_time(node.pid()).expect("alive") - busy;
    let each = spent / u32::try_from(took.len()).expect("small");
    assert!(each < Duration::from_millis(5), "{each:?} on a core for each close");
    until_true(SOON * 5, "descriptors", || procfs::open_files(node.pid()) <= files + 2).await;
    let idle = procfs::cpu_time(node.pid()).expect("alive");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let idle = procfs::cpu_time(node.pid()).expect("alive") - idle;
    assert!(idle < Duration::from_millis(50), "nothing spins: {idle:?}");
    cluster.assert_serves(0).await;
    cluster.shut_down().await;
}

/// F101: every bit of the first header, one at a time.
#[tokio::test]
async fn each_flipped_bit_of_a_header_is_refused() {
    let cluster = Cluster::start(binaries!(), [cluster_options(), cluster_options()]).await;
    let node = cluster.node(0);
    let hello = control_bytes(&Message::Hello(executor_hello(7)));
    for bit in 0..HEADER_BYTES * 8 {
        let mut bytes = hello.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut connection = Raw::unix(node.socket()).await.expect("the Unix socket");
        connection.send(&bytes).await;
        match connection.hear(SOON).await {
            Heard::Closed => {}
            Heard::Frame(frame) => {
                let text = format!("{frame:?}");
                assert!(text.contains("Reject") || text.contains("Goodbye"), "bit {bit}: {text}");
                assert!(connection.is_closed_within(SOON).await);
            }
            Heard::Data(_) => panic!("bit {bit}: data"),
        }
    }
    cluster.assert_serves(0).await;
    cluster.shut_down().await;
}

/// F101: identities and kinds that are none.
#[tokio::test]
async fn absurd_hellos_are_refused_with_a_reason() {
    let cluster = Cluster::start(binaries!(), [cluster_options(), cluster_options()]).await;
    let node = cluster.node(0);
    let good = || peer_hello("127.0.0.1:9", node, BUFFER_BYTES);
    let mut hellos = vec![executor_hello(7); 3];
    hellos[0].name = "n".repeat(64 << 10);
    hellos[1].name = "../\0\n".to_owned();
    hellos[2].role = 77;
    for address in ["", "no-port", "host:0", "a\0b:1", &format!("{}:1", "x".repeat(300))] {
        hellos.push(peer_hello(address, node, BUFFER_BYTES));
    }
    hellos.push(shuffle_protocol::control::Hello {
        stripe: u32::MAX,
        ..good()
    });
    hellos.push(shuffle_protocol::control::Hello {
        expected_node: "10.0.0.1:1".to_owned(),
        ..good()
    });
    hellos.push(shuffle_protocol::control::Hello {
        version_min: 900,
        version_max: 901,
        ..good()
    });
    for hello in hellos {
        let mut connection = Raw::tcp(node.listens_on()).await.expect("the TCP port");
        connection.send_control(&Message::Hello(hello.clone())).await;
        match connection.hear(SOON).await {
            Heard::Closed => {}
            Heard::Frame(frame) => {
                let text = format!("{frame:?}");
                assert!(text.contains("Reject"), "{text} to a bad hello");
                assert!(connection.is_closed_within(SOON).await);
            }
            Heard::Data(_) => panic!("data in answer to a bad hello"),
        }
    }
    cluster.assert_serves(0).await;
    cluster.shut_down().await;
}

/// F78: who never finishes the handshake is closed at its deadline, and keeps nothing.
#[tokio::test]
async fn silent_connections_are_closed_at_the_handshake_deadline() {
    let count = Profile::current().choose(50, 1000);
    let cluster = Cluster::start(binaries!(), [cluster_options(), cluster_options()]).await;
    let node = cluster.node(0);
    let files = procfs::open_files(node.pid());
    let mut silent = Vec::new();
    for _ in 0..count {
        silent.push(Raw::tcp(node.listens_on()).await.expect("the TCP port"));
    }
    let start = Instant::now();
    for connection in &mut silent {
        assert!(
            connection.is_closed_within(Duration::from_secs(4)).await,
            "after {:?}",
            start.elapsed()
        );
    }
    let flat = || procfs::open_files(node.pid()) <= files;
    until_true(SOON, "descriptors", flat).await;
    cluster.assert_serves(0).await;
    cluster.shut_down().await;
}

/// F78: a server that accepts and never answers costs a client or a peer its deadline and no descriptor.
#[tokio::test]
async fn a_server_that_never_answers_the_handshake_costs_one_deadline() {
    let rounds = Profile::current().choose(100, 400);
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = mute.local_addr().expect("an address");
    let mut held = Vec::new();
    let files = procfs::open_files(std::process::id());
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..rounds {
        let options = AttachOptions::new(JobId::new(7)).tcp(address.to_string());
        clients.spawn(Session::attach(options.timeout(SOON)));
        held.push(mute.accept().await.expect("a connection"));
    }
    let answers = within(SOON * 3, "the deadline", clients.join_all()).await;
    assert!(answers.iter().all(Result::is_err), "nobody is attached");
    held.clear();
    // Other tests run in this process, too; a leak would be one descriptor for each attempt.
    let flat = || procfs::open_files(std::process::id()) < files + rounds;
    until_true(SOON * 5, "descriptors", flat).await;

    let options = cluster_options()
        .flag("request-timeout", "4s")
        .flag("dead-peer-timeout", "4s")
        .flag("keepalive", "1s");
    let cluster = Cluster::start(binaries!(), [options, cluster_options()]).await;
    let session = cluster.attach(0, 7).await;
    let files = procfs::open_files(cluster.node(0).pid());
    let node = NodeAddress::parse(&address.to_string()).expect("an address");
    let edge = Edge::new(Some(node), SOURCE, 1);
    let accept = async {
        loop {
            held.push(mute.accept().await.expect("a connection"));
        }
    };
    let answer = tokio::select! {
        answer = within(LIMIT, "the verdict", edge.consume(&session)) => answer,
        () = accept => unreachable!("it accepts for ever"),
    };
    let error = answer.expect_err("nobody is there").into_service();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    let flat = || procfs::open_files(cluster.node(0).pid()) <= files;
    until_true(Duration::from_secs(5), "descriptors", flat).await;
    drop((session, held));
    cluster.assert_serves(0).await;
    cluster.shut_down().await;
}

/// A long message on a slow line: while its bytes come, nobody is silent.
#[tokio::test]
async fn who_takes_long_to_say_something_is_not_silent() {
    let dead_peer = Duration::from_secs(1);
    let options = cluster_options()
        .flag("dead-peer-timeout", "1s")
        .flag("keepalive", "300ms");
    let cluster = Cluster::start(binaries!(), [options]).await;
    let mut slow = Raw::tcp(cluster.node(0).listens_on()).await.expect("the TCP port");
    assert!(slow.send_control(&Message::Hello(executor_hello(7))).await);
    assert!(matches!(slow.hear(LIMIT).await, Heard::Frame(_)), "welcome");
    let cause = ShuffleError::new(ErrorKind::Cancelled, "x".repeat(60 << 10));
    let abort = AbortPartition {
        request: 1,
        writer: 99,
        cause: Some((&cause).into()),
    };
    let message = control_bytes(&Message::AbortPartition(abort));
    let start = Instant::now();
    let mut pace = tokio::time::interval(dead_peer / 10);
    for piece in message.chunks(message.len().div_ceil(30)) {
        pace.tick().await;
        assert!(slow.send(piece).await, "closed after {:?}", start.elapsed());
    }
    assert!(start.elapsed() > 2 * dead_peer, "the line was slow");
    assert!(slow.is_answered_within(LIMIT, 5).await);
    cluster.shut_down().await;
}
