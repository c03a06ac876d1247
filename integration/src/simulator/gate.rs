//! A consumer, as the client library behaves: it checks, acknowledges, holds views for a while and gives them back in
//! any order.

use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{Broadcast, CancelChannel, ChannelRequest, CloseGate, OpenGate};
use shuffle_protocol::frame::{Arena, Batch, Frame, NumberEntry};
use shuffle_protocol::{ShuffleError, StreamId, SubpartitionIndex};

use super::channel::{Channel, ChannelEnd, Item};
use super::data::Content;
use super::desk::{Asked, Desk};
use super::flips::{differs, report};
use super::schedule::{MILLIS, Micros};
use super::workload::{GateSpec, address};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Opening,
    Open,
    Closed,
}

/// A buffer that the consumer looks at.
#[derive(Debug, Clone, Copy)]
struct View {
    channel: usize,
    arena: Arena,
    slot: u32,
    offset: u32,
    content: Content,
    until: Micros,
}

#[derive(Debug)]
pub(super) struct Gate {
    pub(super) spec: GateSpec,
    pub(super) channels: Vec<Channel>,
    /// It reads nothing until then.
    pub(super) paused_until: Micros,
    gate: u32,
    first: u32,
    host: usize,
    stage: Stage,
    held: Vec<View>,
}

impl Gate {
    /// `first`: the stream of its first channel.
    pub(super) fn new(gate: u32, first: u32, host: usize, spec: GateSpec, channels: Vec<Channel>) -> Self {
        Self {
            spec,
            channels,
            paused_until: 0,
            gate,
            first,
            host,
            stage: Stage::Waiting,
            held: Vec::new(),
        }
    }

    /// Which of its channels this is.
    pub(super) fn channel_of(&self, stream: StreamId) -> Option<usize> {
        let index = stream.value().checked_sub(self.first)? as usize;
        (index < self.channels.len()).then_some(index)
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Closed && self.held.is_empty()
    }

    /// When it next has something to do by itself.
    pub(super) fn next(&self, now: Micros) -> Option<Micros> {
        let at = match self.stage {
            Stage::Waiting => Some(self.spec.start.max(now)),
            Stage::Open if self.has_work() => Some(now),
            _ => self.held.iter().map(|view| view.until.max(now)).min(),
        };
        at.map(|at| {
            if self.stage == Stage::Waiting {
                at
            } else {
                at.max(self.paused_until)
            }
        })
    }

    pub(super) fn step(&mut self, desk: &mut Desk<'_>) {
        if self.stage == Stage::Waiting && self.spec.start <= desk.now {
            return self.open(desk);
        }
        if desk.now < self.paused_until {
            return;
        }
        for _ in 0..desk.random.between(0, 4) {
            self.consume(desk);
        }
        if desk.random.chance(70) {
            self.acknowledge(desk);
        }
        let late = self.has_nothing_left() && desk.random.chance(50);
        if !late {
            self.give_back(desk);
        }
        if self.has_nothing_left() && (late || self.held.is_empty()) && self.stage == Stage::Open {
            self.acknowledge(desk);
            self.close(desk);
        }
    }

    pub(super) fn handle_opened(&mut self, outcome: Result<(), ShuffleError>) {
        if self.stage != Stage::Opening {
            return;
        }
        match outcome {
            Ok(()) => self.stage = Stage::Open,
            Err(error) => {
                self.stage = Stage::Closed;
                for channel in &mut self.channels {
                    channel.end.get_or_insert_with(|| ChannelEnd::Refused(error.clone()));
                }
            }
        }
    }

    /// Something came on one of its channels.
    pub(super) fn handle_arrival(&mut self, index: usize, item: Item, desk: &mut Desk<'_>) {
        let channel = &mut self.channels[index];
        if channel.handle_repeated(&item) {
            return;
        }
        if channel.end.is_some() || self.stage == Stage::Closed {
            if matches!(channel.end, Some(ChannelEnd::Complete)) {
                desk.accuse(|| format!("{item:?} came behind the end of {:?}", channel.spec));
            }
            if let Item::Buffer(entry, _) = item {
                desk.release(&[(channel.stream, entry.arena, entry.slot)]);
            }
            return;
        }
        if let Err(what) = channel.handle_arrival(item) {
            desk.accuse(|| format!("{:?} of {}: {what}", channel.spec, desk_job(channel)));
        }
        self.check_windows(index, desk);
    }

