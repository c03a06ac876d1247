//! Between sockets and the core. Everything here reads, calls, writes, and decides nothing.
//!
//! ```text
//!                      accept ── handshake ──┐
//!  Unix socket: socket, credentials          ├─ local   descriptors only, payload in shared memory
//!  TCP:         port, dial                   └─ link    payload inline, straight between socket and arena (tcp)
//!                                               both write through flow ── outbox ── send
//! ```

mod accept;
mod arenas;
mod credentials;
mod dial;
mod flow;
mod handshake;
mod link;
mod local;
mod local_socket;
mod outbox;
mod port;
mod send;
mod socket;
mod tcp;
#[cfg(test)]
mod tests;
mod uring;
mod wire;

pub(crate) use accept::accept_all;
pub(crate) use dial::dial_all;
pub(crate) use local::{READ_BYTES, serve_unix};
pub(crate) use port::serve_tcp;
pub(crate) use send::SendCounters;
pub use socket::{ExecutorSocket, SocketError};
pub(crate) use uring::Engine as Rings;
