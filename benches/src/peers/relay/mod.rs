//! A bare chain of processes and sockets, as many as a record of the service goes through.
//!
//! ```text
//! local    teller --unix--> relay --unix--> ear
//! remote   teller --unix--> relay --TCP---> relay --unix--> ear
//! ```
//!
//! Twice: with the runtime that the service uses, and with blocking calls. Each process listens before
//! the one in front of it is started.

mod asynchronous;
mod blocking;

use serde::{Deserialize, Serialize};

use crate::executor::ExecutorError;
use crate::load::{Done, Rhythm};

/// One process of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RelayLoad {
    /// In a runtime, or by blocking calls.
    pub(crate) in_runtime: bool,
    pub(crate) rhythm: Rhythm,
    /// Where it listens; nobody comes to the teller.
    pub(crate) from: Option<Place>,
    /// Where it connects to; the ear passes nothing on.
    pub(crate) to: Option<Place>,
}

/// A socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Place {
    Unix(String),
    /// To listen at, port 0 is any free one.
    Tcp(String),
}

/// Does the work of one process.
pub(crate) fn run(load: RelayLoad) -> Result<Done, ExecutorError> {
    if load.in_runtime {
        asynchronous::run(load)
    } else {
        blocking::run(&load)
    }
}

/// What a relay takes in at once.
const CHUNK_BYTES: usize = 64 << 10;
