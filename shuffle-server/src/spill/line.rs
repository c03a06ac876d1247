//! One directory's operations: those that wait, those that are being done, and the threads that do them.
//!
//! ```text
//!   server's thread              |  a directory's threads
//!   push ──> schedule ───────────┼──> task: its buffers are leased to it
//!   expire: what takes too long  |     |  the leases end
//!   poll <── reports ────────────┼─────'
//! ```
//!
//! Each directory has threads of its own: one that hangs holds up nobody else. Only the thread that made a system call can
//! say that the kernel is done with its buffers, so an operation that was answered for being late is reported once more.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use buffer_pool::Leased;

use super::failure::{Deed, Failure};
use super::file::{Place, StoreFile, lock};
use super::memory::Targets;
use super::names::Part;
use super::schedule::{Class, Schedule};
use super::system::FileSystem;
use super::{DiskTicket, StoreNo};
use crate::loud::AbortOnPanic;

/// What is to be done with a file.
pub(crate) enum Work {
    /// To be written at that place.
    Write(u64, Vec<Leased>),
    /// To be read from that place.
    Read(u64, Targets),
    /// From there, so many bytes.
    Punch(u64, u64),
    /// With that index.
    Seal(Vec<u8>),
    Remove,
}

/// One operation on its way.
pub(crate) struct Task<F: FileSystem> {
    pub(crate) ticket: DiskTicket,
    pub(crate) file: Arc<StoreFile<F>>,
    pub(crate) work: Work,
    /// How long it may be done for.
    pub(crate) allowed: Duration,
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// The directory's free bytes are measured.
    Look,
    /// An operation of the core.
    Op(DiskTicket),
}

/// What became of it: bytes, of what was measured the free ones.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) directory: usize,
    pub(crate) key: Key,
    pub(crate) result: Result<u64, Failure>,
    /// It was given up meanwhile.
    pub(crate) late: bool,
}

/// Where reports lie until they are polled. There are never more than operations outstanding.
pub(crate) struct Reports {
    list: Mutex<Vec<Report>>,
    bell: Box<dyn Fn() + Send + Sync>,
}

impl Reports {
    /// `bell` is rung, on another thread, when there is a report after there was none.
    pub(crate) fn new(bell: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            list: Mutex::default(),
            bell: Box::new(bell),
        }
    }

    pub(crate) fn take(&self) -> Vec<Report> {
        std::mem::take(&mut lock(&self.list))
    }

    fn push(&self, report: Report) {
        let is_first = {
            let mut list = lock(&self.list);
            list.push(report);
            list.len() == 1
        };
        if is_first {
            (self.bell)();
        }
    }
}

