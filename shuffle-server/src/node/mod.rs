//! The server's core: everything that is decided, and nothing that is done.
//!
//! ```text
//!            handle_session_* ┌──────────────────────────────┐ handle_link_*
//!  executors ───────────────▶ │ executor ── partition ── peer│ ◀─────────────── other servers
//!            ◀─────────────── │          buffer pool         │ ───────────────▶
//!             poll_session    └──────────────────────────────┘  poll_link
//!                                ▲ handle_timeout   │ poll_wake, poll_timeout, poll_dial
//!                                ▲ handle_disk      │ poll_disk
//!                                ▲ handle_verified  │ poll_verify
//! ```
//!
//! Pure: no socket, no file, no clock; payload never comes near it, only slot numbers do. Drivers in
//! `transport` and `server` read, call, write and decide nothing; the simulator drives several of these in one
//! thread and in virtual time.
//!
//! Invariants (checked after each step in debug builds, by [`Node::check_invariants`]):
//! - every slot is in exactly one state of the pool's books and has exactly one holder, or is shared by those that its share names;
//! - a gate's reserved slots = the credits its channels have outstanding;
//! - a subpartition that is bounded holds at most its limit of buffers.

mod api;
mod counters;
mod disk;
mod drain;
mod groups;
mod holders;
mod invariants;
mod notices;
mod pending;
mod settle;
mod shares;
mod slots;
mod timers;
mod verify;
mod wakes;
mod watch;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use buffer_pool::{Backing, Books, JobKey, NetworkPool, PoolId, SlotRef};
use shuffle_protocol::session::Keepalive;
use shuffle_protocol::{JobId, NodeAddress, PartitionId, ShuffleError, error::ErrorKind};
use slotmap::SlotMap;

use crate::executor::{Gate, GateNo, Session};
use crate::partition::{Groups, Item, Outlet, OutletNo, Partition, PartitionNo, Registry, Spoolers};
use crate::peer::{Inlet, InletNo, Link, Path, PathId};

pub use api::{Dial, Landing, LinkId, NodeConfig, Output, PeerInfo, Quotas, SessionId, SessionInfo, Wake};
pub use counters::NodeCounters;
pub(crate) use disk::{DiskWork, Disks};
pub(crate) use holders::{ChannelNo, Holder, Holders};
pub(crate) use notices::Notices;
pub(crate) use pending::{Pending, PendingKind, PendingRequests, pool_error};
pub(crate) use shares::{Share, ShareNo, Slice, View};
pub(crate) use timers::{Timer, Timers};
pub use verify::{Verify, VerifyTicket};
pub(crate) use verify::{VerifyFor, Verifying};
pub(crate) use wakes::Sink;

/// Jobs that are on a node at one time. Each has books with an entry for each buffer of the pool, and two memfds.
const MAX_JOBS: usize = 256;

/// What a node keeps of one job.
#[derive(Debug, Default)]
pub(crate) struct Job {
    pub(crate) holders: Holders,
    /// Sessions whose process may still hold slots.
    pub(crate) sessions: u32,
    pub(crate) partitions: u32,
    pub(crate) channels: u32,
    /// Payload in its partitions' files, in bytes.
    pub(crate) disk_bytes: u64,
}

/// Whose a local buffer pool is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PoolOwner {
    Writer(PartitionNo),
    Gate(GateNo),
    Reader(OutletNo),
}

