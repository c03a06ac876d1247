//! Executors: processes of one job on one node, with producers and consumers that share a session.

use shuffle_protocol::control::control::Message;
use shuffle_protocol::frame::{Frame, SlotEntry};
use shuffle_protocol::{ShuffleError, StreamId, error::ErrorKind};
use shuffle_server::node::SessionInfo;

use super::Sabotage;
use super::channel::{Channel, ChannelEnd, Item};
use super::connection::{Connection, End, Packet, Party};
use super::data::{Content, GARBAGE};
use super::desk::{Asked, Desk, Requests};
use super::gate::Gate;
use super::producer::{Producer, WriterEnd};
use super::schedule::{Event, MILLIS, Micros, SECONDS};
use super::workload::{GateSpec, ProcessSpec, ProducerSpec};
use super::world::World;

/// What an answer may take beyond the time that a request may wait: tasks and packets have delays.
const SLACK: Micros = 2 * SECONDS;

/// The life of a process, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Starting,
    Attached,
    /// Without a session, and so done.
    Detached,
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) spec: ProcessSpec,
    pub(super) life: Life,
    /// Its connection to the server, and the server's number for it.
    pub(super) connection: Option<usize>,
    pub(super) producers: Vec<Producer>,
    pub(super) gates: Vec<Gate>,
    pub(super) requests: Requests,
    /// It does not run until then.
    pub(super) stopped_until: Micros,
    /// It was stopped once, so its requests may have taken longer.
    pub(super) was_stopped: bool,
    /// It lives on after it lost its session, until then.
    pub(super) haunts_until: Option<Micros>,
    /// Slots that it could still write to.
    pub(super) haunted: Vec<u32>,
    /// Which start of the server it is attached to.
    epoch: usize,
    next_stream: u32,
    tick_at: Option<Micros>,
}

impl Process {
    pub(super) fn is_stopped(&self, now: Micros) -> bool {
        self.stopped_until > now
    }
}

impl World {
    /// A process with everything that its specification says.
    pub(super) fn start_process(&mut self, mut spec: ProcessSpec, at: Micros) -> usize {
        let (producers, gates) = (std::mem::take(&mut spec.producers), std::mem::take(&mut spec.gates));
        self.processes.push(Process {
            spec,
            life: Life::Starting,
            connection: None,
            producers: Vec::new(),
            gates: Vec::new(),
            requests: Requests::default(),
            stopped_until: 0,
            was_stopped: false,
            haunts_until: None,
            haunted: Vec::new(),
            epoch: 0,
            next_stream: 0,
            tick_at: None,
        });
        let process = self.processes.len() - 1;
        for producer in producers {
            self.add_producer(process, producer);
        }
        for gate in gates {
            self.add_gate(process, gate);
        }
        self.schedule.at(self.now.max(at), Event::Attach(process));
        process
    }

    pub(super) fn add_producer(&mut self, process: usize, spec: ProducerSpec) {
        let partition = self.partitions[spec.partition].clone();
        let of = &mut self.processes[process];
        let writer = u32::try_from(of.producers.len()).expect("invariant: a few producers");
        of.producers.push(Producer::new(writer, spec, partition));
    }

    pub(super) fn add_gate(&mut self, process: usize, spec: GateSpec) {
        let of = &mut self.processes[process];
        let first = of.next_stream;
        let mut channels = Vec::new();
        for channel in &spec.channels {
            let stream = StreamId::new(of.next_stream);
            of.next_stream += 1;
            let counts = channel.partition.map(|no| self.partitions[no].counts.clone());
            channels.push(Channel::new(
                channel.clone(),
                stream,
                of.spec.job,
                counts.unwrap_or_default(),
            ));
        }
        let gate = u32::try_from(of.gates.len()).expect("invariant: a few gates");
        let stopped = spec.stopped;
        let mut gate = Gate::new(gate, first, of.spec.host, spec, channels);
        if stopped {
            gate.pause(self.plan.heal_at);
        }
        of.gates.push(gate);
    }

    pub(super) fn attach(&mut self, process: usize) {
        let of = &self.processes[process];
        if of.life != Life::Starting {
            return;
        }
        let (host, job, inline) = (of.spec.host, of.spec.job, of.spec.inline);
        if self.hosts[host].node.is_none() {
            let at = self.now + 100 * MILLIS;
            return self.schedule.at(at, Event::Attach(process));
        }
        let info = SessionInfo {
            job,
            name: format!("process {process}"),
            inline,
        };
        match self.core(host, |node, now| node.handle_session_opened(now, info)) {
            Err(error) => self.accuse(|| format!("process {process} may not attach: {error}")),
            Ok(id) => {
                let epoch = self.hosts[host].epoch;
                let server = Party::Session {
                    host,
                    epoch,
                    id,
                    inline,
                };
                let ends = [End::new(Party::Process(process)), End::new(server)];
                self.connections.push(Connection::new(ends, None));
                let connection = self.connections.len() - 1;
                self.hosts[host].sessions.insert(id, connection);
                self.processes[process].connection = Some(connection);
                self.processes[process].life = Life::Attached;
                self.processes[process].epoch = self.hosts[host].memories.len() - 1;
                self.trace(|| format!("process {process} of {job} attaches to server {host}, inline: {inline}"));
                self.after(host);
                self.wake(process);
            }
        }
    }

