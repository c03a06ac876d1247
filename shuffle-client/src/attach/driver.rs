//! The one task of a session that touches its socket.
//!
//! ```text
//!   outbox --take--> write queue --> socket        whatever is ready goes out as one batch, nothing waits for more
//!   socket --> deframer --> dispatch --> writers, gates, requests
//! ```
//!
//! It reads always, whether its writes go through or not: what can come is bounded by granted buffers and by credit.

use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::frame::{DataHead, Deframer, Event, FrameKind};
use shuffle_protocol::session::{Keepalive, KeepaliveAction};

use super::dispatch::{Asked, Dispatch};
use super::handshake::Established;
use super::outbox::Taken;
use super::shared::{Lifeline, SessionShared};
use super::socket::Socket;
use super::write_queue::WriteQueue;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Reads before the other tasks of the runtime get a turn.
const READS_PER_TURN: u32 = 8;
/// No more is taken from the outbox while so many bytes wait for the socket.
const QUEUE_BYTES: usize = 1 << 20;

pub(super) struct Driver {
    socket: Socket,
    deframer: Deframer,
    dispatch: Dispatch,
    keepalive: Keepalive,
    read_buffer: Box<[u8]>,
    payload: Option<Payload>,
    queue: WriteQueue,
    nonce: u64,
    /// When this task ran last, and how long it may sleep while its runtime is not held up.
    ran_at: Instant,
    longest_sleep: Duration,
    /// The goodbye is in the queue.
    closing: bool,
}

/// A data frame whose payload is on its way.
struct Payload {
    head: DataHead,
    bytes: BytesMut,
    missing: usize,
}

impl Driver {
    pub(super) fn new(established: Established, lifeline: &Arc<Lifeline>) -> Self {
        let Established {
            socket,
            deframer,
            keepalive,
            keepalive_interval,
            ..
        } = established;
        Self {
            socket,
            deframer,
            dispatch: Dispatch::new(lifeline),
            keepalive,
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            payload: None,
            queue: WriteQueue::default(),
            nonce: 0,
            ran_at: Instant::now(),
            longest_sleep: keepalive_interval,
            closing: false,
        }
    }

    /// Runs until the session ends, and tells everybody why it did.
    pub(super) async fn run(mut self) {
        let reason = match self.drive().await {
            Err(error) => {
                self.say_why(&error);
                let facts = &self.shared().facts;
                error.job(facts.job).node(&facts.node)
            }
            Ok(()) => self.closed("the session is closed"),
        };
        tracing::debug!(%reason, "shuffle session ended");
        self.shared().end(reason);
    }

    async fn drive(&mut self) -> Result<()> {
        loop {
            self.take_output();
            let wrote = self.write()?;
            if self.closing && self.queue.is_empty() {
                return Ok(());
            }
            let read = self.read()?;
            self.keep_alive()?;
            if read || wrote && self.shared().outbox.has_some() {
                // The tasks that were woken run now, and what they have to say goes out together.
                let_others_run().await;
            } else {
                self.wait().await?;
            }
        }
    }

    async fn wait(&self) -> Result<()> {
        let writing = !self.queue.is_empty();
        tokio::select! {
            ready = self.socket.ready(writing) => ready.map_err(|error| self.lost(&error.to_string())),
            () = self.shared().outbox.ready() => Ok(()),
            () = tokio::time::sleep_until(self.keepalive.poll_timeout().into()) => Ok(()),
        }
    }

    // ------------------------------------------------------------------------------------------------- output

    fn take_output(&mut self) {
        while self.queue.bytes() < QUEUE_BYTES && !self.closing {
            match self.shared().outbox.take() {
                Taken::Batch(mut batch) => {
                    self.queue.push_batch(&mut batch);
                    self.shared().outbox.recycle(batch);
                }
                Taken::Nothing => break,
                Taken::Closing => {
                    let reason = self.closed("the executor is done");
                    self.queue.push_goodbye(&reason);
                    self.closing = true;
                }
            }
        }
    }

    /// Writes until nothing is left or the socket takes no more. True: it took something.
    fn write(&mut self) -> Result<bool> {
        let mut wrote = false;
        while !self.queue.is_empty() {
            let written = self.socket.try_write(&self.queue.pieces());
            match written {
                Ok(n) => self.queue.advance(n),
                Err(error) if is_transient(&error) => break,
                Err(error) => return Err(self.lost(&error.to_string())),
            }
            wrote = true;
        }
        if wrote {
            self.keepalive.handle_sent(Instant::now());
        }
        Ok(wrote)
    }

