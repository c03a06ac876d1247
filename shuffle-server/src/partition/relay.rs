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
use shuffle_protocol::control::{self, control::Message, required};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::{EndEntry, SlotEntry};
use shuffle_protocol::partition::PartitionKind;
use shuffle_protocol::stream::GateCredit;
use shuffle_protocol::{
    JobId, NodeAddress, PartitionId, Sequence, ShuffleError, StreamId, SubpartitionIndex, SubpartitionRange, WriterId,
};

use super::{
    Buffered, Lookup, OutletNo, OutletState, Partition, PartitionNo, PartitionOrigin, PartitionState, Reading, SinkRef,
};
use crate::executor::Gate;
use crate::node::{Node, PoolOwner, SessionId, Timer, pool_error};
use crate::peer::{InletNo, InletPlace};

/// Buffers that a relay is guaranteed.
const RELAY_MINIMUM: u32 = 2;

/// Buffers that it may have beyond those.
const RELAY_FLOATING: u32 = 30;

impl<B: Backing> Node<B> {
    /// The relay from which a consumer on this node could still read everything.
    pub(crate) fn relay_of(&self, job: JobId, id: PartitionId) -> Option<PartitionNo> {
        let no = *self.relays.get(&(job, id))?;
        let queue = self.partitions.get(no)?.queue(0);
        queue.is_none_or(|queue| queue.base() == 0).then_some(no)
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
        let relay = match there.map_or_else(|| self.make_relay(no), Ok) {
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
            outlet.reading = Some(Box::new(Reading::with_cursors(range)));
        }
        if there.is_none() {
            // Only now: where its node was given up a moment ago, its reader is told at once.
            self.open_relay_inlet(now, relay, node, deadline);
        }
        self.list_subpartition(relay, 0);
        self.list_outlet(no);
    }

    /// A relay for what this outlet asks for, without a channel yet.
    fn make_relay(&mut self, first: OutletNo) -> Result<PartitionNo, ShuffleError> {
        let outlet = &self.outlets[first];
        let (job, id, group) = (outlet.job, outlet.id, outlet.group.clone());
        let consumers = outlet.told_of.unwrap_or(0);
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
        let declared = (consumers > 0).then(|| (self.config.address.clone(), consumers));
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
            broadcast: Some(declared.into_iter().collect()),
        });
        partition.relay = Some(gate);
        let no = self.partitions.insert(partition);
        self.relays.insert((job, id), no);
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
        let Some(gate) = partition.relay else { return };
        let told_of = partition
            .readers()
            .first()
            .and_then(|reader| self.outlets.get(*reader)?.told_of);
        let place = InletPlace {
            job: partition.job,
            id: partition.id,
            range: SubpartitionRange { first: 0, count: 1 },
            session: SessionId::default(),
            stream: StreamId::new(0),
            gate,
            relay: Some((no, told_of.unwrap_or(0))),
        };
        self.open_inlet(now, place, node, deadline);
        self.lend(gate);
    }

    /// A buffer has come from the producing node.
    pub(crate) fn deliver_to_relay(&mut self, no: PartitionNo, inlet: InletNo, slot: SlotRef, entry: &SlotEntry) {
        self.share(slot, BufferState::Receiving, 1, Some(inlet));
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
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
        let came = partition.queue(0).map(super::Queue::totals).unwrap_or_default();
        let located = |error: ShuffleError| {
            error
                .job(partition.job)
                .partition(partition.id)
                .subpartition(SubpartitionIndex::new(0))
        };
        entry.totals.verify(&came).map_err(located)?;
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
        if moved
            && let Some(partition) = self.partitions.get(no)
            && let Some(inlet) = self.inlet_of_relay(partition)
        {
            let below = partition.queue(0).map_or(0, super::Queue::base);
            self.ack_inlet(inlet, Sequence::new(below))
                .expect("invariant: what a relay has passed has come");
        }
    }

    pub(crate) fn inlet_of_relay(&self, partition: &Partition) -> Option<InletNo> {
        self.gates.get(partition.relay?)?.remote.first().copied()
    }

    /// Whoever has not come to read a broadcast queue will not read it any more, on other nodes neither. A relay leaves it to the
    /// producing node to refuse who comes late.
    pub(crate) fn close_audience(&mut self, no: PartitionNo) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        let is_relay = partition.relay.is_some();
        let Some(audience) = &mut partition.audience else {
            return;
        };
        if is_relay {
            audience.open();
        } else {
            audience.give_up_absent();
        }
        let readers: Vec<OutletNo> = audience.readers().collect();
        self.left.push(no);
        for reader in readers {
            self.tell_nobody_is_awaited(reader);
        }
    }

    /// The relay at the other end of a channel need not wait for consumers that have not come.
    pub(super) fn tell_nobody_is_awaited(&mut self, no: OutletNo) {
        if let Some((SinkRef::Path(path), stream)) = self.outlets.get(no).map(|of| (of.sink, of.stream)) {
            let stream = stream.value();
            self.tell_path_surely(path, Message::AudienceClosed(control::AudienceClosed { stream }));
        }
    }

    /// A reader has left a broadcast queue: those that it held up go on, and a relay without readers goes.
    pub(crate) fn handle_audience_left(&mut self, now: Instant, no: PartitionNo) {
        self.advance(no);
        let over = |partition: &Partition| partition.relay.is_some() && partition.is_consumed();
        if self.partitions.get(no).is_some_and(over) {
            self.end_relay(now, no, None);
        }
    }

    /// Consumers that were declared for a node that is lost, and have not come, will not come.
    pub(crate) fn give_up_listeners_of(&mut self, node: &NodeAddress) {
        for (no, partition) in &mut self.partitions {
            if partition.relay.is_none()
                && let Some(audience) = &mut partition.audience
                && audience.give_up_node(node)
            {
                self.left.push(no);
            }
        }
    }

    /// Relays of older attempts go.
    pub(crate) fn fence_relays(&mut self, now: Instant, job: JobId, newest: PartitionId, error: &ShuffleError) {
        let oldest = PartitionId { attempt: 0, ..newest };
        let older: Vec<PartitionNo> = self
            .relays
            .range((job, oldest)..(job, newest))
            .map(|(_, no)| *no)
            .collect();
        for no in older {
            self.end_relay(now, no, Some(error.clone()));
        }
    }

    /// Takes a relay away. With an error: its readers are told.
    pub(crate) fn end_relay(&mut self, now: Instant, no: PartitionNo, error: Option<ShuffleError>) {
        let Some(gate) = self.partitions.get(no).and_then(|partition| partition.relay) else {
            return;
        };
        // First, so that whoever leaves it finds nothing to release.
        let Some(partition) = self.partitions.remove(no) else {
            return;
        };
        let (job, id, readers) = (partition.job, partition.id, partition.readers());
        if self.relays.get(&(job, id)) == Some(&no) {
            self.relays.remove(&(job, id));
        }
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

    /// Who reads a broadcast partition through this outlet.
    pub(crate) fn listener(&self, no: OutletNo) -> Option<Listener> {
        let outlet = self.outlets.get(no)?;
        let declared = outlet.told_of?;
        let (node, consumers) = match outlet.sink {
            SinkRef::Session(_) => (self.config.address.clone(), 1),
            SinkRef::Path(path) => (self.paths.get(path)?.node.clone(), declared),
        };
        Some(Listener {
            node,
            declared,
            consumers,
        })
    }
}

/// Who reads a broadcast partition through a channel.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) node: NodeAddress,
    /// Consumers on that node, as its side was told.
    pub(crate) declared: u32,
    /// Those that the channel is for.
    pub(crate) consumers: u32,
}
