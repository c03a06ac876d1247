//! The Unix socket of an attached executor.
//!
//! It is watched for reading only: the kernel tells whoever watches a Unix socket for writing each time the other side has
//! read, which would wake the server once for every message that it sends.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::wire::Wire;

/// After how long a full socket is tried again that cannot be watched.
const SECOND_LOOK: Duration = Duration::from_millis(5);

pub(super) struct LocalSocket {
    stream: AsyncFd<UnixStream>,
}

impl LocalSocket {
    pub(super) fn new(stream: tokio::net::UnixStream) -> io::Result<Self> {
        let stream = watch(stream.into_std()?, Interest::READABLE)?;
        Ok(Self { stream })
    }
}

impl Wire for LocalSocket {
    /// A read that does not fill the space has taken all there is: the next one waits without another system call.
    fn try_read(&self, space: &mut [u8]) -> io::Result<usize> {
        let mut all = None;
        let read = self.stream.try_io(Interest::READABLE, |mut stream| {
            let read = stream.read(space)?;
            if read == 0 || read == space.len() {
                return Ok(read);
            }
            all = Some(read);
            Err(io::ErrorKind::WouldBlock.into())
        });
        all.map_or(read, Ok)
    }

    async fn wait_readable(&self) -> io::Result<()> {
        self.stream.readable().await.map(|_| ())
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.get_ref().write_vectored(slices)
    }

    /// A socket that takes no more is rare: only then it is worth a second registration. Where no descriptor is left for it, the
    /// socket is looked at again after a moment.
    async fn wait_writable(&self) -> io::Result<()> {
        let second = self.stream.get_ref().try_clone();
        match second.and_then(|stream| watch(stream, Interest::WRITABLE)) {
            Ok(room) => room.writable().await.map(|_| ()),
            Err(_) => {
                tokio::time::sleep(SECOND_LOOK).await;
                Ok(())
            }
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
