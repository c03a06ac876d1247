//! Processes that stand between giver and taker and carry descriptors: the ceiling of an architecture with servers.
//!
//! ```text
//! local    giver --(slot, checksum) x batch--> relay --..--> taker          pieces in one memfd of the giver
//!                <------- slot x batch -------       <--..--
//!
//! remote   giver --..--> sender ==== head, piece, head, piece .. TCP ====> receiver --..--> taker
//!                <--..--        <=========== free slots, counted =========          <--..--
//!          pieces in a memfd of the giver                       pieces in a memfd of the receiver
//! ```
//!
//! Giver and taker are those of a bare pair (`packets`) and do not know who is in between. Nobody in between reads a byte of a
//! piece. Blocking calls, one thread, and a `poll` where two sockets are served: what is ready is taken in and goes on in one
//! message.
//!
//! The sender has as many credits as the receiver has announced free slots and not got a piece for, so the receiver always
//! has a slot for what comes: `credits + pieces on their way + slots in use <= buffers`.

mod frames;
mod intake;
mod local;
mod receiver;
mod sender;

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::failed;
use crate::executor::ExecutorError;
use crate::load::Done;

/// One process in between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CarrierLoad {
    pub(crate) carrier: Carrier,
    /// Where who is in front of it listens.
    pub(crate) address: String,
    /// That pass through it.
    pub(crate) pieces: u64,
    pub(crate) piece_bytes: u32,
    /// In circulation on each node.
    pub(crate) buffers: u32,
}

/// What it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Carrier {
    /// Between giver and taker; listens at a path.
    Relay { path: String },
    /// From a giver to TCP, on a free port; gathers at most so many bytes a call.
    Sender { gather_bytes: u32 },
    /// From TCP to a taker that comes to a path; hands over at most so many pieces a message.
    Receiver { path: String, batch: usize },
}

/// Does the work of one process in between.
pub(crate) fn run(load: &CarrierLoad) -> Result<Done, ExecutorError> {
    match &load.carrier {
        Carrier::Relay { path } => local::run(load, path),
        Carrier::Sender { gather_bytes } => sender::run(load, *gather_bytes),
        Carrier::Receiver { path, batch } => receiver::run(load, path, *batch),
    }
}

/// Which of two sockets can be read or is closed; if `patient`, waits until one is.
fn readable(first: impl AsFd, second: impl AsFd, patient: bool) -> Result<[bool; 2], ExecutorError> {
    let mut both = [PollFd::new(&first, PollFlags::IN), PollFd::new(&second, PollFlags::IN)];
    let now = Timespec::default();
    let timeout = if patient { None } else { Some(&now) };
    loop {
        match poll(&mut both, timeout) {
            Ok(_) => return Ok(both.map(|socket| !socket.revents().is_empty())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed("waiting for two sockets")(error)),
        }
    }
}

/// Whoever is at the other end of a socket has gone before everything was done.
fn gone(who: &str) -> ExecutorError {
    ExecutorError::Other(format!("the {who} is gone"))
}
