//! A broadcast partition on a node that consumes it: held there once, and read by all consumers of that node.
//!
//! ```text
//!   producing node                        consuming node
//!   queue ── one channel, one copy ──▶ relay: queue of received slots ──▶ consumer 1
//!         ◀── credit, acknowledgement          │                      ──▶ consumer 2
//!             of all its consumers             └ a slot is free when the slowest has passed it, and its views are dropped
//! ```
//!
//! A relay is a partition without a writer: the one channel of its gate fills it.

use std::collections::HashSet;
use std::time::Instant;

use buffer_pool::{ArenaKind, Backing, BufferState, JobKey, LocalPoolSpec, SlotRef};
use shuffle_protocol::control::{self, required};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::{EndEntry, SlotEntry};
use shuffle_protocol::partition::PartitionKind;
use shuffle_protocol::stream::GateCredit;
use shuffle_protocol::{
    GroupRef, JobId, NodeAddress, PartitionId, Sequence, ShuffleError, StreamId, SubpartitionIndex, SubpartitionRange,
    WriterId,
};

use super::{
    Adopting, Audience, Buffered, Lookup, OutletNo, OutletState, Partition, PartitionNo, PartitionOrigin,
    PartitionState, Queue, Reading,
};
use crate::executor::{Gate, GateNo};
use crate::node::{Node, PoolOwner, SessionId, Timer, pool_error};
use crate::peer::{InletNo, InletPlace, RelayPlace};

/// Buffers that a relay is guaranteed.
const RELAY_MINIMUM: u32 = 2;

/// Buffers that it may have beyond those.
const RELAY_FLOATING: u32 = 30;

impl<B: Backing> Node<B> {
    /// The relay from which a consumer on this node could still read everything: first, one that awaits somebody.
    pub(crate) fn relay_of(&self, job: JobId, id: PartitionId) -> Option<PartitionNo> {
        let from_the_start = |no: &&PartitionNo| {
            let partition = self.partitions.get(**no);
            partition.is_some_and(|of| of.queue(0).is_none_or(|queue| queue.base() == 0) && !of.awaits_straggler())
        };
        let has_room = |no: &&PartitionNo| {
            let audience = self.partitions.get(**no).and_then(|of| of.audience.as_ref());
            audience.is_some_and(|audience| audience.has_room())
        };
        let all = self.relays.get(&(job, id))?.iter().filter(from_the_start);
        all.max_by_key(has_room).copied()
    }

    /// Receive buffers of the relays that a gate is the first to need here.
    pub(crate) fn relay_minimum(&self, job: JobId, request: &control::OpenGate) -> Result<u64, ShuffleError> {
        let mut new = HashSet::new();
        for channel in &request.channels {
            if channel.broadcast.is_some() && !self.is_own(&channel.node) {
                let id = PartitionId::from(required(channel.partition, "partition")?);
                if self.relay_of(job, id).is_none() {
                    new.insert(id);
                }
            }
        }
        Ok(u64::from(RELAY_MINIMUM) * new.len() as u64)
    }

    /// A consumer on this node reads a broadcast partition of another: through the relay, made with the first of them.
    pub(crate) fn place_at_relay(&mut self, now: Instant, no: OutletNo, node: &NodeAddress, deadline: Instant) {
        let Some(outlet) = self.outlets.get(no) else { return };
        let (job, id, range) = (outlet.job, outlet.id, outlet.range);
        self.fence(now, job, id);
        if !self.outlets.contains_key(no) {
            // It was of a group that failed with the older attempt.
            return;
        }
        if let Lookup::Refused(error) = self.registry.lookup(job, id)
            && matches!(error.kind(), ErrorKind::Superseded { .. })
        {
            // Its relay went when this node heard of the newer attempt; the producing node need not have.
            return self.fail_outlet(now, no, error);
        }
        let there = self.relay_of(job, id);
        let relay = match there.map_or_else(|| self.make_first_relay(no), Ok) {
            Ok(relay) => relay,
            Err(error) => return self.fail_outlet(now, no, error),
        };
        let listener = self.listener(no);
        let Some(partition) = self.partitions.get_mut(relay) else {
            return;
        };
        if let Err(error) = partition.attach(range, no, listener.as_ref()) {
            self.fail_outlet(now, no, error);
            if there.is_none() {
                self.end_relay(now, relay, None);
            }
            return;
        }
        if let Some(outlet) = self.outlets.get_mut(no) {
            outlet.state = OutletState::Open(relay);
            outlet.reading = Some(Box::new(Reading::with_cursors(range, 0)));
        }
        if there.is_none() {
            // Only now: where its node was given up a moment ago, its reader is told at once.
            self.open_relay_inlet(now, relay, node, deadline);
        }
        self.list_subpartition(relay, 0);
        self.list_outlet(no);
    }

    /// A relay for what this outlet asks for, without a channel yet.
    fn make_first_relay(&mut self, first: OutletNo) -> Result<PartitionNo, ShuffleError> {
        let outlet = &self.outlets[first];
        let consumers = outlet.told_of.unwrap_or(0);
        let declared = (consumers > 0).then(|| (self.config.address.clone(), consumers));
        let origin = RelayOrigin {
            job: outlet.job,
            id: outlet.id,
            group: outlet.group.clone(),
            audience: Audience::new(declared),
            from: 0,
            adopting: None,
        };
        self.make_relay(origin)
    }

