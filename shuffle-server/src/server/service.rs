//! What all tasks of a running server share: the core behind a cell, and the bells beside it.
//!
//! The core is borrowed for one call at a time and never across an await. After each call its wakes are handed out.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use buffer_pool::{MemfdBacking, counted};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{Incarnation, JobId, NodeAddress, ShuffleError};
use tokio::sync::Notify;
use tracing::warn;

use super::verify;
use crate::config::Config;
use crate::metrics::{self, ProcessGauges};
use crate::node::{LinkId, Node, SessionId, Wake};
use crate::notify::{Signal, Signals};
use crate::spill::Store;
use crate::transport::{READ_BYTES, Rings, SendCounters};

/// The core as this server runs it.
pub(crate) type Core = Node<MemfdBacking>;

/// A running server.
pub(crate) struct Service {
    pub(crate) config: Config,
    pub(crate) address: NodeAddress,
    pub(crate) incarnation: Incarnation,
    /// There is somebody to dial.
    pub(crate) dial: Notify,
    /// There is something to be done on a disk.
    pub(crate) disk: Arc<Notify>,
    /// The directories, if there are any.
    pub(crate) disks: Option<RefCell<Store>>,
    /// The next timeout has moved forward.
    pub(crate) timer: Notify,
    /// The core did something while nobody measured it.
    pub(crate) activity: Notify,
    /// Control data just read from some Unix socket; borrowed for one read at a time.
    pub(crate) read_buffer: RefCell<Box<[u8]>>,
    /// How bytes were sent to other servers.
    pub(crate) sending: Rc<SendCounters>,
    /// The io_uring threads, started by the first connection that is to use them; `None`: there can be none.
    pub(crate) rings: OnceCell<Option<Rc<Rings>>>,
    core: RefCell<Core>,
    sessions: RefCell<Signals<SessionId>>,
    links: RefCell<Signals<LinkId>>,
    gauges: RefCell<ProcessGauges>,
    armed: Cell<Option<Instant>>,
    refused: Cell<u64>,
    exhausted: Cell<u64>,
    active: Cell<bool>,
}

impl Service {
    /// `disk` is rung when a directory has an answer.
    pub(crate) fn new(
        config: Config,
        core: Core,
        address: NodeAddress,
        incarnation: Incarnation,
        (disks, disk): (Option<Store>, Arc<Notify>),
    ) -> Self {
        Self {
            config,
            address,
            incarnation,
            dial: Notify::new(),
            disk,
            disks: disks.map(RefCell::new),
            timer: Notify::new(),
            activity: Notify::new(),
            read_buffer: RefCell::new(vec![0; READ_BYTES].into()),
            sending: Rc::default(),
            rings: OnceCell::new(),
            core: RefCell::new(core),
            sessions: RefCell::default(),
            links: RefCell::default(),
            gauges: RefCell::default(),
            armed: Cell::new(None),
            refused: Cell::new(0),
            exhausted: Cell::new(0),
            active: Cell::new(false),
        }
    }

    /// One step of the core; whoever has output now is woken.
    pub(crate) fn with<R>(&self, step: impl FnOnce(&mut Core, Instant) -> R) -> R {
        if !self.active.replace(true) {
            self.activity.notify_one();
        }
        let mut core = self.core.borrow_mut();
        let result = step(&mut core, Instant::now());
        self.hand_out(&mut core);
        result
    }

    /// A new session: its signal is there before the core can want to wake it.
    pub(crate) fn open_session(
        &self,
        open: impl FnOnce(&mut Core, Instant) -> Result<SessionId, ShuffleError>,
    ) -> Result<(SessionId, Rc<Signal>), ShuffleError> {
        self.with(|core, now| {
            let id = open(core, now)?;
            Ok((id, self.sessions.borrow_mut().add(id)))
        })
    }

    /// A session's connection is gone.
    pub(crate) fn close_session(&self, id: SessionId, process_alive: bool) {
        self.sessions.borrow_mut().remove(&id);
        self.with(|core, now| core.handle_session_closed(now, id, process_alive));
    }

    /// A new connection to another server.
    pub(crate) fn open_link(
        &self,
        open: impl FnOnce(&mut Core, Instant) -> Result<LinkId, ShuffleError>,
    ) -> Result<(LinkId, Rc<Signal>), ShuffleError> {
        let opened = self.with(|core, now| {
            let id = open(core, now)?;
            Ok((id, self.links.borrow_mut().add(id)))
        });
        self.gauges.borrow_mut().set_connections(self.links.borrow().len());
        opened
    }

