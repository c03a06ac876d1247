//! What people would use instead of the service, as plain as it can be: a pair of processes, one that
//! gives and one that takes, doing the same work.
//!
//! ```text
//! ring     giver --- slot numbers in shared memory, futex when the other sleeps ---> taker
//! packets  giver --- slot numbers, several a message, SOCK_SEQPACKET -------------> taker
//! unix     giver --- the bytes, through a Unix stream ----------------------------> taker
//! tcp      giver --- the bytes, through TCP over loopback -------------------------> taker
//! relay    giver --- packets ---> relay --- packets ---------------------------------> taker
//! remote_relay  giver --- packets ---> sender === the bytes, TCP ===> receiver --- packets ---> taker
//! flight   giver --- record batches, Arrow Flight do_get (feature `peers`) --------> taker
//! ```
//!
//! Except for Flight: blocking calls, one thread, buffers that are allocated once: nothing stands between the work and
//! the kernel.

mod carrier;
#[cfg(feature = "peers")]
mod flight;
mod memory;
mod packets;
mod relay;
mod ring;
mod stream;

pub(crate) use carrier::{Carrier, CarrierLoad, run as carry};
pub(crate) use relay::{Place, RelayLoad, run as relay};

use serde::{Deserialize, Serialize};

use crate::executor::ExecutorError;
use crate::load::Done;

/// How the pieces get from one process to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Way {
    /// Slot numbers through rings in shared memory.
    Ring,
    /// Slot numbers through a SOCK_SEQPACKET pair, at most so many a message.
    Packets { batch: usize },
    /// The bytes through a Unix stream.
    Unix,
    /// The bytes through TCP.
    Tcp,
    /// Record batches through Arrow Flight.
    #[cfg(feature = "peers")]
    Flight,
}

/// One end of a pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PairLoad {
    pub(crate) way: Way,
    /// Number of the pair.
    pub(crate) index: u32,
    /// The giver's end, or the taker's, which connects to the giver's address.
    pub(crate) end: End,
    pub(crate) pieces: u64,
    pub(crate) piece_bytes: u32,
    /// In circulation, where there is something that circulates.
    pub(crate) buffers: u32,
    pub(crate) checksums: bool,
}

/// Which end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// Fills, and listens: at this path, or on a free port.
    Give { path: String },
    /// Reads.
    Take { address: String },
}

/// Does the work of one end.
pub(crate) fn run(load: &PairLoad) -> Result<Done, ExecutorError> {
    match load.way {
        Way::Ring => ring::run(load),
        Way::Packets { batch } => packets::run(load, batch),
        Way::Unix | Way::Tcp => stream::run(load),
        #[cfg(feature = "peers")]
        Way::Flight => flight::run(load),
    }
}

/// What was attempted, with what the system said.
fn failed<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> ExecutorError + '_ {
    move |error| ExecutorError::Other(format!("{what}: {error}"))
}

/// A piece that is not what its giver summed up.
fn changed(piece: u64) -> ExecutorError {
    ExecutorError::Other(format!("the checksum of piece {piece} is wrong"))
}
