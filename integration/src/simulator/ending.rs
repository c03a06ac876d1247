//! Faults have ended: everything must finish or have failed with a cause, and then nothing may be left.

use shuffle_protocol::control::ReleasePartition;
use shuffle_protocol::control::control::Message;

use super::channel::ChannelEnd;
use super::desk::Asked;
use super::executor::Life;
use super::plan::Scenario;
use super::producer::WriterEnd;
use super::schedule::{Event, MILLIS, SECONDS};
use super::world::World;

/// Everything must be over this long after the last fault, whatever waits for whatever.
const PATIENCE: u64 = 150 * SECONDS;
/// What is left must be gone this long after the last unread partition has expired.
const CLEANING: u64 = 40 * SECONDS;

impl World {
    /// The driver gives up what nobody came to read.
    pub(super) fn release_all(&mut self) {
        self.trace(|| "unread partitions are released".to_owned());
        self.released = true;
        for process in 0..self.processes.len() {
            self.with_desk(process, |producers, _, desk| {
                for producer in producers.iter().filter(|producer| producer.is_registered()) {
                    let partition = producer.partition.id;
                    desk.ask(Asked::Other, |request| {
                        Message::ReleasePartition(ReleasePartition {
                            request,
                            partition: Some(partition.into()),
                        })
                    });
                }
            });
        }
    }

    pub(super) fn look(&mut self) {
        match self.report.closed_at {
            None => self.look_for_ends(),
            Some(at) => self.look_for_leftovers(at),
        }
        self.schedule.at(self.now + 500 * MILLIS, Event::Look);
    }

    fn look_for_ends(&mut self) {
        let left = self.unfinished();
        if left.is_empty() {
            self.check_outcomes();
            self.report.closed_at = Some(self.now);
            self.trace(|| "everything is over, all sessions close".to_owned());
            for process in 0..self.processes.len() {
                self.leave(process);
            }
        } else if self.now > self.plan.heal_at + PATIENCE {
            self.accuse(|| format!("not over long after the last fault:\n  {}", left.join("\n  ")));
        }
    }

    fn look_for_leftovers(&mut self, closed_at: u64) {
        let left: Vec<String> = (0..self.hosts.len()).filter_map(|host| self.leftovers(host)).collect();
        if left.is_empty() {
            self.report.is_balanced = true;
        } else if self.now > closed_at + self.plan.unread_expiry + 2 * self.plan.dead_peer + CLEANING {
            self.accuse(|| format!("left over after all sessions were closed:\n  {}", left.join("\n  ")));
        }
    }

    /// What is not over yet.
    fn unfinished(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (at, process) in self.processes.iter().enumerate() {
            if process.life == Life::Starting {
                left.push(format!("process {at} has not attached"));
            }
            for producer in process.producers.iter().filter(|producer| producer.end.is_none()) {
                left.push(format!("process {at}: {producer:?}"));
            }
            for gate in process.gates.iter().filter(|gate| !gate.is_over()) {
                left.push(format!("process {at}: {gate:?}"));
            }
            if process.life == Life::Attached {
                for request in &process.requests.waiting {
                    left.push(format!("process {at}: {request:?} is not answered"));
                }
            }
        }
        left
    }

    /// What a server still has, when nobody is there any more.
    fn leftovers(&self, host: usize) -> Option<String> {
        let node = self.hosts[host].node.as_ref()?;
        let gone = [
            "sessions",
            "partitions",
            "gates",
            "channels_serving",
            "channels_fetching",
            "jobs",
            "requests_waiting",
        ];
        let status: Vec<(String, u64)> = node
            .status()
            .into_iter()
            .filter(|(name, value)| *value > 0 && gone.contains(&name.as_str()))
            .collect();
        let books = node.books();
        let is_whole = books.unassigned == books.total();
        let is_drained = node.is_drained() == self.hosts[host].draining;
        let disk = &self.hosts[host].disk;
        if status.is_empty() && is_whole && is_drained && disk.is_empty() {
            return None;
        }
        Some(format!(
            "server {host}: {status:?}, {books:?}, drained as told: {is_drained}, {disk:?}"
        ))
    }

    /// While some readers were stopped, all others had the time to finish.
    pub(super) fn check_isolation(&mut self) {
        if self.plan.scenario != Scenario::Stopped {
            return;
        }
        let stopped: Vec<usize> = self
            .processes
            .iter()
            .flat_map(|process| &process.gates)
            .filter(|gate| gate.spec.stopped)
            .flat_map(|gate| &gate.channels)
            .filter_map(|channel| channel.spec.partition)
            .collect();
        let mut late = Vec::new();
        for process in &self.processes {
            for gate in process.gates.iter().filter(|gate| !gate.spec.stopped) {
                let open = gate.channels.iter().filter(|channel| {
                    let free = channel.spec.partition.is_none_or(|no| !stopped.contains(&no));
                    free && !matches!(channel.end, Some(ChannelEnd::Complete))
                });
                late.extend(open.map(|channel| format!("{:?}: {:?}", channel.spec, channel.end)));
            }
            for producer in &process.producers {
                let free = !stopped.contains(&producer.spec.partition);
                if free && !matches!(producer.end, Some(WriterEnd::Finished)) {
                    late.push(format!("{producer:?}"));
                }
            }
        }
        if !late.is_empty() {
            self.accuse(|| format!("a stopped reader stops others:\n  {}", late.join("\n  ")));
        }
    }
}
