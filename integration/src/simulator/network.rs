//! Packets on their way: polled from a core, written, delayed, delivered, or lost with their connection.

use buffer_pool::SlotRef;
use shuffle_protocol::frame::{Batch, DataHead, Frame, SlotEntry};
use shuffle_protocol::{ShuffleError, error::ErrorKind};
use shuffle_server::node::{Landing, Output};

use super::Sabotage;
use super::connection::{Packet, Party};
use super::data::{Content, GARBAGE};
use super::flips::Way;
use super::schedule::{Event, Micros};
use super::world::World;

/// Percent of what is sent that the kernel refers to for a while.
const LINGERS: u64 = 30;

impl World {
    // ---------------------------------------------------------------------------------------------- sending

    /// The core has something for this end.
    pub(super) fn want_poll(&mut self, connection: usize, end: usize) {
        self.connections[connection].ends[end].wants_poll = true;
        self.schedule_poll(connection, end);
    }

    fn schedule_poll(&mut self, connection: usize, end: usize) {
        let of = &mut self.connections[connection].ends[end];
        if of.open && of.wants_poll && !of.poll_scheduled && of.outbox.is_empty() {
            of.poll_scheduled = true;
            let at = self.now + self.task_delay();
            self.schedule.at(at, Event::Poll { connection, end });
        }
    }

    pub(super) fn poll(&mut self, connection: usize, end: usize) {
        let of = &mut self.connections[connection].ends[end];
        of.poll_scheduled = false;
        if !of.open {
            return;
        }
        of.wants_poll = false;
        let budget = self.plan.byte_budget;
        let mut out = Vec::new();
        let (host, more) = match self.connections[connection].ends[end].party {
            Party::Link { host, id: Some(id), .. } => {
                let more = self.core(host, |node, now| node.poll_link(now, id, budget, &mut out));
                (host, more)
            }
            Party::Session { host, id, .. } => {
                let more = self.core(host, |node, now| node.poll_session(now, id, &mut out));
                (host, more)
            }
            _ => return,
        };
        let of = &mut self.connections[connection].ends[end];
        of.outbox.extend(out);
        of.wants_poll |= more;
        self.after(host);
        self.flush(connection, end);
        self.schedule_poll(connection, end);
    }

    /// Writes what the window allows: from then on the payload is on its way, and its buffer not needed.
    fn flush(&mut self, connection: usize, end: usize) {
        loop {
            let of = &self.connections[connection];
            if !of.ends[end].open || of.pipes[1 - end].packets.len() >= self.plan.window {
                return;
            }
            let party = of.ends[end].party;
            let outbox = &mut self.connections[connection].ends[end].outbox;
            let Some(output) = outbox.pop_front() else {
                return;
            };
            let mut joined = Vec::new();
            while let Some(Output::Joined { .. }) = outbox.front() {
                joined.extend(outbox.pop_front().and_then(|output| output.buffer()));
            }
            self.write(connection, end, party, output, joined);
        }
    }

    fn write(
        &mut self,
        connection: usize,
        end: usize,
        party: Party,
        output: Output,
        joined: Vec<(SlotEntry, SlotRef)>,
    ) {
        let to = 1 - end;
        let packet = match output {
            Output::Slot { entry, slot } => {
                if let Party::Session { inline: false, .. } = party {
                    Packet::Frame(Frame::Slots(Batch::from_entries(&[entry])))
                } else {
                    let frame = std::iter::once((entry, slot)).chain(joined).collect();
                    return self.write_payload(connection, end, frame);
                }
            }
            Output::Joined { .. } => return self.accuse(|| "a buffer joins none".to_owned()),
            Output::Control(message) => Packet::Frame(Frame::Control(message)),
            Output::End(entry) => Packet::Frame(Frame::End(Batch::from_entries(&[entry]))),
            Output::Grant(entry) => Packet::Frame(Frame::Grant(Batch::from_entries(&[entry]))),
            Output::Credit(entry) => Packet::Frame(Frame::Credit(Batch::from_entries(&[entry]))),
            Output::Ack(entry) => Packet::Frame(Frame::Ack(Batch::from_entries(&[entry]))),
            Output::Backlog(entry) => Packet::Frame(Frame::Backlog(Batch::from_entries(&[entry]))),
            Output::Ping(nonce) => Packet::Frame(Frame::Ping(nonce)),
            Output::Pong(nonce) => Packet::Frame(Frame::Pong(nonce)),
        };
        self.send(connection, to, packet);
    }

