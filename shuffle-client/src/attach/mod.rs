//! The session with the node's server.
//!
//! ```text
//!   options -> handshake -> socket -> driver <-> dispatch -> writers, gates, requests
//!                                       ^-- write queue <-- outbox <-- writers, gates, requests, dropped views
//! ```

mod awaited;
mod dispatch;
mod driver;
mod events;
mod handshake;
mod memory;
mod options;
mod outbox;
mod request;
mod session;
mod shared;
mod socket;
mod write_queue;

pub use options::{AttachOptions, SOCKET_VARIABLE};
pub use session::Session;

pub(crate) use memory::{Filling, View};
pub(crate) use outbox::Outbox;
pub(crate) use request::{millis, notify, request, request_or_undo};
pub(crate) use shared::{Lifeline, SessionShared};
