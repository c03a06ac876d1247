//! Gates of our executors: opening channels, delivering from local queues, taking views back.

use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

use buffer_pool::{ArenaKind, Backing, BufferState, JobKey, LocalPoolSpec};
use shuffle_protocol::control::{self, control::Message, required};
use shuffle_protocol::frame::{Arena, EndEntry, NumberEntry, SlotEntry};
use shuffle_protocol::limits::MAX_CHANNELS_PER_GATE;
use shuffle_protocol::stream::GateCredit;
use shuffle_protocol::{
    GateId, GroupRef, JobId, PartitionId, PartitionKey, Sequence, ShuffleError, StreamId, SubpartitionIndex,
    SubpartitionRange, error::ErrorKind,
};

use super::requests::limit_exceeded;
use super::{Gate, GateNo};
use crate::node::{ChannelNo, Holder, Node, Output, PoolOwner, SessionId, Timer, pool_error};
use crate::partition::{
    Item, Lookup, MemberRef, Outlet, OutletNo, OutletPlace, OutletState, PartitionNo, Pull, SinkRef, locate,
};

/// Buffers that one channel sends before the next has its turn.
const TURN: u32 = 8;

/// What is left of an outlet when it has been taken away.
struct ClosedOutlet {
    job: JobId,
    id: PartitionId,
    range: SubpartitionRange,
    sink: SinkRef,
    stream: StreamId,
    group: Option<GroupRef>,
    partition: Option<PartitionNo>,
}

impl ClosedOutlet {
    /// An error with everything that is known of this channel.
    fn locate(&self, error: ShuffleError) -> ShuffleError {
        locate(error, self.job, self.id, self.range)
    }
}

impl<B: Backing> Node<B> {
    /// Opens a gate: reserves its receive buffers, then asks for every channel.
    pub(crate) fn open_gate(
        &mut self,
        now: Instant,
        id: SessionId,
        request: &control::OpenGate,
    ) -> Result<(), ShuffleError> {
        let session = self.open_session(id)?;
        let job = session.info.job;
        let name = session.info.name.clone();
        self.check_gate(id, request)?;
        let group = request.group.clone().map(GroupRef::try_from).transpose()?;
        if let Some(group) = &group
            && let Some(verdict) = self.groups.verdict(job, group.id)
        {
            return Err(verdict.clone());
        }
        let mut remote = 0u32;
        for channel in &request.channels {
            required(channel.partition, "partition")?;
            SubpartitionRange::try_from(required(channel.range, "range")?)?;
            if !self.is_own(&channel.node) {
                Self::parse_node(&channel.node)?;
                remote += 1;
            }
        }
        let pool = if remote > 0 {
            let minimum = request.exclusive.saturating_mul(remote).max(1);
            let spec = LocalPoolSpec {
                minimum,
                maximum: Some(if request.exclusive == 0 {
                    request.floating.max(1)
                } else {
                    minimum.saturating_add(request.floating)
                }),
                weight: 1,
                label: format!("gate {} ({name})", request.gate),
            };
            let made = self.pool.create_local_pool(JobKey(job.value()), ArenaKind::Read, spec);
            Some(made.map_err(|error| pool_error(&error).job(job))?)
        } else {
            None
        };
        let no = self.gates.insert(Gate {
            session: id,
            job,
            group: group.clone(),
            pool,
            credit: GateCredit::new(request.exclusive, request.floating),
            reserved: Vec::new(),
            remote: Vec::new(),
            streams: request
                .channels
                .iter()
                .map(|channel| StreamId::new(channel.stream))
                .collect(),
        });
        if let Some(pool) = pool {
            self.pool_owners.insert(pool, PoolOwner::Gate(no));
        }
        if let Some(session) = self.sessions.get_mut(id) {
            session.gates.insert(GateId::new(request.gate), no);
        }
        if let Some(group) = &group {
            self.groups.state(job, group).members.insert(MemberRef::Gate(no));
        }
        for channel in &request.channels {
            self.open_channel(now, id, no, job, request, channel)?;
        }
        self.lend(no);
        Ok(())
    }

