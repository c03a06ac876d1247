//! What the server can be told, and how.
//!
//! ```text
//! embedded defaults < TOML file < SHUFFLE_* environment < command line
//! ```
//!
//! `keys` is the one table: each key has a TOML name, a flag, an environment variable, a help text
//! and a parser. `layers` reads the four sources, `check` judges the result as a whole. All
//! problems are reported together, each with its key, value, source and remedy.

mod check;
mod keys;
mod layers;
mod print;
mod problem;
mod units;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use shuffle_protocol::session::Secret;
use shuffle_protocol::{NodeAddress, limits};

pub use keys::{KEYS, Key};
pub use layers::{LoadError, load, load_from};
pub use problem::{Problem, Problems, Source};
pub use units::{format_duration, format_size, parse_duration, parse_size};

/// The complete, checked configuration of one server.
#[derive(Debug, Clone)]
pub struct Config {
    /// This node among the others.
    pub node: NodeSection,
    /// How executors attach.
    pub executor: ExecutorSection,
    /// Secrets.
    pub security: SecuritySection,
    /// The network buffer pool.
    pub pool: PoolSection,
    /// What one job, partition or connection may ask for.
    pub limits: LimitSection,
    /// Every deadline.
    pub timeouts: TimeoutSection,
    /// Sockets between nodes.
    pub transport: TransportSection,
    /// Where partitions are kept that do not stay in memory.
    pub storage: StorageSection,
    /// Logs, on standard error.
    pub log: LogSection,
    /// Where each value that is not a default came from, by key.
    pub(crate) sources: BTreeMap<&'static str, Source>,
    /// What was odd but no error; logged at start.
    pub(crate) warnings: Vec<String>,
}

/// `node.*`
#[derive(Debug, Clone)]
pub struct NodeSection {
    /// Where other nodes (and, if allowed, executors over TCP) connect. Port 0 picks a free one.
    pub listen: SocketAddr,
    /// The name under which other nodes reach this one; derived from `listen` when absent.
    pub advertise: Option<NodeAddress>,
    /// TCP connections per pair of nodes.
    pub stripes: u32,
    /// Processor cores that the server's threads stay on; any when empty.
    pub cores: Vec<u32>,
}

/// `executor.*`
#[derive(Debug, Clone)]
pub struct ExecutorSection {
    /// Path of the Unix socket.
    pub socket: PathBuf,
    /// Permission bits of the socket, whatever the umask.
    pub mode: u32,
    /// Users beside the server's own and root whose processes may attach.
    pub allowed_uids: Vec<u32>,
    /// Groups whose processes may attach.
    pub allowed_gids: Vec<u32>,
    /// Whether executors without a local server may attach over TCP.
    pub tcp: bool,
}

/// `security.*`
#[derive(Debug, Clone, Default)]
pub struct SecuritySection {
    /// File that holds the cluster secret.
    pub secret_file: Option<PathBuf>,
    /// The secret itself, read from the file while loading. Without one, job tokens are not checked.
    pub secret: Option<Secret>,
}

/// `pool.*`
#[derive(Debug, Clone)]
pub struct PoolSection {
    /// Buffers in the pool.
    pub buffers: u32,
    /// Bytes per buffer; a multiple of the page size. All nodes must agree.
    pub buffer_bytes: u32,
    /// Buffers that move between bank and arena at once.
    pub extent_buffers: u32,
    /// Buffers that writers may not borrow; a quarter of the pool when absent.
    pub read_reserve: Option<u32>,
}

impl PoolSection {
    /// The read reserve in buffers, with the default filled in.
    #[must_use]
    pub fn read_reserve_buffers(&self) -> u32 {
        self.read_reserve.unwrap_or(self.buffers / 4)
    }

    /// Bytes of the whole pool.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.buffers) * u64::from(self.buffer_bytes)
    }
}

/// `limits.*`
#[derive(Debug, Clone)]
pub struct LimitSection {
    /// Buffers one subpartition may queue before it is blocked.
    pub max_queued_per_subpartition: u32,
    /// Largest record in bytes.
    pub max_record_bytes: u64,
    /// Open result partitions per job.
    pub partitions_per_job: u32,
    /// Open input channels per job.
    pub channels_per_job: u32,
    /// Requests that one executor may have unanswered.
    pub requests_per_session: u32,
    /// Payload that one job may have on disk, in bytes; 0: as much as there is room for.
    pub disk_bytes_per_job: u64,
    /// Connections that have not finished their handshake, per listening socket.
    pub half_open: u32,
}

