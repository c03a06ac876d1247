//! The first words on every connection, with a stranger.
//!
//! ```text
//! accepting   4 bytes that are not ours -> closed at once; no hello within the deadline -> told, closed
//!             hello -> version, role, token, node, buffer size -> welcome or reject
//! dialling    hello -> welcome or reject
//! ```
//!
//! A stranger can make us keep one small frame, for a few seconds. Nothing beyond the handshake is read here, so whoever goes
//! on with the connection starts between two frames.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::time::{SystemTime, UNIX_EPOCH};

use buffer_pool::JobKey;
use bytes::BytesMut;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use shuffle_protocol::ShuffleError;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{Hello, Role, Welcome};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::{Deframer, Event, Frame, FrameError, HEADER_BYTES, MAGIC, encode_control};
use shuffle_protocol::limits::{VERSION_MAX, VERSION_MIN};
use shuffle_protocol::session::{Accepted, CheckedHello, ExecutorHello, Features, PeerHello, reject};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::tcp::connection_lost;
use super::wire::Wire;
use crate::node::{Dial, SessionInfo};
use crate::server::Service;

/// Why a handshake came to nothing.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The other side is told.
    Told(ShuffleError),
    /// It is gone, or does not speak this protocol at all.
    Silent(ShuffleError),
}

impl Refusal {
    pub(crate) fn error(&self) -> &ShuffleError {
        match self {
            Self::Told(error) | Self::Silent(error) => error,
        }
    }
}

impl From<ShuffleError> for Refusal {
    fn from(error: ShuffleError) -> Self {
        Self::Told(error)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Silent(connection_lost(&error))
    }
}

impl From<FrameError> for Refusal {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Magic { .. } => Self::Silent(error.into()),
            _ => Self::Told(error.into()),
        }
    }
}

/// Receives and checks the hello on an accepted connection.
pub(crate) async fn receive(service: &Service, wire: &impl Wire) -> Result<CheckedHello, Refusal> {
    let message = within(service, receive_message(wire)).await?;
    let Message::Hello(hello) = message else {
        return Err(Refusal::Told(ShuffleError::new(
            ErrorKind::Protocol,
            "the first message must be a hello",
        )));
    };
    let checked = hello.check()?;
    match &checked {
        CheckedHello::Executor(hello) => check_token(service, hello)?,
        CheckedHello::Peer(hello) => hello.check_fits(&service.address, service.config.pool.buffer_bytes)?,
    }
    Ok(checked)
}

/// Tells the other side why it may not come in, if that can be done at once.
pub(crate) fn refuse(wire: &impl Wire, refusal: &Refusal) {
    if let Refusal::Told(error) = refusal {
        let mut frame = BytesMut::new();
        if encode_control(&reject(error), &mut frame).is_ok() {
            // A new socket has room for this; whoever has filled it is not listening.
            let _ = wire.try_write(&[IoSlice::new(&frame)]);
        }
    }
}

/// Lets an executor in; over the Unix socket its arenas travel beside the message.
pub(crate) async fn welcome_executor(
    service: &Service,
    stream: &UnixStream,
    job: JobKey,
    features: Features,
) -> Result<(), Refusal> {
    let frame = encode(Welcome {
        arena_buffers: service.config.pool.buffers,
        ..welcome(service, features)
    })?;
    within(service, async {
        loop {
            stream.writable().await?;
            let sent = service.with_descriptors(job, |descriptors| {
                stream.try_io(Interest::WRITABLE, || {
                    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
                    let mut ancillary = SendAncillaryBuffer::new(&mut space);
                    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                        return Err(io::ErrorKind::OutOfMemory.into());
                    }
                    Ok(sendmsg(
                        stream,
                        &[IoSlice::new(&frame)],
                        &mut ancillary,
                        SendFlags::NOSIGNAL,
                    )?)
                })
            });
            match sent {
                // The descriptors are with the first byte; a short write leaves only plain bytes.
                Ok(sent) => return send_all(stream, &frame[sent..]).await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    })
    .await
}

/// Lets an executor in that has no mapping.
pub(crate) async fn welcome_inline(service: &Service, wire: &impl Wire) -> Result<(), Refusal> {
    // Slices are of slots that both sides have mapped.
    let frame = encode(welcome(service, Features::NONE))?;
    within(service, send_all(wire, &frame)).await
}

/// Lets another server in.
pub(crate) async fn welcome_peer(service: &Service, wire: &impl Wire, hello: &PeerHello) -> Result<(), Refusal> {
    let frame = encode(Welcome {
        generation: hello.generation.value(),
        ..welcome(service, hello.features)
    })?;
    within(service, send_all(wire, &frame)).await
}

/// Introduces this server to the one it has dialled.
pub(crate) async fn introduce(service: &Service, wire: &impl Wire, dial: &Dial) -> Result<Accepted, ShuffleError> {
    let hello = Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        features: Features::OURS.bits(),
        role: Role::Peer.into(),
        node: service.address.to_string(),
        incarnation: service.incarnation.value(),
        generation: dial.generation.value(),
        buffer_bytes: service.config.pool.buffer_bytes,
        expected_node: dial.node.to_string(),
        stripe: dial.stripe,
        ..Hello::default()
    };
    let mut frame = BytesMut::new();
    encode_control(&Message::Hello(hello), &mut frame)?;
    let answer = async {
        send_all(wire, &frame).await?;
        receive_message(wire).await
    };
    match answer.await.map_err(|refusal| refusal.error().clone())? {
        Message::Welcome(welcome) => {
            let accepted = welcome.check()?;
            accepted.check_fits(&dial.node, service.config.pool.buffer_bytes)?;
            Ok(accepted)
        }
        Message::Reject(reject) => Err(reject.error.map_or_else(
            || ShuffleError::new(ErrorKind::Denied, "refused without a reason"),
            ShuffleError::from,
        )),
        _ => Err(ShuffleError::new(
            ErrorKind::Protocol,
            "the answer to a hello is neither a welcome nor a reject",
        )),
    }
}

