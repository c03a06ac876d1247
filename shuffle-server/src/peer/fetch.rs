//! We asking other nodes: channels from their partitions to our readers.
//!
//! ```text
//!   slots of a gate:   pool ──lend──▶ reserved ──head──▶ receiving ──payload──▶ viewed ──release──▶ pool
//!   what the peer is told:  credit (raised by lend)        ack (raised by the reader's check)
//! ```

use std::time::Instant;

use buffer_pool::{Backing, BufferState};
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::frame::{Arena, DataHead, EndEntry, NumberEntry, SlotEntry};
use shuffle_protocol::stream::{Arrival, Receiver};
use shuffle_protocol::{NodeAddress, Sequence, ShuffleError, StreamId, SubpartitionIndex, error::ErrorKind};

use super::inlet::Stage;
use super::{Inlet, InletNo, InletPlace, PathId, Receiving};
use crate::executor::{GateNo, protocol};
use crate::node::{ChannelNo, Holder, Node, Output};
use crate::partition::PartitionNo;

impl<B: Backing> Node<B> {
    /// Opens a channel to another node, or refuses it at once where that node was given up a moment ago.
    pub(crate) fn open_inlet(&mut self, now: Instant, place: InletPlace, node: &NodeAddress, deadline: Instant) {
        let stripe = (place.id.index ^ place.range.first) % self.config.stripes.max(1);
        let path_id = self.path_to(node, stripe);
        let Some(gate) = self.gates.get_mut(place.gate) else {
            return;
        };
        let index = gate.credit.add_channel();
        let Some(path) = self.paths.get_mut(path_id) else {
            return;
        };
        let suspect = path.suspect.clone();
        let remote = path.free_stream(&mut self.next_stream);
        let no = self.inlets.insert(Inlet {
            place,
            path: path_id,
            remote,
            receiver: Receiver::new(0),
            listed: false,
            receiving: false,
            trace: None,
            refetched: None,
            viewed: 0,
            index,
            stage: Stage::Unannounced { resume: false },
            deadline,
        });
        if gate.remote.len() <= index {
            gate.remote.resize(index + 1, no);
        }
        gate.remote[index] = no;
        path.inlets.insert(remote, no);
        if let Some(session) = self.sessions.get_mut(place.session) {
            session.channels.insert(place.stream, ChannelNo::Remote(no));
        }
        if suspect.is_some()
            && let Some(path) = self.paths.get_mut(path_id)
        {
            path.probing = true;
        }
        self.want_link(now, path_id);
        match suspect.filter(|(until, _)| *until > now) {
            Some((_, error)) => self.fail_inlet(now, no, error, false),
            None => self.list_inlet(no),
        }
    }

    /// Lends the gate's free buffers to channels, as credits, as far as its local pool goes.
    pub(crate) fn lend(&mut self, gate_no: GateNo) {
        loop {
            let Some(gate) = self.gates.get_mut(gate_no) else {
                return;
            };
            let Some(pool) = gate.pool else { return };
            if !gate.credit.wants_buffer() {
                return;
            }
            let Some(slot) = self.pool.take(pool) else { return };
            let Some(index) = gate.credit.poll_assign() else {
                return self.send_home(slot, BufferState::Granted);
            };
            let inlet = gate.remote[index];
            gate.reserved.push(slot.slot);
            self.pool.transition(slot, BufferState::Granted, BufferState::Reserved);
            self.set_holder(slot, Holder::Gate(gate_no));
            if let Some(of) = self.inlets.get_mut(inlet) {
                of.receiver.add_credit(1);
            }
            self.list_inlet(inlet);
        }
    }

    /// Puts an inlet on its path's list of those with something to tell.
    pub(crate) fn list_inlet(&mut self, no: InletNo) {
        let Some(inlet) = self.inlets.get_mut(no) else { return };
        let path_id = inlet.path;
        let Some(path) = self.paths.get_mut(path_id) else {
            return;
        };
        if inlet.listed || inlet.stage == Stage::Closed || path.link.is_none() {
            return;
        }
        inlet.listed = true;
        path.dirty.push_back(no);
        self.wake_path(path_id);
    }

