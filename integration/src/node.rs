//! One server process, with or without a proxy in front of it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use shuffle_client::{AttachOptions, Session};
use shuffle_protocol::error::Result;
use shuffle_protocol::session::{JobToken, Secret};
use shuffle_protocol::{JobId, NodeAddress};
use tokio::process::Command;

use crate::process::Process;
use crate::proxy::Proxy;
use crate::way::{self, Way};
use crate::{Binaries, procfs};

/// A server must be ready within this time.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Attaching to a server that is ready.
const ATTACH_WITHIN: Duration = Duration::from_secs(10);
/// Bytes per buffer unless a test says otherwise.
pub const BUFFER_BYTES: u32 = 32 << 10;

/// How a server is started.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    flags: Vec<(String, String)>,
    prefix: Vec<String>,
    behind_proxy: bool,
    secret: Option<String>,
    may_fall_back: bool,
}

impl NodeOptions {
    /// The defaults of the tests: 256 buffers of 32 KiB, free ports.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `--name value` (the keys of `shuffle-server --help`); the last one wins.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl ToString) -> Self {
        self.flags.retain(|(known, _)| known != name);
        self.flags.push((name.to_owned(), value.to_string()));
        self
    }

    /// Pool of `buffers` of `buffer_bytes` each.
    #[must_use]
    pub fn pool(self, buffers: u32, buffer_bytes: u32) -> Self {
        self.flag("buffers", buffers).flag("buffer-size", buffer_bytes)
    }

    /// How it sends to other servers.
    #[must_use]
    pub fn send(self, way: Way) -> Self {
        self.flag("transport-send", way.name())
    }

    /// That it sends in another way than it was told is what the test is about.
    #[must_use]
    pub fn may_fall_back(mut self) -> Self {
        self.may_fall_back = true;
        self
    }

    fn forced_way(&self) -> Option<Way> {
        let told = self.flags.iter().find(|(name, _)| name == "transport-send");
        Way::forced(told.map(|(_, way)| way.as_str())).filter(|_| !self.may_fall_back)
    }

    /// Peers reach this server through a [`Proxy`] only.
    #[must_use]
    pub fn behind_proxy(mut self) -> Self {
        self.behind_proxy = true;
        self
    }

    /// The server has this secret: sessions of the harness bring a token made with it.
    #[must_use]
    pub fn secret(mut self, secret: &str) -> Self {
        self.secret = Some(secret.to_owned());
        self
    }

    /// Starts it under another program, such as `prlimit --nofile=64` or `ip netns exec NAME`.
    #[must_use]
    pub fn under(mut self, program: &[&str]) -> Self {
        self.prefix = program.iter().map(|&part| part.to_owned()).collect();
        self
    }
}

/// A server process that is (or was) running.
#[derive(Debug)]
pub struct Node {
    name: String,
    options: NodeOptions,
    program: &'static str,
    folder: PathBuf,
    process: Process,
    address: NodeAddress,
    socket: PathBuf,
    proxy: Option<Proxy>,
}

impl Node {
    /// Starts a server and waits until it serves.
    ///
    /// # Panics
    /// If it is not ready in time; the message holds its log.
    pub async fn start(binaries: Binaries, name: &str, folder: &Path, options: NodeOptions) -> Self {
        let proxy = match options.behind_proxy {
            true => Some(Proxy::start().await.expect("a proxy")),
            false => None,
        };
        let mut node = Self::spawn(binaries, name, folder, options, proxy);
        node.wait_ready().await;
        node
    }

    /// Starts a server process without waiting for anything.
    ///
    /// # Panics
    /// If the program cannot be started.
    #[must_use]
    pub fn spawn(binaries: Binaries, name: &str, folder: &Path, options: NodeOptions, proxy: Option<Proxy>) -> Self {
        let socket = folder.join(format!("{name}.sock"));
        let command = command(binaries.node, &socket, &options, proxy.as_ref());
        let process = Process::start(name, command, folder).expect("a server process");
        Self {
            name: name.to_owned(),
            options,
            program: binaries.node,
            folder: folder.to_owned(),
            process,
            address: NodeAddress::parse("unknown:1").expect("an address"),
            socket,
            proxy,
        }
    }

    /// Waits for the line that says that it serves.
    ///
    /// # Panics
    /// If it does not come in time; the message holds the log.
    pub async fn wait_ready(&mut self) {
        let line = self.process.line(READY_WITHIN).await;
        let Some(line) = line.as_deref().filter(|line| line.starts_with("ready ")) else {
            panic!("{} is not ready: {line:?}\n{}", self.name, self.process.log());
        };
        let field = |name: &str| {
            line.split_whitespace()
                .find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
                .unwrap_or_else(|| panic!("no {name} in {line:?}"))
        };
        self.address = NodeAddress::parse(field("node")).expect("the address of the node");
        assert_eq!(
            Path::new(field("socket")),
            self.socket,
            "the socket it was told to make"
        );
        if let Some(proxy) = &self.proxy {
            proxy.set_upstream(self.listens_on());
        }
    }

    /// Starts it again at the same place after it has ended; peers find it where it was.
    ///
    /// # Panics
    /// If it is not ready in time.
    pub async fn restart(&mut self) {
        let listen = self.address.to_string();
        if self.proxy.is_none() {
            self.options = std::mem::take(&mut self.options).flag("listen", listen);
        }
        let command = command(self.program, &self.socket, &self.options, self.proxy.as_ref());
        self.process = Process::start(&self.name, command, &self.folder).expect("a server process");
        self.wait_ready().await;
    }

    /// The address by which other nodes know it.
    #[must_use]
    pub fn address(&self) -> NodeAddress {
        self.address.clone()
    }

