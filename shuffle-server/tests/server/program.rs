//! The program as a process, and the first words to it.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustix::process::{Pid, Signal, kill_process};
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{Hello, Role};
use shuffle_protocol::error::ShuffleError;
use shuffle_protocol::frame::{Deframer, Event, Frame, encode_control};

pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: String,
    pub(crate) socket: PathBuf,
    pub(crate) _dir: tempfile::TempDir,
}

pub(crate) fn command(dir: &std::path::Path, args: &[&str]) -> Command {
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
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, |_| {})
    }

    pub(crate) fn start_with(args: &[&str], prepare: impl FnOnce(&Child)) -> Self {
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

    pub(crate) fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("as set up");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("as set up");
        stream
    }

    pub(crate) fn unix(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).expect("as set up");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("as set up");
        stream
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("as set up");
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
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

pub(crate) fn executor(job: u64) -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        role: Role::Executor.into(),
        job,
        name: "test".to_owned(),
        ..Hello::default()
    }
}

pub(crate) fn peer(server: &Server) -> Hello {
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

pub(crate) fn say(stream: &mut impl Write, message: Message) {
    let mut frame = BytesMut::new();
    encode_control(&message, &mut frame).expect("as set up");
    stream.write_all(&frame).expect("as set up");
}

/// The next control message; none when the other side has closed.
pub(crate) fn hear(stream: &mut impl Read) -> Option<Message> {
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

pub(crate) fn rejection(stream: &mut (impl Read + Write), hello: Hello) -> ShuffleError {
    say(stream, Message::Hello(hello));
    match hear(stream) {
        Some(Message::Reject(reject)) => reject.error.expect("as set up").into(),
        other => panic!("{other:?}"),
    }
}
