//! The real program, spoken to by strangers: readiness, handshake, refusals, limits, stopping.

mod limits;
mod program;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustix::process::{Pid, Signal};
use shuffle_protocol::control::Hello;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::encode_control;

use program::{Server, executor, hear, peer, rejection, say};

#[test]
fn a_port_in_use_and_a_wrong_configuration_have_their_exit_status_and_message() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let base = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shuffle-server"));
        command
            .env_clear()
            .arg(format!("--socket={}", dir.path().join("s.sock").display()))
            .args(args);
        command.output().unwrap()
    };
    for (args, status, part) in [
        (
            &["--listen", port.as_str()][..],
            3,
            "free the port or choose another node.listen",
        ),
        (&["--buffers", "many"], 2, "pool.buffers"),
        (
            &["--listen", "127.0.0.1:0", "--cores", "1023"],
            2,
            "give node.cores cores",
        ),
        (
            &["--listen", "127.0.0.1:0", "--cores", "99999"],
            2,
            "give node.cores cores",
        ),
        (
            &[
                "--listen",
                "127.0.0.1:0",
                "--buffers",
                "1048576",
                "--buffer-size",
                "16MiB",
            ],
            4,
            "buffer pool",
        ),
    ] {
        let output = base(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(text.contains(part), "{text}");
        assert!(output.stdout.is_empty(), "no ready line");
        assert_eq!(dir.path().read_dir().unwrap().count(), 0, "nothing is left behind");
    }
}