    /// The server says that a channel has failed.
    pub(super) fn handle_failed(&mut self, index: usize, error: ShuffleError, desk: &mut Desk<'_>) {
        let channel = &mut self.channels[index];
        if channel.end.is_none() {
            channel.end = Some(ChannelEnd::Failed(error));
        }
        self.drop_queue(index, desk);
        if !self.spec.tolerant {
            self.close(desk);
        }
    }

    /// Gives one channel up.
    pub(super) fn cancel(&mut self, index: usize, desk: &mut Desk<'_>) {
        let channel = &mut self.channels[index];
        if channel.end.is_some() || self.stage != Stage::Open {
            return;
        }
        channel.end = Some(ChannelEnd::Cancelled);
        let stream = channel.stream;
        let views_first = desk.random.chance(50);
        if views_first {
            self.drop_queue(index, desk);
        }
        desk.ask(Asked::Other, |request| {
            Message::CancelChannel(CancelChannel {
                request,
                stream: stream.value(),
            })
        });
        self.drop_queue(index, desk);
    }

    /// Gives everything up that has not ended.
    pub(super) fn close(&mut self, desk: &mut Desk<'_>) {
        if !matches!(self.stage, Stage::Opening | Stage::Open) {
            return;
        }
        self.stage = Stage::Closed;
        for channel in &mut self.channels {
            channel.end.get_or_insert(ChannelEnd::Cancelled);
        }
        let gate = self.gate;
        desk.ask(Asked::Other, |request| Message::CloseGate(CloseGate { request, gate }));
        for index in 0..self.channels.len() {
            self.drop_queue(index, desk);
        }
    }

    /// Its process or session is gone.
    pub(super) fn lose(&mut self, end: &ChannelEnd) {
        self.stage = Stage::Closed;
        self.held.clear();
        for channel in &mut self.channels {
            channel.end.get_or_insert_with(|| end.clone());
            channel.queue.clear();
        }
    }

    fn open(&mut self, desk: &mut Desk<'_>) {
        self.stage = Stage::Opening;
        let channels = self.channels.iter().map(|channel| ChannelRequest {
            stream: channel.stream.value(),
            node: if channel.spec.host == self.host && channel.stream.value() % 2 == 0 {
                String::new()
            } else {
                address(channel.spec.host).to_string()
            },
            partition: Some(channel.spec.id.into()),
            range: Some(channel.spec.range.into()),
            broadcast: channel.spec.told_of.map(|consumers| Broadcast { consumers }),
        });
        let channels = channels.collect();
        let (gate, spec, timeout_ms) = (self.gate, &self.spec, desk.timeout_ms);
        desk.ask(Asked::Open(gate as usize), |request| {
            Message::OpenGate(OpenGate {
                request,
                gate,
                exclusive: spec.exclusive,
                floating: spec.floating,
                channels,
                group: spec.group.as_ref().map(Into::into),
                timeout_ms,
                selective: false,
            })
        });
    }

    fn consume(&mut self, desk: &mut Desk<'_>) {
        let waiting: Vec<usize> = (0..self.channels.len())
            .filter(|&index| self.channels[index].is_ready())
            .collect();
        let Some(index) = desk.random.pick(&waiting) else {
            return;
        };
        let channel = &mut self.channels[index];
        let outcome = match channel.queue.pop_front() {
            None => Ok(()),
            Some(Item::End(entry)) => channel.check_end(&entry),
            Some(Item::Buffer(entry, inline)) => {
                let place = desk.slot(entry.arena, entry.slot);
                let content = inline.unwrap_or_else(|| desk.memory.read(place, entry.offset));
                if desk.flips && differs(&entry, content) {
                    channel.put_back(entry, inline);
                    return report(&entry, content, desk);
                }
                self.held.push(View {
                    channel: index,
                    arena: entry.arena,
                    slot: entry.slot,
                    offset: entry.offset,
                    content,
                    until: desk.now + desk.random.between(0, self.spec.hold),
                });
                channel.check_buffer(&entry, content)
            }
        };
        if let Err(what) = outcome {
            desk.accuse(|| format!("{:?} of {}: {what}", channel.spec, desk_job(channel)));
        }
    }