/// The session that this hello asks for.
pub(crate) fn session_info(hello: ExecutorHello, inline: bool) -> SessionInfo {
    SessionInfo {
        job: hello.job,
        name: hello.name,
        inline,
        packed: !inline && hello.features.contains(Features::PACKED),
    }
}

fn check_token(service: &Service, hello: &ExecutorHello) -> Result<(), ShuffleError> {
    let Some(secret) = &service.config.security.secret else {
        return Ok(());
    };
    let token = hello
        .token
        .as_ref()
        .ok_or_else(|| ShuffleError::new(ErrorKind::Denied, "this server wants a job token").job(hello.job))?;
    // A clock before 1970 makes no token expire; nothing worse.
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    token.verify(secret, hello.job, now)
}

/// `features`: what both sides understand.
fn welcome(service: &Service, features: Features) -> Welcome {
    let millis = |duration: std::time::Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
    Welcome {
        version: VERSION_MAX,
        features: features.bits(),
        node: service.address.to_string(),
        incarnation: service.incarnation.value(),
        buffer_bytes: service.config.pool.buffer_bytes,
        keepalive_interval_ms: millis(service.config.timeouts.keepalive),
        dead_peer_after_ms: millis(service.config.timeouts.dead_peer),
        max_record_bytes: service.config.limits.max_record_bytes,
        request_timeout_ms: millis(service.config.timeouts.request),
        max_queued_per_subpartition: service.config.limits.max_queued_per_subpartition,
        ..Welcome::default()
    }
}

fn encode(welcome: Welcome) -> Result<BytesMut, ShuffleError> {
    let mut frame = BytesMut::new();
    encode_control(&Message::Welcome(welcome), &mut frame)?;
    Ok(frame)
}

async fn within<T>(service: &Service, step: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    let after = service.config.timeouts.handshake;
    timeout(after, step).await.unwrap_or_else(|_| {
        let kind = ErrorKind::TimedOut {
            what: "the handshake".to_owned(),
            after,
        };
        Err(Refusal::Told(ShuffleError::new(
            kind,
            "the other side did not finish it",
        )))
    })
}

async fn receive_message(wire: &impl Wire) -> Result<Message, Refusal> {
    let mut deframer = Deframer::for_handshake();
    let mut header = [0; HEADER_BYTES];
    let mut filled = 0;
    while filled < HEADER_BYTES {
        filled += receive_some(wire, &mut header[filled..]).await?;
        // Whoever speaks another protocol need not send a whole header to be recognised.
        let seen = filled.min(MAGIC.len());
        if header[..seen] != MAGIC[..seen] {
            let got = [header[0], header[1], header[2], header[3]];
            return Err(FrameError::Magic { got }.into());
        }
    }
    deframer.handle_bytes(&header);
    loop {
        match deframer.poll_event()? {
            Some(Event::Frame(Frame::Control(message))) => return Ok(*message),
            Some(_) => {
                return Err(ShuffleError::new(ErrorKind::Protocol, "a handshake is made of control messages").into());
            }
            None => {
                let received = receive_some(wire, deframer.space()).await?;
                deframer.handle_read(received);
            }
        }
    }
}

async fn receive_some(wire: &impl Wire, space: &mut [u8]) -> io::Result<usize> {
    loop {
        match wire.try_read(space) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(received) => return Ok(received),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wire.wait_readable().await?,
            Err(error) => return Err(error),
        }
    }
}

async fn send_all(wire: &impl Wire, mut bytes: &[u8]) -> Result<(), Refusal> {
    while !bytes.is_empty() {
        match wire.try_write(&[IoSlice::new(bytes)]) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wire.wait_writable().await?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
