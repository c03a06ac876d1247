//! What became of an operation, and what that says of its directory.

use std::time::Instant;

use shuffle_protocol::ShuffleError;
use tracing::{error, info, warn};

use super::pending::{Pending, What};
use super::{Answer, Directory, Store};
use crate::spill::DiskTicket;
use crate::spill::failure::{Blame, Failure, timed_out};
use crate::spill::line::{Key, Report};
use crate::spill::system::FileSystem;

impl<F: FileSystem> Store<F> {
    /// It is being done and will be reported: only who asked is told.
    pub(super) fn give_up(&mut self, ticket: DiskTicket) {
        let pending = self
            .operations
            .get_mut(&ticket)
            .expect("invariant: what is being done is pending");
        if std::mem::replace(&mut pending.answered, true) {
            return;
        }
        let slots = pending.slots.clone();
        let error = self.late_error(&self.operations[&ticket]);
        self.counters.errors += 1;
        self.answers.push_back(Answer::TimedOut { ticket, error, slots });
    }

    pub(super) fn late_error(&self, pending: &Pending) -> ShuffleError {
        let path = &self.directories[pending.directory].path;
        timed_out(pending.what.words(), self.timeout, path, &pending.name)
    }

    pub(super) fn handle_report(&mut self, now: Instant, report: Report) {
        let directory = &mut self.directories[report.directory];
        if report.late {
            directory.hung = directory
                .hung
                .checked_sub(1)
                .expect("invariant: what is late was counted");
            if directory.hung == 0 {
                info!(
                    "{} answers again; it takes no new files until a restart",
                    directory.path.display()
                );
            }
        }
        match (report.key, report.result) {
            (Key::Look, Ok(free)) => {
                if directory.space.handle_measured(now, free) {
                    info!("{} has space again: {free} bytes", directory.path.display());
                }
            }
            (Key::Look, Err(failure)) => self.blame(now, report.directory, &failure),
            (Key::Op(ticket), result) => self.handle_done(now, ticket, result, report.late),
        }
    }

    fn handle_done(&mut self, now: Instant, ticket: DiskTicket, result: Result<u64, Failure>, late: bool) {
        let pending = self
            .operations
            .remove(&ticket)
            .expect("invariant: what was done is pending");
        let outcome = match result {
            Ok(bytes) => {
                self.count(&pending, bytes);
                Ok(())
            }
            Err(failure) => {
                let directory = &self.directories[pending.directory];
                let free = directory.space.room();
                let error = failure.error(&directory.path, &pending.name, pending.bytes, free);
                self.blame(now, pending.directory, &failure);
                Err(error)
            }
        };
        if !pending.answered {
            self.answer(ticket, outcome);
        } else if late && !pending.slots.is_empty() {
            self.answers.push_back(Answer::Late { slots: pending.slots });
        }
    }

    fn count(&mut self, pending: &Pending, bytes: u64) {
        let space = &mut self.directories[pending.directory].space;
        match pending.what {
            What::Write | What::Seal => self.counters.bytes_written += bytes,
            What::Read => self.counters.bytes_read += bytes,
            What::Punch => {
                // Of a range that was never written nothing comes back.
                if let Some(known) = self.stores.get_mut(&pending.store) {
                    let back = bytes.min(known.bytes);
                    known.bytes -= back;
                    space.give_back(back);
                }
            }
            What::Remove => space.give_back(pending.bytes),
        }
    }

    fn blame(&mut self, now: Instant, directory: usize, failure: &Failure) {
        let Directory { path, space, .. } = &mut self.directories[directory];
        let path = path.display();
        match failure.blame() {
            Blame::Full if space.handle_full(now) => {
                warn!("{path} is full: new files go elsewhere until there is space again");
            }
            Blame::Directory if space.handle_failing() => {
                error!(
                    "{path} is taken out until a restart: {:?}: {}",
                    failure.deed, failure.source
                );
            }
            _ => {}
        }
    }

    pub(super) fn answer(&mut self, ticket: DiskTicket, outcome: Result<(), ShuffleError>) {
        self.counters.errors += u64::from(outcome.is_err());
        self.answers.push_back(Answer::Done { ticket, outcome });
    }
}
