//! One live connection to another server: frames in, batches out, keepalive.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use buffer_pool::Backing;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::frame::{DataHead, Frame};
use shuffle_protocol::session::{Keepalive, KeepaliveAction};
use shuffle_protocol::{Generation, JobId, PartitionId, ShuffleError, StreamId, error::ErrorKind};

use super::{PathId, Receiving};
use crate::executor::protocol;
use crate::node::{Dial, Landing, LinkId, Node, Output, PeerInfo, Timer, Wake};

/// Entries and control messages of one poll, beside the payload that the driver's budget allows.
const BATCH: usize = 1024;

/// A live connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) path: PathId,
    pub(crate) dialled: bool,
    pub(crate) receiving: Option<Receiving>,
    /// As its dialler counts.
    generation: Generation,
    keepalive: Keepalive,
    /// Its other side wanted a new connection: it is given up unless something comes by then.
    doubted_until: Option<Instant>,
}

/// How long a connection may be silent after its other side has asked for a new one.
const DOUBT: Duration = Duration::from_secs(1);

impl Link {
    fn handle_received(&mut self, now: Instant) {
        self.keepalive.handle_received(now);
        self.doubted_until = None;
    }
}

impl<B: Backing> Node<B> {
    /// A connection to another server has passed the handshake. Where two were made at once, the one that the
    /// node with the smaller address dialled stays.
    ///
    /// # Errors
    /// `AlreadyExists`: there is one that stays; close this one. It is asked at once whether it still lives.
    pub fn handle_link_opened(&mut self, now: Instant, info: &PeerInfo) -> Result<LinkId, ShuffleError> {
        let outcome = self.accept_link(now, info);
        if info.dialled {
            let dial = Dial {
                node: info.node.clone(),
                stripe: info.stripe,
                generation: info.generation,
            };
            self.handle_dial_over(now, &dial, None, false);
        }
        self.settle(now);
        outcome
    }

    fn accept_link(&mut self, now: Instant, info: &PeerInfo) -> Result<LinkId, ShuffleError> {
        if info.node == self.config.address {
            return Err(
                ShuffleError::new(ErrorKind::Denied, "the other side goes by this node's own address").node(&info.node),
            );
        }
        let path_id = self.path_to(&info.node, info.stripe);
        let path = &self.paths[path_id];
        if let Some(old) = path.link {
            let dialler_stays = info.dialled == (self.config.address < info.node);
            let restarted = path.incarnation != Some(info.incarnation);
            let old_dialled = self.links.get(old).is_some_and(|link| link.dialled);
            let same_dialler = old_dialled == info.dialled;
            let newest = self.links.get(old).map(|link| link.generation);
            if !restarted && same_dialler && newest.is_some_and(|newest| info.generation < newest) {
                let late = "a newer connection of the same dialler is there: this one came late";
                return Err(ShuffleError::new(ErrorKind::AlreadyExists, late).node(&info.node));
            }
            if !restarted && !dialler_stays && !same_dialler {
                self.probe(now, old);
                return Err(
                    ShuffleError::new(ErrorKind::AlreadyExists, "the two nodes have a connection").node(&info.node),
                );
            }
            let reason =
                ShuffleError::new(ErrorKind::ConnectionLost, "replaced by a newer connection").node(&info.node);
            self.wakes.push_back(Wake::CloseLink(old, reason.clone()));
            self.handle_link_closed(now, old, reason);
        }
        let path_id = self.path_to(&info.node, info.stripe);
        if self.paths[path_id]
            .incarnation
            .is_some_and(|known| known != info.incarnation)
        {
            self.handle_peer_restarted(now, path_id);
            self.paths[path_id].forget_closing();
        }
        // Half of the dead-peer time is for noticing, half for coming back.
        let keepalive = self.keepalive(self.config.dead_peer_after / 2, now);
        let timeout = keepalive.poll_timeout();
        let id = self.links.insert(Link {
            path: path_id,
            dialled: info.dialled,
            receiving: None,
            generation: info.generation,
            keepalive,
            doubted_until: None,
        });
        let path = &mut self.paths[path_id];
        path.link = Some(id);
        path.meet(info.incarnation);
        path.connections += 1;
        path.down_since = None;
        path.refused_since = None;
        path.broken_by = None;
        path.suspect = None;
        path.restate();
        let inlets: Vec<_> = path.inlets.values().copied().collect();
        path.dirty = VecDeque::from(inlets.clone());
        for no in inlets {
            if let Some(inlet) = self.inlets.get_mut(no) {
                inlet.listed = true;
            }
        }
        self.counters.links_opened += 1;
        self.timers.set(timeout, Timer::Link(id));
        self.timers
            .set(now + self.config.dead_peer_after, Timer::Unconfirmed(path_id));
        self.wake_path(path_id);
        Ok(id)
    }

