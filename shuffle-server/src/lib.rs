//! The node's service: a sidecar that holds the network buffer pool and serves subpartition queues.
//!
//! ```text
//!  executors ── Unix socket ──┐                              ┌── TCP ── other servers
//!                             ├─ transport ── node ── transport ┤
//!                             │        (core, pure)          └── TCP ── executors without a server
//!                    config ── server ── metrics
//! ```
//!
//! [`node`] decides everything and touches nothing; `transport` and `server` touch sockets, memory, clock and signals and decide
//! nothing. [`run`] is the whole service; the binary adds nothing to it but arguments.
//!
//! `unsafe` stands in one room, `transport/uring/ring.rs`: the kernel reads memory there after the call that named it.
#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("shuffle-server runs on Linux only: it needs memfds, seals, pidfds and descriptor passing");

pub mod config;
mod executor;
mod loud;
pub mod metrics;
pub mod node;
mod notify;
mod partition;
mod peer;
mod server;
pub mod spill;
pub mod transport;

pub use server::{ServerError, run, run_with_args};
