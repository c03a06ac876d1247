//! A buffer from another node that did not have its checksum at its reader.
//!
//! ```text
//!   report ──▶ looking: summed as it was received
//!                │ as its writer said ───────────────────────────────────▶ its reader looks once more
//!                ▼ not
//!              asking: the producing node traces it ──▶ comes once more, ──▶ its reader looks once more
//!                └── verdict, or no answer in time       into its slot
//!                         ▼                             (a second time: verdict wire or receiving memory)
//!                    the channel fails
//! ```
//!
//! The slot is its reader's, who waits; while something is received into it, it is pinned.

use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::{ErrorKind, Verdict};
use shuffle_protocol::frame::{Arena, DataHead, SlotEntry};
use shuffle_protocol::{Sequence, ShuffleError, SubpartitionIndex};

use super::{Inlet, InletNo, Receiving};
use crate::executor::protocol;
use crate::node::{ChannelNo, Node, Output, Timer, VerifyFor, VerifyTicket};
use crate::partition::{PartitionNo, Place, mismatch};

/// The buffer that a channel has traced.
#[derive(Debug)]
pub(crate) struct InletTrace {
    /// What its reader needs of it.
    entry: SlotEntry,
    /// As its reader summed it.
    got: u32,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Looking(VerifyTicket),
    /// The producing node is to be asked, or was on this connection.
    Asking {
        told: bool,
    },
    Landing,
}

impl Inlet {
    /// What the producing node is to be asked now.
    pub(super) fn poll_trace(&mut self) -> Option<Message> {
        let trace = self.trace.as_mut()?;
        if trace.stage != (Stage::Asking { told: false }) {
            return None;
        }
        trace.stage = Stage::Asking { told: true };
        Some(Message::TraceBuffer(control::TraceBuffer {
            stream: self.remote.value(),
            sequence: trace.entry.sequence.value(),
            got: trace.got,
        }))
    }

    /// What was asked on a connection that is gone is asked again.
    pub(super) fn ask_anew(&mut self) {
        if let Some(trace) = &mut self.trace
            && matches!(trace.stage, Stage::Asking { .. } | Stage::Landing)
        {
            trace.stage = Stage::Asking { told: false };
        }
    }

    fn mismatch(&self, trace: &InletTrace, verdict: Verdict) -> ShuffleError {
        let entry = &trace.entry;
        let sums = (entry.checksum, trace.got);
        self.locate(mismatch(entry.sequence, sums, entry.length, verdict).subpartition(entry.subpartition))
    }
}

impl<B: Backing> Node<B> {
    /// The reader of this channel found another checksum in a buffer that came from another node.
    ///
    /// # Errors
    /// It cannot have: it does not hold such a buffer.
    pub(crate) fn trace_received(
        &mut self,
        now: Instant,
        no: InletNo,
        report: &control::ReportMismatch,
    ) -> Result<(), ShuffleError> {
        let Some(inlet) = self.inlets.get(no) else {
            return Ok(());
        };
        let (sequence, point) = (Sequence::new(report.sequence), inlet.receiver.resume_point());
        let slot = Self::read_slot(inlet.place.job, report.slot);
        let is_held = self.is_viewed(slot, inlet.place.session, ChannelNo::Remote(no));
        let is_due = inlet.trace.is_none() && point.acknowledged <= sequence && sequence < point.received;
        let end = u64::from(report.offset) + u64::from(report.length);
        if !is_held || !is_due || end > u64::from(self.config.buffer_bytes) {
            return Err(protocol(format!(
                "no buffer with sequence {sequence} can have a mismatch"
            )));
        }
        let entry = SlotEntry {
            stream: inlet.place.stream,
            subpartition: SubpartitionIndex::new(report.subpartition),
            sequence,
            slot: report.slot,
            offset: report.offset,
            length: report.length,
            checksum: report.expected,
            arena: Arena::Read,
            ..SlotEntry::default()
        };
        let ticket = self.verify(VerifyFor::Received(no), slot, report.offset, report.length);
        if let Some(inlet) = self.inlets.get_mut(no) {
            inlet.trace = Some(Box::new(InletTrace {
                entry,
                got: report.got,
                stage: Stage::Looking(ticket),
            }));
        }
        self.timers.set(now + self.config.request_timeout, Timer::Tracing(no));
        Ok(())
    }

    pub(crate) fn handle_received_verified(
        &mut self,
        now: Instant,
        no: InletNo,
        ticket: VerifyTicket,
        outcome: Result<u32, ShuffleError>,
    ) {
        let Some(inlet) = self.inlets.get_mut(no) else { return };
        let Some(trace) = inlet.trace.as_mut() else { return };
        if trace.stage != Stage::Looking(ticket) {
            return;
        }
        match outcome {
            Ok(sum) if sum == trace.entry.checksum => {
                let entry = trace.entry;
                self.conclude_intact(now, no, entry);
            }
            Ok(_) => {
                trace.stage = Stage::Asking { told: false };
                self.list_inlet(no);
            }
            Err(error) => self.fail_inlet(now, no, error, true),
        }
    }

    /// Where the payload goes that comes once more; `None`: it was not asked for.
    ///
    /// # Errors
    /// It is not as long as it was.
    pub(super) fn land_again(&mut self, no: InletNo, head: &DataHead) -> Result<Option<Receiving>, ShuffleError> {
        let Some(inlet) = self.inlets.get(no) else {
            return Ok(None);
        };
        let Some(trace) = &inlet.trace else { return Ok(None) };
        let is_asked = matches!(trace.stage, Stage::Asking { .. }) && trace.entry.sequence == head.sequence;
        if !is_asked || !self.is_still_held(no) {
            return Ok(None);
        }
        let slot = Self::read_slot(inlet.place.job, trace.entry.slot);
        if head.payload_bytes != trace.entry.length || head.slots.len() != 1 {
            return Err(protocol(
                "a buffer that comes once more is as long as it was, and comes alone",
            ));
        }
        let offset = trace.entry.offset;
        self.pool.pin(slot);
        if let Some(trace) = self.inlets.get_mut(no).and_then(|inlet| inlet.trace.as_mut()) {
            trace.stage = Stage::Landing;
        }
        Ok(Some(Receiving {
            slot,
            inlet: no,
            again: Some(offset),
        }))
    }