/// The core of one server. `B` is what backs the pool: memory, or nothing in a simulation.
pub struct Node<B: Backing> {
    pub(crate) config: NodeConfig,
    pub(crate) pool: NetworkPool<B>,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) sessions: SlotMap<SessionId, Session>,
    pub(crate) gates: SlotMap<GateNo, Gate>,
    pub(crate) partitions: SlotMap<PartitionNo, Partition>,
    pub(crate) registry: Registry,
    /// Broadcast partitions of other nodes that are read here: for each, the relay that has all of it.
    pub(crate) relays: BTreeMap<(JobId, PartitionId), Vec<PartitionNo>>,
    pub(crate) groups: Groups,
    pub(crate) outlets: SlotMap<OutletNo, Outlet>,
    pub(crate) inlets: SlotMap<InletNo, Inlet>,
    pub(crate) paths: SlotMap<PathId, Path>,
    pub(crate) path_ids: BTreeMap<(NodeAddress, u32), PathId>,
    pub(crate) links: SlotMap<LinkId, Link>,
    /// Slots that several hold.
    pub(crate) shares: SlotMap<ShareNo, Share>,
    pub(crate) pool_owners: BTreeMap<PoolId, PoolOwner>,
    /// Room for what one acknowledgement frees, kept so that none is allocated for each.
    pub(crate) acked: Vec<Item>,
    pub(crate) disks: Disks,
    pub(crate) verifying: Verifying,
    pub(crate) spoolers: Spoolers,
    /// What drivers are told of partitions.
    pub(crate) notices: Notices,
    /// Partitions that are kept or broadcast and that a reader has left in this step.
    pub(crate) left: Vec<PartitionNo>,
    /// Relays of which some readers may hold up others.
    pub(crate) stalling: Vec<PartitionNo>,
    /// Readers of files that wait for buffers to load into, and what they are told if none come.
    pub(crate) without_pool: BTreeMap<OutletNo, ShuffleError>,
    /// Creations that wait for buffers.
    pub(crate) pending: PendingRequests,
    /// Buffers or reservations have come home since creations were last tried.
    pub(crate) pool_changed: bool,
    pub(crate) timers: Timers,
    pub(crate) wakes: VecDeque<Wake>,
    pub(crate) dials: VecDeque<PathId>,
    /// The number of the next channel that is asked for at another node.
    pub(crate) next_stream: u32,
    /// The number of the next connection that this node dials.
    pub(crate) next_generation: u32,
    pub(crate) counters: NodeCounters,
    pub(crate) draining: bool,
    external_gauges: Vec<(String, u64)>,
    steps: u64,
}

impl<B: Backing> Node<B> {
    /// A node with nothing on it yet.
    #[must_use]
    pub fn new(config: NodeConfig, pool: NetworkPool<B>) -> Self {
        Self {
            config,
            pool,
            jobs: BTreeMap::new(),
            sessions: SlotMap::with_key(),
            gates: SlotMap::with_key(),
            partitions: SlotMap::with_key(),
            registry: Registry::default(),
            relays: BTreeMap::new(),
            groups: Groups::default(),
            outlets: SlotMap::with_key(),
            inlets: SlotMap::with_key(),
            paths: SlotMap::with_key(),
            path_ids: BTreeMap::new(),
            links: SlotMap::with_key(),
            shares: SlotMap::with_key(),
            pool_owners: BTreeMap::new(),
            acked: Vec::new(),
            disks: Disks::default(),
            verifying: Verifying::default(),
            spoolers: Spoolers::default(),
            notices: Notices::default(),
            left: Vec::new(),
            stalling: Vec::new(),
            without_pool: BTreeMap::new(),
            pending: PendingRequests::default(),
            pool_changed: false,
            timers: Timers::default(),
            wakes: VecDeque::new(),
            dials: VecDeque::new(),
            next_stream: 0,
            next_generation: 0,
            counters: NodeCounters::default(),
            draining: false,
            external_gauges: Vec::new(),
            steps: 0,
        }
    }

    /// What this node was told at its start.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The pool and its backing, for the driver that maps arenas and passes descriptors.
    pub fn pool(&self) -> &NetworkPool<B> {
        &self.pool
    }

    /// See [`Node::pool`].
    pub fn pool_mut(&mut self) -> &mut NetworkPool<B> {
        &mut self.pool
    }

    /// The books of the pool: each buffer in exactly one state.
    pub fn books(&self) -> Books {
        self.pool.books()
    }

    /// What has been counted since the start.
    pub fn counters(&self) -> &NodeCounters {
        &self.counters
    }

    /// Measured values that only a driver can know, to be told beside the counters.
    pub fn set_external_gauges(&mut self, gauges: Vec<(String, u64)>) {
        self.external_gauges = gauges;
    }

