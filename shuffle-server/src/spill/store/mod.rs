//! All directories and the files in them: what the core wants done is given to the right threads, and what became of it comes back.
//!
//! Nothing here waits for a disk but [`Store::open`] and [`Store::close`].

mod open;
mod pending;
mod settle;
mod submit;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use buffer_pool::SlotRef;
use shuffle_protocol::ShuffleError;
use tracing::error;

use super::directories::{Health, Space};
use super::file::{Place, StoreFile};
use super::line::{Key, Line, Reports};
use super::memory::{Memory, wide};
use super::names::FileName;
use super::system::{FileSystem, Linux};
use super::{DiskOp, DiskTicket, StoreNo};
pub use open::{Recovered, Recovery, StorageError};
use pending::{Pending, What};

/// Operations that are outstanding at most; more stay with the core.
const MOST_OUTSTANDING: usize = 4096;

/// What comes back.
#[derive(Debug)]
pub enum Answer {
    /// The operation is over; so is every use of its buffers.
    Done {
        /// Which.
        ticket: DiskTicket,
        /// How it went.
        outcome: Result<(), ShuffleError>,
    },
    /// The operation has failed and is still being done: its buffers must stay pinned until [`Answer::Late`].
    TimedOut {
        /// Which.
        ticket: DiskTicket,
        /// Why.
        error: ShuffleError,
        /// Its buffers.
        slots: Vec<SlotRef>,
    },
    /// The kernel is done with these buffers of an operation that has timed out.
    Late {
        /// As in [`Answer::TimedOut`].
        slots: Vec<SlotRef>,
    },
}

/// What has been done since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Bytes that were written, of data and of indexes.
    pub bytes_written: u64,
    /// Bytes of data that were read.
    pub bytes_read: u64,
    /// Operations that were given.
    pub operations: u64,
    /// Operations that have failed.
    pub errors: u64,
}

/// See the module's header.
pub struct Store<F: FileSystem = Linux> {
    directories: Vec<Directory<F>>,
    stores: BTreeMap<StoreNo, Known<F>>,
    operations: BTreeMap<DiskTicket, Pending>,
    reports: Arc<Reports>,
    answers: VecDeque<Answer>,
    next_serial: u64,
    timeout: Duration,
    counters: DiskCounters,
}

struct Directory<F: FileSystem> {
    path: PathBuf,
    space: Space,
    /// `None`: it could not be used at the start.
    line: Option<Line<F>>,
    place: Option<Arc<Place<F>>>,
    /// Held as long as this server uses the directory.
    lock: Option<F::File>,
    /// Operations that are late and still being done.
    hung: u32,
}

struct Known<F: FileSystem> {
    directory: usize,
    name: FileName,
    file: Arc<StoreFile<F>>,
    /// Bytes that were taken from the directory's space.
    bytes: u64,
}

impl<F: FileSystem> Store<F> {
    /// Whether one more operation may be given: the rest stays with the core.
    pub fn has_room(&self) -> bool {
        self.operations.len() < MOST_OUTSTANDING
    }

    /// What has been done.
    pub fn counters(&self) -> DiskCounters {
        self.counters
    }

    /// Directories that take new files.
    pub fn usable(&self) -> usize {
        let usable = |one: &&Directory<F>| one.space.health() == Health::Usable;
        self.directories.iter().filter(usable).count()
    }

    /// Bytes that lie in all directories.
    pub fn used(&self) -> u64 {
        self.directories.iter().map(|one| one.space.used()).sum()
    }

    /// What is measured, by metric name; a server without directories has nothing of it.
    pub fn named(store: Option<&Self>) -> [(&'static str, u64); 6] {
        let DiskCounters {
            bytes_written,
            bytes_read,
            operations,
            errors,
        } = store.map_or_else(DiskCounters::default, |store| store.counters);
        [
            ("disk_bytes_written", bytes_written),
            ("disk_bytes_read", bytes_read),
            ("disk_operations", operations),
            ("disk_errors", errors),
            ("disk_bytes_used", store.map_or(0, Self::used)),
            ("disk_directories_usable", store.map_or(0, |store| wide(store.usable()))),
        ]
    }

    /// Has the operation done; [`Self::poll_answer`] says how it went. `memory` fits to `op`.
    pub fn submit(&mut self, now: Instant, ticket: DiskTicket, op: DiskOp, memory: Memory) {
        self.counters.operations += 1;
        if let Err(error) = self.try_submit(now, ticket, op, memory) {
            self.answer(ticket, Err(error));
        }
        self.look(now);
    }

    /// What has come back.
    pub fn poll_answer(&mut self, now: Instant) -> Option<Answer> {
        if self.answers.is_empty() {
            for report in self.reports.take() {
                self.handle_report(now, report);
            }
        }
        self.answers.pop_front()
    }

    /// When [`Self::handle_timeout`] is to be called at the latest.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let later = now + self.timeout;
        let next = |one: &Directory<F>| {
            let deadline = one.line.as_ref().and_then(|line| line.next_deadline(later));
            [deadline, one.space.next_look()].into_iter().flatten().min()
        };
        self.directories.iter().filter_map(next).min()
    }

    /// Gives up what has taken too long, and looks at directories that are full.
    pub fn handle_timeout(&mut self, now: Instant) {
        for number in 0..self.directories.len() {
            let directory = &mut self.directories[number];
            let Some(line) = &directory.line else {
                continue;
            };
            let expired = line.expire(now);
            if expired.is_empty() {
                continue;
            }
            let dropped = line.clear();
            directory.hung += u32::try_from(expired.len()).expect("invariant: as many as there are threads");
            if directory.space.handle_failing() {
                let path = directory.path.display();
                error!("{path} is taken out: it did not answer within {:?}", self.timeout);
            }
            for key in expired {
                if let Key::Op(ticket) = key {
                    self.give_up(ticket);
                }
            }
            for ticket in dropped {
                let pending = self
                    .operations
                    .remove(&ticket)
                    .expect("invariant: what waits is pending");
                let error = self.late_error(&pending);
                self.answer(ticket, Err(error));
            }
            // Removals still wait, to be done when the directory answers again; who asked does not.
            let removal =
                |(_, pending): &(&DiskTicket, &Pending)| pending.what == What::Remove && pending.directory == number;
            let removals = self.operations.iter().filter(removal).map(|(ticket, _)| *ticket);
            for ticket in removals.collect::<Vec<_>>() {
                self.give_up(ticket);
            }
        }
        self.look(now);
    }

    /// Waits for everything that was given, unless a disk hangs, and lets the directories go.
    pub fn close(mut self) {
        self.stop();
        for directory in &mut self.directories {
            if let Some(line) = directory.line.as_mut().filter(|_| directory.hung == 0) {
                line.join();
            }
        }
    }

    fn stop(&self) {
        self.directories
            .iter()
            .filter_map(|one| one.line.as_ref())
            .for_each(Line::stop);
    }

    fn look(&mut self, now: Instant) {
        for Directory { space, line, .. } in &mut self.directories {
            if let Some(line) = line.as_ref().filter(|_| space.poll_look(now)) {
                line.look(self.timeout);
            }
        }
    }
}

impl<F: FileSystem> Drop for Store<F> {
    fn drop(&mut self) {
        self.stop();
    }
}
