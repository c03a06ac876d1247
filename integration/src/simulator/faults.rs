//! What breaks, and its end.

use shuffle_protocol::control::FailGroup;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::{GroupRef, ShuffleError, error::ErrorKind};

use super::channel::ChannelEnd;
use super::connection::Packet;
use super::desk::Asked;
use super::executor::Life;
use super::producer::WriterEnd;
use super::schedule::{Event, MILLIS, Micros, SECONDS};
use super::world::World;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Cut,
    Hole,
    Restart,
    Death,
    Stop,
    Abort,
    FailGroup,
    Cancel,
    Rerun,
    Drain,
    Pause,
}

impl World {
    /// Breaks one thing, and says when the next one breaks.
    pub(super) fn break_something(&mut self) {
        if self.healed {
            return;
        }
        let may = self.plan.faults;
        let enabled: Vec<Fault> = [
            (may.cuts, Fault::Cut),
            (may.holes, Fault::Hole),
            (may.restarts, Fault::Restart),
            (may.deaths, Fault::Death),
            (may.stops, Fault::Stop),
            (may.aborts, Fault::Abort),
            (may.aborts, Fault::FailGroup),
            (may.cancels, Fault::Cancel),
            (may.fences, Fault::Rerun),
            (may.drains, Fault::Drain),
            (true, Fault::Pause),
        ]
        .into_iter()
        .filter_map(|(may, fault)| may.then_some(fault))
        .collect();
        match self.random.pick(&enabled).unwrap_or(Fault::Pause) {
            Fault::Cut => self.cut_some_link(),
            Fault::Hole => self.open_hole(),
            Fault::Restart => self.kill_some_host(),
            Fault::Death => self.kill_some_process(),
            Fault::Stop => self.stop_some_process(),
            Fault::Abort => self.abort_some_producer(),
            Fault::FailGroup => self.fail_some_group(),
            Fault::Cancel => self.cancel_something(),
            Fault::Rerun => self.rerun_some_partition(),
            Fault::Drain => self.drain_some_host(),
            Fault::Pause => self.pause_some_gate(),
        }
        let at = self.now + self.random.between(1, 2 * self.plan.fault_gap);
        self.schedule.at(at, Event::Fault);
    }

    /// From now on nothing breaks, and what was broken is whole again.
    pub(super) fn heal(&mut self) {
        self.trace(|| "all faults end".to_owned());
        self.healed = true;
        self.flips.may = false;
        self.holes.clear();
        for host in 0..self.hosts.len() {
            self.start_host(host);
        }
        for process in 0..self.processes.len() {
            if self.processes[process].is_stopped(self.now) {
                self.processes[process].stopped_until = self.now;
                self.schedule.at(self.now, Event::Resume(process));
            }
        }
        self.check_isolation();
        let patience = self.plan.request_timeout + self.plan.dead_peer + 20 * SECONDS;
        self.schedule.at(self.now + patience, Event::Release);
        self.schedule.at(self.now + 100 * MILLIS, Event::Look);
    }

    pub(super) fn resume(&mut self, process: usize) {
        if self.processes[process].is_stopped(self.now) {
            return;
        }
        if let Some(connection) = self.processes[process].connection {
            self.redeliver(connection, 0, self.now);
        }
        self.wake(process);
    }

    fn cut_some_link(&mut self) {
        let links: Vec<usize> = (0..self.connections.len())
            .filter(|&at| {
                let of = &self.connections[at];
                of.hosts().is_some() && of.ends.iter().any(|end| end.open) && !of.pipes[0].shut
            })
            .collect();
        if let Some(connection) = self.random.pick(&links) {
            self.cut(connection);
        }
    }

    fn open_hole(&mut self) {
        let a = self.random.index(self.hosts.len());
        let b = self.random.index(self.hosts.len());
        if a == b {
            return;
        }
        let longest = if self.random.chance(60) {
            self.plan.dead_peer / 4
        } else {
            self.plan.dead_peer * 3 / 2
        };
        let until = self.now + self.random.between(1, longest);
        self.trace(|| format!("nothing passes between {a} and {b} until {until}"));
        self.holes.insert((a.min(b), a.max(b)), until);
    }

    fn kill_some_host(&mut self) {
        let host = self.random.index(self.hosts.len());
        if self.hosts[host].node.is_none() || self.hosts[host].epoch >= 2 {
            return;
        }
        let in_order = self.random.chance(30);
        self.trace(|| format!("server {host} is killed, told before: {in_order}"));
        if in_order {
            let error = ShuffleError::new(ErrorKind::Draining, "the server stops now");
            self.core(host, |node, now| node.fail_everything(now, error));
            self.after(host);
        }
        self.cut_host(host);
        self.forget_host(host);
        let longest = if self.random.chance(50) {
            SECONDS / 2
        } else {
            20 * SECONDS
        };
        let at = self.now + self.random.between(1, longest);
        self.schedule.at(at, Event::Restart(host));
    }

