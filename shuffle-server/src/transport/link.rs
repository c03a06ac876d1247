//! A TCP connection with payload inline: to another server, or to an executor that has none.
//!
//! Reading and writing are independent; both end together. Which of the two it is shows only in [`Remote`].

use std::io;
use std::rc::Rc;

use buffer_pool::JobKey;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::{DataHead, Frame};
use shuffle_protocol::{NodeAddress, ShuffleError};
use tokio::net::TcpStream;
use tracing::info;

use super::flow::{End, FAREWELL, Flow, end_of_stream};
use super::local::asks_status;
use super::send::{Chosen, SendStrategy};
use super::tcp::{Inbound, Incoming, Into, reset_on_close};
use crate::node::{Landing, LinkId, Output, SessionId};
use crate::notify::Signal;
use crate::server::Service;

/// Reads without waiting before the other connections get their turn.
const READS_PER_TURN: u32 = 16;

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(crate) enum Remote {
    /// Another server.
    Node(LinkId, NodeAddress),
    /// An executor.
    Executor(SessionId, JobKey, String),
}

/// Carries a connection that has passed its handshake to its end.
pub(crate) async fn carry(service: Rc<Service>, remote: Remote, stream: TcpStream, signal: Rc<Signal>) {
    let stream = Rc::new(stream);
    let chosen = match &remote {
        Remote::Node(..) => Chosen::for_node(&service, &stream),
        Remote::Executor(..) => Ok(Chosen::inline(&stream)),
    };
    let send = match chosen {
        Ok(send) => send,
        Err(error) => {
            info!("{} cannot be sent to: {error}", remote.name());
            let flow = Flow::new(&service, signal, true, Chosen::inline(&stream));
            flow.say_goodbye(&error, |_, _| false).await;
            return remote.close(&service, error);
        }
    };
    let flow = Flow::new(&service, Rc::clone(&signal), true, send);
    info!("{} is sent to by {}", remote.name(), flow.strategy());
    let mut inbound = Inbound::new(Rc::clone(&signal));
    let reading = Reading {
        service: &service,
        remote: &remote,
        stream: &stream,
        flow: &flow,
        signal: &signal,
    };
    let mut poll = |budget: u64, outputs: &mut Vec<Output>| remote.poll(&service, budget, outputs);
    let end = tokio::select! {
        end = reading.run(&mut inbound) => end,
        end = flow.run(&mut poll) => end,
    };
    // The lease on the buffer that was arriving ends before the core gives the buffer to somebody else.
    signal.abandon();
    let reason = match end {
        End::Closed => ShuffleError::new(ErrorKind::ConnectionLost, "the other side closed the connection"),
        End::Broken(error) => {
            reset_on_close(&stream);
            error
        }
        End::Refused(error) => {
            let told = flow.say_goodbye(&error, &mut poll).await;
            if !told || flow.holds_slots() && !is_closed_by_peer(&stream).await {
                reset_on_close(&stream);
            }
            error
        }
    };
    info!("{} is gone: {reason}", remote.name());
    // A reset, where there is one, comes before the buffers are given back.
    drop(stream);
    remote.close(&service, reason);
    flow.finish().await;
}

/// Resolves when the other side has closed, which it does once it has read the goodbye; false: it takes too long.
async fn is_closed_by_peer(stream: &TcpStream) -> bool {
    let mut unheard = [0; 4096];
    let closed = async {
        loop {
            match stream.try_read(&mut unheard) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if stream.readable().await.is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    };
    tokio::time::timeout(FAREWELL, closed).await.is_ok()
}

/// The reading half.
struct Reading<'a, S> {
    service: &'a Service,
    remote: &'a Remote,
    stream: &'a TcpStream,
    flow: &'a Flow<S>,
    signal: &'a Signal,
}

