//! A consumer that holds up the others of its node gets a relay of its own, where what a relay drops can be fetched again.
//!
//! ```text
//!   relay     base                                handed_over
//!              ▲ the slowest, or who has not come      ▲ another waits: nothing more comes, for the relay is full, or the
//!                                                        producer is held up by what nobody has acknowledged
//!
//!   after PATIENCE (ABSENCE, if it has not come): a second relay, whose channel begins with the slowest one's next buffer (of who has not come: the first);
//!   with the first buffer that comes there its reader moves, and the first relay goes on. Until then nothing is dropped, so
//!   the producing node has heard of the second channel before it forgets anything.
//! ```

use std::time::{Duration, Instant};

use buffer_pool::Backing;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::{NodeAddress, StreamId};

use super::relay::RelayOrigin;
use super::{Audience, OutletNo, OutletState, Partition, PartitionNo, PartitionState, Queue, Relay, SinkRef};
use crate::node::{Node, Timer};
use crate::peer::RelayPlace;

/// How long a reader is held up by others of its node before it goes on without them. A reader that was only out of turn for a
/// moment is not worth a second copy on the wire.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same where the others have not come yet: they may be about to.
const ABSENCE: Duration = Duration::from_secs(5);

/// Consumers that a channel takes over from another between the same two nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moved {
    pub(crate) of: StreamId,
    pub(crate) consumers: u32,
    /// The buffer that it begins with.
    pub(crate) from: u64,
}

impl From<control::MovedConsumers> for Moved {
    fn from(moved: control::MovedConsumers) -> Self {
        Self {
            of: StreamId::new(moved.stream),
            consumers: moved.consumers,
            from: moved.from,
        }
    }
}

impl From<Moved> for control::MovedConsumers {
    fn from(moved: Moved) -> Self {
        Self {
            stream: moved.of.value(),
            consumers: moved.consumers,
            from: moved.from,
        }
    }
}

/// Whom a relay takes over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Adopting {
    from: PartitionNo,
    /// `None`: those who have not come.
    reader: Option<OutletNo>,
}

/// How the slowest part from the others.
struct Parting {
    node: NodeAddress,
    origin: RelayOrigin,
    told_of: u32,
    moved: Moved,
}

impl Partition {
    /// The first buffer that came here, of a relay.
    pub(crate) fn relay_from(&self) -> u64 {
        self.relay.as_ref().map_or(0, |relay| relay.from)
    }

    /// Its first reader is yet to be taken over.
    pub(super) fn is_adopting(&self) -> bool {
        self.relay.as_ref().is_some_and(|relay| relay.adopting.is_some())
    }

    /// A relay for one reader that reads elsewhere yet.
    pub(super) fn awaits_straggler(&self) -> bool {
        let adopting = self.relay.as_ref().and_then(|relay| relay.adopting);
        adopting.is_some_and(|adopting| adopting.reader.is_some())
    }
}

impl<B: Backing> Node<B> {
    /// The relay at the other end of a channel may drop what its slowest reader has not passed.
    pub(super) fn tell_refetchable(&mut self, no: OutletNo) {
        if let Some((SinkRef::Path(path), stream)) = self.outlets.get(no).map(|of| (of.sink, of.stream)) {
            let stream = stream.value();
            self.tell_path_surely(path, Message::Refetchable(control::Refetchable { stream }));
        }
    }

    pub(crate) fn make_refetchable(&mut self, no: PartitionNo) {
        if let Some(relay) = self.partitions.get_mut(no).and_then(|of| of.relay.as_mut()) {
            relay.is_refetchable = true;
            self.stalling.push(no);
        }
    }

    /// Readers of a relay may hold up others, or do so no more.
    pub(crate) fn watch_for_stragglers(&mut self, now: Instant, no: PartitionNo) {
        let timer = Timer::Straggler(no);
        let Some(audience) = self.partitions.get(no).and_then(|of| of.audience.as_ref()) else {
            return;
        };
        let patience = if audience.absent() > 0 { ABSENCE } else { PATIENCE };
        if !self.is_stalled(no) {
            self.timers.cancel(timer);
        } else if !self.timers.is_armed(timer) {
            self.timers.set(now + patience, timer);
        }
    }

    /// One reader has everything that has come, and another has not, or has not come.
    fn is_stalled(&self, no: PartitionNo) -> bool {
        let Some(partition) = self.partitions.get(no) else {
            return false;
        };
        let Some(relay) = &partition.relay else { return false };
        let has_come = partition.queue(0).map_or(0, Queue::handed_over);
        relay.is_refetchable
            && relay.parting.is_none()
            && relay.adopting.is_none()
            && partition.state != PartitionState::Finished
            && partition.audience.as_ref().is_some_and(|audience| {
                audience.furthest() == Some(has_come) && audience.passed().is_some_and(|passed| passed < has_come)
            })
    }

