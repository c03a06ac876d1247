//! The way to another node: whether there is a connection, whether one is needed, and when to give up.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use buffer_pool::Backing;
use shuffle_protocol::control::{CloseChannel, control::Message};
use shuffle_protocol::{
    Generation, GroupId, Incarnation, JobId, NodeAddress, ShuffleError, StreamId, error::ErrorKind,
};

use super::{InletNo, PathId};
use crate::node::{Dial, LinkId, Node, Output, Sink, Timer, Wake};
use crate::partition::OutletNo;

const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const LAST_BACKOFF: Duration = Duration::from_millis(1000);
/// Messages that must arrive, kept until it is known that they did.
const MAX_DURABLE: usize = 65_536;

/// One other node (and stripe).
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) node: NodeAddress,
    pub(crate) stripe: u32,
    pub(crate) link: Option<LinkId>,
    pub(crate) sink: Sink,
    /// Our channels there, by the number we gave them.
    pub(crate) inlets: BTreeMap<StreamId, InletNo>,
    /// Inlets with a credit or an acknowledgement to tell.
    pub(crate) dirty: VecDeque<InletNo>,
    /// Their channels here, by the number they gave them.
    pub(crate) outlets: BTreeMap<StreamId, OutletNo>,
    /// Which start of that server we last spoke with.
    pub(crate) incarnation: Option<Incarnation>,
    /// Counts the connections of this path, in the order in which they came up here.
    pub(crate) connections: u64,
    pub(crate) dialing: bool,
    pub(crate) next_dial: Option<Instant>,
    backoff: Duration,
    pub(crate) down_since: Option<Instant>,
    pub(crate) refused_since: Option<Instant>,
    /// What ended the last connection.
    pub(crate) broken_by: Option<ShuffleError>,
    /// Given up a short while ago: until then whoever asks is refused at once, while one dial tries again.
    pub(crate) suspect: Option<(Instant, ShuffleError)>,
    /// Somebody asked while the peer was suspect: one dial tries again.
    pub(crate) probing: bool,
    /// Groups that fail when this peer is lost: it has members of them, or is their home server. With the start of its server
    /// that knows; `None` until there is a connection.
    pub(crate) groups: BTreeMap<(JobId, GroupId), Option<Incarnation>>,
    durable: VecDeque<(u64, Message)>,
    /// The number of the last ping behind something that must arrive.
    durable_count: u64,
    /// Our channels there that are closed here, until it is known that the other side has heard: 0, or the ping behind.
    closing: BTreeMap<StreamId, u64>,
    /// Those of them that are still to be said on this connection.
    unsaid: VecDeque<StreamId>,
}

impl Path {
    fn new(node: NodeAddress, stripe: u32) -> Self {
        Self {
            node,
            stripe,
            link: None,
            sink: Sink::default(),
            inlets: BTreeMap::new(),
            dirty: VecDeque::new(),
            outlets: BTreeMap::new(),
            incarnation: None,
            connections: 0,
            dialing: false,
            next_dial: None,
            backoff: FIRST_BACKOFF,
            down_since: None,
            refused_since: None,
            broken_by: None,
            suspect: None,
            probing: false,
            groups: BTreeMap::new(),
            durable: VecDeque::new(),
            durable_count: 0,
            closing: BTreeMap::new(),
            unsaid: VecDeque::new(),
        }
    }

    /// A number that none of our channels there has. `next` counts for all paths and is never set back: the other side
    /// may still know channels of a path that was forgotten here.
    pub(crate) fn free_stream(&self, next: &mut u32) -> StreamId {
        loop {
            let stream = StreamId::new(*next);
            *next = next.wrapping_add(1);
            if !self.inlets.contains_key(&stream) && !self.closing.contains_key(&stream) {
                return stream;
            }
        }
    }

    fn needs_link(&self) -> bool {
        !self.inlets.is_empty()
            || !self.groups.is_empty()
            || !self.durable.is_empty()
            || !self.closing.is_empty()
            || self.probing
    }

    fn is_idle(&self) -> bool {
        self.link.is_none() && !self.dialing && !self.needs_link() && self.outlets.is_empty()
    }

    /// Keeps a message until the other side has answered the ping behind it, and says it where there is a connection.
    /// False: too many are kept.
    fn push_durable(&mut self, message: Message) -> bool {
        if self.durable.len() == MAX_DURABLE {
            return false;
        }
        self.durable_count += 1;
        self.durable.push_back((self.durable_count, message.clone()));
        if self.link.is_some() {
            // One ping answers for all before it.
            if matches!(self.sink.out.back(), Some(Output::Ping(_))) {
                self.sink.out.pop_back();
            }
            self.sink.out.push_back(Output::Control(Box::new(message)));
            self.sink.out.push_back(Output::Ping(self.durable_count));
        }
        true
    }