    fn keep_alive(&mut self) -> Result<()> {
        let now = Instant::now();
        if now.saturating_duration_since(self.ran_at) > 2 * self.longest_sleep {
            // The process was stopped, or something else held its runtime up. Whether the server is silent can only be
            // told from now on.
            self.keepalive.handle_received(now);
        }
        self.ran_at = now;
        match self.keepalive.poll(now) {
            KeepaliveAction::Nothing => Ok(()),
            KeepaliveAction::SendPing => {
                self.nonce += 1;
                self.queue.push_ping(FrameKind::Ping, self.nonce);
                self.write().map(|_| ())
            }
            KeepaliveAction::Dead { silent_for } => {
                let kind = ErrorKind::PeerLost { silent_for };
                Err(ShuffleError::new(kind, "the node's shuffle server").node(&self.shared().facts.node))
            }
        }
    }

    /// The server is told why the session ends, if it can be told at once and had no part in it.
    fn say_why(&mut self, error: &ShuffleError) {
        if matches!(error.kind(), ErrorKind::Protocol | ErrorKind::PeerLost { .. }) && self.queue.is_empty() {
            self.queue.push_goodbye(error);
            let _ = self.write();
        }
    }

    // -------------------------------------------------------------------------------------------------- input

    /// Reads what is there, up to a turn's worth. True: there was something.
    fn read(&mut self) -> Result<bool> {
        for reads in 0..READS_PER_TURN {
            let n = match self.read_some() {
                Ok(0) => return Err(self.lost("the server closed the connection")),
                Ok(n) => n,
                Err(error) if is_transient(&error) => return Ok(reads > 0),
                Err(error) => return Err(self.lost(&error.to_string())),
            };
            self.keepalive.handle_received(Instant::now());
            self.handle_bytes(n)?;
        }
        Ok(true)
    }

    /// Into the payload that is on its way, or else into the read buffer. Payload counts as 0 bytes of the latter.
    fn read_some(&mut self) -> io::Result<usize> {
        self.socket.try_read(&mut self.read_buffer)
    }

    fn handle_bytes(&mut self, n: usize) -> Result<()> {
        let mut at = 0;
        while at < n {
            if let Some(payload) = &mut self.payload {
                let taken = payload.missing.min(n - at);
                payload.bytes.put_slice(&self.read_buffer[at..at + taken]);
                payload.missing -= taken;
                at += taken;
                self.finish_payload()?;
                continue;
            }
            at += self.deframer.handle_bytes(&self.read_buffer[at..n]);
            while let Some(event) = self.deframer.poll_event()? {
                self.handle_event(event)?;
            }
        }
        Ok(())
    }

    fn handle_event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Frame(frame) => match self.dispatch.handle_frame(frame)? {
                Asked::Nothing => {}
                Asked::Pong(nonce) => self.queue.push_ping(FrameKind::Pong, nonce),
            },
            Event::Data(head) => {
                let missing = usize::try_from(head.payload_bytes).expect("invariant: Linux has at least 32 bits");
                self.payload = Some(Payload {
                    head,
                    bytes: BytesMut::with_capacity(missing),
                    missing,
                });
                self.finish_payload()?;
            }
        }
        Ok(())
    }

    fn finish_payload(&mut self) -> Result<()> {
        match self.payload.take_if(|payload| payload.missing == 0) {
            Some(payload) => self.dispatch.handle_data(&payload.head, payload.bytes),
            None => Ok(()),
        }
    }

    // ------------------------------------------------------------------------------------------------ helpers

    fn shared(&self) -> &Arc<SessionShared> {
        self.dispatch.shared()
    }

    fn lost(&self, message: &str) -> ShuffleError {
        ShuffleError::new(ErrorKind::ConnectionLost, message)
            .job(self.shared().facts.job)
            .node(&self.shared().facts.node)
    }

    fn closed(&self, message: &str) -> ShuffleError {
        ShuffleError::new(ErrorKind::SessionClosed, message)
            .job(self.shared().facts.job)
            .node(&self.shared().facts.node)
    }
}

impl Drop for Driver {
    /// Also when the runtime drops the task: nobody waits for a driver that is gone.
    fn drop(&mut self) {
        let reason = self.closed("the runtime of the session was shut down");
        self.shared().end(reason);
        self.shared().done.cancel();
    }
}

/// Every task that is ready runs before this one goes on. Unlike `yield_now` it does not ask the kernel for events in between.
async fn let_others_run() {
    let mut waited = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
