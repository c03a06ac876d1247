//! Sending through io_uring, on threads of its own.
//!
//! ```text
//!   server's thread            |  a ring's thread
//!   Line ── gather ── Inbox ───┼─> Worker ── Sender ── plan ── Ring ── kernel
//!     ^                        |      |
//!     '── buffers ── LineMail ─┼──────'
//! ```
//!
//! Who owns a gather, and with it the leases on its buffers:
//!
//! | it is | owner | leases end |
//! | --- | --- | --- |
//! | given to the line | the inbox | |
//! | waiting for those before it | the connection's sender | |
//! | in the kernel | the ring's operations and the sender | |
//! | sent, a notification missing | the operation and the sender | |
//! | released by its last operation | | before its buffers are reported |
//! | still in the kernel when the server ends | nobody | never |
//!
//! A connection that ends has its operations cancelled and its socket let go of; each operation completes still, and its
//! memory comes back by that, never earlier.
//!
//! A ring on which a system call fails for good is given up: its connections are told at once and
//! break, new ones go another way. The thread stays only until the kernel has let go of the ring; then everything comes back.

mod engine;
mod enter;
mod extents;
mod in_flight;
mod line;
mod mail;
mod operation;
mod piece;
mod plan;
#[expect(
    unsafe_code,
    reason = "the kernel reads memory after the call that named it has returned: no safe API can lend a slice for that"
)]
mod ring;
mod sender;
mod strategy;
#[cfg(test)]
mod tests;
mod unavailable;
mod witness;
mod worker;

pub(crate) use engine::Engine;
pub(crate) use sender::ZeroCopySends;
pub(crate) use strategy::UringSend;
