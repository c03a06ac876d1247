//! A buffer that did not have its checksum at its reader, traced at the node that produced it.
//!
//! ```text
//!   asked ──▶ summed where it lies ──▶ as its writer said: given once more
//!                    │ not, in the slot that its writer filled ──▶ verdict: producer memory
//!                    │ not, in a slot that it was loaded into
//!                    ▼
//!             loaded once more, into the same slot ──▶ as its writer said: given once more
//!                                                 └──▶ not ──▶ verdict: disk
//! ```
//!
//! A relay has it from another node: where its own copy is not as its writer said, it asks that node (`peer/trace`).
//! It is kept until its reader acknowledges it, and that follows the check: so it is still there.

use std::time::Instant;

use buffer_pool::{Backing, SlotRef};
use shuffle_protocol::error::{ErrorKind, Verdict};
use shuffle_protocol::{Sequence, ShuffleError, SubpartitionIndex};

use super::{Buffered, Item, Outlet, OutletNo, OutletState, PartitionNo, Place, Pull, SinkRef};
use crate::executor::protocol;
use crate::node::{ChannelNo, DiskWork, Node, Output, VerifyFor, VerifyTicket};
use crate::spill::{DiskOp, DiskPiece};

/// What an outlet has under way of this: one buffer at a time.
#[derive(Debug, Default)]
pub(crate) struct Tracing {
    trace: Option<Trace>,
    /// To be sent once more, to another node.
    again: Option<Sequence>,
    /// The last that was given once more to an executor on this node.
    refetched: Option<Sequence>,
}

#[derive(Debug, Clone, Copy)]
struct Trace {
    sequence: Sequence,
    /// As its reader summed it.
    got: u32,
    /// Its sum that is on its way; none while it is loaded, or fetched by a relay.
    ticket: Option<VerifyTicket>,
    reloaded: bool,
}

/// What is traced, where it is still kept.
#[derive(Debug, Clone, Copy)]
struct Found {
    subpartition: u32,
    buffer: Buffered,
    slot: SlotRef,
}

impl Tracing {
    /// One is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.trace.is_some() || self.again.is_some()
    }
}

impl Outlet {
    /// What another node is to have once more.
    pub(super) fn pull_again(&mut self) -> Option<Pull> {
        if self.sender.resends_joined() {
            // Not in the middle of a frame.
            return None;
        }
        let sequence = self.tracing.again.take()?;
        self.end_frame();
        match *self.sender.kept(sequence)? {
            Item::Buffer { subpartition, buffer } => Some(Pull::Buffer {
                sequence,
                subpartition,
                buffer,
                backlog: 0,
                again: true,
                joins: false,
            }),
            Item::End { .. } => None,
        }
    }
}

impl<B: Backing> Node<B> {
    /// The reader of this channel found another checksum in a buffer that was sent to it.
    ///
    /// # Errors
    /// It cannot have: there is no such buffer, or it has no checksum.
    pub(crate) fn trace_source(&mut self, no: OutletNo, sequence: Sequence, got: u32) -> Result<(), ShuffleError> {
        let Some(outlet) = self.outlets.get(no) else {
            return Ok(());
        };
        if !matches!(outlet.state, OutletState::Open(_)) || sequence < outlet.sender.acked() {
            return Ok(());
        }
        match outlet.tracing.trace {
            Some(trace) if trace.sequence == sequence => return Ok(()),
            Some(_) => return Err(protocol("a channel has one mismatch traced at a time")),
            None => {}
        }
        let found = self.find_kept(no, sequence).filter(|found| !found.buffer.unchecked);
        let found = found.ok_or_else(|| protocol(format!("no buffer with sequence {sequence} can have a mismatch")))?;
        self.sum_source(
            no,
            &found,
            Trace {
                sequence,
                got,
                ticket: None,
                reloaded: false,
            },
        );
        Ok(())
    }

