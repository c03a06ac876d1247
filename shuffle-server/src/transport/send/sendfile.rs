//! The kernel takes payload by reference to its pages: no copy on this side, and none of its bytes passes through this process.
//!
//! ```text
//!   send(head, MORE)  sendfile(slot)  send(head, MORE)  sendfile(slot)  ...  send(ping n)
//!                         |                                                       |
//!                         '-- the page is read when the other side reads it ------'--> pong n: it has read everything before
//! ```
//!
//! Neither the return of `sendfile` nor TCP's acknowledgement says that a page is not needed any more. A ping in the stream
//! behind it does, once it is answered: so a slot is held until the pong. Its nonce is the number of slots sent before it,
//! with [`MARK`] added, which the core's own pings never have. The acknowledgement of a channel would not do: a channel that
//! is cancelled has none, and its frames may still be on the way.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::{Duration, Instant};

use buffer_pool::SlotRef;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use shuffle_protocol::ShuffleError;
use shuffle_protocol::error::ErrorKind;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::counters::Counted;
use super::{SendStrategy, Strategy};
use crate::node::Output;
use crate::transport::outbox::{MAX_SLICES, Outbox, WRITE_BYTES};
use crate::transport::tcp::reset_on_close;

/// Set in the nonces of this strategy's pings.
pub(crate) const MARK: u64 = 1 << 63;
/// Slots after which a ping follows even if more is to come.
const MARK_EVERY: u64 = 8;
/// Shorter payload is cheaper to copy than to refer to, and its slot is free at once.
const SHORTEST: u32 = 8 << 10;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct SendfileSend {
    pub(super) stream: Rc<TcpStream>,
    counted: Counted,
    /// A ping that is not answered for so long ends the connection.
    patience: Duration,
    held: RefCell<Held>,
}

/// Slots that the kernel may still read.
#[derive(Debug, Default)]
struct Held {
    slots: VecDeque<SlotRef>,
    /// How many were released, and how many the last ping answers for. All count from the connection's start.
    released: u64,
    marked: u64,
    /// Unanswered pings: what they answer for.
    marks: VecDeque<u64>,
    /// While there are such: when the socket last took something, or one was answered. A ping may have much before it.
    progress: Option<Instant>,
}

impl SendfileSend {
    pub(crate) fn new(stream: Rc<TcpStream>, counted: Counted, patience: Duration) -> Self {
        Self {
            stream,
            counted,
            patience,
            held: RefCell::default(),
        }
    }

    /// Puts a ping behind what is unsent, if there is enough that it would answer for.
    fn mark(&self, outbox: &mut Outbox) -> io::Result<()> {
        let mut held = self.held.borrow_mut();
        if !held.marks.is_empty() && held.progress.is_some_and(|since| since.elapsed() > self.patience) {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the other side reads, but does not answer",
            ));
        }
        let total = held.sent() + outbox.unsent_files();
        let runs_dry = outbox.unsent_payload() < WRITE_BYTES;
        if total > held.marked && (runs_dry || total - held.marked >= MARK_EVERY) {
            outbox.push(Output::Ping(MARK | total)).map_err(io::Error::other)?;
            held.marked = total;
            if held.marks.is_empty() {
                held.progress = Some(Instant::now());
            }
            held.marks.push_back(total);
        }
        Ok(())
    }

    /// One system call.
    fn step(&self, outbox: &mut Outbox, done: &mut Vec<SlotRef>) -> io::Result<()> {
        if let Some(range) = outbox.next_file() {
            let sent = self.stream.try_io(Interest::WRITABLE, || {
                let mut offset = range.offset();
                let length = usize::try_from(range.length()).unwrap_or(usize::MAX);
                Ok(rustix::fs::sendfile(
                    &*self.stream,
                    range.file(),
                    Some(&mut offset),
                    length,
                )?)
            })?;
            if sent == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the file has no such bytes",
                ));
            }
            let mut held = self.held.borrow_mut();
            let mut sent_whole = Vec::new();
            outbox.advance(sent, &mut sent_whole);
            held.slots.extend(sent_whole);
            held.progress = Some(Instant::now());
            self.counted.all().add_uncopied(sent);
        } else {
            let sent = {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let filled = outbox.gather(&mut slices);
                let flags = if outbox.is_longer_than(filled) {
                    SendFlags::NOSIGNAL | SendFlags::MORE
                } else {
                    SendFlags::NOSIGNAL
                };
                let slices = &slices[..filled];
                self.stream.try_io(Interest::WRITABLE, || {
                    Ok(sendmsg(
                        &*self.stream,
                        slices,
                        &mut SendAncillaryBuffer::default(),
                        flags,
                    )?)
                })?
            };
            let before = outbox.unsent_payload();
            outbox.advance(sent, done);
            self.held.borrow_mut().progress = Some(Instant::now());
            self.counted.all().add_copied(before - outbox.unsent_payload());
        }
        Ok(())
    }
}

impl SendStrategy for SendfileSend {
    fn strategy(&self) -> Strategy {
        Strategy::Sendfile
    }

    fn takes_file(&self, length: u32) -> bool {
        length >= SHORTEST
    }

    fn try_send(&self, outbox: &mut Outbox, done: &mut Vec<SlotRef>) -> io::Result<()> {
        self.mark(outbox)?;
        loop {
            while !outbox.is_empty() {
                self.step(outbox, done)?;
            }
            // What the socket took whole in one go has no ping behind it yet.
            self.mark(outbox)?;
            if outbox.is_empty() {
                return Ok(());
            }
        }
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn holds_slots(&self) -> bool {
        !self.held.borrow().slots.is_empty()
    }

    async fn ready(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    fn handle_pong(&self, nonce: u64, done: &mut Vec<SlotRef>) -> Result<(), ShuffleError> {
        if nonce & MARK == 0 {
            return Ok(());
        }
        self.held.borrow_mut().handle_read(nonce & !MARK, done)
    }

    async fn finish(self, done: &mut Vec<SlotRef>) {
        let Self { stream, held, .. } = self;
        let held = held.into_inner();
        if !held.slots.is_empty() {
            // What lies in the kernel is thrown away, before anybody writes into these slots.
            reset_on_close(&stream);
        }
        drop(stream);
        done.extend(held.slots);
    }
}

impl Held {
    /// Slots sent so far.
    fn sent(&self) -> u64 {
        self.released + u64::try_from(self.slots.len()).expect("invariant: usize fits u64")
    }

    /// The other side has read so many slots.
    fn handle_read(&mut self, count: u64, done: &mut Vec<SlotRef>) -> Result<(), ShuffleError> {
        if count > self.marked.min(self.sent()) {
            return Err(ShuffleError::new(
                ErrorKind::Protocol,
                "a pong answers a ping that was not sent",
            ));
        }
        // One that comes late, or again, releases nothing.
        while self.released < count {
            done.extend(self.slots.pop_front());
            self.released += 1;
        }
        while self.marks.front().is_some_and(|mark| *mark <= count) {
            self.marks.pop_front();
            self.progress = Some(Instant::now());
        }
        Ok(())
    }
}
