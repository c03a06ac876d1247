//! Moving bytes over TCP without touching them: what arrives goes straight into the buffer it is for.
//!
//! ```text
//!   readv [ rest of the payload -> slot in the arena ][ the next 88 bytes -> tail ]
//!                                                       \__ never payload: see TAIL_BYTES
//! ```
//!
//! One system call takes in a buffer and the head of the next one.

use std::io::{self, IoSliceMut};
use std::rc::Rc;

use shuffle_protocol::ShuffleError;
use shuffle_protocol::frame::{DataHead, Deframer, Entry as _, Event, Frame, FrameError, HEADER_BYTES, SlotEntry};
use tokio::net::TcpStream;

use crate::notify::Signal;

/// How far beyond the start of a frame may be read. The smallest data frame has exactly so many bytes before its payload, and
/// behind a frame without payload comes at least one whole head: so what is read never contains payload.
const TAIL_BYTES: usize = HEADER_BYTES + SlotEntry::BYTES as usize;
const SCRATCH_BYTES: usize = 64 << 10;

/// Where a payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Into {
    /// To the buffer that lies in the connection's [`Signal`], from its start.
    Buffer,
    /// To that buffer, from this byte on; beside it lies what is being read.
    Part(usize),
    /// Read and forgotten.
    Nowhere,
}

/// What has arrived.
pub(crate) enum Incoming {
    /// A frame without payload.
    Frame(Frame),
    /// The head of a data frame: say with [`Inbound::expect`] where its payload goes.
    Head(DataHead),
    /// The payload of that head is complete.
    Payload(DataHead),
}

struct Payload {
    head: DataHead,
    into: Into,
    filled: usize,
    total: usize,
}

/// The reading half of one TCP connection.
pub(crate) struct Inbound {
    signal: Rc<Signal>,
    deframer: Deframer,
    payload: Option<Payload>,
    tail: [u8; TAIL_BYTES],
    // The part of `tail` that has not been decoded yet.
    fresh: std::ops::Range<usize>,
    // Bytes of the current frame that the deframer has taken from `tail`.
    begun: usize,
    scratch: Vec<u8>,
}

impl Inbound {
    /// Goes on where the handshake's deframer stopped, which is between two frames.
    pub(crate) fn new(signal: Rc<Signal>) -> Self {
        Self {
            signal,
            deframer: Deframer::new(),
            payload: None,
            tail: [0; TAIL_BYTES],
            fresh: 0..0,
            begun: 0,
            scratch: Vec::new(),
        }
    }

    /// The next thing that has arrived completely; `None`: read more.
    ///
    /// # Errors
    /// What is on the wire is no frame.
    pub(crate) fn next(&mut self) -> Result<Option<Incoming>, FrameError> {
        if let Some(payload) = self.payload.take_if(|payload| payload.filled == payload.total) {
            if let Some(buffer) = self.signal.arriving().take() {
                // It is the core's from here on; a drop would end it as one whose bytes nobody wants.
                buffer.hand_over();
            }
            return Ok(Some(Incoming::Payload(payload.head)));
        }
        if self.payload.is_some() {
            return Ok(None);
        }
        loop {
            let event = self.deframer.poll_event()?;
            if event.is_some() {
                self.begun = 0;
            }
            match event {
                Some(Event::Frame(frame)) => return Ok(Some(Incoming::Frame(frame))),
                Some(Event::Data(head)) => return Ok(Some(Incoming::Head(head))),
                None if self.fresh.is_empty() => return Ok(None),
                None => {
                    let consumed = self.deframer.handle_bytes(&self.tail[self.fresh.clone()]);
                    self.fresh.start += consumed;
                    self.begun += consumed;
                }
            }
        }
    }

    /// Says where the payload of `head` goes.
    pub(crate) fn expect(&mut self, head: DataHead, into: Into) {
        // A valid head has at least one entry, so nothing of its payload can have been read already.
        assert!(
            self.fresh.is_empty() && self.payload.is_none(),
            "invariant: no payload is read before its place is known"
        );
        let total = usize::try_from(head.payload_bytes).unwrap_or(usize::MAX);
        if into == Into::Nowhere {
            self.scratch.resize(SCRATCH_BYTES, 0);
        }
        self.payload = Some(Payload {
            head,
            into,
            filled: 0,
            total,
        });
    }