    /// Where its own listener is, behind the proxy if there is one.
    ///
    /// # Panics
    /// If it does not listen.
    #[must_use]
    pub fn listens_on(&self) -> SocketAddr {
        let listening = procfs::listening(self.pid());
        *listening
            .first()
            .unwrap_or_else(|| panic!("{} does not listen", self.name))
    }

    /// Its Unix socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its process, to wait for or to kill.
    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The proxy in front of it.
    ///
    /// # Panics
    /// If it was started without one.
    #[must_use]
    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("started behind a proxy")
    }

    /// True until it has ended.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        procfs::is_alive(self.pid())
    }

    /// A session of `job` with this server.
    ///
    /// # Panics
    /// If the server refuses it.
    pub async fn attach(&self, job: u64) -> Session {
        self.try_attach(job)
            .await
            .unwrap_or_else(|error| panic!("attach to {}: {error}", self.name))
    }

    /// A session of `job` with this server.
    ///
    /// # Errors
    /// As the server says.
    pub async fn try_attach(&self, job: u64) -> Result<Session> {
        Session::attach(self.attach_options(job)).await
    }

    /// How to attach to it over its Unix socket.
    #[must_use]
    pub fn attach_options(&self, job: u64) -> AttachOptions {
        let job = JobId::new(job);
        let options = AttachOptions::new(job)
            .socket(&self.socket)
            .name("test")
            .timeout(ATTACH_WITHIN);
        match &self.options.secret {
            None => options,
            Some(secret) => {
                let secret = Secret::new(secret.as_bytes()).expect("a secret that is long enough");
                options.token(JobToken::mint(&secret, job, u64::MAX).to_bytes())
            }
        }
    }

    /// Waits until the pool's books say that nothing is held, and everything adds up. A server that was told how to send has
    /// sent in no other way.
    ///
    /// # Panics
    /// If that is not so within `limit`; the message shows the books.
    pub async fn assert_base(&self, limit: Duration) {
        let probe = self.attach(PROBE_JOB).await;
        let end = Instant::now() + limit;
        loop {
            let status = probe.status().await.expect("a server that lives answers");
            let books = Books::of(&status);
            if books.is_base() {
                if let Some(way) = self.options.forced_way() {
                    way.assert_was_kept(&status);
                }
                break;
            }
            let late = Instant::now() > end;
            assert!(!late, "{}: not back at its base within {limit:?}: {books:?}", self.name);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _ = probe.detach().await;
    }

    /// SIGTERM, and a clean end within `limit`.
    ///
    /// # Panics
    /// If it does not end in time, or not with status 0, or leaves its socket behind.
    pub async fn stop(&mut self, limit: Duration) {
        self.process.signal(Signal::TERM);
        let status = self.process.exit(limit).await;
        assert!(
            status.success(),
            "{} ended with {status}\n{}",
            self.name,
            self.process.log()
        );
        assert!(!self.socket.exists(), "{} left its socket behind", self.name);
    }
}

/// The job under which the harness itself looks at a server.
pub const PROBE_JOB: u64 = u64::MAX >> 1;

/// Every state a buffer can be in (docs/memory.md).
const STATES: [&str; 10] = [
    "unassigned",
    "free",
    "granted",
    "queued",
    "reserved",
    "receiving",
    "viewed",
    "read_ahead",
    "kernel",
    "quarantined",
];

/// The books of the pool by state, as the status reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Books(std::collections::BTreeMap<String, u64>);

impl Books {
    /// Out of a status report.
    #[must_use]
    pub fn of(status: &std::collections::BTreeMap<String, u64>) -> Self {
        let book = |state: &&str| Some(((*state).to_owned(), *status.get(&format!("buffers_{state}"))?));
        Self(STATES.iter().filter_map(book).collect())
    }

    /// Buffers in one state (`"free"`, `"granted"`, ...).
    ///
    /// # Panics
    /// If the report has no such state.
    #[must_use]
    pub fn get(&self, state: &str) -> u64 {
        *self
            .0
            .get(state)
            .unwrap_or_else(|| panic!("no buffers_{state} in {:?}", self.0))
    }

    /// Buffers that somebody holds.
    #[must_use]
    pub fn held(&self) -> u64 {
        let idle = ["unassigned", "free"];
        self.0
            .iter()
            .filter(|(name, _)| !idle.contains(&name.as_str()))
            .map(|(_, value)| value)
            .sum()
    }

    /// True if nobody holds a buffer.
    #[must_use]
    pub fn is_base(&self) -> bool {
        self.0.len() == STATES.len() && self.held() == 0
    }
}

fn command(program: &str, socket: &Path, options: &NodeOptions, proxy: Option<&Proxy>) -> Command {
    let mut words = options.prefix.clone();
    words.push(program.to_owned());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command.arg("--socket").arg(socket);
    let mut flags = vec![
        ("listen".to_owned(), "127.0.0.1:0".to_owned()),
        ("buffers".to_owned(), "256".to_owned()),
        ("buffer-size".to_owned(), BUFFER_BYTES.to_string()),
    ];
    if let Some(proxy) = proxy {
        flags.push(("advertise".to_owned(), proxy.address().to_string()));
    }
    flags.retain(|(name, _)| !options.flags.iter().any(|(set, _)| set == name));
    for (name, value) in flags.iter().chain(&options.flags) {
        command.arg(format!("--{name}={value}"));
    }
    // Weaker than a flag: a test that chooses a way itself keeps it.
    if let Some(asked) = way::variable() {
        command.env(way::VARIABLE, asked);
    }
    command
}
