//! Between the server's thread and a ring's thread, one wake-up per batch in each direction.
//!
//! ```text
//!   server's thread                                      ring's thread
//!     Inbox::push ── first since it fell asleep: eventfd ──> Inbox::take
//!     LineMail::take <── first since it was taken: Notify ── LineMail::post
//! ```
//!
//! Both are bounded by what a connection may have out: [`super::line::MAX_UNSENT`] gathers, and their buffers.
//!
//! No connection waits for news that cannot come: an inbox that nobody will empty any more is closed and gives back what it is
//! given, and a [`Post`] that goes without a last word says one.

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
    Open { line: u32, socket: OwnedFd, post: Post },
    /// Bytes for it.
    Send { line: u32, gather: Gather },
    /// It is over: give up what is out, let go of the socket, say so when the kernel reads nothing more.
    Close { line: u32 },
    /// This extent's pages are about to go: no longer pin them.
    Forget(ExtentKey),
    /// Close everything and end.
    Stop,
    /// Whatever a test wants to happen on the ring's thread.
    #[cfg(test)]
    Do(Deed),
}

/// See [`Command::Do`].
#[cfg(test)]
pub(crate) struct Deed(pub(crate) Box<dyn FnOnce() -> io::Result<()> + Send>);

#[cfg(test)]
impl std::fmt::Debug for Deed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Deed")
    }
}

#[derive(Debug, Default)]
struct Queue {
    commands: VecDeque<Command>,
    asleep: bool,
    closed: bool,
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

    /// # Errors
    /// The ring's thread takes no commands any more; here is this one back.
    pub(crate) fn push(&self, command: Command) -> Result<(), Command> {
        let wake = {
            let mut queue = lock(&self.queue);
            if queue.closed {
                return Err(command);
            }
            queue.commands.push_back(command);
            std::mem::take(&mut queue.asleep)
        };
        if wake {
            // The counter is never read: it cannot fill up in the life of a server, and nothing else can fail.
            let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        }
        Ok(())
    }

    /// Takes no more; gives what there was.
    pub(crate) fn close(&self) -> VecDeque<Command> {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        std::mem::take(&mut queue.commands)
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.queue).closed
    }

    /// Everything there is, to the end of `into`.
    pub(crate) fn take(&self, into: &mut VecDeque<Command>) {
        into.append(&mut lock(&self.queue).commands);
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
    /// The kernel reads nothing of it any more and its leases have ended: all its buffers are back, also those that were not
    /// reported one by one.
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

/// The ring's end of a connection's mail.
#[derive(Debug)]
pub(crate) struct Post {
    mail: Arc<LineMail>,
    closed: bool,
}

impl Post {
    pub(crate) fn to(mail: &Arc<LineMail>) -> Self {
        Self {
            mail: Arc::clone(mail),
            closed: false,
        }
    }

    pub(crate) fn report(&self, report: Report) {
        self.mail.post(report, false);
    }

    /// The last word: see [`News::closed`].
    pub(crate) fn close(mut self, report: Report) {
        self.closed = true;
        self.mail.post(report, true);
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        if !self.closed {
            self.mail.post(Report::failed(dead()), true);
        }
    }
}

/// What a connection hears whose ring's thread is no more.
pub(crate) fn dead() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "its io_uring thread has ended")
}

/// What is locked is whole at any time: a panic elsewhere on the thread that held it spoils nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
