//! Hello, welcome, and the arenas.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use buffer_pool::MappedArena;
use bytes::BytesMut;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{Hello, Role};
use shuffle_protocol::error::{ErrorKind, Initiator, Result, ShuffleError};
use shuffle_protocol::frame::{Deframer, Event, Frame, encode_control};
use shuffle_protocol::limits::{VERSION_MAX, VERSION_MIN};
use shuffle_protocol::session::{Accepted, Features, Keepalive};

use super::memory::Memory;
use super::options::{AttachOptions, Endpoint};
use super::shared::Facts;
use super::socket::Socket;

/// A connection that the server has accepted.
pub(super) struct Established {
    pub(super) socket: Socket,
    pub(super) deframer: Deframer,
    pub(super) facts: Facts,
    pub(super) memory: Memory,
    pub(super) keepalive: Keepalive,
    pub(super) keepalive_interval: Duration,
}

/// Connects and shakes hands, all within the time the options give.
pub(super) async fn establish(options: &AttachOptions) -> Result<Established> {
    let place = match &options.endpoint {
        Endpoint::Unix(path) => path.display().to_string(),
        Endpoint::Tcp(address) => address.clone(),
    };
    let attached = tokio::time::timeout(options.timeout, shake_hands(options)).await;
    attached
        .unwrap_or_else(|_| {
            let what = "attaching to the shuffle server".to_owned();
            Err(ShuffleError::new(
                ErrorKind::TimedOut {
                    what,
                    after: options.timeout,
                },
                "",
            ))
        })
        .map_err(|error| error.job(options.job).path(place))
}

async fn shake_hands(options: &AttachOptions) -> Result<Established> {
    let socket = Socket::connect(&options.endpoint).await?;
    say_hello(&socket, options).await?;
    let mut deframer = Deframer::for_handshake();
    let mut descriptors = Vec::new();
    let welcome = match receive(&socket, &mut deframer, &mut descriptors).await? {
        Message::Welcome(welcome) => welcome.check().map_err(|error| {
            ShuffleError::new(ErrorKind::Protocol, "the server's welcome makes no sense").because(error)
        })?,
        Message::Reject(reject) => {
            return Err(reject
                .error
                .map_or_else(|| unexpected("a reject without an error"), ShuffleError::from));
        }
        _ => return Err(unexpected("something else than a welcome in answer to a hello")),
    };
    deframer.handle_established();
    let memory = match &socket {
        Socket::Unix(_) => map_arenas(&welcome, &descriptors)?,
        Socket::Tcp(_) => Memory::Heap {
            buffer_bytes: welcome.buffer_bytes,
        },
    };
    let keepalive = Keepalive::new(welcome.keepalive_interval, welcome.dead_peer_after, Instant::now());
    let facts = Facts {
        job: options.job,
        node: welcome.node,
        incarnation: welcome.incarnation,
        buffer_bytes: welcome.buffer_bytes,
        max_record_bytes: welcome.max_record_bytes.min(u32::MAX.into()),
        request_timeout: welcome.request_timeout.max(Duration::from_millis(1)),
        max_queued: welcome.max_queued,
        features: welcome.features,
    };
    Ok(Established {
        socket,
        deframer,
        facts,
        memory,
        keepalive,
        keepalive_interval: welcome.keepalive_interval,
    })
}

async fn say_hello(socket: &Socket, options: &AttachOptions) -> Result<()> {
    let hello = Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        features: Features::OURS.bits(),
        role: Role::Executor.into(),
        job: options.job.value(),
        token: options.token.clone(),
        name: options.name.clone(),
        ..Hello::default()
    };
    let mut frame = BytesMut::new();
    encode_control(&Message::Hello(hello), &mut frame)
        .map_err(|error| ShuffleError::new(ErrorKind::InvalidRequest, format!("the hello cannot be sent: {error}")))?;
    let mut rest = &frame[..];
    while !rest.is_empty() {
        match socket.try_write(&[std::io::IoSlice::new(rest)]) {
            Ok(n) => rest = &rest[n..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let ready = socket.ready(true).await;
                ready.map_err(|error| lost(&error.to_string()))?;
            }
            // A server that refuses at once may have said why before it closed.
            Err(_) => break,
        }
    }
    Ok(())
}

async fn receive(socket: &Socket, deframer: &mut Deframer, descriptors: &mut Vec<OwnedFd>) -> Result<Message> {
    loop {
        match deframer.poll_event()? {
            Some(Event::Frame(Frame::Control(message))) => return Ok(*message),
            Some(_) => return Err(unexpected("something else than a control message in the handshake")),
            None => {}
        }
        let read = socket.read_with_descriptors(deframer.space(), descriptors).await;
        match read.map_err(|error| lost(&error.to_string()))? {
            0 => return Err(lost("the server closed the connection during the handshake")),
            n => deframer.handle_read(n),
        }
    }
}

/// Maps both arenas. Their seals are checked on the way: a file that nobody can shrink cannot fault.
fn map_arenas(welcome: &Accepted, descriptors: &[OwnedFd]) -> Result<Memory> {
    let [write, read] = descriptors else {
        let message = format!("{} descriptors came with the welcome, not 2", descriptors.len());
        return Err(unexpected(&message));
    };
    let (buffers, bytes) = (welcome.arena_buffers, welcome.buffer_bytes);
    let cannot_map = |which: &str, error: std::io::Error| {
        ShuffleError::new(
            ErrorKind::Io,
            format!("mapping the {which} arena, {buffers} buffers of {bytes} bytes: {error}"),
        )
        .by(Initiator::Own)
    };
    Ok(Memory::Mapped {
        write: MappedArena::map_writable(write, buffers, bytes).map_err(|error| cannot_map("write", error))?,
        read: MappedArena::map_readonly(read, buffers, bytes).map_err(|error| cannot_map("read", error))?,
    })
}

fn unexpected(message: &str) -> ShuffleError {
    ShuffleError::new(ErrorKind::Protocol, message)
}

fn lost(message: &str) -> ShuffleError {
    ShuffleError::new(ErrorKind::ConnectionLost, message)
}
