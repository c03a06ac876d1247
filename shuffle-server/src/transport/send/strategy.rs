//! What every strategy does.

use std::fmt;
use std::io;

use buffer_pool::SlotRef;
use shuffle_protocol::ShuffleError;

use crate::transport::outbox::Outbox;

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// The kernel copies what is written.
    Copy,
    /// The kernel refers to the pages of the arena or file.
    Sendfile,
    /// A ring's thread sends, without a copy where that can be had.
    Uring,
}

impl Strategy {
    /// All of them, each at its [`Self::index`].
    pub(crate) const ALL: [Self; 3] = [Self::Copy, Self::Sendfile, Self::Uring];

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Copy => 0,
            Self::Sendfile => 1,
            Self::Uring => 2,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Copy => "copy",
            Self::Sendfile => "sendfile",
            Self::Uring => "uring",
        })
    }
}

/// The writing half of one connection. Methods take `&self`: the reading half reports to it while it waits.
///
/// `done` collects the slots whose memory the kernel can no longer read, each once: from `try_send`, `handle_pong` or `finish`.
pub(crate) trait SendStrategy {
    /// For logs, metrics and tests.
    fn strategy(&self) -> Strategy;

    /// Whether payload of that many bytes is to lie in the outbox as a part of a file; else as a lease on memory.
    fn takes_file(&self, length: u32) -> bool;

    /// Gets on with what is unsent, without waiting: takes bytes off the outbox, or brings to an end what it has taken before.
    ///
    /// # Errors
    /// `WouldBlock`: wait for [`SendStrategy::ready`]. Anything else: the connection is broken.
    fn try_send(&self, outbox: &mut Outbox, done: &mut Vec<SlotRef>) -> io::Result<()>;

    /// Whether nothing is under way of what was taken off the outbox: with an empty outbox there is nothing to do. Slots may
    /// still be held.
    fn is_idle(&self) -> bool;

    /// Whether the kernel may still read slots that were sent, so that the socket may not be left to it.
    fn holds_slots(&self) -> bool;

    /// Resolves when [`SendStrategy::try_send`] may get on. May be dropped and called again at any time.
    ///
    /// # Errors
    /// The connection is broken.
    async fn ready(&self) -> io::Result<()>;

    /// Resolves when [`SendStrategy::try_send`] has something to say though nothing is under way. May be dropped and called
    /// again at any time.
    async fn stirs(&self) {
        std::future::pending().await
    }

    /// A pong came. Nonces that are not of the strategy's own pings are none of its business.
    ///
    /// # Errors
    /// It answers a ping that was never sent.
    fn handle_pong(&self, nonce: u64, done: &mut Vec<SlotRef>) -> Result<(), ShuffleError>;

    /// The connection is over, and everybody else has let go of its socket: resolves with the slots still held, once the
    /// kernel can no longer read them.
    async fn finish(self, done: &mut Vec<SlotRef>);
}