    /// Reads what is there, without waiting; 0 = the other side has closed.
    ///
    /// # Errors
    /// `WouldBlock`, or the connection is broken.
    pub(crate) fn try_read(&mut self, stream: &TcpStream) -> io::Result<usize> {
        let Some(payload) = &mut self.payload else {
            // Within a header; a body is read as long as it says that it is.
            return if self.begun < HEADER_BYTES {
                let read = stream.try_read(&mut self.tail[self.begun..])?;
                self.fresh = self.begun..self.begun + read;
                Ok(read)
            } else {
                let read = stream.try_read(self.deframer.space())?;
                self.deframer.handle_read(read);
                Ok(read)
            };
        };
        let wanted = payload.total - payload.filled;
        let mut arriving = self.signal.arriving();
        let target = match (payload.into, arriving.as_mut()) {
            (Into::Buffer, Some(buffer)) => &mut buffer[payload.filled..payload.total],
            (Into::Part(first), Some(buffer)) => &mut buffer[first + payload.filled..first + payload.total],
            (Into::Buffer | Into::Part(_), None) => return Err(io::ErrorKind::ConnectionAborted.into()),
            (Into::Nowhere, _) => {
                let length = wanted.min(SCRATCH_BYTES);
                &mut self.scratch[..length]
            }
        };
        let length = target.len();
        // The tail follows only what ends the payload.
        let tail = if length == wanted { &mut self.tail[..] } else { &mut [] };
        let read = stream.try_read_vectored(&mut [IoSliceMut::new(target), IoSliceMut::new(tail)])?;
        payload.filled += read.min(length);
        self.fresh = 0..read.saturating_sub(length);
        Ok(read)
    }

    /// Whether the end of the connection here cuts nothing off.
    pub(crate) fn is_at_boundary(&self) -> bool {
        self.payload.is_none() && self.fresh.is_empty() && self.deframer.is_at_boundary()
    }
}

/// Options of a connection between nodes, or of an executor's over TCP.
///
/// # Errors
/// The kernel refuses one of them.
pub(crate) fn configure(stream: &TcpStream, config: &crate::config::Config) -> io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    let timeouts = &config.timeouts;
    let bytes = |configured: u32| usize::try_from(configured).unwrap_or(usize::MAX);
    // Credits, acknowledgements and the end of a gather leave at once: nothing that follows is worth waiting for.
    socket.set_tcp_nodelay(true)?;
    // A peer that takes no bytes is dead after the same time as one that says nothing.
    socket.set_tcp_user_timeout(Some(timeouts.dead_peer))?;
    // Backs up the keepalive of the protocol while this process is stopped; the kernel counts it in whole seconds.
    let interval = timeouts.keepalive.max(std::time::Duration::from_secs(1));
    socket.set_tcp_keepalive(
        &socket2::TcpKeepalive::new()
            .with_time(interval)
            .with_interval(interval)
            .with_retries(3),
    )?;
    // What lies unsent in the kernel cannot be overtaken: an acknowledgement waits behind it. This limits that to a gather.
    if config.transport.unsent_bytes > 0 {
        socket.set_tcp_notsent_lowat(config.transport.unsent_bytes)?;
    }
    // The kernel grows both buffers with the connection's round trip, up to tcp_wmem and tcp_rmem; a fixed size ends that.
    if config.transport.send_buffer_bytes > 0 {
        socket.set_send_buffer_size(bytes(config.transport.send_buffer_bytes))?;
    }
    if config.transport.receive_buffer_bytes > 0 {
        socket.set_recv_buffer_size(bytes(config.transport.receive_buffer_bytes))?;
    }
    Ok(())
}

/// Makes the close that follows a reset: what is still unsent is thrown away, the other side learns at once.
pub(crate) fn reset_on_close(stream: &TcpStream) {
    // A socket that refuses this is already gone.
    let _ = socket2::SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO));
}

/// An I/O failure as everybody else sees it.
pub(crate) fn connection_lost(error: &io::Error) -> ShuffleError {
    ShuffleError::new(
        shuffle_protocol::error::ErrorKind::ConnectionLost,
        format!("the connection broke: {error}"),
    )
}
