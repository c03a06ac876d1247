//! An executor on this node: descriptors over the Unix socket, payload in shared memory.
//!
//! Two facts end a session: the socket closes, or the process dies. After the first the buffers that the process holds are
//! quarantined until the second.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use buffer_pool::JobKey;
use shuffle_protocol::ShuffleError;
use shuffle_protocol::control::Goodbye;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::{Deframer, Event, Frame};
use shuffle_protocol::session::CheckedHello;
use tokio::net::UnixStream;
use tracing::{debug, info, warn};

use super::accept::HalfOpen;
use super::credentials::{Process, identify};
use super::flow::{End, Flow, end_of_stream};
use super::handshake::{self, Refusal};
use super::local_socket::LocalSocket;
use super::send::{CopySend, SendStrategy};
use super::wire::Wire as _;
use crate::node::SessionId;
use crate::notify::Signal;
use crate::server::{Service, spawn};

/// Bytes taken from a socket at once; all sessions share one buffer of this size, for control data only.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// A process that is killed closes its sockets a moment before its death is known.
const DEATH_RATTLE: Duration = Duration::from_millis(100);

/// Serves one connection to the Unix socket from its first byte to its last.
pub(crate) async fn serve_unix(service: Rc<Service>, stream: UnixStream, half_open: HalfOpen) {
    match greet(&service, &stream).await {
        Ok((session, signal, process)) => {
            drop(half_open);
            info!(
                "executor {:?} of job {} attached (process {})",
                session.name, session.job.0, process.pid
            );
            let stream = match LocalSocket::new(stream) {
                Ok(stream) => stream,
                Err(error) => {
                    warn!("executor {:?} of job {} is lost: {error}", session.name, session.job.0);
                    return session.service.close_session(session.id, process.is_alive());
                }
            };
            let flow = Flow::new(&service, signal, false, CopySend::new(&stream));
            session.run(&stream, flow, process).await;
        }
        Err(refusal) => {
            service.count_refused();
            debug!("refused on the executors' socket: {}", refusal.error());
            handshake::refuse(&stream, &refusal);
        }
    }
}

struct Session {
    service: Rc<Service>,
    id: SessionId,
    job: JobKey,
    name: String,
    /// It said goodbye.
    left: Cell<bool>,
}

async fn greet(service: &Rc<Service>, stream: &UnixStream) -> Result<(Session, Rc<Signal>, Process), Refusal> {
    let process = identify(stream, &service.config.executor)?;
    let CheckedHello::Executor(hello) = handshake::receive(service, stream).await? else {
        let error = ShuffleError::new(
            ErrorKind::InvalidRequest,
            "this is the executors' socket; another server connects to the port",
        );
        return Err(Refusal::Told(error));
    };
    let job = JobKey(hello.job.value());
    let features = hello.features;
    let info = handshake::session_info(hello, false);
    let name = info.name.clone();
    let (id, signal) = service.open_session(|core, now| core.handle_session_opened(now, info))?;
    if let Err(refusal) = handshake::welcome_executor(service, stream, job, features).await {
        // It has nothing mapped through which it could hold a buffer.
        service.close_session(id, false);
        return Err(refusal);
    }
    Ok((
        Session {
            service: Rc::clone(service),
            id,
            job,
            name,
            left: Cell::new(false),
        },
        signal,
        process,
    ))
}

