//! A stream socket, whichever kind: what the handshake and the copying strategy need of it.

use std::io::{self, IoSlice};
use std::rc::Rc;

use tokio::net::{TcpStream, UnixStream};

/// A stream socket.
pub(crate) trait Wire {
    /// Reads without waiting.
    fn try_read(&self, space: &mut [u8]) -> io::Result<usize>;
    /// Waits until a read may succeed.
    async fn wait_readable(&self) -> io::Result<()>;
    /// Writes without waiting.
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Waits until a write may succeed.
    async fn wait_writable(&self) -> io::Result<()>;
}

macro_rules! impl_for_socket {
    ($($socket:ty),+) => {$(
        impl Wire for $socket {
            fn try_read(&self, space: &mut [u8]) -> io::Result<usize> {
                Self::try_read(self, space)
            }

            async fn wait_readable(&self) -> io::Result<()> {
                self.readable().await
            }

            fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
                self.try_write_vectored(slices)
            }

            async fn wait_writable(&self) -> io::Result<()> {
                self.writable().await
            }
        }
    )+};
}

macro_rules! impl_for_pointer {
    ($($pointer:ty),+) => {$(
        impl<W: Wire> Wire for $pointer {
            fn try_read(&self, space: &mut [u8]) -> io::Result<usize> {
                W::try_read(self, space)
            }

            async fn wait_readable(&self) -> io::Result<()> {
                W::wait_readable(self).await
            }

            fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
                W::try_write(self, slices)
            }

            async fn wait_writable(&self) -> io::Result<()> {
                W::wait_writable(self).await
            }
        }
    )+};
}

impl_for_socket!(UnixStream, TcpStream);
impl_for_pointer!(&W, Rc<W>);
