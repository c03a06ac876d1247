//! A client that says whatever a test wants, well-formed or not.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{Hello, Role};
use shuffle_protocol::frame::{DataHead, Deframer, Event, Frame, FrameKind, encode_control, encode_ping};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::node::Node;
use crate::stamp::mix;
use crate::wait::within;

/// What the other side did.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// A whole frame.
    Frame(Frame),
    /// A data frame; its payload has been read and dropped.
    Data(DataHead),
    /// The end of the connection, orderly or not.
    Closed,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// One connection.
pub struct Raw {
    stream: Box<dyn Stream>,
    deframer: Deframer,
}

impl std::fmt::Debug for Raw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Raw")
    }
}

impl Raw {
    /// Connects as another node or a remote executor would.
    ///
    /// # Errors
    /// If nothing listens there.
    pub async fn tcp(address: SocketAddr) -> io::Result<Self> {
        Ok(Self::over(TcpStream::connect(address).await?))
    }

    /// Connects as an executor of the node would.
    ///
    /// # Errors
    /// If nothing listens there.
    pub async fn unix(path: &Path) -> io::Result<Self> {
        Ok(Self::over(UnixStream::connect(path).await?))
    }

    fn over(stream: impl Stream + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            deframer: Deframer::new(),
        }
    }

    /// Writes bytes as they are; true if the other side still took them.
    pub async fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok() && self.stream.flush().await.is_ok()
    }

    /// Writes a control message; true if the other side still took it.
    ///
    /// # Panics
    /// If it cannot be encoded.
    pub async fn send_control(&mut self, message: &Message) -> bool {
        self.send(&control_bytes(message)).await
    }

    /// What the other side says next.
    ///
    /// # Panics
    /// After `limit`, or if it is not a frame.
    pub async fn hear(&mut self, limit: Duration) -> Heard {
        within(limit, "the other side", self.next()).await
    }

    /// Pings the other side and waits for the pong, whatever is said before it; false if the connection ends instead.
    ///
    /// # Panics
    /// After `limit`.
    pub async fn is_answered_within(&mut self, limit: Duration, nonce: u64) -> bool {
        let mut ping = BytesMut::new();
        encode_ping(FrameKind::Ping, nonce, &mut ping);
        if !self.send(&ping).await {
            return false;
        }
        within(limit, "a pong", async {
            loop {
                match self.next().await {
                    Heard::Frame(Frame::Pong(heard)) if heard == nonce => return true,
                    Heard::Closed => return false,
                    _ => {}
                }
            }
        })
        .await
    }

    /// Waits for the end of the connection, whatever is said before it; true if it came in time.
    pub async fn is_closed_within(&mut self, limit: Duration) -> bool {
        let mut scratch = [0; 4096];
        let end = async { while !matches!(self.stream.read(&mut scratch).await, Ok(0) | Err(_)) {} };
        tokio::time::timeout(limit, end).await.is_ok()
    }

    /// Closes the writing half.
    pub async fn shut(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    async fn next(&mut self) -> Heard {
        loop {
            match self.deframer.poll_event().expect("the service speaks in frames") {
                Some(Event::Frame(frame)) => return Heard::Frame(frame),
                Some(Event::Data(head)) => {
                    let length = usize::try_from(head.payload_bytes).unwrap_or(0);
                    let mut payload = vec![0; length];
                    return match self.stream.read_exact(&mut payload).await {
                        Ok(_) => Heard::Data(head),
                        Err(_) => Heard::Closed,
                    };
                }
                None => match self.stream.read(self.deframer.space()).await {
                    Ok(0) | Err(_) => return Heard::Closed,
                    Ok(length) => self.deframer.handle_read(length),
                },
            }
        }
    }
}

/// Noise that follows from `seed`.
#[must_use]
pub fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let words = (0..).flat_map(|word| mix(mix(seed) ^ word).to_le_bytes());
    words.take(length).collect()
}

/// A control frame.
///
/// # Panics
/// If the message is too large for one.
#[must_use]
pub fn control_bytes(message: &Message) -> BytesMut {
    let mut out = BytesMut::new();
    encode_control(message, &mut out).expect("a message that fits");
    out
}

/// The hello of an executor of `job`.
#[must_use]
pub fn executor_hello(job: u64) -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        role: Role::Executor.into(),
        job,
        name: "raw".to_owned(),
        ..Hello::default()
    }
}

/// The hello of a server at `node`, to the server `to`.
#[must_use]
pub fn peer_hello(node: &str, to: &Node, buffer_bytes: u32) -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        role: Role::Peer.into(),
        node: node.to_owned(),
        incarnation: 0xABCD,
        buffer_bytes,
        expected_node: to.address().to_string(),
        ..Hello::default()
    }
}
