//! One connection: who speaks, what both understand, and whether the other side is still there.
//!
//! ```text
//!   initiator                                acceptor
//!      | -- Hello  versions features role ... --> |   hello.check()  -> who it is, the version in common
//!      | <-- Welcome version features limits ---- |   welcome.check(..)
//!      |     or Reject error, and the end         |
//!      |                                          |
//!      | <====== frames, both directions =======> |   Keepalive: ping after silence, dead after more of it
//!      |                                          |
//!      | <---- Goodbye reason, and the end -----> |
//! ```

mod features;
mod handshake;
mod keepalive;
mod token;

pub use features::{Features, negotiate};
pub use handshake::{Accepted, CheckedHello, ExecutorHello, PeerHello, reject};
pub use keepalive::{Keepalive, KeepaliveAction};
pub use token::{JobToken, Secret, TOKEN_BYTES};
