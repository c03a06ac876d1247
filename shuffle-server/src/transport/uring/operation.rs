//! What a ring is asked and what it answers.

use std::io;
use std::time::Duration;

use io_uring::squeue::Flags;

/// What an operation belongs to; comes back with its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) line: u32,
    pub(crate) job: u64,
    pub(crate) step: usize,
}

/// How an operation of a chain is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    /// The next operation of this ring starts when this one has sent everything, and is given up if it has not.
    pub(crate) linked: bool,
    /// More bytes of the same connection follow at once.
    pub(crate) more: bool,
}

impl Manner {
    /// All of it or an error, and no signal.
    pub(crate) fn message_flags(self) -> i32 {
        let more = if self.more { libc::MSG_MORE } else { 0 };
        libc::MSG_WAITALL | libc::MSG_NOSIGNAL | more
    }

    pub(crate) fn entry_flags(self) -> Flags {
        if self.linked { Flags::IO_LINK } else { Flags::empty() }
    }
}

/// What the kernel says.
#[derive(Debug)]
pub(crate) enum Completion {
    /// Somebody rang. `armed`: the ring goes on listening.
    Bell { armed: bool },
    /// What was out of this connection has been given up, as far as it could be found.
    Cancelled { line: u32 },
    /// About a send.
    Send {
        tag: Tag,
        /// So many bytes have been taken; comes once for each operation.
        sent: Option<io::Result<usize>>,
        /// The kernel reads this operation's memory no more; comes once for each operation.
        released: bool,
        /// Of a zero-copy send that has sent something, when it is released: what its notification reported.
        usage: Option<Usage>,
    },
}

/// How a zero-copy send went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    /// The kernel made a copy after all.
    pub(crate) copied: bool,
    /// So many were sent.
    pub(crate) bytes: usize,
}

/// Whether to wait for a completion.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    No,
    Forever,
    AtMost(Duration),
}

/// What passes by itself: an interruption, a time that is over, a queue that is full for now.
pub(crate) fn passes(error: &io::Error) -> bool {
    let passing = [libc::EINTR, libc::EBUSY, libc::EAGAIN, libc::ETIME];
    error.raw_os_error().is_some_and(|code| passing.contains(&code))
}