    /// One frame of these.
    fn write_payload(&mut self, connection: usize, end: usize, frame: Vec<(SlotEntry, SlotRef)>) {
        let Some((host, _)) = self.connections[connection].ends[end].host() else {
            return;
        };
        self.report.packed_buffers += frame.len() as u64 - 1;
        let entries: Vec<SlotEntry> = frame.iter().map(|(entry, _)| *entry).collect();
        let contents: Vec<Content> = frame
            .iter()
            .map(|(entry, slot)| self.memory(host).read(*slot, entry.offset))
            .collect();
        let arriving = contents
            .iter()
            .map(|content| self.flips.pass(Way::Wire, *content))
            .collect();
        let head = DataHead {
            slots: Batch::from_entries(&entries),
            payload_bytes: entries.iter().map(|entry| entry.length).sum(),
            sequence: entries[0].sequence,
            stream: entries[0].stream,
        };
        let lost = self.sabotage == Some(Sabotage::LoseBuffer) && self.connections[connection].hosts().is_some();
        if lost {
            self.sabotage = None;
        } else {
            self.send(connection, 1 - end, Packet::Head(head.clone()));
            self.send(connection, 1 - end, Packet::Body(head, arriving));
        }
        if self.sabotage == Some(Sabotage::KeepPinned) {
            self.sabotage = None;
            return;
        }
        for ((entry, slot), content) in frame.into_iter().zip(contents) {
            self.let_go(host, (slot, entry.offset), content);
        }
    }

    /// The kernel has a buffer that was sent, and is done with it sooner or later.
    fn let_go(&mut self, host: usize, place: (SlotRef, u32), content: Content) {
        let (slot, offset) = place;
        let epoch = self.hosts[host].epoch;
        if self.random.chance(LINGERS) {
            // The kernel still refers to it, as with sendfile and zero copy: until the other side has read it, or later.
            let at = self.now + self.network_delay() + self.task_delay();
            self.schedule.at(
                at,
                Event::Written {
                    host,
                    epoch,
                    slot,
                    offset,
                    content,
                },
            );
        } else {
            self.written(host, epoch, place, content);
        }
    }

    /// The kernel is done with a slot, in which nobody may have written meanwhile.
    pub(super) fn written(&mut self, host: usize, epoch: u32, place: (SlotRef, u32), content: Content) {
        let (slot, offset) = place;
        if self.hosts[host].epoch != epoch || self.hosts[host].node.is_none() {
            return;
        }
        // What did not match may be received or loaded once more, into the same slot.
        if self.memory(host).read(slot, offset) != content && !self.flips.may_change(content) {
            self.accuse(|| format!("server {host}: {slot} was written to while the kernel sent it"));
        }
        self.core(host, |node, now| node.handle_written(now, slot));
        self.after(host);
    }

    /// Puts a packet on its way to that end.
    pub(super) fn send(&mut self, connection: usize, end: usize, packet: Packet) {
        let far = self.connections[connection].hosts().is_some();
        let delay = if far { self.network_delay() } else { self.task_delay() };
        let pipe = &mut self.connections[connection].pipes[end];
        if pipe.shut {
            return;
        }
        pipe.last = pipe.last.max(self.now + delay);
        pipe.packets.push_back((pipe.last, packet));
        self.schedule.at(pipe.last, Event::Deliver { connection, end });
    }

