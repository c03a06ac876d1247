//! The rings of a server, seen from its own thread: starting and ending their threads, giving out places for connections.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use buffer_pool::{ArenaKind, JobKey, PageHolder};
use rustix::process::{Resource, getrlimit};

use super::extents::{ExtentKey, Extents, Registered};
#[cfg(test)]
use super::mail::Deed;
use super::mail::{Command, Inbox, LineMail, Post, dead};
use super::ring::Ring;
use super::unavailable::{Unavailable, check_memlock};
use super::worker::{Shared, Worker};
use crate::loud::AbortOnPanic;

/// Connections of one ring, if the process may have so many descriptors.
const MAX_FILES: u32 = 1024;
/// What the kernel's table of buffers can hold.
const MAX_EXTENTS: u32 = 1 << 14;
/// How long the end waits for a ring's thread, which itself waits a second for the kernel.
const JOIN_WITHIN: Duration = Duration::from_secs(2);
/// How long an extent waits for those that leave before it, and how often it looks. A ring needs microseconds for each, and this
/// holds up the server's one thread.
const LEAVE_WITHIN: Duration = Duration::from_millis(100);
const LEAVE_LOOK: Duration = Duration::from_micros(200);
/// How long a ring may take to be made.
const START_WITHIN: Duration = Duration::from_secs(5);

/// What the rings are made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// Rings, each with its thread.
    pub(crate) threads: usize,
    /// Operations that one ring submits at once.
    pub(crate) entries: u32,
    /// Of the pool.
    pub(crate) total_buffers: u32,
    pub(crate) buffer_bytes: u32,
    pub(crate) extent_buffers: u32,
}

/// The rings of one server.
#[derive(Debug)]
pub(crate) struct Engine {
    threads: Vec<Thread>,
    next: Cell<usize>,
}

#[derive(Debug)]
struct Thread {
    shared: Arc<Shared>,
    free: RefCell<Vec<u32>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    handle: Option<JoinHandle<()>>,
}

/// Where a connection is: which ring, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    thread: usize,
    line: u32,
}

impl Engine {
    /// Makes the rings and registers nothing yet but empty tables.
    ///
    /// # Errors
    /// Why there can be none: the caller falls back.
    pub(crate) fn start(settings: Settings) -> Result<Self, Unavailable> {
        let pool_bytes = u64::from(settings.total_buffers) * u64::from(settings.buffer_bytes);
        let rings = u64::try_from(settings.threads).unwrap_or(u64::MAX);
        check_memlock(pool_bytes.saturating_mul(rings))?;
        let threads = (0..settings.threads).map(|number| Thread::start(number, settings));
        Ok(Self {
            threads: threads.collect::<Result<_, _>>()?,
            next: Cell::new(0),
        })
    }

    /// A place for a connection, on each ring in turn.
    ///
    /// # Errors
    /// The rings have no place left, or the descriptor cannot be duplicated.
    pub(crate) fn open(&self, socket: impl AsFd, mail: &Arc<LineMail>) -> io::Result<Place> {
        let socket: OwnedFd = socket.as_fd().try_clone_to_owned()?;
        let first = self.next.replace(self.next.get().wrapping_add(1));
        let count = self.threads.len();
        for thread in (0..count).map(|step| first.wrapping_add(step) % count) {
            if let Some(line) = self.threads[thread].take_place() {
                let post = Post::to(mail);
                let place = Place { thread, line };
                let pushed = self.push(place, |line| Command::Open { line, socket, post });
                return pushed.map(|()| place).map_err(|_| dead());
            }
        }
        if self.threads.iter().all(|thread| thread.shared.inbox.is_closed()) {
            return Err(io::Error::other("every io_uring thread has ended"));
        }
        Err(io::Error::other("every place of the io_uring threads is taken"))
    }

    /// Tells the connection's ring something.
    ///
    /// # Errors
    /// Its thread is ending and hears nothing any more.
    pub(crate) fn push(&self, place: Place, command: impl FnOnce(u32) -> Command) -> Result<(), Command> {
        self.threads[place.thread].shared.inbox.push(command(place.line))
    }

    /// The connection is over and the kernel holds nothing of it.
    pub(crate) fn free(&self, place: Place) {
        self.threads[place.thread].free.borrow_mut().push(place.line);
    }

    /// For the pool's memory: to be asked before an extent is punched.
    pub(crate) fn page_holder(&self) -> Arc<dyn PageHolder> {
        let shared = self.threads.iter().map(|thread| Arc::clone(&thread.shared));
        Arc::new(Holder(shared.collect()))
    }