/// `timeouts.*`
#[derive(Debug, Clone)]
pub struct TimeoutSection {
    /// How long a request waits for a partition or for buffers.
    pub request: Duration,
    /// A peer that has been silent for this long is dead.
    pub dead_peer: Duration,
    /// A ping leaves after this long without traffic.
    pub keepalive: Duration,
    /// Connect and handshake together.
    pub handshake: Duration,
    /// How long a draining server waits for its readers.
    pub drain: Duration,
    /// How long a node whose port refuses connections may still be starting.
    pub refused_grace: Duration,
    /// How long a failed group waits for its home server's verdict.
    pub group_verdict: Duration,
    /// How long a finished partition waits for readers before it expires.
    pub unread_expiry: Duration,
}

/// `transport.*`
#[derive(Debug, Clone)]
pub struct TransportSection {
    /// How payload leaves for other servers.
    pub send: SendMode,
    /// `SO_SNDBUF` in bytes; 0 leaves it to the kernel.
    pub send_buffer_bytes: u32,
    /// `SO_RCVBUF` in bytes; 0 leaves it to the kernel.
    pub receive_buffer_bytes: u32,
    /// `TCP_NOTSENT_LOWAT` in bytes; 0 leaves it to the kernel.
    pub unsent_bytes: u32,
}

/// How bytes are sent to other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendMode {
    /// What was measured to be best; see docs/performance.md.
    Auto,
    /// Gathering writes: the kernel copies.
    Copy,
    /// `sendfile` from the arenas: the kernel refers to their pages.
    Sendfile,
    /// io_uring, on threads of its own.
    Uring,
}

/// `storage.*`
#[derive(Debug, Clone)]
pub struct StorageSection {
    /// Directories of this server alone. Without one nothing is spilled and nothing is persistent.
    pub directories: Vec<PathBuf>,
    /// Bytes that it may use in each directory; 0: whatever is free.
    pub limit: u64,
    /// Threads for each directory.
    pub threads: u32,
    /// How long one operation of a disk may take.
    pub timeout: Duration,
}

/// `log.*`
#[derive(Debug, Clone)]
pub struct LogSection {
    /// `tracing` filter directives.
    pub filter: String,
    /// How lines look.
    pub format: LogFormat,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: NodeSection {
                listen: SocketAddr::from(([127, 0, 0, 1], 7337)),
                advertise: None,
                stripes: 1,
                cores: Vec::new(),
            },
            executor: ExecutorSection {
                socket: PathBuf::from(limits::DEFAULT_SOCKET),
                mode: 0o660,
                allowed_uids: Vec::new(),
                allowed_gids: Vec::new(),
                tcp: false,
            },
            security: SecuritySection::default(),
            pool: PoolSection {
                buffers: 2048,
                buffer_bytes: 32 << 10,
                extent_buffers: 8,
                read_reserve: None,
            },
            limits: LimitSection {
                max_queued_per_subpartition: 10,
                max_record_bytes: 1 << 30,
                partitions_per_job: 65_536,
                channels_per_job: 1 << 20,
                requests_per_session: 4096,
                disk_bytes_per_job: 0,
                half_open: 256,
            },
            timeouts: TimeoutSection {
                request: Duration::from_secs(30),
                dead_peer: Duration::from_secs(15),
                keepalive: Duration::from_secs(5),
                handshake: Duration::from_secs(5),
                drain: Duration::from_secs(30),
                refused_grace: Duration::from_secs(2),
                group_verdict: Duration::from_secs(2),
                unread_expiry: Duration::from_secs(600),
            },
            transport: TransportSection {
                send: SendMode::Auto,
                send_buffer_bytes: 0,
                receive_buffer_bytes: 0,
                unsent_bytes: 512 << 10,
            },
            storage: StorageSection {
                directories: Vec::new(),
                limit: 0,
                threads: 2,
                timeout: Duration::from_secs(30),
            },
            log: LogSection {
                filter: "info".to_owned(),
                format: LogFormat::Text,
            },
            sources: BTreeMap::new(),
            warnings: Vec::new(),
        }
    }
}