impl<S: SendStrategy> Reading<'_, S> {
    async fn run(&self, inbound: &mut Inbound) -> End {
        let mut reads: u32 = 0;
        let mut has_read = false;
        loop {
            if let Some(reason) = self.signal.close_reason() {
                return End::Refused(reason);
            }
            match self.take_in(inbound) {
                Ok(false) if has_read => self.remote.handle_progress(self.service),
                Ok(_) => {}
                Err(end) => return end,
            }
            has_read = false;
            self.flow.may_read().await;
            match inbound.try_read(self.stream) {
                Ok(0) => return end_of_stream(inbound.is_at_boundary()),
                Ok(_) => {
                    has_read = true;
                    reads = reads.wrapping_add(1);
                    if reads.is_multiple_of(READS_PER_TURN) {
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Err(error) = self.stream.readable().await {
                        return error.into();
                    }
                }
                Err(error) => return error.into(),
            }
        }
    }

    /// Gives the core everything that has arrived completely. False: nothing has.
    fn take_in(&self, inbound: &mut Inbound) -> Result<bool, End> {
        let mut any = false;
        while let Some(incoming) = inbound.next().map_err(|error| End::Refused(error.into()))? {
            any = true;
            match incoming {
                Incoming::Frame(Frame::Control(message)) if matches!(*message, Message::Goodbye(_)) => {
                    return Err(goodbye(*message));
                }
                Incoming::Frame(frame) => {
                    if asks_status(&frame) {
                        self.service.refresh_gauges();
                    }
                    if let Frame::Pong(nonce) = frame {
                        self.flow.handle_pong(nonce).map_err(End::Refused)?;
                    }
                    self.remote.handle_frame(self.service, frame).map_err(End::Refused)?;
                }
                Incoming::Head(head) => {
                    let landing = self.remote.handle_head(self.service, &head).map_err(End::Refused)?;
                    let place = match landing {
                        Landing::Slot(_) => Into::Buffer,
                        Landing::Part(_, offset) => Into::Part(usize::try_from(offset).unwrap_or(usize::MAX)),
                        Landing::Discard => Into::Nowhere,
                    };
                    if let Landing::Slot(slot) | Landing::Part(slot, _) = landing {
                        let buffer = self.service.writable(slot).map_err(End::Refused)?;
                        self.signal.expect(buffer, matches!(landing, Landing::Part(..)));
                    }
                    inbound.expect(head, place);
                }
                Incoming::Payload(head) => {
                    // What is read after a reset can have been overwritten where the sender's kernel only referred to it.
                    if let Some(error) = self.stream.take_error()? {
                        return Err(error.into());
                    }
                    self.remote.handle_payload(self.service, head).map_err(End::Refused)?;
                }
            }
        }
        Ok(any)
    }
}

/// The other side says why it closes.
fn goodbye(message: Message) -> End {
    match message {
        Message::Goodbye(goodbye) => goodbye
            .reason
            .map_or(End::Closed, |reason| End::Broken(ShuffleError::from(reason))),
        _ => End::Closed,
    }
}

impl Remote {
    fn handle_frame(&self, service: &Service, frame: Frame) -> Result<(), ShuffleError> {
        service.with(|core, now| match self {
            Self::Node(id, _) => core.handle_link_frame(now, *id, frame),
            Self::Executor(id, ..) => core.handle_session_frame(now, *id, frame),
        })
    }

    fn handle_head(&self, service: &Service, head: &DataHead) -> Result<Landing, ShuffleError> {
        service.with(|core, now| match self {
            Self::Node(id, _) => core.handle_link_data_head(now, *id, head),
            Self::Executor(id, ..) => core.handle_session_data_head(now, *id, head),
        })
    }

    /// Part of a buffer or of a frame has come: something large on a slow line is no silence.
    fn handle_progress(&self, service: &Service) {
        service.with(|core, now| match self {
            Self::Node(id, _) => core.handle_link_progress(now, *id),
            Self::Executor(id, ..) => core.handle_session_progress(now, *id),
        });
    }

    fn handle_payload(&self, service: &Service, head: DataHead) -> Result<(), ShuffleError> {
        service.with(|core, now| match self {
            Self::Node(id, _) => core.handle_link_data(now, *id, &head),
            Self::Executor(id, ..) => core.handle_session_data(now, *id, &head),
        })
    }

    fn poll(&self, service: &Service, budget: u64, outputs: &mut Vec<Output>) -> bool {
        service.with(|core, now| match self {
            Self::Node(id, _) => core.poll_link(now, *id, budget, outputs),
            Self::Executor(id, ..) => core.poll_session(now, *id, outputs),
        })
    }

    fn close(&self, service: &Service, reason: ShuffleError) {
        match self {
            Self::Node(id, node) => service.close_link(*id, reason.node(node)),
            // Nothing of an executor behind TCP is mapped: with its connection it is gone.
            Self::Executor(id, ..) => service.close_session(*id, false),
        }
    }
}

impl Remote {
    /// For logs.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Node(_, node) => format!("server {node}"),
            Self::Executor(_, job, name) => format!("executor {name:?} of job {}", job.0),
        }
    }
}