#[test]
fn it_stays_on_the_cores_it_is_given() {
    let server = Server::start(&["--cores", "0"]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    assert_eq!(allowed.map(str::trim), Some("0"));
}

#[test]
fn executors_and_peers_are_welcomed() {
    let server = Server::start(&[
        "--executor-tcp",
        "true",
        "--keepalive",
        "100ms",
        "--dead-peer-timeout",
        "900ms",
    ]);
    let mut unix = server.unix();
    say(&mut unix, Message::Hello(executor(1)));
    let Some(Message::Welcome(welcome)) = hear(&mut unix) else {
        panic!("welcome")
    };
    assert_eq!(
        (welcome.arena_buffers, welcome.buffer_bytes, welcome.node),
        (64, 32 << 10, server.address.clone())
    );
    let mut inline = server.tcp();
    say(&mut inline, Message::Hello(executor(1)));
    assert!(matches!(hear(&mut inline), Some(Message::Welcome(welcome)) if welcome.arena_buffers == 0));
    let mut other = server.tcp();
    say(&mut other, Message::Hello(peer(&server)));
    assert!(matches!(hear(&mut other), Some(Message::Welcome(_))));
}

#[test]
fn whoever_does_not_fit_is_told_why() {
    let server = Server::start(&[]);
    let too_new = Hello {
        version_min: 9,
        version_max: 11,
        ..executor(1)
    };
    let error = rejection(&mut server.unix(), too_new);
    assert_eq!(
        error.kind(),
        &ErrorKind::VersionMismatch {
            ours: (1, 1),
            theirs: (9, 11)
        }
    );
    assert!(matches!(
        rejection(&mut server.tcp(), executor(1)).kind(),
        ErrorKind::Denied
    ));
    assert!(matches!(
        rejection(&mut server.unix(), peer(&server)).kind(),
        ErrorKind::InvalidRequest
    ));
    let other_size = Hello {
        buffer_bytes: 64 << 10,
        ..peer(&server)
    };
    assert!(matches!(
        rejection(&mut server.tcp(), other_size).kind(),
        ErrorKind::ConfigMismatch { .. }
    ));
    let elsewhere = Hello {
        expected_node: "elsewhere:1".to_owned(),
        ..peer(&server)
    };
    assert!(matches!(
        rejection(&mut server.tcp(), elsewhere).kind(),
        ErrorKind::ConfigMismatch { .. }
    ));
}

#[test]
fn strangers_are_closed_at_once_and_cost_nothing() {
    let server = Server::start(&[]);
    let mut huge = BytesMut::new();
    encode_control(&Message::Hello(executor(1)), &mut huge).unwrap();
    huge[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let greetings: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\xff",
        b"SHUT",
        &huge,
    ];
    for round in 0..200 {
        for greeting in greetings {
            let start = Instant::now();
            let mut answer = Vec::new();
            // The other side may have closed while we still write.
            if round % 2 == 0 {
                let mut stream = server.tcp();
                let _ = stream.write_all(greeting);
                let _ = stream.read_to_end(&mut answer);
            } else {
                let mut stream = server.unix();
                let _ = stream.write_all(greeting);
                let _ = stream.read_to_end(&mut answer);
            }
            assert!(start.elapsed() < Duration::from_secs(1), "{greeting:?}");
        }
    }
    say(&mut server.unix(), Message::Hello(executor(1)));
}

#[test]
fn silence_ends_at_the_handshake_deadline() {
    let server = Server::start(&["--handshake-timeout", "300ms"]);
    let start = Instant::now();
    let (mut tcp, mut unix) = (server.tcp(), server.unix());
    let told = |message: Option<Message>| matches!(message, Some(Message::Reject(_)) | None);
    assert!(told(hear(&mut tcp)) && told(hear(&mut unix)));
    assert!((Duration::from_millis(250)..Duration::from_millis(1500)).contains(&start.elapsed()));
}

#[test]
fn a_server_without_descriptors_goes_on_and_recovers() {
    let server = Server::start_with(&["--handshake-timeout", "60s"], |child| {
        let limit = rustix::process::Rlimit {
            current: Some(40),
            maximum: Some(40),
        };
        rustix::process::prlimit(Some(Pid::from_child(child)), rustix::process::Resource::Nofile, limit).unwrap();
    });
    let mut attached = server.unix();
    say(&mut attached, Message::Hello(executor(1)));
    assert!(matches!(hear(&mut attached), Some(Message::Welcome(_))));
    let held: Vec<_> = (0..100).map(|_| server.unix()).collect();
    let before = cpu_ticks(&server);
    std::thread::sleep(Duration::from_secs(1));
    assert!(cpu_ticks(&server) - before < 20, "it does not spin");
    say(
        &mut attached,
        Message::Status(shuffle_protocol::control::Status { request: 1 }),
    );
    assert!(
        matches!(hear(&mut attached), Some(Message::Reply(_))),
        "who is there is served"
    );
    drop(held);
    let start = Instant::now();
    let recovered = loop {
        let mut stream = server.unix();
        let mut frame = BytesMut::new();
        encode_control(&Message::Hello(executor(2)), &mut frame).unwrap();
        if stream.write_all(&frame).is_ok() && matches!(hear(&mut stream), Some(Message::Welcome(_))) {
            break start.elapsed();
        }
        assert!(start.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(recovered < Duration::from_secs(1), "{recovered:?}");
}

/// User and system time of the server in hundredths of a second.
fn cpu_ticks(server: &Server) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.child.id())).expect("a number");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a number").split_whitespace().collect();
    fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
}

#[test]
fn status_names_every_metric_of_the_table() {
    let server = Server::start(&[]);
    let mut session = server.unix();
    say(&mut session, Message::Hello(executor(1)));
    hear(&mut session);
    say(
        &mut session,
        Message::Status(shuffle_protocol::control::Status { request: 5 }),
    );
    let Some(Message::Reply(reply)) = hear(&mut session) else {
        panic!("a reply")
    };
    let mut told: Vec<String> = reply
        .status
        .unwrap()
        .counters
        .into_iter()
        .map(|counter| counter.name)
        .collect();
    let mut known: Vec<String> = shuffle_server::metrics::METRICS
        .iter()
        .map(|metric| metric.name.to_owned())
        .collect();
    told.sort();
    known.sort();
    assert_eq!(told, known);
}

#[test]
fn a_signal_drains_and_leaves_nothing_behind() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Server::start(&[]);
        let mut session = server.unix();
        say(&mut session, Message::Hello(executor(1)));
        hear(&mut session);
        server.signal(signal);
        assert!(matches!(hear(&mut session), Some(Message::Goodbye(_))));
        assert_eq!(hear(&mut session), None);
        drop(session);
        assert_eq!(server.wait().code(), Some(0));
        assert!(!server.socket.exists());
    }
}
