//! Bytes to frames, in whatever pieces they arrive.
//!
//! ```text
//!              40 bytes                     body_bytes
//!   +--------+ there   +---------+  there  +-------+  poll_event
//!   | header |-------->| body    |-------->| ready |------------> header (after Data: first the caller's payload)
//!   +--------+         +---------+         +-------+
//!        \ bad header        bad body /
//!         \--------> failed <--------/     for good: the next frame cannot be found
//! ```
//!
//! Memory: the header lies in the struct. The body's buffer grows with what has arrived (at most to twice that, and
//! never beyond the checked length), and is used again as soon as the batches cut from it are dropped; only that of
//! a long control message is not kept.

use bytes::BytesMut;

use super::header::{FrameKind, HEADER_BYTES, Header};
use super::{EndEntry, Entry, Event, FrameError};
use crate::limits::{MAX_BATCH_ENTRIES, MAX_HANDSHAKE_BYTES};

/// Finds the frames in a stream of bytes. The caller reads; this only says how much it wants and what it found.
///
/// ```
/// use bytes::BytesMut;
/// use shuffle_protocol::frame::{Deframer, Event, Frame, FrameKind, encode_ping};
///
/// let mut wire = BytesMut::new();
/// encode_ping(FrameKind::Ping, 7, &mut wire);
///
/// let mut deframer = Deframer::new();
/// let consumed = deframer.handle_bytes(&wire);
/// assert_eq!(consumed, wire.len());
/// assert_eq!(deframer.poll_event(), Ok(Some(Event::Frame(Frame::Ping(7)))));
/// assert!(deframer.is_at_boundary());
/// ```
#[derive(Debug)]
pub struct Deframer {
    /// The header so far: `header_filled` bytes of it are there.
    header: [u8; HEADER_BYTES],
    header_filled: usize,
    /// The header once it is whole and checked.
    current: Option<Header>,
    /// The body so far: `body_filled` bytes of it are there, the rest is room given out by `space`.
    body: BytesMut,
    body_filled: usize,
    failed: Option<FrameError>,
    handshaking: bool,
}

/// The least room for a body that is given out at once, in bytes, if that much is wanted.
const ROOM: usize = 16 << 10;
/// The longest body after which its buffer is kept for the next, in bytes: any batch, but no long control message.
const KEPT: usize = 64 << 10;

const _: () = assert!(KEPT >= (MAX_BATCH_ENTRIES * EndEntry::BYTES) as usize);

impl Deframer {
    /// At the beginning of a frame.
    pub fn new() -> Self {
        Self {
            header: [0; HEADER_BYTES],
            header_filled: 0,
            current: None,
            body: BytesMut::new(),
            body_filled: 0,
            failed: None,
            handshaking: false,
        }
    }

    /// At the beginning of a connection with a stranger: until [`Deframer::handle_established`] only control frames of at
    /// most [`MAX_HANDSHAKE_BYTES`] are accepted.
    pub fn for_handshake() -> Self {
        Self {
            handshaking: true,
            ..Self::new()
        }
    }

    /// The handshake is done: all frames are accepted from the next on.
    pub fn handle_established(&mut self) {
        self.handshaking = false;
    }

    /// Room for bytes that are wanted next: never more than the rest of the current header or body, so payload is never
    /// read into it. Never empty.
    ///
    /// # Panics
    /// If an event is ready: the caller must take it with [`Deframer::poll_event`] first.
    pub fn space(&mut self) -> &mut [u8] {
        assert!(
            !self.is_ready(),
            "an event is ready and must be taken before more is read"
        );
        match &self.current {
            None => &mut self.header[self.header_filled..],
            Some(header) => {
                let wanted = header.body_bytes() as usize - self.body_filled;
                let room = wanted.min(self.body_filled.max(ROOM));
                self.body.resize(self.body_filled + room, 0);
                &mut self.body[self.body_filled..]
            }
        }
    }

    /// `n` bytes were read into the room that [`Deframer::space`] gave.
    ///
    /// # Panics
    /// If that is more than there was room for.
    pub fn handle_read(&mut self, n: usize) {
        match &self.current {
            None => {
                assert!(n <= HEADER_BYTES - self.header_filled, "read beyond the header");
                self.header_filled += n;
            }
            Some(_) => {
                assert!(n <= self.body.len() - self.body_filled, "read beyond the room given");
                self.body_filled += n;
            }
        }
        self.parse_header();
    }

    /// Takes bytes that were read elsewhere, until an event is ready or all are taken. Returns how many were taken; the
    /// rest is to be offered again after [`Deframer::poll_event`], after a data head without its payload.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() && !self.is_ready() {
            let rest = &bytes[taken..];
            match &self.current {
                None => {
                    let n = rest.len().min(HEADER_BYTES - self.header_filled);
                    let end = self.header_filled + n;
                    self.header[self.header_filled..end].copy_from_slice(&rest[..n]);
                    self.header_filled = end;
                    taken += n;
                }
                Some(header) => {
                    let n = rest.len().min(header.body_bytes() as usize - self.body_filled);
                    self.body.truncate(self.body_filled);
                    self.body.extend_from_slice(&rest[..n]);
                    self.body_filled += n;
                    taken += n;
                }
            }
            self.parse_header();
        }
        taken
    }

    /// The next event, if the bytes for it are there.
    ///
    /// # Errors
    /// [`FrameError`] if they are no frame. The same error comes again from then on: the connection is of no more use.
    pub fn poll_event(&mut self) -> Result<Option<Event>, FrameError> {
        if !self.is_ready() {
            return Ok(None);
        }
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let header = self
            .current
            .take()
            .expect("invariant: ready and not failed means a header");
        self.header_filled = 0;
        let body = self.body.split_to(self.body_filled).freeze();
        self.body_filled = 0;
        if body.len() > KEPT {
            self.body = BytesMut::new();
        }
        match Event::decode(&header, body) {
            Ok(event) => Ok(Some(event)),
            Err(error) => {
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Whether nothing of a frame is here: an end of the connection now cuts no frame in two. Payload that the caller
    /// has not moved yet is not known here.
    pub fn is_at_boundary(&self) -> bool {
        self.header_filled == 0 && self.failed.is_none()
    }

    fn is_ready(&self) -> bool {
        self.failed.is_some()
            || self
                .current
                .is_some_and(|header| self.body_filled == header.body_bytes() as usize)
    }

    fn parse_header(&mut self) {
        if self.current.is_some() || self.header_filled < HEADER_BYTES {
            return;
        }
        match Header::decode(&self.header).and_then(|header| self.admit(header)) {
            Ok(header) => self.current = Some(header),
            Err(error) => self.failed = Some(error),
        }
    }

    fn admit(&self, header: Header) -> Result<Header, FrameError> {
        if self.handshaking {
            if header.kind != FrameKind::Control {
                return Err(FrameError::BeforeHandshake { got: header.kind });
            }
            if header.length > MAX_HANDSHAKE_BYTES {
                let (bytes, limit) = (header.length.into(), MAX_HANDSHAKE_BYTES);
                return Err(FrameError::ControlTooLarge { bytes, limit });
            }
        }
        Ok(header)
    }
}

impl Default for Deframer {
    fn default() -> Self {
        Self::new()
    }
}
