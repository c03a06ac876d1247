//! Executors: processes of one job on one node, with producers and consumers that share a session.

use std::collections::BTreeMap;

use shuffle_protocol::StreamId;
use shuffle_protocol::frame::{Batch, Frame, SlotEntry};
use shuffle_server::node::SessionInfo;

use super::Sabotage;
use super::channel::Channel;
use super::connection::{Connection, End, Packet, Party};
use super::desk::{Desk, Requests, Told};
use super::gate::Gate;
use super::producer::Producer;
use super::schedule::{Event, MILLIS, Micros};
use super::workload::{GateSpec, ProcessSpec, ProducerSpec};
use super::world::World;

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
    /// When it was first told of each failure.
    pub(super) told: BTreeMap<Told, Micros>,
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
    /// Of which start of its server it has the memory.
    pub(super) fn memory_epoch(&self) -> usize {
        self.epoch
    }

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
            told: BTreeMap::new(),
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
            packed: !inline,
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
            flips: self.plan.faults.flips,
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
            let packet = self.flip_handed_over(process, packet);
            self.send(connection, 1, packet);
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

    fn sabotaged(&mut self, packet: Packet) -> Packet {
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
                Packet::Frame(Frame::Slots(Batch::from_entries(&entries)))
            }
            (_, packet) => packet,
        }
    }
}
