//! When a connection breaks, a peer is given up, or its server turns out to be another one.

use std::time::{Duration, Instant};

use buffer_pool::{Backing, BufferState};
use shuffle_protocol::{ShuffleError, error::ErrorKind};

use super::{Inlet, PathId, Receiving};
use crate::node::{Holder, LinkId, Node, Timer};

impl<B: Backing> Node<B> {
    /// A connection is gone. Its channels wait to be taken up on the next one.
    pub fn handle_link_closed(&mut self, now: Instant, id: LinkId, error: ShuffleError) {
        let Some(link) = self.links.remove(id) else { return };
        self.timers.cancel(Timer::Link(id));
        if let Some(receiving) = link.receiving {
            self.abandon_receiving(receiving);
        }
        let path_id = link.path;
        let Some(path) = self.paths.get_mut(path_id) else {
            return;
        };
        if path.link != Some(id) {
            return self.settle(now);
        }
        path.link = None;
        self.timers.cancel(Timer::Unconfirmed(path_id));
        path.sink = crate::node::Sink::default();
        path.dirty.clear();
        path.down_since = Some(now - silence_of(&error));
        path.broken_by = Some(error);
        path.refused_since = None;
        path.next_dial = Some(now);
        let inlets: Vec<_> = path.inlets.values().copied().collect();
        let outlets: Vec<_> = path.outlets.values().copied().collect();
        for no in inlets {
            if let Some(inlet) = self.inlets.get_mut(no) {
                inlet.handle_disconnected();
            }
        }
        for no in outlets {
            if let Some(outlet) = self.outlets.get_mut(no) {
                outlet.listed = false;
            }
        }
        self.check_path(now, path_id);
        self.settle(now);
    }

    fn abandon_receiving(&mut self, receiving: Receiving) {
        if receiving.again.is_some() {
            return self.abandon_again(receiving);
        }
        if let Some(inlet) = self.inlets.get_mut(receiving.inlet) {
            inlet.receiving = false;
        }
        let gate = self.inlets.get(receiving.inlet).map(|inlet| inlet.place.gate);
        match gate.and_then(|gate| Some((gate, self.gates.get_mut(gate)?))) {
            Some((no, gate)) if self.inlets.get(receiving.inlet).is_some_and(|inlet| inlet.is_open()) => {
                gate.reserved.push(receiving.slot.slot);
                self.pool
                    .transition(receiving.slot, BufferState::Receiving, BufferState::Reserved);
                self.set_holder(receiving.slot, Holder::Gate(no));
            }
            _ => self.send_home(receiving.slot, BufferState::Receiving),
        }
    }

    /// The peer is given up: every channel to and from it fails with this cause.
    pub(crate) fn lose_path(&mut self, now: Instant, id: PathId, error: ShuffleError) {
        let Some(path) = self.paths.get_mut(id) else { return };
        let error = match path.broken_by.take() {
            Some(cause) => error.because(cause),
            None => error,
        };
        self.counters.peers_lost += 1;
        path.suspect = Some((now + self.config.dead_peer_after, error.clone()));
        path.down_since = None;
        path.refused_since = None;
        path.forget_messages();
        path.forget_closing();
        tracing::warn!(node = %path.node, "peer given up: {error}");
        let node = path.node.clone();
        self.fail_channels_of(now, id, &error, |_| true);
        self.fail_groups_of(now, id, &error, |_| true);
        self.give_up_listeners_of(&node);
        self.timers
            .set_no_later(now + self.config.dead_peer_after, Timer::Path(id));
    }

    /// The peer's server was restarted: what it held, and who read from us there, are gone.
    pub(crate) fn handle_peer_restarted(&mut self, now: Instant, id: PathId) {
        let Some(path) = self.paths.get(id) else { return };
        let error = ShuffleError::new(
            ErrorKind::PeerRestarted,
            "the server was restarted, and what it held in memory is gone",
        )
        .node(&path.node);
        // Channels and groups that have not been spoken of yet are of the start that is there now.
        self.fail_channels_of(now, id, &error, Inlet::is_announced);
        self.fail_groups_of(now, id, &error, |heard| heard.is_some());
    }

    fn fail_channels_of(&mut self, now: Instant, id: PathId, error: &ShuffleError, fails: impl Fn(&Inlet) -> bool) {
        let Some(path) = self.paths.get(id) else { return };
        let failing = path.inlets.values().copied();
        let inlets: Vec<_> = failing.filter(|no| self.inlets.get(*no).is_none_or(&fails)).collect();
        let outlets: Vec<_> = path.outlets.values().copied().collect();
        for no in inlets {
            self.fail_inlet(now, no, error.clone(), false);
        }
        for no in outlets {
            self.lose_outlet(now, no, error);
        }
    }
}

/// How long the peer had been silent when its connection was closed for that.
fn silence_of(error: &ShuffleError) -> Duration {
    match error.kind() {
        ErrorKind::PeerLost { silent_for } => *silent_for,
        _ => Duration::ZERO,
    }
}