    /// Tells the peer what is new of a channel.
    pub(crate) fn state_inlet(&mut self, now: Instant, no: InletNo, out: &mut Vec<Output>) {
        let Some(inlet) = self.inlets.get_mut(no) else { return };
        inlet.listed = false;
        let stream = inlet.remote;
        let number = |number: u64| NumberEntry {
            stream,
            subpartition: SubpartitionIndex::new(0),
            number,
        };
        if let Stage::Unannounced { resume } = inlet.stage {
            let point = inlet.receiver.resume_point();
            let place = inlet.place;
            inlet.stage = if inlet.receiver.is_finished() {
                Stage::Ended
            } else {
                Stage::Open
            };
            // The request itself states both numbers.
            inlet.receiver.poll_credit();
            inlet.receiver.poll_ack();
            let group = self
                .gates
                .get(place.gate)
                .and_then(|gate| gate.group.as_ref())
                .map(Into::into);
            out.push(Output::Control(Box::new(Message::OpenChannel(control::OpenChannel {
                stream: stream.value(),
                job: place.job.value(),
                partition: Some(place.id.into()),
                range: Some(place.range.into()),
                credit: point.credit,
                acknowledged: point.acknowledged.value(),
                received: point.received.value(),
                resume,
                group,
                broadcast: place.relay.map(|relay| control::Broadcast {
                    consumers: relay.consumers,
                }),
                moved: place.relay.and_then(|relay| relay.moved).map(Into::into),
                packed: place.packed,
                timeout_ms: u32::try_from(inlet.deadline.saturating_duration_since(now).as_millis())
                    .unwrap_or(u32::MAX)
                    .max(1),
            }))));
        } else {
            if let Some(limit) = inlet.receiver.poll_credit().filter(|_| inlet.stage == Stage::Open) {
                out.push(Output::Credit(number(limit)));
            }
            if let Some(below) = inlet.receiver.poll_ack() {
                out.push(Output::Ack(number(below.value())));
            }
        }
        if let Some(message) = inlet.poll_trace() {
            out.push(Output::Control(Box::new(message)));
        }
        if inlet.stage == Stage::Ended && inlet.receiver.is_settled() {
            self.tell_peer_closed(no);
            self.close_inlet(no);
        }
    }

    /// Where the payload of an arriving buffer goes; `None`: nobody wants it.
    pub(crate) fn land(&mut self, path: PathId, head: &DataHead) -> Result<Option<Receiving>, ShuffleError> {
        let Some(no) = self.inlet_of(path, head.stream) else {
            self.counters.buffers_unwanted += 1;
            return Ok(None);
        };
        if head.payload_bytes > self.config.buffer_bytes {
            return Err(protocol(format!(
                "a payload of {} bytes does not fit a buffer",
                head.payload_bytes
            )));
        }
        let packed = self.inlets.get(no).is_some_and(|inlet| inlet.place.packed);
        if head.slots.len() > 1 && !(packed && head.is_in_order()) {
            return Err(protocol(
                "a frame of several buffers that do not follow each other, or was not agreed on",
            ));
        }
        if let Some(again) = self.land_again(no, head)? {
            return Ok(Some(again));
        }
        let Some(inlet) = self.inlets.get_mut(no) else {
            return Ok(None);
        };
        match inlet.receiver.expects(head.sequence).map_err(ShuffleError::from)? {
            Arrival::Duplicate => {
                self.counters.buffers_unwanted += 1;
                Ok(None)
            }
            Arrival::Accept => {
                let (gate_no, job) = (inlet.place.gate, inlet.place.job);
                let gate = self
                    .gates
                    .get_mut(gate_no)
                    .expect("invariant: an open inlet has its gate");
                let slot = gate.reserved.pop().expect("invariant: a credit is a reserved slot");
                let slot = Self::read_slot(job, slot);
                self.pool
                    .transition(slot, BufferState::Reserved, BufferState::Receiving);
                if let Some(inlet) = self.inlets.get_mut(no) {
                    inlet.receiving = true;
                }
                Ok(Some(Receiving {
                    slot,
                    inlet: no,
                    again: None,
                }))
            }
        }
    }

    /// A buffer is complete: its descriptor goes to the reader.
    pub(crate) fn deliver(&mut self, receiving: Receiving, head: &DataHead) -> Result<(), ShuffleError> {
        let Receiving { slot, inlet: no, .. } = receiving;
        if let Some(inlet) = self.inlets.get_mut(no) {
            inlet.receiving = false;
        }
        let wanted = self.inlets.get_mut(no).filter(|inlet| inlet.is_open());
        let (Some(inlet), Some(entry)) = (wanted, head.slots.iter().next()) else {
            self.counters.buffers_unwanted += 1;
            self.send_home(slot, BufferState::Receiving);
            return Ok(());
        };
        let buffers = head.slots.len();
        inlet
            .receiver
            .handle_frame(head.sequence, u32::try_from(buffers).unwrap_or(u32::MAX))
            .map_err(ShuffleError::from)?;
        inlet.viewed += 1;
        let (place, index) = (inlet.place, inlet.index);
        self.counters.buffers_received += buffers as u64;
        self.counters.bytes_received += u64::from(head.payload_bytes);
        if let Some(relay) = place.relay {
            if let Some(gate) = self.gates.get_mut(place.gate) {
                gate.credit.handle_buffer(index, entry.backlog);
            }
            self.deliver_to_relay(relay.no, no, slot, &entry);
            self.lend(place.gate);
            return Ok(());
        }
        if buffers == 1 {
            self.pool.transition(slot, BufferState::Receiving, BufferState::Viewed);
            self.set_holder(slot, Holder::View(place.session, ChannelNo::Remote(no)));
        } else {
            self.share_views(slot, no, (place.session, place.stream), buffers);
        }
        let mut backlog = 0;
        if let Some(session) = self.sessions.get_mut(place.session) {
            let mut offset = 0;
            for entry in head.slots.iter() {
                let entry = SlotEntry {
                    stream: place.stream,
                    slot: slot.slot,
                    offset,
                    arena: Arena::Read,
                    ..entry
                };
                offset += entry.length;
                backlog = entry.backlog;
                session.sink.out.push_back(Output::Slot { entry, slot });
            }
        }
        self.wake_session(place.session);
        if let Some(gate) = self.gates.get_mut(place.gate) {
            gate.credit.handle_buffer(index, backlog);
            self.lend(place.gate);
        }
        Ok(())
    }