    fn acknowledge(&mut self, desk: &mut Desk<'_>) {
        let entries: Vec<NumberEntry> = self
            .channels
            .iter_mut()
            .filter(|channel| matches!(channel.end, None | Some(ChannelEnd::Complete)))
            .filter_map(|channel| {
                Some(NumberEntry {
                    stream: channel.stream,
                    subpartition: SubpartitionIndex::new(0),
                    number: channel.ack.take()?,
                })
            })
            .collect();
        if !entries.is_empty() {
            desk.send(Frame::Ack(Batch::from_entries(&entries)));
        }
    }

    /// Gives back the views that were held long enough, in any order.
    fn give_back(&mut self, desk: &mut Desk<'_>) {
        let mut slots = Vec::new();
        let mut at = 0;
        while at < self.held.len() {
            if self.held[at].until > desk.now || desk.random.chance(20) {
                at += 1;
                continue;
            }
            let view = self.held.swap_remove(at);
            let place = desk.slot(view.arena, view.slot);
            if !desk.inline && desk.memory.read(place, view.offset) != view.content {
                desk.accuse(|| format!("{place} changed while it was viewed: {view:?}"));
            }
            let channel = &mut self.channels[view.channel];
            channel.drop_view(view.arena, view.slot);
            slots.push((channel.stream, view.arena, view.slot));
        }
        desk.release(&slots);
    }

    fn drop_queue(&mut self, index: usize, desk: &mut Desk<'_>) {
        let channel = &mut self.channels[index];
        channel.awaited = None;
        let slots: Vec<_> = channel
            .queue
            .drain(..)
            .filter_map(|item| match item {
                Item::Buffer(entry, _) => Some((channel.stream, entry.arena, entry.slot)),
                Item::End(_) => None,
            })
            .collect();
        for (_, arena, slot) in &slots {
            channel.drop_view(*arena, *slot);
        }
        desk.release(&slots);
    }

    fn has_nothing_left(&self) -> bool {
        self.channels.iter().all(|channel| channel.end.is_some())
    }

    fn has_work(&self) -> bool {
        self.has_nothing_left()
            || self.channels.iter().any(|channel| {
                let heard = matches!(channel.end, None | Some(ChannelEnd::Complete));
                channel.is_ready() || (channel.ack.is_some() && heard)
            })
    }

    fn check_windows(&self, index: usize, desk: &mut Desk<'_>) {
        let floating = self.spec.floating.max(u32::from(self.spec.exclusive == 0));
        let window = self.spec.exclusive + floating;
        let channel = &self.channels[index];
        let used = channel.credits_used();
        if used > window {
            desk.accuse(|| format!("{used} credits of {:?}, its window is {window}", channel.spec));
        }
        // A cancelled channel's views are quarantined; its credits are with the others again.
        let remote = self.channels.iter().filter(|channel| {
            let is_relayed = channel.spec.told_of.is_some();
            channel.spec.host != self.host && !is_relayed && !matches!(channel.end, Some(ChannelEnd::Cancelled))
        });
        let borrowed: u32 = remote
            .map(|channel| channel.credits_used().saturating_sub(self.spec.exclusive))
            .sum();
        if borrowed > floating {
            desk.accuse(|| format!("gate {} has {borrowed} of {floating} floating buffers", self.gate));
        }
    }

    /// A pause, as of a slow reader.
    pub(super) fn pause(&mut self, until: Micros) {
        self.paused_until = self.paused_until.max(until + MILLIS);
    }
}

fn desk_job(channel: &Channel) -> String {
    format!("stream {}", channel.stream)
}