    pub(crate) fn handle_source_verified(
        &mut self,
        now: Instant,
        no: OutletNo,
        ticket: VerifyTicket,
        outcome: Result<u32, ShuffleError>,
    ) {
        let Some((trace, found)) = self.take_trace(no, Some(ticket)) else {
            return;
        };
        match (outcome, found.buffer.place) {
            (Err(error), _) => self.end_outlet(now, no, error, true),
            (Ok(sum), _) if sum == found.buffer.checksum => self.give_again(now, no, trace, &found),
            (Ok(_), Place::Loaded { at, .. }) if !trace.reloaded => self.reload(no, trace, &found, at),
            (Ok(_), Place::Loaded { .. }) => self.conclude(now, no, trace, &found, Verdict::Disk),
            (Ok(_), Place::Received(_)) if self.came_elsewhere(no, trace) => {
                self.conclude(now, no, trace, &found, Verdict::Untraced);
            }
            (Ok(_), Place::Received(_)) if !self.was_refetched(no, trace) => self.ask_upstream(now, no, trace, &found),
            (Ok(_), Place::Received(_)) => self.conclude(now, no, trace, &found, Verdict::WireOrReceivingMemory),
            (Ok(_), Place::Memory(_)) => self.conclude(now, no, trace, &found, Verdict::ProducerMemory),
            (Ok(_), Place::Disk(_)) => unreachable!("what was sent is in memory"),
        }
    }

    fn reload(&mut self, no: OutletNo, trace: Trace, found: &Found, at: u64) {
        let Some((_, store)) = self.file_of(no) else { return };
        if self.pool.is_pinned(found.slot) {
            // What was sent without a copy may still be referred to.
            self.set_trace(no, Trace { ticket: None, ..trace });
            self.verifying.reloads.push(no);
            return;
        }
        let pieces = vec![DiskPiece {
            slot: found.slot,
            offset: found.buffer.offset,
            length: found.buffer.length,
        }];
        self.submit(DiskOp::Read { store, at, pieces }, DiskWork::Reload(no));
        self.set_trace(
            no,
            Trace {
                ticket: None,
                reloaded: true,
                ..trace
            },
        );
    }

    /// The kernel has let go of some slot.
    pub(crate) fn retry_reloads(&mut self) {
        for no in std::mem::take(&mut self.verifying.reloads) {
            if let Some((trace, found)) = self.take_trace(no, None)
                && let Place::Loaded { at, .. } = found.buffer.place
            {
                self.reload(no, trace, &found, at);
            }
        }
    }

    /// A buffer that did not match was loaded once more, or cannot be.
    pub(crate) fn handle_reloaded(&mut self, now: Instant, no: OutletNo, outcome: Result<(), ShuffleError>) {
        let Some((trace, found)) = self.take_trace(no, None) else {
            return;
        };
        match outcome {
            Ok(()) => self.sum_source(no, &found, trace),
            Err(error) => self.end_outlet(now, no, error, true),
        }
    }

    fn sum_source(&mut self, no: OutletNo, found: &Found, trace: Trace) {
        let Found { slot, buffer, .. } = *found;
        let ticket = self.verify(VerifyFor::Source(no), slot, buffer.offset, buffer.length);
        self.set_trace(
            no,
            Trace {
                ticket: Some(ticket),
                ..trace
            },
        );
    }

    /// What is kept has its checksum: the reader gets it once more. An executor on this node gets the same slot, and only once.
    fn give_again(&mut self, now: Instant, no: OutletNo, trace: Trace, found: &Found) {
        let Some(sink) = self.outlets.get(no).map(|outlet| outlet.sink) else {
            return;
        };
        match sink {
            SinkRef::Path(_) => {
                if let Some(outlet) = self.outlets.get_mut(no) {
                    outlet.tracing.again = Some(trace.sequence);
                }
                self.list_outlet(no);
            }
            SinkRef::Session(_) if self.was_refetched(no, trace) => {
                self.conclude(now, no, trace, found, Verdict::WireOrReceivingMemory);
            }
            SinkRef::Session(id) => {
                let Some(outlet) = self.outlets.get_mut(no) else { return };
                outlet.tracing.refetched = Some(trace.sequence);
                let (stream, slot) = (outlet.stream, found.slot);
                let entry = found
                    .buffer
                    .to_entry(stream, found.subpartition, trace.sequence, slot, 0);
                self.counters.mismatches_wire += 1;
                self.counters.buffers_refetched += 1;
                self.give_slot(id, ChannelNo::Local(no), Output::Slot { entry, slot });
            }
        }
    }

    fn was_refetched(&self, no: OutletNo, trace: Trace) -> bool {
        let outlet = self.outlets.get(no);
        outlet.is_some_and(|outlet| outlet.tracing.refetched == Some(trace.sequence))
    }

    /// It came to a relay that its reader has left, which has forgotten it.
    fn came_elsewhere(&self, no: OutletNo, trace: Trace) -> bool {
        let relay = self.partition_of(no).and_then(|relay| self.partitions.get(relay));
        relay.is_some_and(|relay| trace.sequence.value() < relay.relay_from())
    }

