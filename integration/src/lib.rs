//! A cluster of real processes and what is needed to hurt it.
//!
//! ```text
//!   test ──Session──► node process ══ Proxy ══► node process ◄──Session── test
//!    │                    ▲            (cut, delay, flip, blackhole)
//!    └─JSON lines─► executor process (kill -9, SIGSTOP, hold views)
//! ```
//!
//! Every record that a test sends is *stamped* ([`stamp`]) and every record that arrives is judged
//! by an [`oracle`], without storing data. Every wait has a deadline ([`wait`]), every process is
//! ended by its id, and a [`cluster::Cluster`] that is shut down proves that nothing is left.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod executor;
pub mod flip;
pub mod flow;
pub mod node;
pub mod oracle;
pub mod process;
pub mod procfs;
pub mod profile;
pub mod proxy;
pub mod raw;
pub mod script;
pub mod simulator;
pub mod stamp;
pub mod wait;
pub mod way;

/// The binaries of this package, as a test sees them.
#[derive(Debug, Clone, Copy)]
pub struct Binaries {
    /// A server process: [`shuffle_server::run`] and nothing else.
    pub node: &'static str,
    /// An executor process that follows a [`script`].
    pub executor: &'static str,
}

/// [`Binaries`] of the test that calls it.
#[macro_export]
macro_rules! binaries {
    () => {
        $crate::Binaries {
            node: env!("CARGO_BIN_EXE_node"),
            executor: env!("CARGO_BIN_EXE_executor"),
        }
    };
}

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
