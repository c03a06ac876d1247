//! One executor's session: what it has open, and how its frames reach the right place.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use buffer_pool::{ArenaKind, Backing, BufferState};
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::frame::{Arena, DataHead, Frame, ReleaseEntry};
use shuffle_protocol::session::{Keepalive, KeepaliveAction};
use shuffle_protocol::{GateId, JobId, ShuffleError, StreamId, WriterId, error::ErrorKind};

use super::GateNo;
use crate::node::{ChannelNo, Holder, Landing, Node, Output, SessionId, SessionInfo, Sink, Timer};
use crate::partition::PartitionNo;

/// What one poll may give a driver at most; the rest comes with the next.
const BATCH: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionState {
    Open,
    /// The connection is gone, the process is not: what it holds stays quarantined.
    Lingering,
}

/// What one executor has open here.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) info: SessionInfo,
    pub(crate) sink: Sink,
    pub(crate) writers: BTreeMap<WriterId, PartitionNo>,
    /// Writers that failed, until the executor says that it knows.
    pub(crate) failed_writers: BTreeMap<WriterId, ShuffleError>,
    pub(crate) gates: BTreeMap<GateId, GateNo>,
    pub(crate) channels: BTreeMap<StreamId, ChannelNo>,
    /// Subpartitions whose limit was raised since the writer was last told.
    pub(crate) raised: VecDeque<(PartitionNo, u32)>,
    /// Requests that wait for buffers.
    pub(crate) waiting_requests: u32,
    keepalive: Option<Keepalive>,
    pub(super) state: SessionState,
}

impl Session {
    pub(crate) fn is_open(&self) -> bool {
        self.state == SessionState::Open
    }
}

impl<B: Backing> Node<B> {
    /// An executor has passed the handshake.
    ///
    /// # Errors
    /// Where the job's arenas can't be made, or there are too many jobs. A node that drains takes executors: what is here is
    /// to be read.
    pub fn handle_session_opened(&mut self, now: Instant, info: SessionInfo) -> Result<SessionId, ShuffleError> {
        let job = info.job;
        self.enter_job(job)?.sessions += 1;
        let keepalive = info.inline.then(|| self.keepalive(self.config.dead_peer_after, now));
        let timeout = keepalive.as_ref().map(Keepalive::poll_timeout);
        let id = self.sessions.insert(Session {
            info,
            sink: Sink::default(),
            writers: BTreeMap::new(),
            failed_writers: BTreeMap::new(),
            gates: BTreeMap::new(),
            channels: BTreeMap::new(),
            raised: VecDeque::new(),
            waiting_requests: 0,
            keepalive,
            state: SessionState::Open,
        });
        if let Some(at) = timeout {
            self.timers.set(at, Timer::Session(id));
        }
        Ok(id)
    }

    /// A frame from an executor.
    ///
    /// # Errors
    /// The executor broke the protocol: say so and close the session.
    pub fn handle_session_frame(&mut self, now: Instant, id: SessionId, frame: Frame) -> Result<(), ShuffleError> {
        let job = self.open_session(id)?.info.job;
        if let Some(keepalive) = self.sessions.get_mut(id).and_then(|session| session.keepalive.as_mut()) {
            keepalive.handle_received(now);
        }
        let outcome = self.dispatch_session_frame(now, id, job, frame);
        if outcome.is_err() {
            self.counters.refused += 1;
        }
        self.settle(now);
        outcome.map_err(|error| error.job(job))
    }