    // --------------------------------------------------------------------------------------------- receiving

    pub(super) fn deliver(&mut self, connection: usize, end: usize) {
        let of = &self.connections[connection];
        let party = of.ends[end].party;
        match of.pipes[end].packets.front() {
            Some((at, _)) if *at <= self.now => {}
            _ => return,
        }
        if let Some(until) = of.hosts().and_then(|(a, b)| self.hole_between(a, b)) {
            return self.schedule.at(until, Event::Deliver { connection, end });
        }
        if let Party::Process(process) = party
            && self.processes[process].is_stopped(self.now)
        {
            // It is delivered when the process goes on.
            return;
        }
        let Some((_, packet)) = self.connections[connection].pipes[end].packets.pop_front() else {
            return;
        };
        if self.connections[connection].ends[end].open {
            self.receive(connection, end, party, packet);
        }
        if self.connections[connection].ends[1 - end].host().is_some() {
            self.flush(connection, 1 - end);
            self.schedule_poll(connection, 1 - end);
        }
    }

    fn receive(&mut self, connection: usize, end: usize, party: Party, packet: Packet) {
        let outcome = match (party, packet) {
            (_, Packet::Fin) => {
                let error = ShuffleError::new(ErrorKind::ConnectionLost, "the other side closed the connection");
                return self.close_end(connection, end, &error, false);
            }
            (Party::Process(process), packet) => return self.handle_packet(process, packet),
            (Party::Link { host, .. }, Packet::Welcome(incarnation)) => {
                return self.welcome(connection, host, incarnation);
            }
            (Party::Link { host, id: Some(id), .. }, Packet::Frame(frame)) => {
                self.core(host, |node, now| node.handle_link_frame(now, id, frame))
            }
            (Party::Link { host, id: Some(id), .. }, Packet::Head(head)) => {
                let landing = self.core(host, |node, now| node.handle_link_data_head(now, id, &head));
                self.land(connection, end, landing)
            }
            (Party::Link { host, id: Some(id), .. }, Packet::Body(head, contents)) => {
                self.fill(connection, end, host, &head, &contents);
                self.core(host, |node, now| node.handle_link_data(now, id, &head))
            }
            (Party::Session { host, id, .. }, Packet::Frame(frame)) => {
                self.core(host, |node, now| node.handle_session_frame(now, id, frame))
            }
            (Party::Session { host, id, .. }, Packet::Head(head)) => {
                let landing = self.core(host, |node, now| node.handle_session_data_head(now, id, &head));
                self.land(connection, end, landing)
            }
            (Party::Session { host, id, .. }, Packet::Body(head, contents)) => {
                self.fill(connection, end, host, &head, &contents);
                self.core(host, |node, now| node.handle_session_data(now, id, &head))
            }
            (Party::Link { id: None, .. }, packet) => {
                return self.accuse(|| format!("{packet:?} came before the welcome"));
            }
            (_, Packet::Welcome(_)) => return self.accuse(|| "an executor was welcomed twice".to_owned()),
        };
        let Some((host, _)) = self.connections[connection].ends[end].host() else {
            return;
        };
        self.after(host);
        if let Err(error) = outcome {
            // Everybody here keeps to the protocol.
            self.accuse(|| format!("server {host} accuses {party:?} on connection {connection}: {error}"));
        }
    }

    fn land(
        &mut self,
        connection: usize,
        end: usize,
        landing: Result<Landing, ShuffleError>,
    ) -> Result<(), ShuffleError> {
        let landing = landing?;
        self.report.refetched_parts += u64::from(matches!(landing, Landing::Part(_, 1..)));
        self.connections[connection].ends[end].landing = Some(landing);
        Ok(())
    }

