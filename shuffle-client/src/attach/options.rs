//! How to find the node's server, and who we are.

use std::path::PathBuf;
use std::time::Duration;

use shuffle_protocol::ids::JobId;
use shuffle_protocol::limits::DEFAULT_SOCKET;

/// Environment variable that names the Unix socket of the node's server.
pub const SOCKET_VARIABLE: &str = "SHUFFLE_SOCKET";

/// Where the server listens.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    Unix(PathBuf),
    Tcp(String),
}

/// How an executor attaches to a shuffle server.
#[derive(Clone)]
pub struct AttachOptions {
    pub(crate) job: JobId,
    pub(crate) endpoint: Endpoint,
    pub(crate) token: Vec<u8>,
    pub(crate) name: String,
    pub(crate) timeout: Duration,
}

impl AttachOptions {
    /// An executor of this job, attaching to the server of its own node: over the Unix socket that the environment
    /// variable `SHUFFLE_SOCKET` names, or else over [`DEFAULT_SOCKET`].
    pub fn new(job: JobId) -> Self {
        let socket = std::env::var_os(SOCKET_VARIABLE).unwrap_or_else(|| DEFAULT_SOCKET.into());
        Self {
            job,
            endpoint: Endpoint::Unix(socket.into()),
            token: Vec::new(),
            name: format!("pid {}", std::process::id()),
            timeout: Duration::from_secs(10),
        }
    }

    /// The Unix socket of the node's server.
    #[must_use]
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.endpoint = Endpoint::Unix(path.into());
        self
    }

    /// A server on another node ("host:port"), for an executor that has none on its own: the same API, with one copy
    /// more.
    #[must_use]
    pub fn tcp(mut self, address: impl Into<String>) -> Self {
        self.endpoint = Endpoint::Tcp(address.into());
        self
    }

    /// The encoded job token, if the server asks for one.
    #[must_use]
    pub fn token(mut self, token: impl Into<Vec<u8>>) -> Self {
        self.token = token.into();
        self
    }

    /// Name of this executor in logs and errors, at most 128 bytes (default: its process id).
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How long connecting and the handshake may take together (default 10 s).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// Without the token: it never reaches a log.
impl std::fmt::Debug for AttachOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttachOptions")
            .field("job", &self.job)
            .field("endpoint", &self.endpoint)
            .field("name", &self.name)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