    /// The other side has answered the ping that followed these. The driver has pings of its own, with higher nonces.
    pub(crate) fn handle_pong(&mut self, nonce: u64) {
        if nonce > self.durable_count {
            return;
        }
        while self.durable.front().is_some_and(|(count, _)| *count <= nonce) {
            self.durable.pop_front();
        }
        if nonce > 0 {
            self.closing.retain(|_, said| *said == 0 || *said > nonce);
        }
    }

    /// The other side is to forget this channel of ours, however often the connection breaks until it has heard. A state of
    /// the channel and not a message, so there are never more of these than channels were open.
    pub(super) fn close(&mut self, stream: StreamId) {
        self.closing.insert(stream, 0);
        if self.link.is_some() {
            self.unsaid.push_back(stream);
        }
    }

    /// Says which channels are closed, some of them, and one ping behind them.
    pub(super) fn say_closing(&mut self, most: usize, out: &mut Vec<Output>) {
        let some = self.unsaid.len().min(most);
        if some == 0 {
            return;
        }
        self.durable_count += 1;
        for stream in self.unsaid.drain(..some) {
            self.closing.insert(stream, self.durable_count);
            out.push(Output::Control(Box::new(Message::CloseChannel(CloseChannel {
                stream: stream.value(),
                error: None,
                by_producer: false,
            }))));
        }
        out.push(Output::Ping(self.durable_count));
    }

    /// The other side knows nothing of these channels any more.
    pub(super) fn forget_closing(&mut self) {
        self.closing.clear();
        self.unsaid.clear();
    }

    /// The peer matters to this group from now on.
    pub(crate) fn watch(&mut self, job: JobId, group: GroupId) {
        let incarnation = self.incarnation.filter(|_| self.link.is_some());
        self.groups.insert((job, group), incarnation);
    }

    /// A connection to this start of its server is there: it hears of everything that it has not heard of.
    pub(crate) fn meet(&mut self, incarnation: Incarnation) {
        self.incarnation = Some(incarnation);
        for heard in self.groups.values_mut() {
            heard.get_or_insert(incarnation);
        }
    }

    /// The other side is to hear something yet.
    pub(crate) fn has_messages(&self) -> bool {
        !self.durable.is_empty()
    }

    /// Nothing is wanted of the peer but an answer to questions that it may well never have been meant for.
    fn only_asks(&self) -> bool {
        let is_question = |(_, message): &(u64, Message)| matches!(message, Message::GroupJoin(_));
        self.inlets.is_empty()
            && self.outlets.is_empty()
            && self.groups.is_empty()
            && self.closing.is_empty()
            && self.has_messages()
            && self.durable.iter().all(is_question)
    }

    /// Nothing is kept that the other side must hear.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.durable.is_empty() && self.closing.is_empty() && self.unsaid.is_empty()
    }

    pub(super) fn has_output(&self) -> bool {
        !self.sink.out.is_empty() || !self.unsaid.is_empty() || !self.dirty.is_empty() || !self.sink.ready.is_empty()
    }

    /// The other side is gone, and with it who was to hear these.
    pub(crate) fn forget_messages(&mut self) {
        self.durable.clear();
    }

    /// Says again, on a new connection, what may not have arrived.
    pub(crate) fn restate(&mut self) {
        for (_, message) in &self.durable {
            self.sink.out.push_back(Output::Control(Box::new(message.clone())));
        }
        if !self.durable.is_empty() {
            self.sink.out.push_back(Output::Ping(self.durable_count));
        }
        for said in self.closing.values_mut() {
            *said = 0;
        }
        self.unsaid = self.closing.keys().copied().collect();
    }
}

impl<B: Backing> Node<B> {
    /// The path to a node, made when it is first spoken of.
    pub(crate) fn path_to(&mut self, node: &NodeAddress, stripe: u32) -> PathId {
        let key = (node.clone(), stripe);
        if let Some(id) = self.path_ids.get(&key) {
            return *id;
        }
        let id = self.paths.insert(Path::new(node.clone(), stripe));
        self.path_ids.insert(key, id);
        id
    }

    /// Sends a message that must arrive, now or as soon as there is a connection.
    pub(crate) fn tell_node(&mut self, now: Instant, node: &NodeAddress, message: Message) {
        let id = self.path_to(node, 0);
        self.tell_path_surely(id, message);
        self.want_link(now, id);
    }

    /// Sends a message that must arrive, now or on the next connection, which others want already.
    pub(crate) fn tell_path_surely(&mut self, id: PathId, message: Message) {
        let Some(path) = self.paths.get_mut(id) else { return };
        if path.push_durable(message) {
            self.wake_path(id);
        } else {
            self.counters.refused += 1;
        }
    }

