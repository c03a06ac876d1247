//! Executors without a session: what is left of them, and what they may still do.

use buffer_pool::{ArenaKind, JobKey, SlotRef};
use shuffle_protocol::{ShuffleError, error::ErrorKind};

use super::channel::ChannelEnd;
use super::connection::Party;
use super::data::GARBAGE;
use super::executor::Life;
use super::producer::WriterEnd;
use super::schedule::{Event, MILLIS};
use super::world::World;

impl World {
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
            let place = SlotRef {
                job: JobKey(job.value()),
                arena: ArenaKind::Write,
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
}