    /// A relay without a channel.
    pub(super) fn make_relay(&mut self, origin: RelayOrigin) -> Result<PartitionNo, ShuffleError> {
        let RelayOrigin { job, id, group, .. } = origin;
        let spec = LocalPoolSpec {
            minimum: RELAY_MINIMUM,
            maximum: Some(RELAY_MINIMUM + RELAY_FLOATING),
            weight: 1,
            label: format!("relay of {id}"),
        };
        let pool = self
            .pool
            .create_local_pool(JobKey(job.value()), ArenaKind::Read, spec)
            .map_err(|error| pool_error(&error).job(job).partition(id))?;
        let gate = self.gates.insert(Gate {
            session: SessionId::default(),
            job,
            group,
            pool: Some(pool),
            credit: GateCredit::new(RELAY_MINIMUM, RELAY_FLOATING),
            reserved: Vec::new(),
            remote: Vec::new(),
            streams: std::collections::BTreeSet::new(),
        });
        self.pool_owners.insert(pool, PoolOwner::Gate(gate));
        let mut partition = Partition::new(PartitionOrigin {
            job,
            id,
            session: SessionId::default(),
            writer: WriterId::new(0),
            group: None,
            subpartitions: 1,
            kind: PartitionKind::PIPELINE,
            max_queued: u32::MAX,
            time_to_live: self.config.unread_expiry,
            store: None,
            pool: None,
            broadcast: Some(Vec::new()),
        });
        partition.audience = Some(Box::new(origin.audience));
        partition.relay = Some(Box::new(Relay {
            gate,
            from: origin.from,
            is_refetchable: false,
            adopting: origin.adopting,
            parting: None,
            refetched_below: 0,
        }));
        if let Some(queue) = partition.queue_mut(0).filter(|_| origin.from > 0) {
            *queue = Queue::resumed(origin.from);
        }
        let no = self.partitions.insert(partition);
        self.relays.entry((job, id)).or_default().push(no);
        if let Some(of) = self.jobs.get_mut(&job) {
            of.partitions += 1;
        }
        self.counters.relays_opened += 1;
        Ok(no)
    }

    fn open_relay_inlet(&mut self, now: Instant, no: PartitionNo, node: &NodeAddress, deadline: Instant) {
        let Some(partition) = self.partitions.get(no) else {
            return;
        };
        let told_of = partition
            .readers()
            .first()
            .and_then(|reader| self.outlets.get(*reader)?.told_of);
        let relay = RelayPlace {
            no,
            consumers: told_of.unwrap_or(0),
            moved: None,
        };
        self.open_inlet_of_relay(now, relay, node, deadline);
    }

    /// Asks a relay's node for what fills it.
    pub(super) fn open_inlet_of_relay(&mut self, now: Instant, of: RelayPlace, node: &NodeAddress, deadline: Instant) {
        let Some(partition) = self.partitions.get(of.no) else {
            return;
        };
        let Some(relay) = &partition.relay else { return };
        let gate = relay.gate;
        let place = InletPlace {
            job: partition.job,
            id: partition.id,
            range: SubpartitionRange { first: 0, count: 1 },
            session: SessionId::default(),
            stream: StreamId::new(0),
            gate,
            packed: false,
            relay: Some(of),
        };
        self.open_inlet(now, place, node, deadline);
        self.lend(gate);
    }

    /// A buffer has come from the producing node.
    pub(crate) fn deliver_to_relay(&mut self, no: PartitionNo, inlet: InletNo, slot: SlotRef, entry: &SlotEntry) {
        self.share(slot, BufferState::Receiving, 1, Some(inlet));
        self.take_straggler_over(no);
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let ordinal = partition.queue(0).map_or(0, Queue::handed_over);
        if partition
            .relay
            .as_ref()
            .is_some_and(|relay| ordinal < relay.refetched_below)
        {
            self.counters.refetch_bytes += u64::from(entry.length);
        }
        partition.push(0, Buffered::received(slot.slot, entry));
        self.list_subpartition(no, 0);
        self.advance(no);
    }

    /// The producing node has sent everything, and says what that was.
    ///
    /// # Errors
    /// It was something else.
    pub(crate) fn finish_relay(&mut self, now: Instant, no: PartitionNo, entry: &EndEntry) -> Result<(), ShuffleError> {
        let Some(partition) = self.partitions.get_mut(no) else {
            return Ok(());
        };
        let came = partition.queue(0).map(Queue::totals).unwrap_or_default();
        let located = |error: ShuffleError| {
            error
                .job(partition.job)
                .partition(partition.id)
                .subpartition(SubpartitionIndex::new(0))
        };
        if partition.relay_from() == 0 {
            entry.totals.verify(&came).map_err(located)?;
        } else if entry.totals.buffers != came.buffers {
            // Who has read the rest elsewhere compares all of it.
            let (sent, had) = (entry.totals.buffers, came.buffers);
            let message = format!("the producer counted {sent} buffers, the last that came here is number {had}");
            return Err(located(ShuffleError::new(ErrorKind::Protocol, message)));
        } else if let Some(queue) = partition.queue_mut(0) {
            queue.set_totals(&entry.totals);
        }
        partition.state = PartitionState::Finished;
        let (readers, time_to_live) = (partition.readers(), partition.time_to_live);
        self.timers.set(now + time_to_live, Timer::Unread(no));
        for reader in readers {
            self.list_outlet(reader);
        }
        Ok(())
    }

