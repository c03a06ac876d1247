//! The connection to the server, over either kind of socket.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;

use super::options::Endpoint;

#[derive(Debug)]
pub(crate) enum Socket {
    /// Registered for reading only: the kernel tells whoever is registered for writing each time the other side has read,
    /// which would wake this process once for every message that it sends.
    Unix(AsyncFd<UnixStream>),
    Tcp(TcpStream),
}

/// After how long a full socket is tried again that cannot be watched.
const SECOND_LOOK: Duration = Duration::from_millis(5);

/// Descriptors that can come with one message: the two arenas.
const MAX_DESCRIPTORS: usize = 2;

impl Socket {
    pub(crate) async fn connect(endpoint: &Endpoint) -> Result<Self> {
        match endpoint {
            Endpoint::Unix(path) => {
                let connected = tokio::net::UnixStream::connect(path).await;
                connected
                    .and_then(tokio::net::UnixStream::into_std)
                    .and_then(|stream| watch(stream, Interest::READABLE))
                    .map(Self::Unix)
                    .map_err(|error| unreachable(&path.display().to_string(), &error))
            }
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address)
                    .await
                    .map_err(|error| unreachable(address, &error))?;
                // Frames are small and wait for nothing.
                stream.set_nodelay(true).map_err(|error| unreachable(address, &error))?;
                Ok(Self::Tcp(stream))
            }
        }
    }

    /// Resolves when a read may succeed, or, if `writing`, a write.
    pub(crate) async fn ready(&self, writing: bool) -> io::Result<()> {
        match self {
            Self::Unix(stream) if writing => {
                // A socket that takes no more is rare: only then it is worth a second registration.
                let second = stream.get_ref().try_clone();
                let room = second.and_then(|stream| watch(stream, Interest::WRITABLE));
                let has_room = async {
                    match &room {
                        Ok(room) => room.writable().await.map(|_| ()),
                        // No descriptor is left for that: it is looked at again after a moment.
                        Err(_) => {
                            tokio::time::sleep(SECOND_LOOK).await;
                            Ok(())
                        }
                    }
                };
                tokio::select! {
                    ready = stream.readable() => ready.map(|_| ()),
                    ready = has_room => ready,
                }
            }
            Self::Unix(stream) => stream.readable().await.map(|_| ()),
            Self::Tcp(stream) if writing => stream.ready(Interest::READABLE | Interest::WRITABLE).await.map(|_| ()),
            Self::Tcp(stream) => stream.readable().await,
        }
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => try_read_all(stream, buffer),
            Self::Tcp(stream) => stream.try_read(buffer),
        }
    }

    pub(crate) fn try_write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.get_ref().write_vectored(pieces),
            Self::Tcp(stream) => stream.try_write_vectored(pieces),
        }
    }

    /// Reads, and keeps the descriptors that came along: only for the handshake.
    pub(crate) async fn read_with_descriptors(
        &self,
        buffer: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => {
                stream
                    .async_io(Interest::READABLE, |stream| receive(stream, buffer, descriptors))
                    .await
            }
            Self::Tcp(stream) => stream.async_io(Interest::READABLE, || stream.try_read(buffer)).await,
        }
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe for the sake of types that change their descriptor; a UnixStream keeps its own"
)]
fn watch(stream: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    AsyncFd::with_interest(stream, interest)
}

/// A read that does not fill the buffer has taken all there is: the next one waits without another system call.
fn try_read_all(stream: &AsyncFd<UnixStream>, buffer: &mut [u8]) -> io::Result<usize> {
    let mut all = None;
    let read = stream.try_io(Interest::READABLE, |mut stream| {
        let read = stream.read(buffer)?;
        if read == 0 || read == buffer.len() {
            return Ok(read);
        }
        all = Some(read);
        Err(io::ErrorKind::WouldBlock.into())
    });
    all.map_or(read, Ok)
}

fn receive(stream: &UnixStream, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(buffer)];
    // Descriptors beyond the space are closed by the kernel.
    let received = recvmsg(stream, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(received.bytes)
}

fn unreachable(place: &str, error: &io::Error) -> ShuffleError {
    ShuffleError::new(
        ErrorKind::NodeUnreachable,
        format!("connecting to the shuffle server: {error}"),
    )
    .path(place)
}