    fn dispatch_session_frame(
        &mut self,
        now: Instant,
        id: SessionId,
        job: JobId,
        frame: Frame,
    ) -> Result<(), ShuffleError> {
        match frame {
            Frame::Control(message) => return self.handle_request(now, id, *message),
            Frame::Slots(batch) => {
                for entry in batch.iter() {
                    self.hand_over(id, job, &entry)?;
                }
            }
            Frame::Release(batch) => {
                for entry in batch.iter() {
                    self.handle_release(id, job, entry)?;
                }
            }
            Frame::Ack(batch) => {
                for entry in batch.iter() {
                    self.handle_reader_ack(now, id, entry.stream, entry.number)?;
                }
            }
            Frame::Demand(batch) => {
                for entry in batch.iter() {
                    self.handle_demand(id, WriterId::from(entry.stream), entry.number);
                }
            }
            Frame::Ping(nonce) => {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.sink.out.push_back(Output::Pong(nonce));
                }
                self.wake_session(id);
            }
            Frame::Pong(_) => {}
            Frame::Credit(_) | Frame::Backlog(_) | Frame::Grant(_) | Frame::End(_) => {
                return Err(protocol(
                    "an executor does not send credit, backlog, grant or end frames",
                ));
            }
        }
        Ok(())
    }

    /// Bytes have come that complete nothing yet.
    pub fn handle_session_progress(&mut self, now: Instant, id: SessionId) {
        if let Some(keepalive) = self.sessions.get_mut(id).and_then(|session| session.keepalive.as_mut()) {
            keepalive.handle_received(now);
        }
    }

    /// The head of a buffer that an executor without a mapping hands over; its payload follows.
    ///
    /// # Errors
    /// The slot is not granted to this session.
    pub fn handle_session_data_head(
        &mut self,
        now: Instant,
        id: SessionId,
        head: &DataHead,
    ) -> Result<Landing, ShuffleError> {
        let landing = self.landing_of(now, id, head);
        self.counters.refused += u64::from(landing.is_err());
        landing
    }

    fn landing_of(&mut self, now: Instant, id: SessionId, head: &DataHead) -> Result<Landing, ShuffleError> {
        let session = self.open_session(id)?;
        if !session.info.inline {
            return Err(protocol("a session over shared memory does not send payload"));
        }
        let job = session.info.job;
        if let Some(keepalive) = self.sessions.get_mut(id).and_then(|session| session.keepalive.as_mut()) {
            keepalive.handle_received(now);
        }
        let mut entries = head.slots.iter();
        let (Some(entry), None) = (entries.next(), entries.next()) else {
            return Err(protocol("a hand-over with payload names one buffer"));
        };
        if entry.offset != 0 || entry.length > self.config.buffer_bytes {
            return Err(protocol(
                "the payload of a hand-over starts at the buffer's first byte and fits it",
            ));
        }
        match self.holder(job, ArenaKind::Write, entry.slot) {
            Holder::Quarantine(holder) if holder == id => {}
            Holder::Writer(no) if self.partitions.get(no).is_some_and(|partition| partition.session == id) => {}
            _ => return Err(protocol(format!("slot {} is not granted to this session", entry.slot))),
        }
        Ok(Landing::Slot(Self::write_slot(job, entry.slot)))
    }

    /// The payload of that buffer is complete.
    ///
    /// # Errors
    /// As [`Node::handle_session_frame`].
    pub fn handle_session_data(&mut self, now: Instant, id: SessionId, head: &DataHead) -> Result<(), ShuffleError> {
        let job = self.open_session(id)?.info.job;
        for entry in head.slots.iter() {
            self.hand_over(id, job, &entry)?;
        }
        self.settle(now);
        Ok(())
    }

    fn handle_release(&mut self, id: SessionId, job: JobId, entry: ReleaseEntry) -> Result<(), ShuffleError> {
        let arena = match entry.arena {
            Arena::Write => ArenaKind::Write,
            Arena::Read => ArenaKind::Read,
        };
        let slot = Self::slot_of(job, arena, entry.slot);
        match self.holder(job, arena, entry.slot) {
            Holder::View(session, channel) if session == id => {
                self.send_home(slot, BufferState::Viewed);
                self.handle_view_dropped(channel)
            }
            Holder::Shared(share) => self.handle_share_released(share, id, entry.stream),
            Holder::Quarantine(session) if session == id => {
                self.send_home(slot, BufferState::Quarantined);
                Ok(())
            }
            Holder::Writer(no) if self.partitions.get(no).is_some_and(|partition| partition.session == id) => {
                self.send_home(slot, BufferState::Granted);
                Ok(())
            }
            _ => Err(protocol(format!(
                "slot {} of the {:?} arena is not held by this session",
                entry.slot, entry.arena
            ))),
        }
    }

    /// Appends what the session is to be sent, in order. True: there is more.
    pub fn poll_session(&mut self, now: Instant, id: SessionId, out: &mut Vec<Output>) -> bool {
        let start = out.len();
        self.poll_again(id, out);
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        session.sink.woken = false;
        let inline = session.info.inline;
        let take = session.sink.out.len().min(BATCH);
        out.extend(session.sink.out.drain(..take));
        self.poll_notices(now, id, out);
        while out.len() - start < BATCH {
            let Some(raised) = self.poll_raised(id) else { break };
            out.push(raised);
        }
        while out.len() - start < BATCH {
            let Some(no) = self
                .sessions
                .get_mut(id)
                .and_then(|session| session.sink.ready.pop_front())
            else {
                break;
            };
            self.pull_outlet(now, no, out);
        }
        if inline {
            for output in &out[start..] {
                if let Output::Slot { slot, .. } = output {
                    self.pool.pin(*slot);
                }
            }
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        if let Some(keepalive) = session.keepalive.as_mut()
            && out.len() > start
        {
            keepalive.handle_sent(now);
        }
        let more = !session.sink.out.is_empty() || !session.raised.is_empty() || !session.sink.ready.is_empty();
        session.sink.woken = more;
        more
    }

    /// Pings an executor on the other side of a network, or gives it up.
    pub(crate) fn check_session(&mut self, now: Instant, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.is_open()) else {
            return;
        };
        let Some(keepalive) = session.keepalive.as_mut() else {
            return;
        };
        match keepalive.poll(now) {
            KeepaliveAction::Nothing => {}
            KeepaliveAction::SendPing => {
                session.sink.out.push_back(Output::Ping(0));
                keepalive.handle_sent(now);
            }
            KeepaliveAction::Dead { silent_for } => {
                let error = ShuffleError::new(ErrorKind::PeerLost { silent_for }, "the executor is silent");
                self.wakes.push_back(crate::node::Wake::CloseSession(id, error));
                return;
            }
        }
        let at = keepalive.poll_timeout();
        self.timers.set(at, Timer::Session(id));
        self.wake_session(id);
    }

    pub(crate) fn open_session(&self, id: SessionId) -> Result<&Session, ShuffleError> {
        self.sessions
            .get(id)
            .filter(|session| session.is_open())
            .ok_or_else(|| ShuffleError::new(ErrorKind::SessionClosed, "the session is over"))
    }

    /// Answers a request.
    pub(crate) fn reply(&mut self, id: SessionId, request: u64, outcome: Result<(), ShuffleError>) {
        let Some(job) = self.sessions.get(id).map(|session| session.info.job) else {
            return;
        };
        let error = outcome.err().map(|error| control::Error::from(&error.job(job)));
        self.tell_session(
            id,
            Message::Reply(control::Reply {
                request,
                error,
                status: None,
            }),
        );
    }
}

/// What the other side may not do.
pub(crate) fn protocol(message: impl Into<String>) -> ShuffleError {
    ShuffleError::new(ErrorKind::Protocol, message).by(shuffle_protocol::error::Initiator::Peer)
}
