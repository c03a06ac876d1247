//! Connecting to other servers: whom and when, the core says.

use std::io;
use std::rc::Rc;

use shuffle_protocol::ShuffleError;
use shuffle_protocol::error::ErrorKind;
use tokio::net::TcpStream;
use tracing::{debug, info};

use super::handshake;
use super::link::{Remote, carry};
use super::tcp::{configure, reset_on_close};
use crate::node::{Dial, PeerInfo};
use crate::server::{Service, spawn};

/// Makes every connection that the core asks for, each in its own task.
pub(crate) async fn dial_all(service: Rc<Service>) {
    loop {
        while let Some(dial) = service.with(|core, now| core.poll_dial(now)) {
            spawn(dial_one(Rc::clone(&service), dial));
        }
        service.dial.notified().await;
    }
}

async fn dial_one(service: Rc<Service>, dial: Dial) {
    let after = service.config.timeouts.handshake;
    let made = tokio::time::timeout(after, connect(&service, &dial))
        .await
        .unwrap_or_else(|_| {
            let kind = ErrorKind::TimedOut {
                what: "connecting".to_owned(),
                after,
            };
            Err(Failure {
                error: ShuffleError::new(kind, "no answer"),
                refused: false,
            })
        });
    let (stream, peer) = match made {
        Ok(made) => made,
        Err(Failure { error, refused }) => {
            let error = error.node(&dial.node);
            debug!("dialling {}: {error}", dial.node);
            return service.with(|core, now| core.handle_dial_failed(now, &dial, error, refused));
        }
    };
    let opened = service.open_link(|core, now| core.handle_link_opened(now, &peer));
    match opened {
        Ok((id, signal)) => {
            info!(
                "connected to {} (stripe {}, generation {})",
                dial.node, dial.stripe, dial.generation
            );
            carry(service, Remote::Node(id, dial.node), stream, signal).await;
        }
        Err(error) => {
            debug!("connection to {} is not needed: {error}", dial.node);
            reset_on_close(&stream);
        }
    }
}

struct Failure {
    error: ShuffleError,
    /// The node is up and nobody listens there.
    refused: bool,
}

async fn connect(service: &Service, dial: &Dial) -> Result<(TcpStream, PeerInfo), Failure> {
    let stream = TcpStream::connect(dial.node.to_string())
        .await
        .map_err(|error| Failure {
            refused: error.kind() == io::ErrorKind::ConnectionRefused,
            error: ShuffleError::new(ErrorKind::NodeUnreachable, format!("cannot connect: {error}")),
        })?;
    let failed = |error| Failure { error, refused: false };
    configure(&stream, &service.config).map_err(|error| {
        failed(ShuffleError::new(
            ErrorKind::Io,
            format!("cannot set the socket's options: {error}"),
        ))
    })?;
    let accepted = handshake::introduce(service, &stream, dial).await.map_err(failed)?;
    let peer = PeerInfo {
        node: accepted.node,
        incarnation: accepted.incarnation,
        generation: dial.generation,
        stripe: dial.stripe,
        dialled: true,
    };
    Ok((stream, peer))
}