    fn check_gate(&self, id: SessionId, request: &control::OpenGate) -> Result<(), ShuffleError> {
        let session = self.open_session(id)?;
        let invalid = |message: String| Err(ShuffleError::new(ErrorKind::InvalidRequest, message));
        if session.gates.contains_key(&GateId::new(request.gate)) {
            return invalid(format!("gate {} is open already", request.gate));
        }
        let channels = u32::try_from(request.channels.len()).unwrap_or(u32::MAX);
        if channels > MAX_CHANNELS_PER_GATE {
            return Err(limit_exceeded("channels of one gate", MAX_CHANNELS_PER_GATE, channels));
        }
        let there = self.jobs.get(&session.info.job).map_or(0, |of| of.channels);
        let limit = self.config.quotas.channels_per_job;
        if there.saturating_add(channels) > limit {
            return Err(limit_exceeded(
                "channels of one job on this node",
                limit,
                there.saturating_add(channels),
            ));
        }
        if request.exclusive == 0 && request.floating == 0 && channels > 0 {
            return invalid("a gate needs at least one credit, exclusive or floating".to_owned());
        }
        if request.exclusive == 0 && request.selective {
            return invalid(
                "a gate that chooses which channel it reads next needs at least one exclusive buffer per channel, or it could deadlock".to_owned(),
            );
        }
        let mut seen = HashSet::new();
        for channel in &request.channels {
            let stream = StreamId::new(channel.stream);
            if !seen.insert(stream) || session.channels.contains_key(&stream) {
                return invalid(format!("channel {stream} is open already"));
            }
        }
        Ok(())
    }

    fn open_channel(
        &mut self,
        now: Instant,
        id: SessionId,
        gate: GateNo,
        job: JobId,
        request: &control::OpenGate,
        channel: &control::ChannelRequest,
    ) -> Result<(), ShuffleError> {
        let stream = StreamId::new(channel.stream);
        let partition = PartitionId::from(required(channel.partition, "partition")?);
        let range = SubpartitionRange::try_from(required(channel.range, "range")?)?;
        let group = request.group.clone().map(GroupRef::try_from).transpose()?;
        let deadline = now + self.timeout(request.timeout_ms);
        self.counters.channels_opened += 1;
        if let Some(of) = self.jobs.get_mut(&job) {
            of.channels += 1;
        }
        if self.is_own(&channel.node) {
            let window = u64::from(request.exclusive) + u64::from(request.floating);
            let place = OutletPlace {
                job,
                id: partition,
                range,
                sink: SinkRef::Session(id),
                stream,
                group,
            };
            let no = self.outlets.insert(Outlet::new(place, window, now, deadline)?);
            if let Some(session) = self.sessions.get_mut(id) {
                session.channels.insert(stream, ChannelNo::Local(no));
            }
            self.place_outlet(now, no);
        } else {
            let node = Self::parse_node(&channel.node)?;
            self.open_inlet(
                now,
                crate::peer::InletPlace {
                    job,
                    id: partition,
                    range,
                    session: id,
                    stream,
                    gate,
                },
                &node,
                deadline,
            );
        }
        Ok(())
    }

    /// Connects an outlet with its partition, or lets it wait for it, or refuses it.
    pub(crate) fn place_outlet(&mut self, now: Instant, no: OutletNo) {
        let Some(outlet) = self.outlets.get(no) else { return };
        let (job, id, range) = (outlet.job, outlet.id, outlet.range);
        let OutletState::Waiting { deadline, .. } = outlet.state else {
            return;
        };
        self.fence(now, job, id);
        match self.registry.lookup(job, id) {
            Lookup::Wait => {
                self.registry.wait(job, id.key(), no);
                self.timers.set(deadline, Timer::Waiting(job, id.key()));
            }
            Lookup::Refused(error) => self.fail_outlet(now, no, error),
            Lookup::Live(partition_no) => {
                let Some(partition) = self.partitions.get_mut(partition_no) else {
                    return;
                };
                if let Err(error) = partition.attach(range, no) {
                    return self.fail_outlet(now, no, error);
                }
                let waiting = partition.waiting_in(range);
                if let Some(outlet) = self.outlets.get_mut(no) {
                    outlet.state = OutletState::Open(partition_no);
                }
                for index in waiting {
                    self.list_subpartition(partition_no, index);
                }
                self.list_outlet(no);
            }
        }
    }

    /// What they waited for has changed.
    pub(crate) fn look_again(&mut self, now: Instant, waiting: BTreeSet<OutletNo>) {
        for no in waiting {
            self.place_outlet(now, no);
        }
    }

