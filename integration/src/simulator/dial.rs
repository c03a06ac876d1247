//! How servers come to be connected: dialled, refused, unanswered, welcome, or not needed.

use shuffle_protocol::{Incarnation, ShuffleError, error::ErrorKind};
use shuffle_server::node::{Dial, Node, PeerInfo};

use super::connection::{Connection, End, Packet, Party};
use super::schedule::{Event, SECONDS};
use super::workload::address;
use super::world::World;

/// How long a dialler waits for the answer.
const HANDSHAKE: u64 = 5 * SECONDS;

impl World {
    /// The dialling task of a server runs.
    pub(super) fn poll_dial(&mut self, host: usize, epoch: u32) {
        while self.is_up(host, epoch) {
            let Some(dial) = self.core(host, Node::poll_dial) else {
                break;
            };
            self.trace(|| format!("server {host} dials {} ({})", dial.node, dial.generation));
            let at = self.now + self.network_delay() + self.network_delay();
            self.schedule.at(at, Event::Knock { host, epoch, dial });
        }
    }

    /// A dial reaches its target, which decides whether it wants the connection.
    pub(super) fn knock(&mut self, host: usize, epoch: u32, dial: Dial) {
        if !self.is_up(host, epoch) {
            return;
        }
        let target = (0..self.hosts.len()).find(|&at| address(at) == dial.node);
        let target = target.expect("invariant: only servers that are there are dialled");
        let lost = |what: &str| ShuffleError::new(ErrorKind::NodeUnreachable, what);
        if self.hole_between(host, target).is_some() {
            return self.fail_dial(host, epoch, dial, HANDSHAKE, lost("no answer"), false);
        }
        if self.hosts[target].node.is_none() {
            return self.fail_dial(host, epoch, dial, 0, lost("connection refused"), true);
        }
        if self.plan.faults.cuts && !self.healed && self.random.chance(10) {
            return self.fail_dial(host, epoch, dial, 0, lost("connection reset"), false);
        }
        let info = PeerInfo {
            node: address(host),
            incarnation: self.incarnation(host),
            generation: dial.generation,
            stripe: dial.stripe,
            dialled: false,
        };
        match self.core(target, |node, now| node.handle_link_opened(now, &info)) {
            Err(error) => {
                self.after(target);
                self.fail_dial(host, epoch, dial, 0, error, false);
            }
            Ok(id) => {
                let dialler = Party::Link { host, epoch, id: None };
                let acceptor = Party::Link {
                    host: target,
                    epoch: self.hosts[target].epoch,
                    id: Some(id),
                };
                let ends = [End::new(dialler), End::new(acceptor)];
                self.connections.push(Connection::new(ends, Some(dial)));
                let connection = self.connections.len() - 1;
                self.hosts[target].links.insert(id, (connection, 1));
                let incarnation = self.incarnation(target).value();
                self.send(connection, 0, Packet::Welcome(incarnation));
                self.schedule
                    .at(self.now + HANDSHAKE, Event::HandshakeOver { connection });
                self.after(target);
            }
        }
    }

    /// The target's answer reaches the dialler.
    pub(super) fn welcome(&mut self, connection: usize, host: usize, incarnation: u64) {
        let Some(dial) = self.connections[connection].dial.take() else {
            return self.accuse(|| format!("connection {connection} is welcome twice"));
        };
        let info = PeerInfo {
            node: dial.node.clone(),
            incarnation: Incarnation::new(incarnation),
            generation: dial.generation,
            stripe: dial.stripe,
            dialled: true,
        };
        match self.core(host, |node, now| node.handle_link_opened(now, &info)) {
            Ok(id) => {
                self.trace(|| format!("connection {connection}: {host} -> {} is up", dial.node));
                if let Party::Link { id: of, .. } = &mut self.connections[connection].ends[0].party {
                    *of = Some(id);
                }
                self.hosts[host].links.insert(id, (connection, 0));
            }
            Err(error) => {
                self.trace(|| format!("connection {connection} is not needed: {error}"));
                self.connections[connection].ends[0].open = false;
                self.send(connection, 1, Packet::Fin);
            }
        }
        self.after(host);
    }

    /// A connection broke before the dialler was welcome.
    pub(super) fn dial_broken(&mut self, connection: usize, host: usize, error: &ShuffleError) {
        if let Some(dial) = self.connections[connection].dial.take() {
            self.core(host, |node, now| {
                node.handle_dial_failed(now, &dial, error.clone(), false)
            });
            self.after(host);
        }
    }

    pub(super) fn handshake_over(&mut self, connection: usize) {
        if self.connections[connection].dial.is_some() {
            let error = ShuffleError::new(ErrorKind::NodeUnreachable, "no answer to the handshake");
            self.close_end(connection, 0, &error, true);
        }
    }

    pub(super) fn dial_over(&mut self, host: usize, epoch: u32, dial: &Dial, error: ShuffleError, refused: bool) {
        if self.is_up(host, epoch) {
            self.core(host, |node, now| node.handle_dial_failed(now, dial, error, refused));
            self.after(host);
        }
    }

    fn fail_dial(&mut self, host: usize, epoch: u32, dial: Dial, after: u64, error: ShuffleError, refused: bool) {
        let at = self.now + after + self.network_delay();
        self.trace(|| format!("server {host} will not reach {}: {error}", dial.node));
        let event = Event::DialOver {
            host,
            epoch,
            dial,
            error,
            refused,
        };
        self.schedule.at(at, event);
    }

    fn is_up(&self, host: usize, epoch: u32) -> bool {
        self.hosts[host].epoch == epoch && self.hosts[host].node.is_some()
    }

    fn incarnation(&self, host: usize) -> Incarnation {
        let node = self.hosts[host].node.as_ref();
        node.expect("invariant: a server that is up").config().incarnation
    }
}