    /// Every counter and gauge by its metric name.
    pub fn status(&self) -> Vec<(String, u64)> {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let mut all: Vec<(String, u64)> = self
            .counters
            .named()
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        let relays = self
            .partitions
            .values()
            .filter(|partition| partition.relay.is_some())
            .count();
        let connected = self.paths.values().filter(|path| path.link.is_some()).count();
        all.extend(
            [
                ("sessions", self.sessions.len()),
                ("partitions", self.partitions.len() - relays),
                ("relays", relays),
                ("gates", self.gates.len() - relays),
                ("channels_serving", self.outlets.len()),
                ("channels_fetching", self.inlets.len()),
                ("peer_links", connected),
                ("jobs", self.jobs.len()),
                ("requests_waiting", self.pending.len()),
                ("subscriptions", self.notices.len()),
            ]
            .map(|(name, n)| (name.to_owned(), count(n))),
        );
        let book_bytes = self.partitions.values().map(Partition::book_bytes).sum();
        all.push(("subpartition_bytes".to_owned(), book_bytes));
        all.extend(
            self.books()
                .named()
                .map(|(name, n)| (format!("buffers_{name}"), u64::from(n))),
        );
        all.extend(self.external_gauges.iter().cloned());
        all
    }

    /// When [`Node::handle_timeout`] is to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Lets everything that is due happen.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.timers.pop(now) {
            match timer {
                Timer::Waiting(job, key) => self.expire_waiting(now, job, key),
                Timer::Pending => self.expire_pending(now),
                Timer::Path(path) => self.check_path(now, path),
                Timer::Link(link) => self.check_link(now, link),
                Timer::Session(session) => self.check_session(now, session),
                Timer::Unconfirmed(path) => self.drop_unconfirmed(now, path),
                Timer::Verdict(job, group) => self.handle_no_verdict(now, job, group),
                Timer::Unread(partition) => self.expire_unread(now, partition),
                Timer::Reading(outlet) => self.expire_reading(now, outlet),
                Timer::Notices(_) => self.handle_notices_due(),
                Timer::Tracing(inlet) => self.expire_tracing(now, inlet),
                Timer::Straggler(relay) => self.part_from_straggler(now, relay),
                Timer::Sweep => self.sweep(now),
            }
        }
        self.settle(now);
    }

    /// The driver has written this slot's payload completely, or its connection is gone.
    pub fn handle_written(&mut self, now: Instant, slot: SlotRef) {
        self.pool_changed |= self.pool.unpin(slot);
        if !self.verifying.reloads.is_empty() {
            self.retry_reloads();
        }
        self.settle(now);
    }

    /// The job's books on this node, and its arenas, from its first session on.
    pub(crate) fn enter_job(&mut self, job: JobId) -> Result<&mut Job, ShuffleError> {
        if !self.jobs.contains_key(&job) {
            if self.jobs.len() >= MAX_JOBS {
                let kind = ErrorKind::LimitExceeded {
                    what: "jobs on this node".to_owned(),
                    limit: MAX_JOBS as u64,
                    asked: self.jobs.len() as u64 + 1,
                };
                return Err(ShuffleError::new(kind, "attach when another job has ended").job(job));
            }
            self.pool
                .add_job(JobKey(job.value()))
                .map_err(|error| pool_error(&error).job(job))?;
            self.jobs.insert(job, Job::default());
        }
        self.jobs
            .get_mut(&job)
            .ok_or_else(|| ShuffleError::new(ErrorKind::Unknown, "the job is not on this node").job(job))
    }

    /// Gives the job's memory back once nobody on this node can need it.
    pub(crate) fn retire_job_if_idle(&mut self, now: Instant, job: JobId) {
        let idle = self
            .jobs
            .get(&job)
            .is_some_and(|of| of.sessions == 0 && of.partitions == 0 && of.channels == 0);
        if idle {
            self.jobs.remove(&job);
            self.notices.forget_job(job);
            self.pool
                .retire_job(JobKey(job.value()))
                .expect("invariant: a job of the core is a job of the pool");
            self.pool_changed = true;
            self.plan_sweep(now);
        }
    }

    /// The timers of a connection that is to be noticed dead in that time.
    pub(crate) fn keepalive(&self, dead_after: Duration, now: Instant) -> Keepalive {
        Keepalive::new(self.config.keepalive_interval.min(dead_after / 2), dead_after, now)
    }

    /// Something has ended that is remembered for a while: once for that while, at most for twice as long.
    pub(crate) fn plan_sweep(&mut self, now: Instant) {
        if !self.timers.is_armed(Timer::Sweep) {
            self.timers.set(now + self.config.unread_expiry, Timer::Sweep);
        }
    }

    fn sweep(&mut self, now: Instant) {
        let registry = self.registry.sweep(now, self.config.unread_expiry);
        let groups = self.groups.sweep(now, self.config.unread_expiry);
        if registry || groups {
            self.plan_sweep(now);
        }
    }
}
