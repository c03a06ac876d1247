//! The writing half of every connection, and what couples it to the reading half: nothing but [`MAX_UNSENT_BYTES`].
//!
//! ```text
//!   signal -> poll the core -> outbox -> send strategy -> slots that the kernel is done with -> core
//! ```

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use buffer_pool::SlotRef;
use shuffle_protocol::ShuffleError;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{Error as ErrorMessage, Goodbye};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::SlotEntry;
use tokio::sync::Notify;

use super::outbox::{MAX_UNSENT_BYTES, Outbox, WRITE_BYTES};
use super::send::{SendStrategy, Strategy};
use super::tcp::connection_lost;
use crate::node::Output;
use crate::notify::Signal;
use crate::server::Service;

/// How long the last words to a connection may take.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum End {
    /// The other side closed between two frames, with or without a goodbye.
    Closed,
    /// The connection broke.
    Broken(ShuffleError),
    /// The other side broke the protocol, or the core wants it gone: it is told why.
    Refused(ShuffleError),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Broken(connection_lost(&error))
    }
}

/// The other side closed; whether something was cut off decides what that is.
pub(crate) fn end_of_stream(at_boundary: bool) -> End {
    if at_boundary {
        End::Closed
    } else {
        End::Broken(ShuffleError::new(
            ErrorKind::ConnectionLost,
            "the connection was closed in the middle of a frame",
        ))
    }
}

/// The output of one connection.
pub(crate) struct Flow<S> {
    service: Rc<Service>,
    signal: Rc<Signal>,
    /// Payload goes inline: slots are leased until they are sent.
    inline: bool,
    outbox: RefCell<Outbox>,
    send: S,
    drained: Notify,
}

impl<S: SendStrategy> Flow<S> {
    pub(crate) fn new(service: &Rc<Service>, signal: Rc<Signal>, inline: bool, send: S) -> Self {
        Self {
            service: Rc::clone(service),
            signal,
            inline,
            outbox: RefCell::default(),
            send,
            drained: Notify::new(),
        }
    }

    /// Which way its bytes go.
    pub(crate) fn strategy(&self) -> Strategy {
        self.send.strategy()
    }