    /// Readers that have waited their time for a partition are told that it never came.
    pub(crate) fn expire_waiting(&mut self, now: Instant, job: JobId, key: PartitionKey) {
        let mut next: Option<Instant> = None;
        let mut late = Vec::new();
        for no in self.registry.waiting(job, key) {
            let Some(OutletState::Waiting { since, deadline }) = self.outlets.get(no).map(|outlet| outlet.state) else {
                continue;
            };
            if deadline <= now {
                late.push((no, now.saturating_duration_since(since)));
            } else {
                next = Some(next.map_or(deadline, |at| at.min(deadline)));
            }
        }
        for (no, waited) in late {
            let error = ShuffleError::new(
                ErrorKind::NotRegistered { waited },
                "no producer registered it here: it has not started, runs on another node, or failed before it could register",
            );
            self.fail_outlet(now, no, error.node(&self.config.address));
        }
        if let Some(at) = next {
            self.timers.set(at, Timer::Waiting(job, key));
        }
    }

    /// Lets one outlet send what its credit and its data allow, up to its turn.
    pub(crate) fn pull_outlet(&mut self, no: OutletNo, out: &mut Vec<Output>) {
        let Some(outlet) = self.outlets.get_mut(no) else { return };
        outlet.listed = false;
        let OutletState::Open(partition_no) = outlet.state else {
            return;
        };
        let Some(partition) = self.partitions.get_mut(partition_no) else {
            return;
        };
        let (job, stream, sink) = (outlet.job, outlet.stream, outlet.sink);
        let mut viewed = Vec::new();
        let mut exhausted = false;
        for _ in 0..TURN {
            match outlet.pull(partition) {
                Pull::Buffer {
                    sequence,
                    subpartition,
                    buffer,
                    backlog,
                    again,
                } => {
                    let slot = Self::write_slot(job, buffer.slot);
                    let bytes = u64::from(buffer.length);
                    match sink {
                        SinkRef::Session(_) => {
                            viewed.push(slot);
                            self.counters.buffers_local += 1;
                            self.counters.bytes_local += bytes;
                        }
                        SinkRef::Path(_) => {
                            self.counters.buffers_sent += 1;
                            self.counters.bytes_sent += bytes;
                            self.counters.buffers_resent += u64::from(again);
                        }
                    }
                    let entry = SlotEntry {
                        stream,
                        subpartition: SubpartitionIndex::new(subpartition),
                        sequence,
                        slot: buffer.slot,
                        offset: buffer.offset,
                        length: buffer.length,
                        checksum: buffer.checksum,
                        records: buffer.records,
                        backlog,
                        arena: Arena::Write,
                        kind: buffer.kind,
                        continues: buffer.continues,
                        partial_start: buffer.partial_start,
                    };
                    out.push(Output::Slot { entry, slot });
                }
                Pull::End {
                    sequence,
                    subpartition,
                    totals,
                    last,
                } => out.push(Output::End(EndEntry {
                    stream,
                    subpartition: SubpartitionIndex::new(subpartition),
                    sequence,
                    totals,
                    last,
                })),
                Pull::Backlog(waiting) => {
                    if matches!(sink, SinkRef::Path(_)) {
                        out.push(Output::Backlog(NumberEntry {
                            stream,
                            subpartition: SubpartitionIndex::new(0),
                            number: u64::from(waiting),
                        }));
                    }
                }
                Pull::Nothing => {
                    exhausted = true;
                    break;
                }
            }
        }
        if let SinkRef::Session(id) = sink {
            for slot in viewed {
                self.pool.transition(slot, BufferState::Queued, BufferState::Viewed);
                self.set_holder(slot, Holder::View(id, ChannelNo::Local(no)));
            }
        }
        if !exhausted {
            self.list_outlet(no);
        }
    }

    /// A reader on this node has checked everything below.
    pub(crate) fn handle_reader_ack(
        &mut self,
        now: Instant,
        id: SessionId,
        stream: StreamId,
        below: u64,
    ) -> Result<(), ShuffleError> {
        match self.channel_of(id, stream) {
            Some(ChannelNo::Local(no)) => self.ack_outlet(now, no, Sequence::new(below)),
            Some(ChannelNo::Remote(no)) => self.ack_inlet(no, Sequence::new(below)),
            None => Ok(()),
        }
    }

