//! Accepted TCP connections: other servers, and executors that have none, told apart by their hello.

use std::net::SocketAddr;
use std::rc::Rc;

use buffer_pool::JobKey;
use shuffle_protocol::ShuffleError;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::session::{CheckedHello, ExecutorHello, PeerHello};
use tokio::net::TcpStream;
use tracing::{debug, info};

use super::accept::HalfOpen;
use super::handshake::{self, Refusal};
use super::link::{Remote, carry};
use super::tcp::configure;
use crate::node::PeerInfo;
use crate::notify::Signal;
use crate::server::Service;

/// Serves one connection to the port from its first byte to its last.
pub(crate) async fn serve_tcp(service: Rc<Service>, stream: TcpStream, from: SocketAddr, half_open: HalfOpen) {
    match greet(&service, &stream).await {
        Ok((remote, signal)) => {
            drop(half_open);
            info!("{} connected from {from}", remote.name());
            carry(service, remote, stream, signal).await;
        }
        Err(refusal) => {
            service.count_refused();
            debug!("refused {from}: {}", refusal.error());
            handshake::refuse(&stream, &refusal);
        }
    }
}

async fn greet(service: &Service, stream: &TcpStream) -> Result<(Remote, Rc<Signal>), Refusal> {
    configure(stream, &service.config)?;
    match handshake::receive(service, stream).await? {
        CheckedHello::Peer(hello) => greet_peer(service, stream, hello).await,
        CheckedHello::Executor(hello) => greet_executor(service, stream, hello).await,
    }
}

async fn greet_peer(service: &Service, stream: &TcpStream, hello: PeerHello) -> Result<(Remote, Rc<Signal>), Refusal> {
    let peer = PeerInfo {
        node: hello.node.clone(),
        incarnation: hello.incarnation,
        generation: hello.generation,
        stripe: hello.stripe,
        dialled: false,
    };
    let (id, signal) = service.open_link(|core, now| core.handle_link_opened(now, &peer))?;
    if let Err(refusal) = handshake::welcome_peer(service, stream, &hello).await {
        service.close_link(id, refusal.error().clone().node(&hello.node));
        return Err(refusal);
    }
    Ok((Remote::Node(id, hello.node), signal))
}

async fn greet_executor(
    service: &Service,
    stream: &TcpStream,
    hello: ExecutorHello,
) -> Result<(Remote, Rc<Signal>), Refusal> {
    if !service.config.executor.tcp {
        return Err(Refusal::Told(
            ShuffleError::new(
                ErrorKind::Denied,
                "executors attach over the Unix socket here; executor.tcp would let them in over TCP",
            )
            .job(hello.job),
        ));
    }
    let job = JobKey(hello.job.value());
    let info = handshake::session_info(hello, true);
    let name = info.name.clone();
    let (id, signal) = service.open_session(|core, now| core.handle_session_opened(now, info))?;
    if let Err(refusal) = handshake::welcome_inline(service, stream).await {
        service.close_session(id, false);
        return Err(refusal);
    }
    Ok((Remote::Executor(id, job, name), signal))
}
