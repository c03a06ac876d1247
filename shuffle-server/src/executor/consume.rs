//! Gates of our executors: opening channels, delivering from local queues, taking views back.

use std::collections::HashSet;
use std::time::Instant;

use buffer_pool::{ArenaKind, Backing, JobKey, LocalPoolSpec};
use shuffle_protocol::control::{self, control::Message, required};
use shuffle_protocol::limits::{MAX_CHANNELS_PER_GATE, MAX_CREDIT_WINDOW};
use shuffle_protocol::stream::GateCredit;
use shuffle_protocol::{
    GateId, GroupRef, JobId, PartitionId, Sequence, ShuffleError, StreamId, SubpartitionRange, error::ErrorKind,
};

use super::requests::{Claim, beyond_protocol, limit_exceeded};
use super::{Gate, GateNo};
use crate::node::{ChannelNo, Node, PendingKind, PoolOwner, SessionId, pool_error};
use crate::partition::{MemberRef, Outlet, OutletPlace, SinkRef};

impl<B: Backing> Node<B> {
    /// Opens a gate: reserves its receive buffers, then asks for every channel.
    pub(crate) fn open_gate(
        &mut self,
        now: Instant,
        id: SessionId,
        request: &control::OpenGate,
    ) -> Result<(), ShuffleError> {
        let Claim { job, group, .. } = self.check_gate(id, request)?;
        let need = self.receive_minimum(request);
        let name = self.open_session(id)?.info.name.clone();
        let pool = match need {
            0 => None,
            need => {
                let minimum = u32::try_from(need).unwrap_or(u32::MAX);
                let most = if request.exclusive == 0 {
                    request.floating
                } else {
                    minimum.saturating_add(request.floating)
                };
                let spec = LocalPoolSpec {
                    minimum,
                    maximum: Some(most),
                    weight: 1,
                    label: format!("gate {} ({name})", request.gate),
                };
                let made = self.pool.create_local_pool(JobKey(job.value()), ArenaKind::Read, spec);
                Some(made.map_err(|error| pool_error(&error).job(job))?)
            }
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
            self.join_group(now, job, group, MemberRef::Gate(no));
        }
        for channel in &request.channels {
            self.open_channel(now, id, no, job, request, channel)?;
        }
        // One of them may have failed at once, and with it the group: then the gate was no member any more.
        if let Some(group) = &group
            && let Some(verdict) = self.groups.verdict(job, group.id).cloned()
        {
            self.fail_gate(now, no, &verdict);
        }
        self.lend(no);
        Ok(())
    }

    /// Receive buffers that a gate must have: its exclusive ones, or one that goes round; none where all is local.
    fn receive_minimum(&self, request: &control::OpenGate) -> u64 {
        let remote = request
            .channels
            .iter()
            .filter(|channel| channel.broadcast.is_none() && !self.is_own(&channel.node))
            .count();
        match u64::try_from(remote).unwrap_or(u64::MAX) {
            0 => 0,
            remote => remote.saturating_mul(request.exclusive.into()).max(1),
        }
    }

    /// Whether nothing but buffers is in the way of a new gate.
    pub(super) fn check_gate(&self, id: SessionId, request: &control::OpenGate) -> Result<Claim, ShuffleError> {
        self.check_gate_itself(id, request)?;
        let job = self.open_session(id)?.info.job;
        let group = request.group.clone().map(GroupRef::try_from).transpose()?;
        if let Some(group) = &group
            && let Some(verdict) = self.groups.verdict(job, group.id)
        {
            return Err(verdict.clone());
        }
        for channel in &request.channels {
            required(channel.partition, "partition")?;
            SubpartitionRange::try_from(required(channel.range, "range")?)?;
            if !self.is_own(&channel.node) {
                Self::parse_node(&channel.node)?;
            }
        }
        let need = self.receive_minimum(request) + self.relay_minimum(job, request)?;
        Ok(Claim { job, group, need })
    }