impl Session {
    async fn run(self, stream: &LocalSocket, flow: Flow<impl SendStrategy>, process: Process) {
        let poll =
            |_: u64, outputs: &mut Vec<_>| self.service.with(|core, now| core.poll_session(now, self.id, outputs));
        let mut deframer = Deframer::new();
        let end = tokio::select! {
            end = self.read(stream, &flow, &mut deframer) => Ok(end),
            end = flow.run(poll) => match end {
                // It no longer listens, which it may have said in a goodbye.
                End::Broken(error) => Err(error),
                end => Ok(end),
            },
            () = process.exited() => Err(died()),
        };
        let end = match end {
            Ok(end) => end,
            // What the process said before still counts.
            Err(error) => tokio::time::timeout(DEATH_RATTLE, self.read(stream, &flow, &mut deframer))
                .await
                .unwrap_or(End::Broken(error)),
        };
        match &end {
            End::Closed => info!("executor {:?} of job {} left", self.name, self.job.0),
            End::Broken(error) => info!("executor {:?} of job {} is gone: {error}", self.name, self.job.0),
            End::Refused(error) => {
                info!("executor {:?} of job {} is sent away: {error}", self.name, self.job.0);
                flow.say_goodbye(error, poll).await;
            }
        }
        flow.finish().await;
        let left = self.left.get();
        if !left && !matches!(end, End::Refused(_)) {
            let _ = tokio::time::timeout(DEATH_RATTLE, process.exited()).await;
        }
        // Whoever says goodbye touches nothing any more, not even what was granted to it since.
        self.service.close_session(self.id, !left && process.is_alive());
        if self.service.with(|core, _| core.is_session_lingering(self.id)) {
            // The process lives on without its socket, with buffers that are still its own.
            let service = Rc::clone(&self.service);
            let id = self.id;
            spawn(async move {
                process.exited().await;
                service.with(|core, now| core.handle_process_exited(now, id));
            });
        }
    }

    async fn read(&self, stream: &LocalSocket, flow: &Flow<impl SendStrategy>, deframer: &mut Deframer) -> End {
        let mut frames = Vec::new();
        loop {
            flow.may_read().await;
            let read = {
                let mut buffer = self.service.read_buffer.borrow_mut();
                match stream.try_read(&mut buffer) {
                    Ok(0) => return end_of_stream(deframer.is_at_boundary()),
                    Ok(read) => {
                        let full = read == buffer.len();
                        decode(deframer, &buffer[..read], &mut frames)
                            .map(|()| full)
                            .map_err(End::Refused)
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
                    Err(error) => return error.into(),
                }
            };
            let handled = self.handle(&mut frames);
            match read.and_then(|more| handled.map(|()| more)) {
                Ok(true) => tokio::task::yield_now().await,
                Ok(false) => {
                    if let Err(error) = stream.wait_readable().await {
                        return error.into();
                    }
                }
                Err(end) => return end,
            }
        }
    }

    fn handle(&self, frames: &mut Vec<Frame>) -> Result<(), End> {
        if frames.is_empty() {
            return Ok(());
        }
        if frames.iter().any(asks_status) {
            self.service.refresh_gauges();
        }
        self.service.with(|core, now| {
            for frame in frames.drain(..) {
                if let Frame::Control(message) = &frame
                    && let Message::Goodbye(goodbye) = &**message
                {
                    self.left.set(lets_go(goodbye));
                    return Err(End::Closed);
                }
                core.handle_session_frame(now, self.id, frame).map_err(End::Refused)?;
            }
            Ok(())
        })
    }
}

/// Whether the frame asks for the server's status, which takes the driver's own gauges along.
pub(crate) fn asks_status(frame: &Frame) -> bool {
    matches!(frame, Frame::Control(message) if matches!(**message, Message::Status(_)))
}

/// Whether who says so touches no buffer any more. Whoever gives the server up for another reason still holds views.
fn lets_go(goodbye: &Goodbye) -> bool {
    let reason = goodbye.reason.clone().map(ShuffleError::from);
    reason.is_some_and(|reason| matches!(reason.kind(), ErrorKind::SessionClosed))
}

/// Decodes everything in `bytes`.
fn decode(deframer: &mut Deframer, mut bytes: &[u8], frames: &mut Vec<Frame>) -> Result<(), ShuffleError> {
    while !bytes.is_empty() {
        let consumed = deframer.handle_bytes(bytes);
        bytes = &bytes[consumed..];
        while let Some(event) = deframer.poll_event()? {
            match event {
                Event::Frame(frame) => frames.push(frame),
                Event::Data(_) => {
                    return Err(ShuffleError::new(
                        ErrorKind::Protocol,
                        "payload came over the Unix socket, where descriptors belong",
                    ));
                }
            }
        }
    }
    Ok(())
}

fn died() -> ShuffleError {
    ShuffleError::new(ErrorKind::ExecutorDied, "the executor's process has ended")
}
