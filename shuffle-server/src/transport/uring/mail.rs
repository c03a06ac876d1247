//! Between the server's thread and a ring's thread, one wake-up per batch in each direction.
//!
//! ```text
//!   server's thread                                      ring's thread
//!     Inbox::push ── first since it fell asleep: eventfd ──> Inbox::take
//!     LineMail::take <── first since it was taken: Notify ── LineMail::post
//! ```
//!
//! Both are bounded by what a connection may have out: [`super::line::MAX_JOBS`] jobs, and their buffers.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::Notify;

use super::extents::ExtentKey;
use super::piece::Gather;
use super::sender::Report;

/// What the ring's thread is told.
#[derive(Debug)]
pub(crate) enum Command {
    /// A connection; its number is free.
    Open {
        line: u32,
        socket: OwnedFd,
        mail: Arc<LineMail>,
    },
    /// Bytes for it.
    Send { line: u32, gather: Gather },
    /// It is over: give up what is out, let go of the socket, say so when the kernel reads nothing more.
    Close { line: u32 },
    /// This extent's pages are about to go: no longer pin them.
    Forget(ExtentKey),
    /// Close everything and end.
    Stop,
}

#[derive(Debug, Default)]
struct Queue {
    commands: VecDeque<Command>,
    asleep: bool,
}

/// Commands for one ring.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Mutex<Queue>,
    bell: Arc<OwnedFd>,
}

impl Inbox {
    /// # Errors
    /// No eventfd can be had.
    pub(crate) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            queue: Mutex::default(),
            bell: Arc::new(bell),
        })
    }

    /// What [`Self::push`] rings.
    pub(crate) fn bell(&self) -> &Arc<OwnedFd> {
        &self.bell
    }

    pub(crate) fn push(&self, command: Command) {
        let wake = {
            let mut queue = lock(&self.queue);
            queue.commands.push_back(command);
            std::mem::take(&mut queue.asleep)
        };
        if wake {
            // The counter is never read: it cannot fill up in the life of a server, and nothing else can fail.
            let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Everything there is.
    pub(crate) fn take(&self) -> VecDeque<Command> {
        std::mem::take(&mut lock(&self.queue).commands)
    }

    /// From now on the next push rings. False: there is something already.
    pub(crate) fn fall_asleep(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.asleep = queue.commands.is_empty();
        queue.asleep
    }

    /// Awake for whatever reason: pushing needs no ring.
    pub(crate) fn wake_up(&self) {
        lock(&self.queue).asleep = false;
    }
}

/// What one connection is told.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) report: Report,
    /// The kernel holds nothing of it any more, and its number is free.
    pub(crate) closed: bool,
}

/// News for one connection.
#[derive(Debug, Default)]
pub(crate) struct LineMail {
    news: Mutex<Option<News>>,
    arrived: Notify,
}

impl LineMail {
    pub(crate) fn post(&self, more: Report, closed: bool) {
        let first = {
            let mut news = lock(&self.news);
            let first = news.is_none();
            let news = news.get_or_insert_default();
            news.report.merge(more);
            news.closed |= closed;
            first
        };
        if first {
            self.arrived.notify_one();
        }
    }

    pub(crate) fn take(&self) -> Option<News> {
        lock(&self.news).take()
    }

    /// Resolves when there is something to be taken.
    pub(crate) async fn wait(&self) {
        while lock(&self.news).is_none() {
            self.arrived.notified().await;
        }
    }
}

/// Nothing panics with one of these locked, and if it did, the process would end.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