    pub(crate) fn handle_peer_end(&mut self, now: Instant, path: PathId, entry: EndEntry) -> Result<(), ShuffleError> {
        let Some(no) = self.inlet_of(path, entry.stream) else {
            return Ok(());
        };
        let Some(inlet) = self.inlets.get_mut(no) else {
            return Ok(());
        };
        if inlet
            .receiver
            .handle_end(entry.sequence, entry.last)
            .map_err(ShuffleError::from)?
            == Arrival::Duplicate
        {
            return Ok(());
        }
        let place = inlet.place;
        if entry.last {
            inlet.stage = Stage::Ended;
            self.return_credits(no);
        }
        if let Some(relay) = place.relay
            && let Err(error) = self.finish_relay(now, relay.no, &entry)
        {
            self.fail_inlet(now, no, error, true);
            return Ok(());
        }
        if let Some(session) = self.sessions.get_mut(place.session) {
            session.sink.out.push_back(Output::End(EndEntry {
                stream: place.stream,
                ..entry
            }));
        }
        self.wake_session(place.session);
        Ok(())
    }

    pub(crate) fn handle_peer_backlog(&mut self, path: PathId, stream: StreamId, waiting: u64) {
        let Some(no) = self.inlet_of(path, stream) else { return };
        let Some(inlet) = self.inlets.get(no).filter(|inlet| inlet.is_open()) else {
            return;
        };
        self.note_backlog(
            inlet.place.gate,
            inlet.index,
            u32::try_from(waiting).unwrap_or(u32::MAX),
        );
    }

    fn note_backlog(&mut self, gate_no: GateNo, index: usize, waiting: u32) {
        if let Some(gate) = self.gates.get_mut(gate_no) {
            gate.credit.handle_backlog(index, waiting);
            self.lend(gate_no);
        }
    }

    /// The reader has checked everything below.
    pub(crate) fn ack_inlet(&mut self, no: InletNo, below: Sequence) -> Result<(), ShuffleError> {
        if let Some(inlet) = self.inlets.get_mut(no) {
            inlet.receiver.handle_checked(below).map_err(ShuffleError::from)?;
            self.list_inlet(no);
        }
        Ok(())
    }

    pub(crate) fn handle_inlet_view_dropped(&mut self, no: InletNo) {
        let Some(inlet) = self.inlets.get_mut(no) else { return };
        inlet.viewed = inlet.viewed.checked_sub(1).expect("invariant: a dropped view was out");
        let (gate_no, index) = (inlet.place.gate, inlet.index);
        let gone = inlet.stage == Stage::Closed && inlet.viewed == 0;
        if let Some(gate) = self.gates.get_mut(gate_no) {
            gate.credit.handle_release(index);
        }
        if gone {
            self.inlets.remove(no);
        }
        self.lend(gate_no);
    }

    /// The producing side has closed the channel.
    pub(crate) fn handle_producer_closed(
        &mut self,
        now: Instant,
        path: PathId,
        stream: StreamId,
        error: Option<ShuffleError>,
    ) {
        if let Some(no) = self.inlet_of(path, stream) {
            let error = error.unwrap_or_else(|| {
                ShuffleError::new(
                    ErrorKind::Cancelled,
                    "the producing node closed the channel without a reason",
                )
            });
            self.fail_inlet(now, no, error, false);
        }
    }

    /// Something is said of the partition whose relay this channel fills.
    pub(super) fn with_relay(
        &mut self,
        path: PathId,
        stream: u32,
        f: impl FnOnce(&mut Self, PartitionNo),
    ) -> Result<(), ShuffleError> {
        let inlet = self.inlet_of(path, StreamId::new(stream));
        if let Some(relay) = inlet.and_then(|no| self.inlets.get(no)?.place.relay) {
            f(self, relay.no);
        }
        Ok(())
    }

    fn inlet_of(&self, path: PathId, stream: StreamId) -> Option<InletNo> {
        self.paths.get(path)?.inlets.get(&stream).copied()
    }
}