    /// A connection to another server is gone.
    pub(crate) fn close_link(&self, id: LinkId, reason: ShuffleError) {
        self.links.borrow_mut().remove(&id);
        self.gauges.borrow_mut().set_connections(self.links.borrow().len());
        self.with(|core, now| core.handle_link_closed(now, id, reason.clone()));
    }

    /// Ends every connection with that reason.
    pub(crate) fn close_everything(&self, reason: &ShuffleError) {
        self.sessions.borrow().close_all(reason);
        self.links.borrow().close_all(reason);
    }

    /// Whether the core did something since the last call.
    pub(crate) fn take_activity(&self) -> bool {
        self.active.replace(false)
    }

    /// Live connections of both kinds.
    pub(crate) fn connections(&self) -> usize {
        self.sessions.borrow().len() + self.links.borrow().len()
    }

    /// When the core wants [`Core::handle_timeout`] to be called; remembered, so that an earlier one rings [`Service::timer`].
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let next = self.core.borrow().poll_timeout();
        self.armed.set(next);
        next
    }

    /// The memory behind the pool, for those who map it and pass it on.
    pub(crate) fn with_backing<R>(&self, step: impl FnOnce(&mut MemfdBacking) -> R) -> R {
        step(self.core.borrow_mut().pool_mut().backing_mut())
    }

    /// Measures the process, tells the core and the metrics recorder.
    pub(crate) fn sample(&self) {
        let arena_bytes = self.with_backing(|backing| backing.allocated_bytes());
        self.gauges.borrow_mut().sample(arena_bytes.ok());
        self.refresh_gauges();
        metrics::publish(&self.core.borrow().status());
    }

    /// Gives the core the values that only the driver knows.
    pub(crate) fn refresh_gauges(&self) {
        let mut gauges: Vec<(String, u64)> = self
            .gauges
            .borrow()
            .named()
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        for (name, value) in [
            ("pool_bytes", self.config.pool.total_bytes()),
            ("payload_bytes_copied", counted::payload_bytes_copied()),
            ("payload_bytes_read", counted::payload_bytes_read()),
            ("connections_refused", self.refused.get()),
            ("accept_exhausted", self.exhausted.get()),
        ] {
            gauges.push((name.to_owned(), value));
        }
        let disks = self.disks.as_ref().map(RefCell::borrow);
        let named = Store::named(disks.as_deref());
        gauges.extend(named.map(|(name, value)| (name.to_owned(), value)));
        gauges.extend(self.sending.named().map(|(name, value)| (name.to_owned(), value)));
        self.core.borrow_mut().set_external_gauges(gauges);
    }

    /// Drops the sessions of jobs whose processes have allocated more memory than was granted.
    pub(crate) fn drop_overdrawn(&self) {
        let overdrawn = match self.with_backing(|backing| backing.overdrawn_jobs()) {
            Ok(jobs) => jobs,
            Err(error) => return warn!("the arenas cannot be looked at: {error}"),
        };
        for job in overdrawn {
            let job = JobId::new(job.0);
            let message = "a process of this job allocated memory in an arena beyond what was granted";
            let reason = ShuffleError::new(ErrorKind::Protocol, message).job(job);
            warn!("{reason}");
            self.with(|core, _| core.fail_job(job, &reason));
        }
    }

    pub(crate) fn count_refused(&self) {
        self.refused.set(self.refused.get() + 1);
    }

    pub(crate) fn count_exhausted(&self) {
        self.exhausted.set(self.exhausted.get() + 1);
    }

    fn hand_out(&self, core: &mut Core) {
        while let Some(wake) = core.poll_wake() {
            match wake {
                Wake::Session(id) => self.sessions.borrow().raise(&id),
                Wake::CloseSession(id, reason) => self.sessions.borrow().close(&id, reason),
                Wake::Link(id) => self.links.borrow().raise(&id),
                Wake::CloseLink(id, reason) => self.links.borrow().close(&id, reason),
                Wake::Dial => self.dial.notify_one(),
                Wake::Disk => self.disk.notify_one(),
                Wake::Verify => verify::run(core),
            }
        }
        let next = core.poll_timeout();
        if next.is_some_and(|next| self.armed.get().is_none_or(|armed| next < armed)) {
            self.armed.set(next);
            self.timer.notify_one();
        }
    }
}