    /// It came once more, whole.
    pub(super) fn deliver_again(&mut self, now: Instant, receiving: Receiving, head: &DataHead) {
        let Receiving { slot, inlet: no, again } = receiving;
        self.pool_changed |= self.pool.unpin(slot);
        let Some(inlet) = self.inlets.get(no) else { return };
        let is_landing = |trace: &InletTrace| trace.stage == Stage::Landing && trace.entry.sequence == head.sequence;
        let (true, Some(entry)) = (inlet.trace.as_deref().is_some_and(is_landing), head.slots.iter().next()) else {
            self.counters.buffers_unwanted += 1;
            return;
        };
        self.counters.buffers_received += 1;
        self.counters.bytes_received += u64::from(head.payload_bytes);
        let entry = SlotEntry {
            stream: inlet.place.stream,
            slot: slot.slot,
            offset: again.unwrap_or(0),
            arena: Arena::Read,
            ..entry
        };
        self.conclude_intact(now, no, entry);
    }

    /// The connection broke while it came once more.
    pub(super) fn abandon_again(&mut self, receiving: Receiving) {
        self.pool_changed |= self.pool.unpin(receiving.slot);
        if let Some(inlet) = self.inlets.get_mut(receiving.inlet) {
            inlet.ask_anew();
        }
    }

    /// What is there now has its checksum, as far as this node and the producing one know: its reader looks once more, but not
    /// twice.
    fn conclude_intact(&mut self, now: Instant, no: InletNo, entry: SlotEntry) {
        let Some(inlet) = self.inlets.get_mut(no) else { return };
        let Some(trace) = inlet.trace.take() else { return };
        self.timers.cancel(Timer::Tracing(no));
        if let Some(relay) = inlet.place.relay {
            return self.resume_traces(relay.no);
        }
        if inlet.refetched == Some(entry.sequence) {
            let error = inlet.mismatch(&trace, Verdict::WireOrReceivingMemory);
            self.count_mismatch(Verdict::WireOrReceivingMemory, &error);
            return self.fail_inlet(now, no, error, true);
        }
        inlet.refetched = Some(entry.sequence);
        self.counters.mismatches_wire += 1;
        self.counters.buffers_refetched += 1;
        let (session, slot) = (inlet.place.session, Self::read_slot(inlet.place.job, entry.slot));
        self.give_slot(session, ChannelNo::Remote(no), Output::Slot { entry, slot });
    }

    /// A reader of a relay found another checksum in a buffer, and so did this node.
    pub(crate) fn trace_relayed(&mut self, now: Instant, relay: PartitionNo, entry: SlotEntry, got: u32) {
        let Some(partition) = self.partitions.get(relay) else {
            return;
        };
        let Some(no) = self.inlet_of_relay(partition) else {
            return;
        };
        // Its readers count from the partition's first buffer, its channel from where it began.
        let Some(sequence) = entry.sequence.value().checked_sub(partition.relay_from()) else {
            return;
        };
        let entry = SlotEntry {
            sequence: Sequence::new(sequence),
            ..entry
        };
        // Its reader may have left meanwhile: then nobody waits for that one.
        let is_busy = self.is_still_held(no);
        let Some(inlet) = self.inlets.get_mut(no).filter(|_| !is_busy) else {
            return;
        };
        inlet.trace = Some(Box::new(InletTrace {
            entry,
            got,
            stage: Stage::Asking { told: false },
        }));
        self.timers.set(now + self.config.request_timeout, Timer::Tracing(no));
        self.list_inlet(no);
    }

    /// The slot of the buffer that is traced is still the one it came in.
    fn is_still_held(&self, no: InletNo) -> bool {
        let Some(inlet) = self.inlets.get(no) else { return false };
        let Some(trace) = &inlet.trace else { return false };
        match inlet.place.relay {
            None => {
                let slot = Self::read_slot(inlet.place.job, trace.entry.slot);
                self.is_viewed(slot, inlet.place.session, ChannelNo::Remote(no))
            }
            Some(relay) => {
                let partition = self.partitions.get(relay.no);
                let buffer = partition.and_then(|of| of.queue(0)?.get(of.relay_from() + trace.entry.sequence.value()));
                buffer.is_some_and(|buffer| buffer.place == Place::Received(trace.entry.slot))
            }
        }
    }

    /// Nobody has said in time what became of a buffer that did not match.
    pub(crate) fn expire_tracing(&mut self, now: Instant, no: InletNo) {
        let after = self.config.request_timeout;
        let is_held = self.is_still_held(no);
        let Some(inlet) = self.inlets.get_mut(no) else { return };
        let Some(trace) = inlet.trace.take() else { return };
        if let Some(relay) = inlet.place.relay.filter(|_| !is_held) {
            return self.resume_traces(relay.no);
        }
        let what = "tracing a buffer without its checksum".to_owned();
        let late = ShuffleError::new(
            ErrorKind::TimedOut { what, after },
            "the producing node has not answered",
        );
        let error = inlet.mismatch(&trace, Verdict::Untraced).because(late);
        self.count_mismatch(Verdict::Untraced, &error);
        self.fail_inlet(now, no, error, true);
    }
}
