//! Everything there is, and the loop that lets it happen, one event after the other.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use buffer_pool::{NetworkPool, NoBacking, PoolConfig};
use shuffle_protocol::Incarnation;
use shuffle_server::node::{LinkId, Node, NodeConfig, NodeCounters, SessionId, Wake};

use super::Sabotage;
use super::connection::Connection;
use super::data::{BUFFER_BYTES, Memory};
use super::disk::Disk;
use super::executor::Process;
use super::flips::Flips;
use super::plan::Plan;
use super::random::Random;
use super::schedule::{Event, MILLIS, Micros, SECONDS, Schedule};
use super::workload::{PartitionSpec, Workload, address};

/// One server.
pub(super) struct Host {
    /// `None` while it is down.
    pub(super) node: Option<Node<NoBacking>>,
    /// Counts its starts.
    pub(super) epoch: u32,
    /// Of each start: what a process has mapped stays there for it, when the server is long gone.
    pub(super) memories: Vec<Memory>,
    pub(super) links: BTreeMap<LinkId, (usize, usize)>,
    pub(super) sessions: BTreeMap<SessionId, usize>,
    pub(super) draining: bool,
    /// It outlives the server.
    pub(super) disk: Disk,
    /// When it was killed, and started again.
    pub(super) down: Vec<(Micros, Micros)>,
    buffers: u32,
    timeout_at: Option<Micros>,
    steps: u64,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) now: Micros,
    pub(super) schedule: Schedule,
    pub(super) hosts: Vec<Host>,
    pub(super) connections: Vec<Connection>,
    pub(super) processes: Vec<Process>,
    pub(super) partitions: Vec<PartitionSpec>,
    /// Pairs of servers between which nothing passes, smaller index first, and until when.
    pub(super) holes: BTreeMap<(usize, usize), Micros>,
    pub(super) flips: Flips,
    pub(super) healed: bool,
    pub(super) released: bool,
    pub(super) sabotage: Option<Sabotage>,
    pub(super) wrong: Option<String>,
    pub(super) report: super::Report,
    trace: bool,
    base: Instant,
}

impl World {
    pub(super) fn new(plan: Plan, sabotage: Option<Sabotage>, trace: bool) -> Self {
        let mut random = Random::new(plan.seed ^ 0xA5A5);
        let workload = Workload::draw(&plan, &mut random);
        let hosts = workload
            .buffers
            .iter()
            .map(|&buffers| Host {
                node: None,
                epoch: 0,
                memories: vec![Memory::default()],
                links: BTreeMap::new(),
                sessions: BTreeMap::new(),
                draining: false,
                disk: Disk::default(),
                down: Vec::new(),
                buffers,
                timeout_at: None,
                steps: 0,
            })
            .collect();
        let mut world = Self {
            random,
            now: 0,
            schedule: Schedule::default(),
            hosts,
            connections: Vec::new(),
            processes: Vec::new(),
            partitions: workload.partitions,
            holes: BTreeMap::new(),
            flips: Flips::new(plan.seed, plan.faults.flips),
            healed: false,
            released: false,
            sabotage,
            wrong: None,
            report: super::Report::default(),
            trace,
            base: Instant::now(),
            plan,
        };
        for host in 0..world.hosts.len() {
            world.start_host(host);
        }
        for spec in workload.processes {
            let at = world.random.between(0, 5 * MILLIS);
            world.start_process(spec, at);
        }
        let first_fault = world.random.between(0, world.plan.fault_gap);
        world.schedule.at(first_fault, Event::Fault);
        world.schedule.at(world.plan.heal_at, Event::Heal);
        world
    }