    /// Everything below has been checked by the reader: its buffers need not be sent again.
    pub(crate) fn ack_outlet(&mut self, now: Instant, no: OutletNo, below: Sequence) -> Result<(), ShuffleError> {
        let Some(outlet) = self.outlets.get_mut(no) else {
            return Ok(());
        };
        let items: Vec<Item> = outlet.sender.handle_ack(below).map_err(ShuffleError::from)?.collect();
        let complete = outlet.is_sent() && outlet.sender.acked() == outlet.sender.sent();
        let (job, state, sink) = (outlet.job, outlet.state, outlet.sink);
        if let OutletState::Open(partition) = state {
            self.forget_items(partition, job, sink, items);
        }
        if complete {
            self.drop_outlet(now, no);
        }
        Ok(())
    }

    /// These were sent and are not needed any more.
    pub(crate) fn forget_items(
        &mut self,
        partition: PartitionNo,
        job: JobId,
        sink: SinkRef,
        items: impl IntoIterator<Item = Item>,
    ) {
        for item in items {
            let Item::Buffer { subpartition, buffer } = item else {
                continue;
            };
            if let Some(queue) = self
                .partitions
                .get_mut(partition)
                .and_then(|of| of.queue_mut(subpartition))
            {
                queue.handle_gone();
            }
            if matches!(sink, SinkRef::Path(_)) {
                self.send_home(Self::write_slot(job, buffer.slot), BufferState::Queued);
            }
            self.raise_limit(partition, subpartition);
        }
    }

    /// Takes an outlet away: what it sent is forgotten, what still comes in its range is thrown away.
    fn remove_outlet(&mut self, no: OutletNo) -> Option<ClosedOutlet> {
        let outlet = self.outlets.remove(no)?;
        let closed = ClosedOutlet {
            job: outlet.job,
            id: outlet.id,
            range: outlet.range,
            sink: outlet.sink,
            stream: outlet.stream,
            group: outlet.group.clone(),
            partition: match outlet.state {
                OutletState::Open(partition) => Some(partition),
                OutletState::Waiting { .. } => None,
            },
        };
        let Some(partition_no) = closed.partition else {
            self.registry.forget_waiting(closed.job, closed.id.key(), no);
            return Some(closed);
        };
        self.forget_items(partition_no, closed.job, closed.sink, outlet.sender.close());
        if let Some(partition) = self.partitions.get_mut(partition_no) {
            partition.detach(closed.range.first);
            for index in partition.waiting_in(closed.range) {
                self.discard_waiting(partition_no, index);
            }
        }
        Some(closed)
    }

    /// Its reader's names for a closed outlet are free again.
    fn close_outlet_names(&mut self, outlet: &ClosedOutlet, no: OutletNo) {
        match outlet.sink {
            SinkRef::Session(id) => {
                if let Some(session) = self.sessions.get_mut(id)
                    && session.channels.get(&outlet.stream) == Some(&ChannelNo::Local(no))
                {
                    session.channels.remove(&outlet.stream);
                }
                self.leave_channel(outlet.job);
            }
            SinkRef::Path(id) => {
                if let Some(path) = self.paths.get_mut(id) {
                    path.outlets.remove(&outlet.stream);
                }
            }
        }
    }

    pub(crate) fn leave_channel(&mut self, job: JobId) {
        if let Some(of) = self.jobs.get_mut(&job) {
            of.channels -= 1;
        }
    }

    /// The reader is gone, or wants no more.
    pub(crate) fn drop_outlet(&mut self, now: Instant, no: OutletNo) {
        let Some(outlet) = self.remove_outlet(no) else { return };
        self.close_outlet_names(&outlet, no);
        if let Some(partition) = outlet.partition {
            self.release_if_consumed(now, partition);
        }
    }

    /// Ends a channel with an error that its reader is told.
    pub(crate) fn fail_outlet(&mut self, now: Instant, no: OutletNo, error: ShuffleError) {
        let Some(outlet) = self.remove_outlet(no) else { return };
        self.close_outlet_names(&outlet, no);
        let error = outlet.locate(error);
        match outlet.sink {
            SinkRef::Session(id) => {
                self.report_channel(now, id, outlet.stream, outlet.job, outlet.group.as_ref(), error)
            }
            SinkRef::Path(id) => {
                let close = control::CloseChannel {
                    stream: outlet.stream.value(),
                    error: Some((&error).into()),
                    by_producer: true,
                };
                self.tell_path(id, Message::CloseChannel(close));
            }
        }
    }

