//! The real program, spoken to by strangers: readiness, handshake, refusals, limits, stopping.

use std::io::{BufRead as _, BufReader, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{Hello, Role};
use shuffle_protocol::error::{ErrorKind, ShuffleError};
use shuffle_protocol::frame::{Deframer, Event, Frame, encode_control};

struct Server {
    child: Child,
    address: String,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

fn command(dir: &std::path::Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shuffle-server"));
    command
        .env_clear()
        .args(["--listen", "127.0.0.1:0", "--buffers", "64", "--log", "error"])
        .arg(format!("--socket={}", dir.join("s.sock").display()))
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Server {
    fn start(args: &[&str]) -> Self {
        Self::start_with(args, |_| {})
    }

    fn start_with(args: &[&str], prepare: impl FnOnce(&Child)) -> Self {
        let dir = tempfile::tempdir().expect("as set up");
        let mut child = command(dir.path(), args).spawn().expect("as set up");
        prepare(&child);
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("as set up"))
            .read_line(&mut line)
            .expect("as set up");
        let address = line
            .split_whitespace()
            .find_map(|part| part.strip_prefix("node="))
            .expect("a ready line")
            .to_owned();
        Self {
            child,
            address,
            socket: dir.path().join("s.sock"),
            _dir: dir,
        }
    }

    fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("as set up");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("as set up");
        stream
    }

    fn unix(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).expect("as set up");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("as set up");
        stream
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("as set up");
    }

    fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            if let Some(status) = self.child.try_wait().expect("as set up") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the server does not end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn executor(job: u64) -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        role: Role::Executor.into(),
        job,
        name: "test".to_owned(),
        ..Hello::default()
    }
}

fn peer(server: &Server) -> Hello {
    Hello {
        role: Role::Peer.into(),
        job: 0,
        node: "other:7337".to_owned(),
        expected_node: server.address.clone(),
        buffer_bytes: 32 << 10,
        incarnation: 7,
        ..executor(0)
    }
}

fn say(stream: &mut impl Write, message: Message) {
    let mut frame = BytesMut::new();
    encode_control(&message, &mut frame).expect("as set up");
    stream.write_all(&frame).expect("as set up");
}

/// The next control message; none when the other side has closed.
fn hear(stream: &mut impl Read) -> Option<Message> {
    let mut deframer = Deframer::new();
    loop {
        if let Some(event) = deframer.poll_event().expect("as set up") {
            match event {
                Event::Frame(Frame::Control(message)) => return Some(*message),
                other => panic!("{other:?}"),
            }
        }
        match stream.read(deframer.space()) {
            Ok(0) => return None,
            Ok(read) => deframer.handle_read(read),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("{error}"),
        }
    }
}

fn rejection(stream: &mut (impl Read + Write), hello: Hello) -> ShuffleError {
    say(stream, Message::Hello(hello));
    match hear(stream) {
        Some(Message::Reject(reject)) => reject.error.expect("as set up").into(),
        other => panic!("{other:?}"),
    }
}

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

/// The welcome and the two descriptors beside it.
fn attach(stream: &UnixStream) -> Vec<OwnedFd> {
    let mut stream = stream;
    say(&mut stream, Message::Hello(executor(1)));
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )
    .expect("a welcome");
    ancillary
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        })
        .collect()
}

#[test]
fn an_executor_that_takes_more_memory_than_it_was_granted_is_dropped() {
    let server = Server::start(&[]);
    let mut stream = server.unix();
    let arenas = attach(&stream);
    assert_eq!(arenas.len(), 2, "write arena and read arena");
    assert!(
        rustix::io::pwrite(&arenas[1], b"x", 0).is_err(),
        "the read arena is read-only"
    );
    let mut neighbour = server.unix();
    say(&mut neighbour, Message::Hello(executor(2)));
    assert!(matches!(hear(&mut neighbour), Some(Message::Welcome(_))));
    rustix::io::pwrite(&arenas[0], b"x", 32 << 10).unwrap();
    let Some(Message::Goodbye(goodbye)) = hear(&mut stream) else {
        panic!("a goodbye")
    };
    assert!(goodbye.reason.unwrap().message.contains("beyond what was granted"));
    say(
        &mut neighbour,
        Message::Status(shuffle_protocol::control::Status { request: 1 }),
    );
    assert!(
        matches!(hear(&mut neighbour), Some(Message::Reply(_))),
        "another job goes on"
    );
}

#[test]
fn who_asks_without_listening_is_not_listened_to_either() {
    let server = Server::start(&[]);
    let mut stream = server.unix();
    say(&mut stream, Message::Hello(executor(1)));
    hear(&mut stream);
    let mut frame = BytesMut::new();
    for request in 0..1000 {
        encode_control(
            &Message::Status(shuffle_protocol::control::Status { request }),
            &mut frame,
        )
        .unwrap();
    }
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let blocked = (0..2000).find(|_| stream.write_all(&frame).is_err());
    assert!(blocked.is_some(), "two million questions were taken");
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let kib = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    assert!(kib("VmRSS:") - kib("RssShmem:") < 32 << 10, "{status}");
    let mut other = server.unix();
    say(&mut other, Message::Hello(executor(1)));
    assert!(
        matches!(hear(&mut other), Some(Message::Welcome(_))),
        "others are served"
    );
}