    /// What everybody has passed is needed no more; where it came from another node, that may forget it.
    pub(crate) fn advance(&mut self, no: PartitionNo) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let Some(audience) = &partition.audience else { return };
        let (job, passed) = (partition.job, audience.passed().unwrap_or(u64::MAX));
        let mut moved = false;
        while let Some(partition) = self.partitions.get_mut(no)
            && partition
                .queue(0)
                .is_some_and(|queue| !queue.is_waiting_empty() && queue.base() < passed)
            && let Some(buffer) = partition.pop(0)
        {
            moved = true;
            self.send_place_home(job, buffer.place);
            self.handle_consumed(no, 0, buffer);
        }
        let Some(partition) = self.partitions.get(no) else {
            return;
        };
        let Some(relay) = &partition.relay else { return };
        let from = relay.from;
        if relay.is_refetchable {
            self.stalling.push(no);
        }
        if moved && let Some(inlet) = self.inlet_of_relay(partition) {
            let below = partition.queue(0).map_or(from, Queue::base);
            self.ack_inlet(inlet, Sequence::new(below - from))
                .expect("invariant: what a relay has passed has come");
        }
    }

    pub(crate) fn inlet_of_relay(&self, partition: &Partition) -> Option<InletNo> {
        self.gates.get(partition.relay.as_ref()?.gate)?.remote.first().copied()
    }

    /// Relays of older attempts go.
    pub(crate) fn fence_relays(&mut self, now: Instant, job: JobId, newest: PartitionId, error: &ShuffleError) {
        let oldest = PartitionId { attempt: 0, ..newest };
        let older: Vec<PartitionNo> = self
            .relays
            .range((job, oldest)..(job, newest))
            .flat_map(|(_, relays)| relays.iter().copied())
            .collect();
        for no in older {
            self.end_relay(now, no, Some(error.clone()));
        }
    }

    /// Takes a relay away. With an error: its readers are told.
    pub(crate) fn end_relay(&mut self, now: Instant, no: PartitionNo, error: Option<ShuffleError>) {
        let Some(relay) = self.partitions.get_mut(no).and_then(|partition| partition.relay.take()) else {
            return;
        };
        let gate = relay.gate;
        // First, so that whoever leaves it finds nothing to release.
        let Some(partition) = self.partitions.remove(no) else {
            return;
        };
        let (job, id, readers) = (partition.job, partition.id, partition.readers());
        if let Some(all) = self.relays.get_mut(&(job, id)) {
            all.retain(|of| *of != no);
            if all.is_empty() {
                self.relays.remove(&(job, id));
            }
        }
        self.end_parting(now, &relay);
        let error = error.unwrap_or_else(|| ShuffleError::new(ErrorKind::Cancelled, "the relay has ended"));
        for reader in readers {
            self.fail_outlet(now, reader, error.clone());
        }
        let inlets = self.gates.get(gate).map(|gate| gate.remote.clone());
        for inlet in inlets.into_iter().flatten() {
            self.drop_inlet(inlet);
        }
        self.forget_inlets_of(gate);
        for buffer in partition.queues().flat_map(|(_, queue)| queue.waiting()) {
            self.send_place_home(job, buffer.place);
        }
        self.timers.cancel(Timer::Unread(no));
        self.timers.cancel(Timer::Straggler(no));
        if let Some(pool) = self.gates.remove(gate).and_then(|gate| gate.pool) {
            self.pool_owners.remove(&pool);
            self.pool.destroy_local_pool(pool);
            self.pool_changed = true;
        }
        if let Some(of) = self.jobs.get_mut(&job) {
            of.partitions -= 1;
        }
        self.retire_job_if_idle(now, job);
    }
}

/// What makes a partition a relay.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Its one channel fills it.
    pub(crate) gate: GateNo,
    /// The buffer that it begins with.
    pub(super) from: u64,
    /// What it drops can be fetched again.
    pub(super) is_refetchable: bool,
    /// Whom it takes over with its first buffer.
    pub(super) adopting: Option<Adopting>,
    /// The relay that is about to take somebody over from it.
    pub(super) parting: Option<PartitionNo>,
    /// What comes below came to this node before.
    pub(super) refetched_below: u64,
}

/// A relay that is to be made.
#[derive(Debug)]
pub(super) struct RelayOrigin {
    pub(super) job: JobId,
    pub(super) id: PartitionId,
    pub(super) group: Option<GroupRef>,
    pub(super) audience: Audience,
    pub(super) from: u64,
    pub(super) adopting: Option<Adopting>,
}
