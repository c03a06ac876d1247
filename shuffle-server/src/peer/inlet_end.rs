//! How a channel to another node ends: its credits go home at once, its views at their drop.

use std::time::Instant;

use buffer_pool::{ArenaKind, Backing, BufferState, JobKey, SlotRef};
use shuffle_protocol::ShuffleError;

use super::InletNo;
use super::inlet::Stage;
use crate::executor::GateNo;
use crate::node::{ChannelNo, Node, Timer};

impl<B: Backing> Node<B> {
    /// Ends a channel with an error that its reader is told; a member of a group with the verdict on that.
    pub(crate) fn fail_inlet(&mut self, now: Instant, no: InletNo, error: ShuffleError, tell_peer: bool) {
        let Some(inlet) = self.inlets.get(no).filter(|inlet| inlet.stage != Stage::Closed) else {
            return;
        };
        let place = inlet.place;
        let node = self.paths.get(inlet.path).map(|path| path.node.clone());
        let error = inlet.locate(error);
        let error = match node {
            Some(node) => error.node(&node),
            None => error,
        };
        if let Some(relay) = place.relay {
            if tell_peer {
                self.tell_peer_closed(no);
            }
            self.close_inlet(no);
            return self.end_relay(now, relay.no, Some(error));
        }
        let group = self.gates.get(place.gate).and_then(|gate| gate.group.clone());
        if let Some(group) = &group
            && self.waits_for_verdict(place.job, group, &error)
        {
            return self.handle_member_failed(now, place.job, group, error);
        }
        if tell_peer {
            self.tell_peer_closed(no);
        }
        self.close_inlet(no);
        self.report_channel(now, place.session, place.stream, place.job, group.as_ref(), error);
    }

    /// The reader wants no more. Its views have been quarantined.
    pub(crate) fn drop_inlet(&mut self, no: InletNo) {
        self.tell_peer_closed(no);
        if let Some(inlet) = self.inlets.get_mut(no) {
            let (views, gate_no, index) = (std::mem::take(&mut inlet.viewed), inlet.place.gate, inlet.index);
            if let Some(gate) = self.gates.get_mut(gate_no) {
                for _ in 0..views {
                    gate.credit.handle_release(index);
                }
            }
        }
        self.close_inlet(no);
    }

    /// The other side is to forget the channel. It must hear of it even if the connection breaks now: the last
    /// acknowledgement may be lost with that, and nothing else would make this node dial again.
    pub(super) fn tell_peer_closed(&mut self, no: InletNo) {
        let Some(inlet) = self.inlets.get(no) else { return };
        if inlet.stage != Stage::Closed && inlet.is_announced() {
            let (path, stream) = (inlet.path, inlet.remote);
            let is_lost = |path: &super::Path| path.link.is_none() && path.down_since.is_none();
            if self.paths.get(path).is_none_or(is_lost) {
                return;
            }
            if let Some(path) = self.paths.get_mut(path) {
                path.close(stream);
            }
            self.wake_path(path);
        }
    }

    /// Takes a channel off its path, its session and its gate's credit; it stays only for views that are out.
    pub(super) fn close_inlet(&mut self, no: InletNo) {
        let Some(inlet) = self.inlets.get_mut(no) else { return };
        if inlet.stage == Stage::Closed {
            return;
        }
        let was_open = inlet.is_open();
        if was_open {
            self.return_credits(no);
        }
        let Some(inlet) = self.inlets.get_mut(no) else { return };
        inlet.stage = Stage::Closed;
        inlet.trace = None;
        self.timers.cancel(Timer::Tracing(no));
        let Some(inlet) = self.inlets.get_mut(no) else { return };
        let (place, path, remote, viewed) = (inlet.place, inlet.path, inlet.remote, inlet.viewed);
        if let Some(path) = self.paths.get_mut(path) {
            path.inlets.remove(&remote);
        }
        if let Some(session) = self.sessions.get_mut(place.session)
            && session.channels.get(&place.stream) == Some(&ChannelNo::Remote(no))
        {
            session.channels.remove(&place.stream);
        }
        if place.relay.is_none() {
            self.leave_channel(place.job);
        }
        if viewed == 0 {
            self.inlets.remove(no);
        }
    }

    /// The credits that a channel has and will not use go home, and to the gate's others.
    pub(super) fn return_credits(&mut self, no: InletNo) {
        let Some(inlet) = self.inlets.get_mut(no) else { return };
        let (place, index) = (inlet.place, inlet.index);
        let outstanding = if inlet.receiver.is_finished() {
            inlet.receiver.reclaim_credit()
        } else {
            inlet.receiver.cancel()
        };
        let receiving = u64::from(inlet.receiving);
        let Some(gate) = self.gates.get_mut(place.gate) else {
            return;
        };
        gate.credit.handle_cancel(index, outstanding);
        let keep = usize::try_from(outstanding - receiving)
            .ok()
            .and_then(|reserved| gate.reserved.len().checked_sub(reserved))
            .expect("invariant: a gate has a reserved slot for each credit outstanding");
        let home = gate.reserved.split_off(keep);
        for slot in home {
            self.send_home(
                SlotRef {
                    job: JobKey(place.job.value()),
                    arena: ArenaKind::Read,
                    slot,
                },
                BufferState::Reserved,
            );
        }
        self.lend(place.gate);
    }

    /// A gate is closed: what its channels still had out has been quarantined and is theirs no more.
    pub(crate) fn forget_inlets_of(&mut self, gate: GateNo) {
        let Some(of) = self.gates.get(gate) else { return };
        for no in &of.remote {
            self.inlets.remove(*no);
        }
    }
}