    fn fill(&mut self, connection: usize, end: usize, host: usize, head: &DataHead, contents: &[Content]) {
        let landing = self.connections[connection].ends[end].landing.take();
        let memory = self.memory(host);
        let (slot, mut offset) = match landing {
            Some(Landing::Slot(slot)) => {
                memory.write(slot, GARBAGE);
                (slot, 0)
            }
            Some(Landing::Part(slot, offset)) => (slot, offset),
            Some(Landing::Discard) | None => return,
        };
        for (entry, content) in head.slots.iter().zip(contents) {
            memory.write_behind(slot, offset, *content);
            offset += entry.length;
        }
    }

    // ----------------------------------------------------------------------------------------------- closing

    /// This end is over. `own`: it is this end that closes.
    pub(super) fn close_end(&mut self, connection: usize, end: usize, error: &ShuffleError, own: bool) {
        let of = &mut self.connections[connection].ends[end];
        if !std::mem::replace(&mut of.open, false) {
            return;
        }
        let party = of.party;
        let outbox = std::mem::take(&mut of.outbox);
        self.trace(|| format!("connection {connection}: end {end}, {party:?}, closes: {error}"));
        if own {
            self.send(connection, 1 - end, Packet::Fin);
        }
        match party {
            Party::Process(process) => self.lose_session(process, error),
            Party::Link { host, id, .. } => {
                // A part of the payload had come.
                match self.connections[connection].ends[end].landing.take() {
                    Some(Landing::Slot(slot)) => self.memory(host).write(slot, GARBAGE),
                    Some(Landing::Part(slot, offset)) => self.memory(host).write_behind(slot, offset, GARBAGE),
                    Some(Landing::Discard) | None => {}
                }
                self.abandon(host, outbox);
                match id {
                    Some(id) => {
                        self.hosts[host].links.remove(&id);
                        self.core(host, |node, now| node.handle_link_closed(now, id, error.clone()));
                        self.after(host);
                    }
                    None => self.dial_broken(connection, host, error),
                }
            }
            Party::Session { host, id, inline, .. } => {
                if inline {
                    self.abandon(host, outbox);
                }
                self.hosts[host].sessions.remove(&id);
                let alive = self.outlives_session(connection);
                self.core(host, |node, now| node.handle_session_closed(now, id, alive));
                self.after(host);
            }
        }
    }

    /// What was polled and will not be written needs its buffers no more.
    fn abandon(&mut self, host: usize, outbox: impl IntoIterator<Item = Output>) {
        for output in outbox {
            if let Some((entry, slot)) = output.buffer() {
                let place = (slot, entry.offset);
                let (epoch, content) = (self.hosts[host].epoch, self.memory(host).read(slot, entry.offset));
                self.written(host, epoch, place, content);
            }
        }
    }

    /// The network breaks a connection: of what is on its way, the first part still arrives, and then both ends see it.
    pub(super) fn cut(&mut self, connection: usize) {
        self.trace(|| format!("connection {connection} is cut"));
        for end in 0..2 {
            if self.connections[connection].pipes[end].shut {
                continue;
            }
            let length = self.connections[connection].pipes[end].packets.len();
            let kept = self.random.index(length + 1);
            self.connections[connection].pipes[end].packets.truncate(kept);
            self.send(connection, end, Packet::Fin);
            self.connections[connection].pipes[end].shut = true;
        }
    }

    /// Everything that a server had open is cut off, as when its process is killed.
    pub(super) fn cut_host(&mut self, host: usize) {
        let epoch = self.hosts[host].epoch;
        for connection in 0..self.connections.len() {
            for end in 0..2 {
                if self.connections[connection].ends[end].host() != Some((host, epoch)) {
                    continue;
                }
                self.connections[connection].ends[end].open = false;
                self.connections[connection].ends[end].outbox.clear();
                self.cut(connection);
            }
        }
    }

    /// When everything that is due to a process that goes on again arrives.
    pub(super) fn redeliver(&mut self, connection: usize, end: usize, at: Micros) {
        for _ in 0..self.connections[connection].pipes[end].packets.len() {
            self.schedule.at(at, Event::Deliver { connection, end });
        }
    }
}
