//! How bytes leave this server: one trait, one strategy per connection.
//!
//! ```text
//!             outbox                      kernel                                 other side
//!   copy      gather ---- writev --------> copies, done when written
//!   sendfile  heads copied, payload by reference: done when the other side has read them
//!   uring     pieces go to another thread, done at their last completion
//! ```
//!
//! A slot is pinned from the moment the core gives it out until its strategy says `done`: then the kernel can no longer read it.

mod choose;
mod copy;
mod counters;
mod sendfile;
mod strategy;
#[cfg(test)]
mod tests;

pub(crate) use choose::Chosen;
pub(crate) use copy::CopySend;
pub(crate) use counters::{Counted, SendCounters};
pub(crate) use sendfile::SendfileSend;
pub(crate) use strategy::{SendStrategy, Strategy};