    /// Whether the node was given up a moment ago.
    pub(crate) fn is_given_up(&self, now: Instant, node: &NodeAddress) -> bool {
        (0..self.config.stripes.max(1)).any(|stripe| {
            self.path_ids
                .get(&(node.clone(), stripe))
                .and_then(|id| self.paths.get(*id)?.suspect.as_ref())
                .is_some_and(|(until, _)| *until > now)
        })
    }

    /// Something needs a connection there.
    pub(crate) fn want_link(&mut self, now: Instant, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else { return };
        if path.link.is_some() {
            return;
        }
        if path.down_since.is_none() {
            path.down_since = Some(now);
            path.refused_since = None;
            path.backoff = FIRST_BACKOFF;
            path.next_dial = Some(now);
        }
        self.check_path(now, id);
    }

    /// Dials, waits, or gives a peer up.
    pub(crate) fn check_path(&mut self, now: Instant, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else { return };
        if path.link.is_some() {
            return;
        }
        if path.suspect.as_ref().is_some_and(|(until, _)| *until <= now) {
            path.suspect = None;
        }
        if path.is_idle() {
            path.down_since = None;
            match &path.suspect {
                Some((until, _)) => self.timers.set_no_later(*until, Timer::Path(id)),
                None => {
                    self.path_ids.remove(&(path.node.clone(), path.stripe));
                    self.paths.remove(id);
                    self.timers.cancel(Timer::Path(id));
                }
            }
            return;
        }
        let Some(down_since) = path.down_since else { return };
        let silent_until = down_since + self.config.dead_peer_after;
        let refused_until = path.refused_since.map(|since| since + self.config.refused_grace);
        let until = refused_until.map_or(silent_until, |refused| refused.min(silent_until));
        if until <= now && path.only_asks() {
            // A server that is still to be started is not to be taken for a lost one because of a question.
            path.forget_messages();
            path.down_since = None;
            path.refused_since = None;
            return self.check_path(now, id);
        }
        if until <= now {
            let silent_for = now.saturating_duration_since(down_since);
            let what = if refused_until.is_some_and(|refused| refused <= now) {
                "its port refuses connections: the server is not running"
            } else {
                "no connection could be made, or no answer came"
            };
            let error = ShuffleError::new(ErrorKind::PeerLost { silent_for }, what).node(&path.node);
            return self.lose_path(now, id, error);
        }
        let mut wait = until;
        if path.needs_link() && !path.dialing {
            let dial_at = path.next_dial.unwrap_or(now);
            if dial_at <= now {
                self.dials.push_back(id);
                self.wakes.push_back(Wake::Dial);
            } else {
                wait = wait.min(dial_at);
            }
        }
        self.timers.set_no_later(wait, Timer::Path(id));
    }

    pub(crate) fn start_dial(&mut self, now: Instant, id: PathId) -> Option<Dial> {
        let path = self.paths.get_mut(id)?;
        if path.link.is_some() || path.dialing || !path.needs_link() || path.next_dial.is_some_and(|at| at > now) {
            return None;
        }
        path.dialing = true;
        let generation = Generation::new(self.next_generation);
        self.next_generation = self.next_generation.wrapping_add(1);
        Some(Dial {
            node: path.node.clone(),
            stripe: path.stripe,
            generation,
        })
    }

    /// A dial came to nothing. `refused`: nobody listens at that port.
    pub(crate) fn handle_dial_over(&mut self, now: Instant, dial: &Dial, error: Option<ShuffleError>, refused: bool) {
        let Some(&id) = self.path_ids.get(&(dial.node.clone(), dial.stripe)) else {
            return;
        };
        let Some(path) = self.paths.get_mut(id) else { return };
        path.dialing = false;
        path.probing = false;
        if path.link.is_some() {
            return;
        }
        path.refused_since = if refused {
            path.refused_since.or(Some(now))
        } else {
            None
        };
        path.next_dial = Some(now + path.backoff);
        path.backoff = (path.backoff * 2).min(LAST_BACKOFF);
        let hopeless = error.filter(|error| {
            matches!(
                error.kind(),
                ErrorKind::VersionMismatch { .. } | ErrorKind::ConfigMismatch { .. } | ErrorKind::Denied
            )
        });
        match hopeless {
            Some(error) => self.lose_path(now, id, error.node(&dial.node)),
            None => self.check_path(now, id),
        }
    }

    /// A dial came to nothing.
    pub fn handle_dial_failed(&mut self, now: Instant, dial: &Dial, error: ShuffleError, refused: bool) {
        self.handle_dial_over(now, dial, Some(error), refused);
        self.settle(now);
    }
}