    /// Lets a task of a process run, and sends what it says.
    pub(super) fn with_desk(
        &mut self,
        process: usize,
        task: impl FnOnce(&mut Vec<Producer>, &mut Vec<Gate>, &mut Desk<'_>),
    ) {
        let of = &mut self.processes[process];
        let (true, Some(connection)) = (of.life == Life::Attached, of.connection) else {
            return;
        };
        let mut out = Vec::new();
        let mut desk = Desk {
            now: self.now,
            job: of.spec.job,
            inline: of.spec.inline,
            timeout_ms: 0,
            random: &mut self.random,
            memory: &mut self.hosts[of.spec.host].memories[of.epoch],
            requests: &mut of.requests,
            out: &mut out,
            wrong: &mut self.wrong,
        };
        task(&mut of.producers, &mut of.gates, &mut desk);
        for packet in out {
            let packet = self.sabotaged(packet);
            if let Some(packet) = packet {
                self.send(connection, 1, packet);
            }
        }
        self.wake(process);
    }

    pub(super) fn tick(&mut self, process: usize) {
        let now = self.now;
        let of = &mut self.processes[process];
        if of.tick_at.is_some_and(|at| at <= now) {
            of.tick_at = None;
        }
        if of.is_stopped(now) {
            return;
        }
        self.with_desk(process, |producers, gates, desk| {
            for producer in producers {
                producer.step(desk);
            }
            for gate in gates {
                gate.step(desk);
            }
        });
    }

    /// Makes sure that a process runs when it next has something to do.
    pub(super) fn wake(&mut self, process: usize) {
        let of = &self.processes[process];
        if of.life != Life::Attached || of.is_stopped(self.now) {
            return;
        }
        let producers = of.producers.iter().filter_map(|producer| producer.next(self.now));
        let gates = of.gates.iter().filter_map(|gate| gate.next(self.now));
        let Some(next) = producers.chain(gates).min() else {
            return;
        };
        if of.tick_at.is_some_and(|at| at <= next + self.plan.task_delay) {
            return;
        }
        let at = next + self.task_delay();
        self.processes[process].tick_at = Some(at);
        self.schedule.at(at, Event::Tick(process));
    }

    /// Something came from the server.
    pub(super) fn handle_packet(&mut self, process: usize, packet: Packet) {
        match packet {
            Packet::Frame(Frame::Control(message)) => self.handle_message(process, *message),
            Packet::Frame(Frame::Slots(batch)) => {
                for entry in batch.iter() {
                    self.handle_buffer(process, entry, None);
                }
            }
            Packet::Body(head, content) => {
                for entry in head.slots.iter() {
                    self.handle_buffer(process, entry, Some(content));
                }
            }
            Packet::Head(_) => {}
            Packet::Frame(Frame::End(batch)) => {
                for entry in batch.iter() {
                    self.arrive(process, entry.stream, Item::End(entry));
                }
            }
            Packet::Frame(Frame::Grant(batch)) => self.with_desk(process, |producers, _, desk| {
                for entry in batch.iter() {
                    producers[entry.writer.value() as usize].handle_grant(entry.slot, desk);
                }
            }),
            Packet::Frame(Frame::Credit(batch)) => self.with_desk(process, |producers, _, _| {
                for entry in batch.iter() {
                    producers[entry.stream.value() as usize].handle_limit(entry.subpartition.value(), entry.number);
                }
            }),
            Packet::Frame(Frame::Ping(nonce)) => {
                self.with_desk(process, |_, _, desk| desk.send(Frame::Pong(nonce)));
            }
            Packet::Frame(Frame::Pong(_) | Frame::Backlog(_)) => {}
            other => self.accuse(|| format!("{other:?} came to an executor")),
        }
    }

    fn handle_buffer(&mut self, process: usize, entry: SlotEntry, content: Option<Content>) {
        self.arrive(process, entry.stream, Item::Buffer(entry, content));
    }

    fn arrive(&mut self, process: usize, stream: StreamId, item: Item) {
        self.with_desk(process, |_, gates, desk| {
            let found = gates.iter_mut().find_map(|gate| Some((gate.channel_of(stream)?, gate)));
            match found {
                Some((index, gate)) => gate.handle_arrival(index, item, desk),
                None => desk.accuse(|| format!("{item:?} came on a channel that never was")),
            }
        });
    }

    fn handle_message(&mut self, process: usize, message: Message) {
        let parse = |error: Option<shuffle_protocol::control::Error>| error.map(ShuffleError::from);
        match message {
            Message::Reply(reply) => {
                let Some((since, asked)) = self.processes[process].requests.waiting.remove(&reply.request) else {
                    return self.accuse(|| format!("an answer to request {} of process {process}", reply.request));
                };
                let (took, limit) = (self.now - since, self.plan.request_timeout + SLACK);
                if took > limit && !self.processes[process].was_stopped {
                    self.accuse(|| format!("the answer to {asked:?} of process {process} took {took} us"));
                }
                let outcome = parse(reply.error).map_or(Ok(()), Err);
                self.trace(|| format!("process {process}: {asked:?} is answered with {outcome:?}"));
                self.with_desk(process, |producers, gates, desk| match asked {
                    Asked::Create(index) => producers[index].handle_created(outcome, desk),
                    Asked::Finish(index) => producers[index].handle_finished(outcome),
                    Asked::Open(index) => gates[index].handle_opened(outcome),
                    Asked::Other => {}
                });
            }
            Message::WriterFailed(failed) => {
                let error = parse(failed.error).unwrap_or_else(unnamed);
                self.trace(|| format!("process {process}: writer {} failed: {error}", failed.writer));
                self.with_desk(process, |producers, _, desk| {
                    producers[failed.writer as usize].handle_failed(error, desk);
                });
            }
            Message::ChannelFailed(failed) => {
                let error = parse(failed.error).unwrap_or_else(unnamed);
                self.trace(|| format!("process {process}: channel {} failed: {error}", failed.stream));
                let stream = StreamId::new(failed.stream);
                self.with_desk(process, |_, gates, desk| {
                    let found = gates.iter_mut().find_map(|gate| Some((gate.channel_of(stream)?, gate)));
                    if let Some((index, gate)) = found {
                        gate.handle_failed(index, error, desk);
                    }
                });
            }
            other => self.accuse(|| format!("{other:?} came to an executor")),
        }
    }

    // --------------------------------------------------------------------------------------------- the end of it

    /// The server or its connection is gone.
    pub(super) fn lose_session(&mut self, process: usize, error: &ShuffleError) {
        let lost = ShuffleError::new(ErrorKind::SessionClosed, "the server is gone").because(error.clone());
        self.detach(process, &WriterEnd::Failed(lost.clone()), &ChannelEnd::Failed(lost));
    }

    /// A process has no session any more.
    pub(super) fn detach(&mut self, process: usize, writers: &WriterEnd, channels: &ChannelEnd) {
        let of = &mut self.processes[process];
        of.life = Life::Detached;
        of.haunted = of
            .producers
            .iter()
            .flat_map(|producer| producer.free.iter().copied())
            .collect();
        for producer in &mut of.producers {
            producer.lose(writers.clone());
        }
        for gate in &mut of.gates {
            gate.lose(channels);
        }
    }

    /// Whether the process behind a session lives on when that is closed.
    pub(super) fn outlives_session(&self, connection: usize) -> bool {
        match self.connections[connection].ends[0].party {
            Party::Process(process) => self.processes[process]
                .haunts_until
                .is_some_and(|until| until > self.now),
            _ => false,
        }
    }

    /// A process that lost its session writes to the buffers it had been granted.
    pub(super) fn haunt(&mut self, process: usize) {
        let of = &self.processes[process];
        let (host, job) = (of.spec.host, of.spec.job);
        let until = of.haunts_until.unwrap_or(0);
        if until <= self.now
            || self.connections[of.connection.unwrap_or(0)].ends[1].host() != Some((host, self.hosts[host].epoch))
        {
            return;
        }
        let slots = of.haunted.clone();
        for slot in slots {
            let place = buffer_pool::SlotRef {
                job: buffer_pool::JobKey(job.value()),
                arena: buffer_pool::ArenaKind::Write,
                slot,
            };
            self.memory(host).write(place, GARBAGE);
        }
        let at = self.now + self.random.between(1, 100 * MILLIS);
        self.schedule.at(at, Event::Haunt(process));
    }

    /// A process that lost its session exits.
    pub(super) fn exit(&mut self, process: usize) {
        let of = &mut self.processes[process];
        of.haunts_until = None;
        let Some(connection) = of.connection else { return };
        let Party::Session { host, epoch, id, .. } = self.connections[connection].ends[1].party else {
            return;
        };
        if self.hosts[host].epoch == epoch && self.hosts[host].node.is_some() {
            self.core(host, |node, now| node.handle_process_exited(now, id));
            self.after(host);
        }
    }

    fn sabotaged(&mut self, packet: Packet) -> Option<Packet> {
        match (self.sabotage, packet) {
            (Some(Sabotage::WrongChecksum), Packet::Frame(Frame::Slots(batch))) => {
                self.sabotage = None;
                let entries: Vec<SlotEntry> = batch
                    .iter()
                    .map(|entry| SlotEntry {
                        checksum: entry.checksum ^ 1,
                        ..entry
                    })
                    .collect();
                Some(Packet::Frame(Frame::Slots(
                    shuffle_protocol::frame::Batch::from_entries(&entries),
                )))
            }
            (Some(Sabotage::LoseRelease), Packet::Frame(Frame::Release(_))) => {
                self.sabotage = None;
                None
            }
            (_, packet) => Some(packet),
        }
    }
}

fn unnamed() -> ShuffleError {
    ShuffleError::new(ErrorKind::Protocol, "a failure without an error")
}