    /// They have held up others long enough.
    pub(crate) fn part_from_straggler(&mut self, now: Instant, no: PartitionNo) {
        if !self.is_stalled(no) {
            return;
        }
        let again = now + PATIENCE;
        let Some(parting) = self.plan_parting(no) else {
            return self.timers.set(again, Timer::Straggler(no));
        };
        let Ok(second) = self.make_relay(parting.origin) else {
            // No buffers for it now.
            return self.timers.set(again, Timer::Straggler(no));
        };
        if let Some(relay) = self.partitions.get_mut(no).and_then(|of| of.relay.as_mut()) {
            relay.parting = Some(second);
        }
        let place = RelayPlace {
            no: second,
            consumers: parting.told_of,
            moved: Some(parting.moved),
        };
        let deadline = now + self.config.request_timeout;
        self.open_inlet_of_relay(now, place, &parting.node, deadline);
    }

    /// `None`: the slowest holds everything that has come, and nothing is gained without it.
    fn plan_parting(&self, no: PartitionNo) -> Option<Parting> {
        let partition = self.partitions.get(no)?;
        let audience = partition.audience.as_ref()?;
        let inlet = self.inlets.get(self.inlet_of_relay(partition)?)?;
        let told_of = inlet.place.relay?.consumers;
        let here = &self.config.address;
        let (reader, consumers, from, audience) = match audience.absent() {
            0 => {
                let reader = audience.reader_at(audience.passed()?)?;
                let outlet = self.outlets.get(reader)?;
                let next = outlet.reading.as_ref()?.cursors.first()?.next;
                let is_bound = next >= partition.queue(0)?.handed_over() || outlet.tracing.is_busy();
                if is_bound {
                    return None;
                }
                (Some(reader), 1, next, Audience::of_one(here, told_of))
            }
            absent => (None, absent, 0, Audience::of_absent(here, told_of, absent)),
        };
        let gate = partition.relay.as_ref()?.gate;
        Some(Parting {
            node: self.paths.get(inlet.path)?.node.clone(),
            told_of,
            moved: Moved {
                of: inlet.remote,
                consumers,
                from,
            },
            origin: RelayOrigin {
                job: partition.job,
                id: partition.id,
                group: self.gates.get(gate)?.group.clone(),
                audience,
                from,
                adopting: Some(Adopting { from: no, reader }),
            },
        })
    }

    /// The first buffer has come to a relay that was made for somebody: the other relay goes on without them.
    pub(super) fn take_straggler_over(&mut self, no: PartitionNo) {
        let relay = self.partitions.get_mut(no).and_then(|of| of.relay.as_mut());
        let Some(Adopting { from, reader }) = relay.and_then(|relay| relay.adopting.take()) else {
            return;
        };
        // Whoever was to be taken over may be gone: then it is of no use.
        self.left.extend([no, from]);
        let Some(first) = self.partitions.get_mut(from) else {
            return;
        };
        if let Some(relay) = &mut first.relay {
            relay.parting = None;
        }
        let has_come = first.queue(0).map_or(0, Queue::handed_over);
        let Some(audience) = &mut first.audience else { return };
        let mut adopted = None;
        match reader {
            None => audience.give_absent_away(),
            Some(reader) => {
                let outlet = self.outlets.get_mut(reader);
                // It may have caught up, to the end.
                let moves = |outlet: &&mut super::Outlet| outlet.state == OutletState::Open(from) && !outlet.is_sent();
                if let Some(outlet) = outlet.filter(moves) {
                    adopted = audience.passed_by(reader).map(|passed| (reader, passed));
                    audience.detach(reader);
                    outlet.move_to(no);
                }
            }
        }
        let Some(second) = self.partitions.get_mut(no) else {
            return;
        };
        if let Some(relay) = &mut second.relay {
            relay.refetched_below = has_come;
        }
        if let (Some((reader, passed)), Some(audience)) = (adopted, &mut second.audience) {
            audience.adopt(reader, self.config.address.clone(), 1, passed);
        }
    }

    /// A relay is gone: nobody is taken over by it, or from it.
    pub(super) fn end_parting(&mut self, now: Instant, relay: &Relay) {
        let adopting = relay.adopting.as_ref().map(|adopting| adopting.from);
        if let Some(first) = adopting.and_then(|first| self.partitions.get_mut(first)?.relay.as_mut()) {
            first.parting = None;
            // It could not be had.
            first.is_refetchable = false;
        }
        if let Some(second) = relay.parting {
            self.end_relay(now, second, None);
        }
    }
}
