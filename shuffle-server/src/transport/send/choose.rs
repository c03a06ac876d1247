//! Which strategy a connection to another server gets: what is configured, if this kernel and this socket can do it.
//!
//! ```text
//!   copy       always there
//!   sendfile   probed with a ping of its own, sent from a memfd; refused: the connection ends with the reason
//!   uring      no rings to be had: copy instead, with one line that says why
//!   auto       copy: on loopback it took fewer cycles per byte than sendfile (docs/performance.md)
//! ```

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::rc::Rc;

use buffer_pool::SlotRef;
use bytes::BytesMut;
use rustix::fs::{MemfdFlags, memfd_create};
use shuffle_protocol::ShuffleError;
use shuffle_protocol::error::{ErrorKind, Initiator};
use shuffle_protocol::frame::{self, FrameKind};
use tokio::net::TcpStream;

use super::counters::Counted;
use super::sendfile::MARK;
use super::{CopySend, SendStrategy, SendfileSend, Strategy};
use crate::config::SendMode;
use crate::server::Service;
use crate::transport::outbox::Outbox;
use crate::transport::uring::UringSend;

/// The strategy of one TCP connection.
#[derive(Debug)]
pub(crate) enum Chosen {
    /// To an executor that has no server: always copied, not counted.
    Inline(CopySend<Rc<TcpStream>>),
    Copy(CopySend<Rc<TcpStream>>, Counted),
    Sendfile(SendfileSend),
    Uring(UringSend),
}

impl Chosen {
    /// For an executor over TCP, and for last words.
    pub(crate) fn inline(stream: &Rc<TcpStream>) -> Self {
        Self::Inline(CopySend::new(Rc::clone(stream)))
    }

    /// For another server, on a connection on which nothing but the handshake was sent.
    ///
    /// # Errors
    /// What is configured cannot be had.
    pub(crate) fn for_node(service: &Service, stream: &Rc<TcpStream>) -> Result<Self, ShuffleError> {
        let counters = &service.sending;
        match service.config.transport.send {
            SendMode::Sendfile => {
                probe(stream).map_err(|error| unavailable(&error))?;
                let patience = service.config.timeouts.dead_peer;
                let counted = Counted::new(counters, Strategy::Sendfile);
                return Ok(Self::Sendfile(SendfileSend::new(Rc::clone(stream), counted, patience)));
            }
            SendMode::Uring => match UringSend::open(service, &**stream) {
                Some(send) => return Ok(Self::Uring(send)),
                None => counters.add_fallback(),
            },
            SendMode::Auto | SendMode::Copy => {}
        }
        let counted = Counted::new(counters, Strategy::Copy);
        Ok(Self::Copy(CopySend::new(Rc::clone(stream)), counted))
    }
}

/// Sends a first ping by the way that is probed: that it works is seen here, and its pong is nobody's business.
fn probe(socket: impl AsFd) -> io::Result<()> {
    let mut ping = BytesMut::new();
    frame::encode_ping(FrameKind::Ping, MARK, &mut ping);
    let file = memfd_create("shuffle-probe", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(&ping)?;
    let mut offset = 0;
    let sent = rustix::io::retry_on_intr(|| rustix::fs::sendfile(&socket, &file, Some(&mut offset), ping.len()))?;
    if sent < ping.len() {
        return Err(io::Error::new(
            io::ErrorKind::WriteZero,
            "a new socket took less than a ping",
        ));
    }
    Ok(())
}

fn unavailable(error: &io::Error) -> ShuffleError {
    ShuffleError::new(
        ErrorKind::Unsupported,
        format!(
            "transport.send is sendfile, but sendfile from a memfd to this socket fails: {error}; \
             let the sandbox allow sendfile(2) and memfd_create(2), or set transport.send to copy"
        ),
    )
    .by(Initiator::Own)
}

impl SendStrategy for Chosen {
    fn strategy(&self) -> Strategy {
        match self {
            Self::Inline(send) | Self::Copy(send, _) => send.strategy(),
            Self::Sendfile(send) => send.strategy(),
            Self::Uring(send) => send.strategy(),
        }
    }

    fn takes_file(&self, length: u32) -> bool {
        match self {
            Self::Inline(send) | Self::Copy(send, _) => send.takes_file(length),
            Self::Sendfile(send) => send.takes_file(length),
            Self::Uring(send) => send.takes_file(length),
        }
    }

    fn try_send(&self, outbox: &mut Outbox, done: &mut Vec<SlotRef>) -> io::Result<()> {
        match self {
            Self::Inline(send) => send.try_send(outbox, done),
            Self::Copy(send, counted) => {
                let before = outbox.unsent_payload();
                let sent = send.try_send(outbox, done);
                counted.all().add_copied(before - outbox.unsent_payload());
                sent
            }
            Self::Sendfile(send) => send.try_send(outbox, done),
            Self::Uring(send) => send.try_send(outbox, done),
        }
    }

    fn is_idle(&self) -> bool {
        match self {
            Self::Inline(send) | Self::Copy(send, _) => send.is_idle(),
            Self::Sendfile(send) => send.is_idle(),
            Self::Uring(send) => send.is_idle(),
        }
    }

    fn holds_slots(&self) -> bool {
        match self {
            Self::Inline(send) | Self::Copy(send, _) => send.holds_slots(),
            Self::Sendfile(send) => send.holds_slots(),
            Self::Uring(send) => send.holds_slots(),
        }
    }

    async fn ready(&self) -> io::Result<()> {
        match self {
            Self::Inline(send) | Self::Copy(send, _) => send.ready().await,
            Self::Sendfile(send) => send.ready().await,
            Self::Uring(send) => send.ready().await,
        }
    }

    async fn stirs(&self) {
        match self {
            Self::Inline(send) | Self::Copy(send, _) => send.stirs().await,
            Self::Sendfile(send) => send.stirs().await,
            Self::Uring(send) => send.stirs().await,
        }
    }

    fn handle_pong(&self, nonce: u64, done: &mut Vec<SlotRef>) -> Result<(), ShuffleError> {
        match self {
            Self::Inline(send) | Self::Copy(send, _) => send.handle_pong(nonce, done),
            Self::Sendfile(send) => send.handle_pong(nonce, done),
            Self::Uring(send) => send.handle_pong(nonce, done),
        }
    }

    async fn finish(self, done: &mut Vec<SlotRef>) {
        match self {
            Self::Inline(send) | Self::Copy(send, _) => send.finish(done).await,
            Self::Sendfile(send) => send.finish(done).await,
            Self::Uring(send) => send.finish(done).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{probe, unavailable};

    #[test]
    fn a_socket_that_takes_no_pages_is_named() {
        let full = std::fs::File::options().append(true).open("/dev/null").unwrap();
        let error = unavailable(&probe(&full).unwrap_err());
        assert!(error.to_string().contains("set transport.send to copy"), "{error}");
    }
}