    /// Asks an old connection whether it still lives, since its other side wants a new one.
    fn probe(&mut self, now: Instant, id: LinkId) {
        let Some(link) = self.links.get_mut(id) else { return };
        if link.doubted_until.is_some() {
            return;
        }
        link.doubted_until = Some(now + DOUBT);
        let path = link.path;
        if let Some(path) = self.paths.get_mut(path) {
            path.sink.out.push_back(Output::Ping(0));
        }
        self.wake_path(path);
        self.timers.set_no_later(now + DOUBT, Timer::Link(id));
    }

    /// A frame from another server.
    ///
    /// # Errors
    /// It broke the protocol: close the connection.
    pub fn handle_link_frame(&mut self, now: Instant, id: LinkId, frame: Frame) -> Result<(), ShuffleError> {
        let Some(link) = self.links.get_mut(id) else {
            return Err(ShuffleError::new(
                ErrorKind::ConnectionLost,
                "the connection was replaced",
            ));
        };
        link.handle_received(now);
        let path = link.path;
        let outcome = self.dispatch_link_frame(now, path, frame);
        if outcome.is_err() {
            self.counters.refused += 1;
        }
        self.settle(now);
        outcome
    }

    fn dispatch_link_frame(&mut self, now: Instant, path: PathId, frame: Frame) -> Result<(), ShuffleError> {
        match frame {
            Frame::Control(message) => self.handle_peer_message(now, path, *message),
            Frame::Ack(batch) => {
                for entry in batch.iter() {
                    self.handle_peer_ack(now, path, entry.stream, entry.number)?;
                }
                Ok(())
            }
            Frame::Credit(batch) => {
                for entry in batch.iter() {
                    self.handle_peer_credit(path, entry.stream, entry.number)?;
                }
                Ok(())
            }
            Frame::Backlog(batch) => {
                for entry in batch.iter() {
                    self.handle_peer_backlog(path, entry.stream, entry.number);
                }
                Ok(())
            }
            Frame::End(batch) => {
                for entry in batch.iter() {
                    self.handle_peer_end(now, path, entry)?;
                }
                Ok(())
            }
            Frame::Ping(nonce) => {
                if let Some(path) = self.paths.get_mut(path) {
                    path.sink.out.push_back(Output::Pong(nonce));
                }
                self.wake_path(path);
                Ok(())
            }
            Frame::Pong(nonce) => {
                if let Some(path) = self.paths.get_mut(path) {
                    path.handle_pong(nonce);
                }
                Ok(())
            }
            Frame::Slots(_) | Frame::Release(_) | Frame::Demand(_) | Frame::Grant(_) => Err(protocol(
                "descriptors, releases, demands and grants do not leave a node",
            )),
        }
    }

    fn handle_peer_message(&mut self, now: Instant, path: PathId, message: Message) -> Result<(), ShuffleError> {
        match message {
            Message::OpenChannel(open) => self.serve_open(now, path, &open),
            Message::CloseChannel(close) => {
                let stream = StreamId::new(close.stream);
                let error = close.error.map(ShuffleError::from);
                if close.by_producer {
                    self.handle_producer_closed(now, path, stream, error);
                } else {
                    self.handle_reader_closed(now, path, stream);
                }
                Ok(())
            }
            Message::TraceBuffer(trace) => self.handle_trace_request(path, &trace),
            Message::FenceNotice(notice) => {
                let partition = shuffle_protocol::control::required(notice.partition, "partition")?;
                self.fence(now, JobId::new(notice.job), PartitionId::from(partition));
                Ok(())
            }
            Message::AudienceClosed(told) => self.with_relay(path, told.stream, Self::close_audience),
            Message::Refetchable(told) => self.with_relay(path, told.stream, Self::make_refetchable),
            Message::GroupReport(_) | Message::GroupVerdict(_) | Message::GroupJoin(_) | Message::GroupLeave(_) => {
                self.handle_group_message(now, path, message)
            }
            _ => Err(protocol("this message is not for another server")),
        }
    }

    /// Bytes have come that complete nothing yet.
    pub fn handle_link_progress(&mut self, now: Instant, id: LinkId) {
        if let Some(link) = self.links.get_mut(id) {
            link.handle_received(now);
        }
    }