    /// Writes until the connection breaks or the core wants it closed. `poll` asks the core for at most so many bytes of payload
    /// and says whether there is more.
    pub(crate) async fn run(&self, mut poll: impl FnMut(u64, &mut Vec<Output>) -> bool) -> End {
        let mut outputs = Vec::new();
        loop {
            if let Some(reason) = self.signal.close_reason() {
                return End::Refused(reason);
            }
            let more = match self.fill(&mut outputs, &mut poll) {
                Ok(more) => more,
                Err(error) => return End::Refused(error),
            };
            if self.is_idle() {
                if more {
                    continue;
                }
                tokio::select! {
                    () = self.signal.wait() => continue,
                    () = self.send.stirs() => {}
                }
            }
            match self.send() {
                Ok(()) => {
                    if more {
                        // Reading and the other connections get their turn.
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::select! {
                        ready = self.send.ready() => if let Err(error) = ready { return error.into() },
                        () = self.signal.wait() => {}
                    }
                }
                Err(error) => return error.into(),
            }
        }
    }

    /// Resolves while the other side takes what is sent to it: only then more is read from it.
    pub(crate) async fn may_read(&self) {
        while self.outbox.borrow().unsent_heads() >= MAX_UNSENT_BYTES {
            self.drained.notified().await;
        }
    }

    /// The last words: what is still to be said, then why; given up after a second. False: they did not get through.
    pub(crate) async fn say_goodbye(
        &self,
        reason: &ShuffleError,
        mut poll: impl FnMut(u64, &mut Vec<Output>) -> bool,
    ) -> bool {
        let mut outputs = Vec::new();
        let farewell = async {
            loop {
                let more = self.fill(&mut outputs, &mut poll).unwrap_or(false);
                if !self.flush().await {
                    return false;
                }
                if !more {
                    break;
                }
            }
            let goodbye = Goodbye {
                reason: Some(ErrorMessage::from(reason)),
            };
            let pushed = self
                .outbox
                .borrow_mut()
                .push(Output::Control(Box::new(Message::Goodbye(goodbye))));
            pushed.is_ok() && self.flush().await
        };
        tokio::time::timeout(FAREWELL, farewell).await.unwrap_or(false)
    }

    /// A pong came whose ping may have been the strategy's: the other side has read everything before it.
    ///
    /// # Errors
    /// No such ping was sent.
    pub(crate) fn handle_pong(&self, nonce: u64) -> Result<(), ShuffleError> {
        let mut done = Vec::new();
        let known = self.send.handle_pong(nonce, &mut done);
        self.sent(&done);
        known
    }

    /// The connection is over: resolves once the kernel reads none of its slots any more, and the core knows that.
    pub(crate) async fn finish(self) {
        let Self {
            service, outbox, send, ..
        } = self;
        let mut done = Vec::new();
        // First: the strategy closes the socket before anything is given back.
        send.finish(&mut done).await;
        done.extend(outbox.into_inner().abandon());
        report_sent(&service, &done);
    }

    /// Whether the kernel may still read slots that were sent.
    pub(crate) fn holds_slots(&self) -> bool {
        self.send.holds_slots()
    }

    async fn flush(&self) -> bool {
        while !self.is_idle() {
            match self.send() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.send.ready().await.is_err() {
                        return false;
                    }
                }
                Err(_) => return false,
            }
        }
        true
    }

    fn is_idle(&self) -> bool {
        self.outbox.borrow().is_empty() && self.send.is_idle()
    }

    fn fill(
        &self,
        outputs: &mut Vec<Output>,
        poll: &mut impl FnMut(u64, &mut Vec<Output>) -> bool,
    ) -> Result<bool, ShuffleError> {
        let mut outbox = self.outbox.borrow_mut();
        let budget = WRITE_BYTES.saturating_sub(outbox.unsent_payload());
        if budget == 0 || outbox.unsent_heads() >= MAX_UNSENT_BYTES {
            return Ok(true);
        }
        let more = poll(u64::try_from(budget).unwrap_or(u64::MAX), outputs);
        let (mut failure, mut lost) = (None, Vec::new());
        for output in outputs.drain(..) {
            // Behind one that could not be sent nothing is: the connection ends.
            let joins = matches!(output, Output::Joined { .. }) && failure.is_none();
            match output {
                Output::Slot { entry, slot } | Output::Joined { entry, slot } if self.inline => {
                    if let Err(error) = self.push_payload(&mut outbox, entry, slot, joins) {
                        lost.push(slot);
                        failure = failure.or(Some(error));
                    }
                }
                other => {
                    if let Err(error) = outbox.push(other) {
                        failure = failure.or(Some(ShuffleError::from(error)));
                    }
                }
            }
        }
        outbox.finish_run();
        self.sent(&lost);
        failure.map_or(Ok(more), Err)
    }

    fn push_payload(
        &self,
        outbox: &mut Outbox,
        entry: SlotEntry,
        slot: SlotRef,
        joins: bool,
    ) -> Result<(), ShuffleError> {
        let SlotEntry { offset, length, .. } = entry;
        if self.send.takes_file(length) {
            outbox.push_file(entry, slot, self.service.file_range(slot, offset, length)?, joins);
        } else {
            outbox.push_payload(entry, slot, self.service.lease(slot, offset, length)?, joins);
        }
        Ok(())
    }

    fn send(&self) -> io::Result<()> {
        let mut done = Vec::new();
        let sent = {
            let mut outbox = self.outbox.borrow_mut();
            let sent = self.send.try_send(&mut outbox, &mut done);
            if outbox.unsent_heads() < MAX_UNSENT_BYTES {
                self.drained.notify_one();
            }
            sent
        };
        self.sent(&done);
        sent
    }

    fn sent(&self, slots: &[SlotRef]) {
        report_sent(&self.service, slots);
    }
}

fn report_sent(service: &Service, slots: &[SlotRef]) {
    if !slots.is_empty() {
        service.with(|node, now| {
            for slot in slots {
                node.handle_written(now, *slot);
            }
        });
    }
}