    /// Makes something happen on every ring's thread.
    #[cfg(test)]
    pub(crate) fn make(&self, deed: impl Fn() -> io::Result<()> + Clone + Send + 'static) {
        for thread in &self.threads {
            let deed = Deed(Box::new(deed.clone()));
            thread.shared.inbox.push(Command::Do(deed)).expect("it lives");
        }
    }

    /// Extents that are registered now, in all rings together.
    #[cfg(test)]
    pub(crate) fn registered_extents(&self) -> usize {
        self.threads.iter().map(|thread| thread.shared.registered.len()).sum()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for thread in &self.threads {
            // One that is ending already needs no word.
            let _ = thread.shared.inbox.push(Command::Stop);
        }
        for thread in &mut self.threads {
            if thread.ended.recv_timeout(JOIN_WITHIN) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!("an io_uring thread does not end; it is left behind");
                continue;
            }
            if let Some(handle) = thread.handle.take() {
                // It cannot have panicked: that ends the process.
                let _ = handle.join();
            }
        }
    }
}

impl Thread {
    fn start(number: usize, settings: Settings) -> Result<Self, Unavailable> {
        let shared = Arc::new(Shared {
            inbox: Inbox::new().map_err(Unavailable::system("make an eventfd"))?,
            registered: Registered::default(),
        });
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // The table may be as large as the process may have descriptors; one entry of it is not a connection's.
        let files = u32::try_from(descriptors)
            .unwrap_or(u32::MAX)
            .saturating_sub(1)
            .min(MAX_FILES);
        let (ready, is_ready) = sync_channel(1);
        let (ending, ended) = sync_channel::<()>(1);
        let of = Arc::clone(&shared);
        let handle = std::thread::Builder::new()
            .name(format!("uring-{number}"))
            .spawn(move || {
                let _ending = ending;
                let _guard = AbortOnPanic;
                run(&of, settings, files, &ready);
            })
            .map_err(Unavailable::system("start a thread"))?;
        let started = is_ready.recv_timeout(START_WITHIN);
        started.unwrap_or_else(|_| {
            // Should it get there after all, it ends at once.
            let _ = shared.inbox.push(Command::Stop);
            Err(Unavailable::system("make a ring")(io::ErrorKind::TimedOut.into()))
        })?;
        Ok(Self {
            shared,
            free: RefCell::new((0..files).rev().collect()),
            ended,
            handle: Some(handle),
        })
    }

    fn take_place(&self) -> Option<u32> {
        if self.shared.inbox.is_closed() {
            return None;
        }
        self.free.borrow_mut().pop()
    }
}

fn run(shared: &Arc<Shared>, settings: Settings, files: u32, ready: &SyncSender<Result<(), Unavailable>>) {
    let extents = (settings.total_buffers / settings.extent_buffers).min(MAX_EXTENTS);
    let extents = u16::try_from(extents).expect("invariant: a table of 2^14 entries");
    let opened = open(settings.entries, files, extents);
    let (answer, ring) = match opened {
        Ok(ring) => (Ok(()), Some(ring)),
        Err(error) => (Err(error), None),
    };
    // Whoever started the thread waits for this.
    let _ = ready.send(answer);
    let Some(ring) = ring else { return };
    let extents = Extents::new(extents, settings.extent_buffers);
    let mut worker = Worker::new(ring, Arc::clone(shared), extents, files);
    if let Err(error) = worker.run() {
        tracing::error!("an io_uring thread has ended ({error}): its connections break, and are made again without it");
        worker.bury();
    }
}

fn open(entries: u32, files: u32, extents: u16) -> Result<Ring, Unavailable> {
    let mut ring = Ring::open(entries).map_err(Unavailable::of_setup)?;
    let missing = ring.missing().map_err(Unavailable::system("probe"))?;
    if let Some(operation) = missing {
        return Err(Unavailable::MissingOperation { operation });
    }
    ring.make_tables(files, extents)
        .map_err(Unavailable::system("register tables"))?;
    Ok(ring)
}

struct Holder(Vec<Arc<Shared>>);

impl PageHolder for Holder {
    fn let_go(&self, job: JobKey, arena: ArenaKind, extent: u32) -> io::Result<()> {
        let key = ExtentKey { job, arena, extent };
        for ring in &self.0 {
            if let Some(key) = leave(ring, key)? {
                // One that hears nothing any more lets go of all with its end.
                let _ = ring.inbox.push(Command::Forget(key));
            }
        }
        Ok(())
    }
}

/// Waits a moment where too many are on their way out: a refusal would be one to whoever needs the memory.
fn leave(ring: &Shared, key: ExtentKey) -> io::Result<Option<ExtentKey>> {
    let started = Instant::now();
    loop {
        match ring.registered.leave(key) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && started.elapsed() < LEAVE_WITHIN => {
                std::thread::sleep(LEAVE_LOOK);
            }
            other => return other,
        }
    }
}