    /// Tells an executor that one of its channels failed, and the channel's group.
    pub(crate) fn report_channel(
        &mut self,
        now: Instant,
        id: SessionId,
        stream: StreamId,
        job: JobId,
        group: Option<&GroupRef>,
        error: ShuffleError,
    ) {
        self.counters.channels_failed += 1;
        let failed = control::ChannelFailed {
            stream: stream.value(),
            error: Some((&error.clone().stream(stream)).into()),
        };
        self.tell_session(id, Message::ChannelFailed(failed));
        if let Some(group) = group {
            self.handle_member_failed(now, job, group, error);
        }
    }

    /// The executor wants no more of this channel.
    pub(crate) fn cancel_channel(&mut self, now: Instant, id: SessionId, stream: StreamId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let job = session.info.job;
        let Some(channel) = session.channels.get(&stream).copied() else {
            return;
        };
        if self.has_views(channel) {
            self.quarantine_views(id, job, |of| of == channel);
        }
        match channel {
            ChannelNo::Local(no) => self.drop_outlet(now, no),
            ChannelNo::Remote(no) => self.drop_inlet(no),
        }
    }

    fn has_views(&self, channel: ChannelNo) -> bool {
        match channel {
            ChannelNo::Local(no) => self.outlets.get(no).is_some_and(|outlet| outlet.has_views()),
            ChannelNo::Remote(no) => self.inlets.get(no).is_some_and(|inlet| inlet.viewed > 0),
        }
    }

    /// The executor has closed the gate: credits come home at once, each view at its drop.
    pub(crate) fn close_gate(&mut self, now: Instant, id: SessionId, gate: GateId) {
        let Some(no) = self
            .sessions
            .get_mut(id)
            .and_then(|session| session.gates.remove(&gate))
        else {
            return;
        };
        self.remove_gate(now, no);
    }

    /// The gate's executor is gone.
    pub(crate) fn lose_gate(&mut self, now: Instant, no: GateNo, cause: &ShuffleError) {
        let Some(gate) = self.gates.get(no) else { return };
        let (job, group) = (gate.job, gate.group.clone());
        self.remove_gate(now, no);
        if let Some(group) = group {
            self.handle_member_failed(now, job, &group, cause.clone());
        }
    }

    /// Fails every channel of a gate, as its group does.
    pub(crate) fn fail_gate(&mut self, now: Instant, no: GateNo, error: &ShuffleError) {
        let Some(gate) = self.gates.get(no) else { return };
        let session = gate.session;
        let streams: Vec<_> = gate.streams.iter().copied().collect();
        for stream in streams {
            match self.channel_of(session, stream) {
                Some(ChannelNo::Local(outlet)) => self.fail_outlet(now, outlet, error.clone()),
                Some(ChannelNo::Remote(inlet)) => self.fail_inlet(now, inlet, error.clone(), true),
                None => {}
            }
        }
    }

    fn remove_gate(&mut self, now: Instant, no: GateNo) {
        let Some(gate) = self.gates.get(no) else { return };
        let (session, job, group, pool) = (gate.session, gate.job, gate.group.clone(), gate.pool);
        let streams: Vec<_> = gate.streams.iter().copied().collect();
        for stream in streams {
            self.cancel_channel(now, session, stream);
        }
        self.forget_inlets_of(no, session, job);
        let Some(gate) = self.gates.remove(no) else { return };
        assert!(
            gate.reserved.is_empty(),
            "a closed gate kept {} reserved slots",
            gate.reserved.len()
        );
        if let Some(pool) = pool {
            self.pool_owners.remove(&pool);
            self.pool.destroy_local_pool(pool);
            self.pool_changed = true;
        }
        if let Some(group) = group {
            self.groups.leave(job, group.id, MemberRef::Gate(no));
        }
        self.retire_job_if_idle(now, job);
    }

    /// A view was dropped: the reader may have one more.
    pub(crate) fn handle_view_dropped(&mut self, channel: ChannelNo) -> Result<(), ShuffleError> {
        match channel {
            ChannelNo::Local(no) => {
                if let Some(outlet) = self.outlets.get_mut(no) {
                    outlet.released += 1;
                    let limit = outlet.window + outlet.released;
                    outlet.sender.handle_credit(limit).map_err(ShuffleError::from)?;
                    self.list_outlet(no);
                }
            }
            ChannelNo::Remote(no) => self.handle_inlet_view_dropped(no),
        }
        Ok(())
    }
}