    /// What a relay holds does not have its checksum: the node that produced it is asked, once for all of its readers.
    fn ask_upstream(&mut self, now: Instant, no: OutletNo, trace: Trace, found: &Found) {
        let Some(outlet) = self.outlets.get(no) else { return };
        let OutletState::Open(relay) = outlet.state else { return };
        let entry = found
            .buffer
            .to_entry(outlet.stream, found.subpartition, trace.sequence, found.slot, 0);
        let waiting = Trace { ticket: None, ..trace };
        self.set_trace(no, waiting);
        self.trace_relayed(now, relay, entry, trace.got);
    }

    /// A buffer came once more to a relay: its readers that wait for one look again.
    pub(crate) fn resume_traces(&mut self, relay: PartitionNo) {
        let readers = self.partitions.get(relay).map(super::Partition::readers);
        for no in readers.into_iter().flatten() {
            if let Some((trace, found)) = self.take_trace(no, None) {
                self.sum_source(no, &found, trace);
            }
        }
    }

    fn conclude(&mut self, now: Instant, no: OutletNo, trace: Trace, found: &Found, verdict: Verdict) {
        let Some(outlet) = self.outlets.get(no) else { return };
        let buffer = found.buffer;
        let error = mismatch(trace.sequence, (buffer.checksum, trace.got), buffer.length, verdict)
            .subpartition(SubpartitionIndex::new(found.subpartition));
        let error = outlet.locate(error).node(&self.config.address);
        self.count_mismatch(verdict, &error);
        self.end_outlet(now, no, error, true);
    }

    /// Counts a verdict where it is reached, and says it in the log.
    pub(crate) fn count_mismatch(&mut self, verdict: Verdict, error: &ShuffleError) {
        match verdict {
            Verdict::Untraced => {}
            Verdict::ProducerMemory => self.counters.mismatches_producer_memory += 1,
            Verdict::Disk => self.counters.mismatches_disk += 1,
            Verdict::WireOrReceivingMemory => self.counters.mismatches_wire += 1,
        }
        tracing::warn!("{error}");
    }

    fn set_trace(&mut self, no: OutletNo, trace: Trace) {
        if let Some(outlet) = self.outlets.get_mut(no) {
            outlet.tracing.trace = Some(trace);
        }
    }

    /// The trace that waits for this, if what it is about is still kept.
    fn take_trace(&mut self, no: OutletNo, ticket: Option<VerifyTicket>) -> Option<(Trace, Found)> {
        let waits = |trace: &mut Trace| trace.ticket == ticket;
        let trace = self.outlets.get_mut(no)?.tracing.trace.take_if(waits)?;
        Some((trace, self.find_kept(no, trace.sequence)?))
    }

    fn find_kept(&self, no: OutletNo, sequence: Sequence) -> Option<Found> {
        let outlet = self.outlets.get(no)?;
        if !matches!(outlet.state, OutletState::Open(_)) {
            return None;
        }
        let Item::Buffer { subpartition, buffer } = *outlet.sender.kept(sequence)? else {
            return None;
        };
        let slot = Self::slot_at(outlet.job, buffer.place)?;
        match outlet.sink {
            // An executor may have given its view back, and then the slot is somebody else's.
            SinkRef::Session(id) if !self.is_viewed(slot, id, ChannelNo::Local(no)) => None,
            SinkRef::Session(_) | SinkRef::Path(_) => Some(Found {
                subpartition,
                buffer,
                slot,
            }),
        }
    }
}

/// The error that names a mismatch; `sums`: what the writer computed, and the reader.
pub(crate) fn mismatch(sequence: Sequence, sums: (u32, u32), length: u32, verdict: Verdict) -> ShuffleError {
    let kind = ErrorKind::ChecksumMismatch {
        expected: sums.0,
        got: sums.1,
        sequence: sequence.value(),
        verdict,
    };
    let what = match verdict {
        Verdict::Untraced => "its source was not heard of in time",
        Verdict::ProducerMemory => "what its producing node holds in memory does not have its writer's checksum",
        Verdict::Disk => "the data file of its producing node was read twice and does not have its writer's checksum",
        Verdict::WireOrReceivingMemory => "it came twice, and what its producing node holds has its writer's checksum",
    };
    ShuffleError::new(kind, format!("a buffer of {length} bytes: {what}"))
}
