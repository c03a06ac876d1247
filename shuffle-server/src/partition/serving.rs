//! From queue to reader: what every outlet does, whether it leads to an executor on this node or to another node.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use buffer_pool::{ArenaKind, Backing, BufferState, SlotRef};
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::frame::{EndEntry, NumberEntry};
use shuffle_protocol::partition::Pressure;
use shuffle_protocol::{
    GroupRef, JobId, PartitionId, PartitionKey, ShuffleError, StreamId, SubpartitionIndex, SubpartitionRange,
    error::ErrorKind,
};

use super::{Item, Listener, Lookup, OutletNo, OutletState, PartitionNo, Pull, Reading, SinkRef};
use crate::node::{ChannelNo, Holder, Node, Output, Timer, View};

/// Buffers that one channel sends before the next has its turn.
const TURN: u32 = 8;

/// How closely deadlines of readers that wait for one partition are kept.
const WAITING_GRAIN: Duration = Duration::from_millis(10);

/// In which state a buffer is that is sent for the first time.
fn sent_from(slot: SlotRef) -> BufferState {
    match slot.arena {
        ArenaKind::Write => BufferState::Queued,
        ArenaKind::Read => BufferState::ReadAhead,
    }
}

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

impl<B: Backing> Node<B> {
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
                self.timers.set_no_later(deadline, Timer::Waiting(job, id.key()));
            }
            Lookup::Refused(error) => self.fail_outlet(now, no, error),
            Lookup::Live(partition_no) => {
                let listener = self.listener(no);
                let from = listener.as_ref().map_or(0, Listener::from);
                let Some(partition) = self.partitions.get_mut(partition_no) else {
                    return;
                };
                if let Err(error) = partition.attach(range, no, listener.as_ref()) {
                    return self.fail_outlet(now, no, error);
                }
                let waiting = partition.waiting_in(range);
                let kept = partition.kept.is_some();
                let shared = kept || partition.audience.is_some();
                let stays = kept || partition.kind.pressure == Pressure::Spilling;
                if let Some(outlet) = self.outlets.get_mut(no) {
                    outlet.state = OutletState::Open(partition_no);
                    if shared {
                        outlet.reading = Some(Box::new(Reading::with_cursors(range, from)));
                    }
                }
                for index in waiting {
                    self.list_subpartition(partition_no, index);
                }
                if kept && listener.is_some() {
                    // It is there for whoever comes late.
                    self.tell_nobody_is_awaited(no);
                }
                if stays && listener.is_some() {
                    self.tell_refetchable(no);
                }
                if kept {
                    // What was not worth a write before somebody waits for now.
                    self.spoolers.add(partition_no);
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
        let mut late = Vec::new();
        for no in self.registry.waiting(job, key) {
            if let Some((since, deadline)) = self.waits_since(no)
                && deadline <= now
            {
                late.push((no, now.saturating_duration_since(since)));
            }
        }
        for (no, waited) in late {
            let error = ShuffleError::new(
                ErrorKind::NotRegistered { waited },
                "no producer registered it here: it has not started, runs on another node, or failed before it could register",
            );
            self.fail_outlet(now, no, error.node(&self.config.address));
        }
        // Those who failed may have taken others of their group along. Those who asked within a moment of each other are
        // looked at together.
        let waiting = self.registry.waiting(job, key);
        let next = waiting.filter_map(|no| Some(self.waits_since(no)?.1)).min();
        if let Some(at) = next {
            self.timers.set(at.max(now + WAITING_GRAIN), Timer::Waiting(job, key));
        }
    }

    /// Since when a reader waits for its partition, and until when.
    fn waits_since(&self, no: OutletNo) -> Option<(Instant, Instant)> {
        match self.outlets.get(no)?.state {
            OutletState::Waiting { since, deadline } => Some((since, deadline)),
            OutletState::Open(_) | OutletState::Failed => None,
        }
    }

    fn forget_waiting(&mut self, job: JobId, key: PartitionKey, no: OutletNo) {
        if self.registry.forget_waiting(job, key, no) {
            self.timers.cancel(Timer::Waiting(job, key));
        }
    }

    /// Lets one outlet send what its credit and its data allow, up to its turn.
    pub(crate) fn pull_outlet(&mut self, now: Instant, no: OutletNo, out: &mut Vec<Output>) {
        let Some(outlet) = self.outlets.get_mut(no) else { return };
        outlet.listed = false;
        let OutletState::Open(partition_no) = outlet.state else {
            return;
        };
        if let SinkRef::Path(path) = outlet.sink
            && self
                .paths
                .get(path)
                .is_none_or(|path| outlet.confirmed != path.connections)
        {
            // Where to go on only its reader can say, when it takes the channel up on the new connection.
            return;
        }
        let Some(partition) = self.partitions.get_mut(partition_no) else {
            return;
        };
        let (job, stream, sink) = (outlet.job, outlet.stream, outlet.sink);
        let broadcast = partition.audience.is_some();
        let mut resendable = Vec::new();
        let start = out.len();
        let (mut exhausted, mut left) = (false, TURN);
        outlet.end_frame();
        // What goes in one frame goes in one turn.
        while left > 0 || outlet.continues_frame(partition) {
            let pulled = outlet.pull(partition);
            let joins = matches!(pulled, Pull::Buffer { joins: true, .. });
            left = left.saturating_sub(u32::from(!joins));
            match pulled {
                Pull::Buffer {
                    sequence,
                    subpartition,
                    buffer,
                    backlog,
                    again,
                    joins,
                } => {
                    let slot = Self::slot_at(job, buffer.place).expect("invariant: what is sent is in memory");
                    let bytes = u64::from(buffer.length);
                    if broadcast && !again && matches!(sink, SinkRef::Path(_)) {
                        resendable.push(slot);
                    }
                    match sink {
                        SinkRef::Session(_) => {
                            self.counters.buffers_local += 1;
                            self.counters.bytes_local += bytes;
                        }
                        SinkRef::Path(_) => {
                            self.counters.buffers_sent += 1;
                            self.counters.bytes_sent += bytes;
                            self.counters.buffers_resent += u64::from(again);
                        }
                    }
                    let entry = buffer.to_entry(stream, subpartition, sequence, slot, backlog);
                    out.push(if joins {
                        Output::Joined { entry, slot }
                    } else {
                        Output::Slot { entry, slot }
                    });
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
            for output in &out[start..] {
                if let Output::Slot { slot, .. } = output {
                    let channel = ChannelNo::Local(no);
                    let view = View {
                        session: id,
                        channel,
                        stream,
                    };
                    self.view(*slot, view, broadcast);
                }
            }
        }
        for slot in resendable {
            // Until it is acknowledged, whatever the queue does meanwhile.
            if let Some(share) = self.share_of(slot) {
                self.add_claim(share);
            }
        }
        if !exhausted {
            self.list_outlet(no);
        }
        self.read_ahead(now, no);
    }

    /// A buffer is on its way to an executor, which will read it in place; `stays`: and in its queue, for others.
    fn view(&mut self, slot: SlotRef, view: View, stays: bool) {
        if let Some(share) = self.share_of(slot) {
            return self.view_share(share, view, stays);
        }
        self.pool.transition(slot, sent_from(slot), BufferState::Viewed);
        self.set_holder(slot, Holder::View(view.session, view.channel));
    }

    /// Takes an outlet away: what it sent is forgotten, what still comes in its range is thrown away.
    fn remove_outlet(&mut self, no: OutletNo) -> Option<ClosedOutlet> {
        let outlet = self.outlets.remove(no)?;
        let mut outlet = outlet;
        self.stop_reading(outlet.job, no, outlet.reading.take());
        let closed = ClosedOutlet {
            job: outlet.job,
            id: outlet.id,
            range: outlet.range,
            sink: outlet.sink,
            stream: outlet.stream,
            group: outlet.group.clone(),
            partition: match outlet.state {
                OutletState::Open(partition) => Some(partition),
                OutletState::Waiting { .. } | OutletState::Failed => None,
            },
        };
        let Some(partition_no) = closed.partition else {
            self.forget_waiting(closed.job, closed.id.key(), no);
            return Some(closed);
        };
        self.forget_items(partition_no, closed.job, closed.sink, None, outlet.sender.close());
        self.leave_partition(partition_no, no, closed.range);
        Some(closed)
    }

    /// A range has no reader any more: what waits and what still comes in it is thrown away.
    fn leave_partition(&mut self, no: PartitionNo, reader: OutletNo, range: SubpartitionRange) {
        if let Some(partition) = self.partitions.get_mut(no) {
            partition.detach(range.first, reader);
            let kept = partition.kept.is_some();
            if kept || partition.audience.is_some() {
                self.left.push(no);
            }
            if partition.audience.is_some() {
                return;
            }
            for index in partition.waiting_in(range) {
                if kept {
                    self.pace(no, index);
                } else {
                    self.discard_waiting(no, index);
                }
            }
        }
    }

    /// Takes a failed outlet off its partition; it stays for its reader to be told.
    fn park_outlet(&mut self, no: OutletNo) {
        let Some(outlet) = self.outlets.get_mut(no) else { return };
        let (job, id, range, sink) = (outlet.job, outlet.id, outlet.range, outlet.sink);
        match std::mem::replace(&mut outlet.state, OutletState::Failed) {
            OutletState::Failed => {}
            OutletState::Waiting { .. } => self.forget_waiting(job, id.key(), no),
            OutletState::Open(partition) => {
                let sent: Vec<Item> = outlet.sender.unacked().copied().collect();
                let reading = outlet.reading.take();
                self.stop_reading(job, no, reading);
                self.forget_items(partition, job, sink, None, sent);
                self.leave_partition(partition, no, range);
            }
        }
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

    /// The reader is gone, or wants no more.
    pub(crate) fn drop_outlet(&mut self, now: Instant, no: OutletNo) {
        let Some(outlet) = self.remove_outlet(no) else { return };
        self.close_outlet_names(&outlet, no);
        if let Some(partition) = outlet.partition {
            self.release_if_consumed(now, partition);
        }
    }

    /// Ends a channel with an error that its reader is told; a member of a group with the verdict on that.
    pub(crate) fn fail_outlet(&mut self, now: Instant, no: OutletNo, error: ShuffleError) {
        self.end_outlet(now, no, error, false);
    }

    /// The same; `surely`: its reader hears of it, however often the connection breaks until it has.
    pub(super) fn end_outlet(&mut self, now: Instant, no: OutletNo, error: ShuffleError, surely: bool) {
        let Some(outlet) = self.outlets.get(no) else { return };
        let (job, error) = (outlet.job, outlet.locate(error));
        if matches!(outlet.sink, SinkRef::Session(_))
            && let Some(group) = outlet.group.clone()
            && self.waits_for_verdict(job, &group, &error)
        {
            self.park_outlet(no);
            return self.handle_member_failed(now, job, &group, error);
        }
        let Some(outlet) = self.remove_outlet(no) else { return };
        self.close_outlet_names(&outlet, no);
        // It may have been the last that a finished partition waited for, where that lives on.
        if let Some(partition) = outlet.partition.filter(|_| surely) {
            self.release_if_consumed(now, partition);
        }
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
                // A partition that lives could not say later why, if this were lost with the connection.
                if surely {
                    self.tell_path_surely(id, Message::CloseChannel(close));
                } else {
                    self.tell_path(id, Message::CloseChannel(close));
                }
            }
        }
    }
}