    fn check_gate_itself(&self, id: SessionId, request: &control::OpenGate) -> Result<(), ShuffleError> {
        let session = self.open_session(id)?;
        let invalid = |message: String| Err(ShuffleError::new(ErrorKind::InvalidRequest, message));
        if session.gates.contains_key(&GateId::new(request.gate)) {
            return invalid(format!("gate {} is open already", request.gate));
        }
        let channels = u32::try_from(request.channels.len()).unwrap_or(u32::MAX);
        if channels > MAX_CHANNELS_PER_GATE {
            let (limit, asked) = (MAX_CHANNELS_PER_GATE.into(), channels.into());
            return Err(beyond_protocol("channels of one gate", limit, asked));
        }
        let there = self.jobs.get(&session.info.job).map_or(0, |of| of.channels);
        let limit = self.config.quotas.channels_per_job;
        if there.saturating_add(channels) > limit {
            return Err(limit_exceeded(
                "channels of one job on this node",
                limit,
                there.saturating_add(channels),
                "limits.channels_per_job",
            ));
        }
        if request.exclusive == 0 && request.floating == 0 && channels > 0 {
            return invalid("a gate needs at least one credit, exclusive or floating".to_owned());
        }
        let window = u64::from(request.exclusive) + u64::from(request.floating);
        if window > MAX_CREDIT_WINDOW {
            return Err(beyond_protocol("credits of one channel", MAX_CREDIT_WINDOW, window));
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
        let told_of = channel.broadcast.map(|broadcast| broadcast.consumers);
        if self.is_own(&channel.node) || told_of.is_some() {
            let window = u64::from(request.exclusive) + u64::from(request.floating);
            let place = OutletPlace {
                job,
                id: partition,
                range,
                sink: SinkRef::Session(id),
                stream,
                group,
                told_of,
                moved: None,
                packed_into: None,
            };
            let no = self.outlets.insert(Outlet::new(place, window, now, deadline)?);
            if let Some(session) = self.sessions.get_mut(id) {
                session.channels.insert(stream, ChannelNo::Local(no));
            }
            if self.is_own(&channel.node) {
                self.place_outlet(now, no);
            } else {
                let node = Self::parse_node(&channel.node)?;
                self.place_at_relay(now, no, &node, deadline);
            }
        } else {
            let node = Self::parse_node(&channel.node)?;
            let packed = self.sessions.get(id).is_some_and(|session| session.info.packed);
            self.open_inlet(
                now,
                crate::peer::InletPlace {
                    job,
                    id: partition,
                    range,
                    session: id,
                    stream,
                    gate,
                    packed,
                    relay: None,
                },
                &node,
                deadline,
            );
        }
        Ok(())
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

    pub(crate) fn leave_channel(&mut self, job: JobId) {
        if let Some(of) = self.jobs.get_mut(&job) {
            of.channels -= 1;
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
        self.drop_channel(now, channel);
    }

    /// The reader wants no more of a channel whose views are quarantined.
    fn drop_channel(&mut self, now: Instant, channel: ChannelNo) {
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
            self.give_up_pending(
                id,
                |kind| matches!(kind, PendingKind::Gate(of) if of.gate == gate.value()),
            );
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
        let channels: Vec<_> = gate
            .streams
            .iter()
            .filter_map(|stream| self.channel_of(session, *stream))
            .collect();
        // Those that are closed stay for their views; all views of the gate are found in one pass over the job's slots.
        let closed = gate.remote.iter().map(|inlet| ChannelNo::Remote(*inlet));
        let viewed: HashSet<_> = channels
            .iter()
            .copied()
            .chain(closed)
            .filter(|of| self.has_views(*of))
            .collect();
        if !viewed.is_empty() {
            self.quarantine_views(session, job, |of| viewed.contains(&of));
        }
        for channel in channels {
            self.drop_channel(now, channel);
        }
        self.forget_inlets_of(no);
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
            self.leave_group(now, job, &group, MemberRef::Gate(no));
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
