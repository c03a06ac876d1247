//! Why a server could not start, and how the process then ends.

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use shuffle_protocol::ShuffleError;

use crate::spill::StorageError;
use crate::transport::SocketError;

/// Why [`run`](super::run) gave up.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The executors' socket could not be taken.
    #[error("cannot take the executors' socket: {0}")]
    Socket(#[from] SocketError),
    /// The port for other nodes could not be taken.
    #[error("cannot listen on {address}: {source}; free the port or choose another node.listen")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The server may not run on the cores it was given.
    #[error(
        "cannot stay on the cores {cores:?}: {source}; give node.cores cores that this machine has and this process may use, or none"
    )]
    Cores {
        /// As configured.
        cores: Vec<u32>,
        /// Why not.
        source: io::Error,
    },
    /// The pool's memory could not be had.
    #[error("cannot allocate the buffer pool: {0}")]
    Pool(String),
    /// The name of this node is no valid address.
    #[error("this node's address cannot be used: {0}; set node.advertise")]
    Address(ShuffleError),
    /// The directories for partitions could not be taken.
    #[error(transparent)]
    Storage(StorageError),
    /// The system refused something the server cannot do without.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
}

impl ServerError {
    /// The status with which the process ends; `--help` lists them.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Socket(_) | Self::Listen { .. } => 3,
            Self::Pool(_) => 4,
            Self::Address(_) | Self::Cores { .. } => 2,
            Self::Storage(_) => 7,
            Self::System { .. } => 1,
        })
    }
}

/// How a server that served has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Every reader had finished.
    Drained,
    /// The drain time was over first.
    CutOff,
    /// A second signal came.
    Interrupted,
}

impl Ending {
    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Drained => 0,
            Self::CutOff => 5,
            Self::Interrupted => 6,
        })
    }
}
