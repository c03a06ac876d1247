//! The connection to the server, over either kind of socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use super::options::Endpoint;

#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Descriptors that can come with one message: the two arenas.
const MAX_DESCRIPTORS: usize = 2;

impl Socket {
    pub(crate) async fn connect(endpoint: &Endpoint) -> Result<Self> {
        match endpoint {
            Endpoint::Unix(path) => match UnixStream::connect(path).await {
                Ok(stream) => Ok(Self::Unix(stream)),
                Err(error) => Err(unreachable(&path.display().to_string(), &error)),
            },
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

    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.ready(interest).await.map(|_| ()),
            Self::Tcp(stream) => stream.ready(interest).await.map(|_| ()),
        }
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.try_read(buffer),
            Self::Tcp(stream) => stream.try_read(buffer),
        }
    }

    pub(crate) fn try_write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.try_write_vectored(pieces),
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
                    .async_io(Interest::READABLE, || receive(stream, buffer, descriptors))
                    .await
            }
            Self::Tcp(stream) => stream.async_io(Interest::READABLE, || stream.try_read(buffer)).await,
        }
    }
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