    /// The head of a buffer from another server; its payload follows.
    ///
    /// # Errors
    /// As [`Node::handle_link_frame`].
    pub fn handle_link_data_head(
        &mut self,
        now: Instant,
        id: LinkId,
        head: &DataHead,
    ) -> Result<Landing, ShuffleError> {
        let Some(link) = self.links.get_mut(id) else {
            return Err(ShuffleError::new(
                ErrorKind::ConnectionLost,
                "the connection was replaced",
            ));
        };
        link.handle_received(now);
        let path = link.path;
        let landing = self.land(path, head)?;
        if let (Some(receiving), Some(link)) = (landing, self.links.get_mut(id)) {
            link.receiving = Some(receiving);
        }
        Ok(landing.map_or(Landing::Discard, Receiving::landing))
    }

    /// The payload of that buffer is complete.
    ///
    /// # Errors
    /// As [`Node::handle_link_frame`].
    pub fn handle_link_data(&mut self, now: Instant, id: LinkId, head: &DataHead) -> Result<(), ShuffleError> {
        let Some(link) = self.links.get_mut(id) else {
            return Err(ShuffleError::new(
                ErrorKind::ConnectionLost,
                "the connection was replaced",
            ));
        };
        link.handle_received(now);
        match link.receiving.take() {
            Some(receiving) if receiving.again.is_some() => self.deliver_again(now, receiving, head),
            Some(receiving) => self.deliver(receiving, head)?,
            None => {}
        }
        self.settle(now);
        Ok(())
    }

    /// Appends what goes out next: control, acknowledgements and credit first, then data of all channels in turn,
    /// up to `byte_budget` bytes of payload. True: there is more.
    pub fn poll_link(&mut self, now: Instant, id: LinkId, byte_budget: u64, out: &mut Vec<Output>) -> bool {
        let start = out.len();
        let Some(path_id) = self.links.get(id).map(|link| link.path) else {
            return false;
        };
        let Some(path) = self.paths.get_mut(path_id).filter(|path| path.link == Some(id)) else {
            return false;
        };
        path.sink.woken = false;
        let take = path.sink.out.len().min(BATCH);
        out.extend(path.sink.out.drain(..take));
        if path.sink.out.is_empty() {
            // Behind everything that must arrive: the ping that follows answers for that too.
            path.say_closing(BATCH - take, out);
        }
        while out.len() - start < BATCH {
            let Some(no) = self.paths.get_mut(path_id).and_then(|path| path.dirty.pop_front()) else {
                break;
            };
            self.state_inlet(now, no, out);
        }
        let mut bytes = 0;
        while bytes < byte_budget && out.len() - start < BATCH {
            let Some(no) = self.paths.get_mut(path_id).and_then(|path| path.sink.ready.pop_front()) else {
                break;
            };
            let before = out.len();
            self.pull_outlet(now, no, out);
            for output in &out[before..] {
                if let Some((entry, slot)) = output.buffer() {
                    bytes += u64::from(entry.length);
                    self.pool.pin(slot);
                }
            }
        }
        if out.len() > start
            && let Some(link) = self.links.get_mut(id)
        {
            link.keepalive.handle_sent(now);
        }
        self.settle(now);
        let Some(path) = self.paths.get_mut(path_id) else {
            return false;
        };
        let more = path.has_output();
        path.sink.woken = more;
        more
    }

    /// Pings, or declares a silent peer dead.
    pub(crate) fn check_link(&mut self, now: Instant, id: LinkId) {
        let Some(link) = self.links.get_mut(id) else { return };
        let path = link.path;
        let action = match link.doubted_until {
            Some(until) if until <= now => KeepaliveAction::Dead {
                silent_for: Duration::ZERO,
            },
            _ => link.keepalive.poll(now),
        };
        match action {
            KeepaliveAction::Nothing => {}
            KeepaliveAction::SendPing => {
                link.keepalive.handle_sent(now);
                if let Some(path) = self.paths.get_mut(path) {
                    path.sink.out.push_back(Output::Ping(0));
                }
                self.wake_path(path);
            }
            KeepaliveAction::Dead { silent_for } => {
                let Some(node) = self.paths.get(path).map(|path| path.node.clone()) else {
                    return;
                };
                let error = ShuffleError::new(
                    ErrorKind::PeerLost { silent_for },
                    "the peer is silent, though it is asked",
                )
                .node(&node);
                self.wakes.push_back(Wake::CloseLink(id, error.clone()));
                self.handle_link_closed(now, id, error);
                return;
            }
        }
        if let Some(link) = self.links.get(id) {
            let next = link.keepalive.poll_timeout();
            let next = link.doubted_until.map_or(next, |until| until.min(next));
            self.timers.set(next, Timer::Link(id));
        }
    }
}