    fn kill_some_process(&mut self) {
        let Some(process) = self.some_process() else { return };
        let Some(connection) = self.processes[process].connection else {
            return;
        };
        let inline = self.processes[process].spec.inline;
        let lives_on = !inline && self.random.chance(50);
        self.trace(|| format!("process {process} dies, lives on without its session: {lives_on}"));
        let length = self.connections[connection].pipes[1].packets.len();
        let kept = self.random.index(length + 1);
        self.connections[connection].pipes[1].packets.truncate(kept);
        self.leave(process);
        if lives_on {
            let until = self.now + self.random.between(1, 10 * SECONDS);
            self.processes[process].haunts_until = Some(until);
            self.schedule.at(self.now + 1, Event::Haunt(process));
            self.schedule.at(until, Event::Exit(process));
        }
    }

    /// A process closes its session.
    pub(super) fn leave(&mut self, process: usize) {
        if let Some(connection) = self.processes[process].connection
            && self.connections[connection].ends[0].open
        {
            self.connections[connection].ends[0].open = false;
            self.send(connection, 1, Packet::Fin);
            self.connections[connection].pipes[1].shut = true;
        }
        self.detach(process, &WriterEnd::Gone, &ChannelEnd::Gone);
    }

    fn stop_some_process(&mut self) {
        let Some(process) = self.some_process() else { return };
        let until = self.now + self.random.between(1, 2 * self.plan.dead_peer);
        self.trace(|| format!("process {process} stops until {until}"));
        let of = &mut self.processes[process];
        of.stopped_until = until;
        of.was_stopped = true;
        self.schedule.at(until, Event::Resume(process));
    }

    fn abort_some_producer(&mut self) {
        let Some(process) = self.some_process() else { return };
        self.with_desk(process, |producers, _, desk| {
            if !producers.is_empty() {
                let index = desk.random.index(producers.len());
                producers[index].abort(desk);
            }
        });
    }

    fn fail_some_group(&mut self) {
        let Some(process) = self.some_process() else { return };
        self.with_desk(process, |producers, gates, desk| {
            let groups: Vec<GroupRef> = producers
                .iter()
                .filter_map(|producer| producer.partition.group.clone())
                .chain(gates.iter().filter_map(|gate| gate.spec.group.clone()))
                .collect();
            if groups.is_empty() {
                return;
            }
            let group = &groups[desk.random.index(groups.len())];
            let cause = ShuffleError::new(ErrorKind::Cancelled, "the driver gave the group up");
            desk.ask(Asked::Other, |request| {
                Message::FailGroup(FailGroup {
                    request,
                    group: Some(group.into()),
                    cause: Some((&cause).into()),
                })
            });
        });
    }

    fn cancel_something(&mut self) {
        let Some(process) = self.some_process() else { return };
        self.with_desk(process, |_, gates, desk| {
            if gates.is_empty() {
                return;
            }
            let gate = desk.random.index(gates.len());
            let gate = &mut gates[gate];
            if gate.channels.is_empty() || desk.random.chance(40) {
                gate.close(desk);
            } else {
                let index = desk.random.index(gate.channels.len());
                gate.cancel(index, desk);
            }
        });
    }

    fn drain_some_host(&mut self) {
        let host = self.random.index(self.hosts.len());
        if self.hosts[host].node.is_some() && !self.hosts[host].draining {
            self.trace(|| format!("server {host} drains"));
            self.hosts[host].draining = true;
            self.core(host, |node, now| node.start_drain(now));
            self.after(host);
        }
    }

    fn pause_some_gate(&mut self) {
        let Some(process) = self.some_process() else { return };
        let until: Micros = self.now + self.random.between(1, 3 * SECONDS);
        let gates = self.processes[process].gates.len();
        if gates > 0 {
            let gate = self.random.index(gates);
            self.processes[process].gates[gate].pause(until);
        }
    }

    /// A process with a session, that runs.
    pub(super) fn some_process(&mut self) -> Option<usize> {
        let running: Vec<usize> = (0..self.processes.len())
            .filter(|&at| self.processes[at].life == Life::Attached && !self.processes[at].is_stopped(self.now))
            .collect();
        self.random.pick(&running)
    }
}