/// See the module's header.
pub(crate) struct Line<F: FileSystem> {
    shared: Arc<Shared<F>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<F: FileSystem> {
    number: usize,
    place: Arc<Place<F>>,
    reports: Arc<Reports>,
    state: Mutex<State<F>>,
    work: Condvar,
}

struct State<F: FileSystem> {
    schedule: Schedule<Task<F>>,
    /// The free bytes are to be measured, within that time.
    look: Option<Duration>,
    running: BTreeMap<Key, Running>,
    stop: bool,
}

struct Running {
    deadline: Instant,
    late: bool,
}

enum Next<F: FileSystem> {
    Look,
    Task(StoreNo, Task<F>),
}

impl<F: FileSystem> Line<F> {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn start(
        number: usize,
        place: Arc<Place<F>>,
        reports: Arc<Reports>,
        threads: u32,
    ) -> std::io::Result<Self> {
        let state = State {
            schedule: Schedule::default(),
            look: None,
            running: BTreeMap::new(),
            stop: false,
        };
        let shared = Arc::new(Shared {
            number,
            place,
            reports,
            state: Mutex::new(state),
            work: Condvar::new(),
        });
        let start = |thread| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("disk-{number}-{thread}"))
                .spawn(move || {
                    let _guard = AbortOnPanic;
                    shared.run();
                })
        };
        let threads = (0..threads).map(start).collect::<Result<_, _>>()?;
        Ok(Self { shared, threads })
    }

    /// One more task; gives the tickets of those that it made needless.
    pub(crate) fn push(&self, store: StoreNo, class: Class, task: Task<F>) -> Vec<DiskTicket> {
        let dropped = lock(&self.shared.state).schedule.push(store, class, task);
        // A removal can make room for nothing, so one thread has something new to do at most.
        self.shared.work.notify_one();
        tickets(dropped)
    }

    /// The free bytes are to be measured.
    pub(crate) fn look(&self, within: Duration) {
        lock(&self.shared.state).look = Some(within);
        self.shared.work.notify_one();
    }

    /// What has taken too long: from here on it is late. It is still being done.
    pub(crate) fn expire(&self, now: Instant) -> Vec<Key> {
        let mut state = lock(&self.shared.state);
        let mut expired = Vec::new();
        for (key, running) in &mut state.running {
            if !running.late && running.deadline <= now {
                running.late = true;
                expired.push(*key);
            }
        }
        expired
    }

    /// Drops what waits, but for removals; gives its tickets.
    pub(crate) fn clear(&self) -> Vec<DiskTicket> {
        tickets(lock(&self.shared.state).schedule.clear())
    }

    /// When something that is being done will have taken too long. What is begun later has a later deadline than
    /// `begun_now`.
    pub(crate) fn next_deadline(&self, begun_now: Instant) -> Option<Instant> {
        let state = lock(&self.shared.state);
        let running = state.running.values().filter(|running| !running.late);
        let first = running.map(|running| running.deadline).min();
        let waits = state.schedule.waiting() > 0 || state.look.is_some();
        [first, waits.then_some(begun_now)].into_iter().flatten().min()
    }

    /// The threads end when they have done what waits.
    pub(crate) fn stop(&self) {
        lock(&self.shared.state).stop = true;
        self.shared.work.notify_all();
    }

    /// After [`Self::stop`]: waits for the threads.
    pub(crate) fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A panic there has ended the process.
            let _ = thread.join();
        }
    }
}

fn tickets<F: FileSystem>(tasks: Vec<Task<F>>) -> Vec<DiskTicket> {
    tasks.into_iter().map(|task| task.ticket).collect()
}

impl<F: FileSystem> Shared<F> {
    fn run(&self) {
        while let Some(next) = self.take() {
            match next {
                Next::Look => {
                    let free = self.place.fs.free_bytes(&self.place.dir);
                    self.handle_done(None, Key::Look, free.map_err(Failure::of(Deed::Measure, Part::Data)));
                }
                Next::Task(store, task) => {
                    let key = Key::Op(task.ticket);
                    let result = task.run();
                    self.handle_done(Some(store), key, result);
                }
            }
        }
    }

    fn take(&self) -> Option<Next<F>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(within) = state.take_look() {
                state.begin(Key::Look, within);
                return Some(Next::Look);
            }
            if let Some((store, task)) = state.schedule.next() {
                state.begin(Key::Op(task.ticket), task.allowed);
                return Some(Next::Task(store, task));
            }
            if state.stop {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn handle_done(&self, store: Option<StoreNo>, key: Key, result: Result<u64, Failure>) {
        let late = {
            let mut state = lock(&self.state);
            if let Some(store) = store {
                state.schedule.handle_done(store);
            }
            let running = state.running.remove(&key).expect("invariant: what is done was begun");
            running.late
        };
        self.reports.push(Report {
            directory: self.number,
            key,
            result,
            late,
        });
        // A removal, or the next measurement, may have waited for this.
        self.work.notify_one();
    }
}

impl<F: FileSystem> State<F> {
    /// One measurement at a time; what is asked for meanwhile comes behind it.
    fn take_look(&mut self) -> Option<Duration> {
        let is_looking = self.running.contains_key(&Key::Look);
        self.look.take_if(|_| !is_looking)
    }

    fn begin(&mut self, key: Key, within: Duration) {
        let running = Running {
            deadline: Instant::now() + within,
            late: false,
        };
        self.running.insert(key, running);
    }
}

impl<F: FileSystem> Task<F> {
    /// Its leases have ended when this returns.
    fn run(self) -> Result<u64, Failure> {
        let Self { file, work, .. } = self;
        match work {
            Work::Write(at, from) => file.write(at, &from),
            Work::Read(at, mut into) => {
                let result = file.read(at, &mut into);
                into.hand_over();
                result
            }
            Work::Punch(at, bytes) => file.punch(at, bytes),
            Work::Seal(index) => file.seal(&index),
            Work::Remove => file.remove(),
        }
    }
}