    /// Runs until everything is over, or something is wrong.
    pub(super) fn run(&mut self) {
        while self.wrong.is_none() {
            let Some((at, event)) = self.schedule.pop() else { break };
            assert!(at >= self.now, "time only moves forward");
            self.now = at;
            self.report.events += 1;
            if self.is_done(&event) {
                break;
            }
            self.handle(event);
        }
        self.report.virtual_time = Duration::from_micros(self.now);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Attach(process) => self.attach(process),
            Event::Tick(process) => self.tick(process),
            Event::Resume(process) => self.resume(process),
            Event::Haunt(process) => self.haunt(process),
            Event::Exit(process) => self.exit(process),
            Event::Poll { connection, end } => self.poll(connection, end),
            Event::Deliver { connection, end } => self.deliver(connection, end),
            Event::Written {
                host,
                epoch,
                slot,
                offset,
                content,
            } => self.written(host, epoch, (slot, offset), content),
            Event::Disk {
                host,
                epoch,
                ticket,
                op,
                before,
            } => self.handle_disk(host, epoch, ticket, op, &before),
            Event::Timeout { host, epoch } => self.handle_timeout(host, epoch),
            Event::Dial { host, epoch } => self.poll_dial(host, epoch),
            Event::Knock { host, epoch, dial } => self.knock(host, epoch, dial),
            Event::DialOver {
                host,
                epoch,
                dial,
                error,
                refused,
            } => self.dial_over(host, epoch, &dial, error, refused),
            Event::HandshakeOver { connection } => self.handshake_over(connection),
            Event::Restart(host) => self.start_host(host),
            Event::Fault => self.break_something(),
            Event::Heal => self.heal(),
            Event::Release => self.release_all(),
            Event::Look => self.look(),
        }
    }

    // ------------------------------------------------------------------------------------------------ servers

    pub(super) fn start_host(&mut self, host: usize) {
        let plan = &self.plan;
        let of = &mut self.hosts[host];
        if of.node.is_some() {
            return;
        }
        let incarnation = Incarnation::new(1000 * u64::from(of.epoch) + u64::try_from(host).unwrap_or(0) + 1);
        let mut config = NodeConfig::new(address(host), incarnation, BUFFER_BYTES);
        config.stripes = plan.stripes;
        config.disks = true;
        config.request_timeout = Duration::from_micros(plan.request_timeout);
        config.keepalive_interval = Duration::from_micros(plan.keepalive);
        config.dead_peer_after = Duration::from_micros(plan.dead_peer);
        config.refused_grace = Duration::from_micros(plan.refused_grace);
        config.group_verdict_after = Duration::from_micros(plan.verdict_after);
        config.unread_expiry = Duration::from_micros(plan.unread_expiry);
        let pool = PoolConfig {
            total_buffers: of.buffers,
            buffer_bytes: BUFFER_BYTES,
            extent_buffers: plan.extent_buffers,
            read_reserve_buffers: of.buffers / 4,
        };
        let pool = NetworkPool::new(pool, NoBacking).expect("invariant: the plan is a valid configuration");
        of.node = Some(Node::new(config, pool));
        of.draining = false;
        self.recover_disk(host);
        let of = &mut self.hosts[host];
        if let Some((_, back)) = of.down.last_mut() {
            *back = self.now;
        }
        self.trace(|| format!("server {host} starts"));
        self.after(host);
    }

    /// Lets a server do something, at the present time. Call [`World::after`] when its answer is known to the rest.
    pub(super) fn core<R>(&mut self, host: usize, step: impl FnOnce(&mut Node<NoBacking>, Instant) -> R) -> R {
        let now = self.instant();
        self.report.steps += 1;
        let node = self.hosts[host].node.as_mut();
        step(node.expect("invariant: only a server that is up is asked"), now)
    }

    /// After a step of a server: tells its tasks what they have to do, and checks it.
    pub(super) fn after(&mut self, host: usize) {
        let epoch = self.hosts[host].epoch;
        while let Some(wake) = self.hosts[host].node.as_mut().and_then(Node::poll_wake) {
            match wake {
                Wake::Session(id) => {
                    if let Some(&connection) = self.hosts[host].sessions.get(&id) {
                        self.want_poll(connection, 1);
                    }
                }
                Wake::Link(id) => {
                    if let Some(&(connection, end)) = self.hosts[host].links.get(&id) {
                        self.want_poll(connection, end);
                    }
                }
                Wake::CloseSession(id, error) => {
                    if let Some(&connection) = self.hosts[host].sessions.get(&id) {
                        self.close_end(connection, 1, &error, true);
                    }
                }
                Wake::CloseLink(id, error) => {
                    if let Some(&(connection, end)) = self.hosts[host].links.get(&id) {
                        self.close_end(connection, end, &error, true);
                    }
                }
                Wake::Dial => {
                    let at = self.now + self.task_delay();
                    self.schedule.at(at, Event::Dial { host, epoch });
                }
                Wake::Disk => self.drain_disk(host),
                Wake::Verify => self.drain_verify(host),
            }
        }
        let (now, base) = (self.now, self.base);
        let of = &mut self.hosts[host];
        let Some(node) = &of.node else { return };
        of.steps += 1;
        if of.steps.is_multiple_of(self.plan.check_every) {
            node.check_invariants();
        }
        let due = node.poll_timeout().map(|at| {
            let after = at.saturating_duration_since(base).as_nanos().div_ceil(1000);
            u64::try_from(after).unwrap_or(u64::MAX).max(now)
        });
        if let Some(due) = due
            && of.timeout_at.is_none_or(|known| due < known)
        {
            of.timeout_at = Some(due);
            self.schedule.at(due, Event::Timeout { host, epoch });
        }
    }

    fn handle_timeout(&mut self, host: usize, epoch: u32) {
        let of = &mut self.hosts[host];
        if of.node.is_none() || of.epoch != epoch {
            return;
        }
        if of.timeout_at.is_some_and(|at| at <= self.now) {
            of.timeout_at = None;
        }
        self.core(host, Node::handle_timeout);
        self.after(host);
    }

    /// A server is gone at once, with everything that it knew.
    pub(super) fn forget_host(&mut self, host: usize) {
        let of = &mut self.hosts[host];
        of.node = None;
        of.down.push((self.now, Micros::MAX));
        of.epoch += 1;
        of.memories.push(Memory::default());
        of.links.clear();
        of.sessions.clear();
        of.timeout_at = None;
    }

    // ------------------------------------------------------------------------------------------------ helpers

    /// What the servers have counted since their last start.
    pub(super) fn counters(&self) -> impl Iterator<Item = &NodeCounters> {
        self.hosts
            .iter()
            .filter_map(|host| host.node.as_ref())
            .map(Node::counters)
    }

    /// What lies in the arenas of a server that is up.
    pub(super) fn memory(&mut self, host: usize) -> &mut Memory {
        let memories = &mut self.hosts[host].memories;
        memories.last_mut().expect("invariant: one for each start")
    }

    pub(super) fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    pub(super) fn task_delay(&mut self) -> Micros {
        self.random.between(1, self.plan.task_delay)
    }

    pub(super) fn network_delay(&mut self) -> Micros {
        let (shortest, longest) = self.plan.delay;
        self.random.between(shortest, longest)
    }

    pub(super) fn hole_between(&self, a: usize, b: usize) -> Option<Micros> {
        let until = *self.holes.get(&(a.min(b), a.max(b)))?;
        (until > self.now).then_some(until)
    }

    pub(super) fn accuse(&mut self, message: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(message());
        }
    }

    pub(super) fn trace(&mut self, line: impl FnOnce() -> String) {
        if self.trace {
            let seconds = Duration::from_micros(self.now).as_secs_f64();
            eprintln!("{seconds:>12.6}  {}", line());
        }
    }

    /// Ends the run where the last thing that was to be seen is over.
    fn is_done(&self, event: &Event) -> bool {
        self.report.is_balanced || (matches!(event, Event::Look) && self.now > 3600 * SECONDS)
    }
}
