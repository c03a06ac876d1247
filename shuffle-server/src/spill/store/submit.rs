//! An operation on its way to the threads of its directory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use buffer_pool::SlotRef;
use shuffle_protocol::ShuffleError;
use shuffle_protocol::error::{ErrorKind, Initiator};

use super::pending::{Pending, What};
use super::{Known, Store};
use crate::spill::directories::{NoPlace, choose};
use crate::spill::failure::of_disk;
use crate::spill::file::StoreFile;
use crate::spill::line::{Task, Work};
use crate::spill::memory::{Memory, wide};
use crate::spill::names::FileName;
use crate::spill::schedule::Class;
use crate::spill::system::FileSystem;
use crate::spill::{DiskOp, DiskTicket, StoreName, StoreNo};

/// A sync may take the time of one operation, and as much again for each so many bytes.
const SYNC_STEP: u64 = 256 << 20;

impl<F: FileSystem> Store<F> {
    pub(super) fn try_submit(
        &mut self,
        now: Instant,
        ticket: DiskTicket,
        op: DiskOp,
        memory: Memory,
    ) -> Result<(), ShuffleError> {
        let slots = op.pieces().iter().map(|piece| piece.slot).collect();
        match (op, memory) {
            (
                DiskOp::Write {
                    store,
                    name,
                    at,
                    pieces,
                },
                Memory::From(from),
            ) => {
                let bytes = pieces.iter().map(|piece| u64::from(piece.length)).sum();
                self.place(now, store, name, bytes)?;
                self.take(store, bytes)?;
                self.begin(ticket, store, bytes, slots, Work::Write(at, from))
            }
            (DiskOp::Read { store, at, .. }, Memory::Into(into)) => {
                self.begin(ticket, store, into.bytes(), slots, Work::Read(at, into))
            }
            (DiskOp::Punch { store, at, bytes }, Memory::None) => {
                self.begin(ticket, store, bytes, slots, Work::Punch(at, bytes))
            }
            (DiskOp::Seal { store, name, index }, Memory::None) => {
                let bytes = wide(index.len());
                self.place(now, store, name, bytes)?;
                self.take(store, bytes)?;
                self.begin(ticket, store, bytes, slots, Work::Seal(index))
            }
            (DiskOp::Remove { store }, Memory::None) => self.remove(ticket, store),
            _ => unreachable!("invariant: who writes has what to write, who reads where to"),
        }
    }

    /// Finds a directory for a store that has none yet.
    fn place(&mut self, now: Instant, store: StoreNo, name: StoreName, bytes: u64) -> Result<(), ShuffleError> {
        if self.stores.contains_key(&store) {
            return Ok(());
        }
        self.directories.iter_mut().for_each(|one| one.space.want_look(now));
        let spaces = self.directories.iter().map(|one| &one.space);
        let directory = choose(spaces, bytes).map_err(|none| self.no_place(none, bytes, name))?;
        let name = FileName {
            store: name,
            serial: self.next_serial,
        };
        self.next_serial += 1;
        self.directories[directory].space.handle_placed();
        let place = self.directories[directory].place.as_ref();
        let place = place.expect("invariant: a directory without a place is failing");
        let file = StoreFile::new(Arc::clone(place), name);
        let known = Known {
            directory,
            name,
            file,
            bytes: 0,
        };
        self.stores.insert(store, known);
        Ok(())
    }

    fn no_place(&self, none: NoPlace, needed: u64, name: StoreName) -> ShuffleError {
        let paths = self.directories.iter().map(|one| one.path.display().to_string());
        let paths = paths.collect::<Vec<_>>().join(", ");
        let error = match none {
            NoPlace::Full(free) => {
                let kind = ErrorKind::NoSpace { needed, free };
                of_disk(
                    kind,
                    "every storage directory is full: free space, or raise storage.limit",
                    name,
                )
            }
            NoPlace::Failing => of_disk(ErrorKind::Io, "every storage directory has failed", name),
        };
        error.path(paths)
    }

    fn take(&mut self, store: StoreNo, bytes: u64) -> Result<(), ShuffleError> {
        let known = self.stores.get_mut(&store).expect("invariant: it was placed before");
        let directory = &mut self.directories[known.directory];
        directory.space.take(bytes).map_err(|free| {
            let kind = ErrorKind::NoSpace { needed: bytes, free };
            let message = "the directory has reached storage.limit: free space, or raise it";
            of_disk(kind, message, known.name.store).path(directory.path.display().to_string())
        })?;
        known.bytes += bytes;
        Ok(())
    }

    fn begin(
        &mut self,
        ticket: DiskTicket,
        store: StoreNo,
        bytes: u64,
        slots: Vec<SlotRef>,
        work: Work,
    ) -> Result<(), ShuffleError> {
        let Some(known) = self.stores.get(&store) else {
            let message = format!("there is no file {store} to be used");
            return Err(ShuffleError::new(ErrorKind::Unknown, message).by(Initiator::Own));
        };
        let pending = Pending {
            store,
            directory: known.directory,
            name: known.name,
            what: What::from(&work),
            bytes,
            slots,
            answered: false,
        };
        if self.directories[known.directory].hung > 0 {
            return Err(self.late_error(&pending));
        }
        let file = known.name.serial;
        let (class, allowed) = match work {
            Work::Read(at, _) => (Class::Read { file, at }, self.timeout),
            Work::Seal(_) => (Class::Other, self.sync_allowance(known.bytes)),
            _ => (Class::Other, self.timeout),
        };
        let task = Task {
            ticket,
            file: Arc::clone(&known.file),
            work,
            allowed,
        };
        self.push(task, class, pending);
        Ok(())
    }

    /// A removal is done even if its directory hangs, when that answers again; who asked is not kept waiting.
    fn remove(&mut self, ticket: DiskTicket, store: StoreNo) -> Result<(), ShuffleError> {
        let Some(known) = self.stores.remove(&store) else {
            self.answer(ticket, Ok(()));
            return Ok(());
        };
        let mut pending = Pending {
            store,
            directory: known.directory,
            name: known.name,
            what: What::Remove,
            bytes: known.bytes,
            slots: Vec::new(),
            answered: false,
        };
        if self.directories[known.directory].hung > 0 {
            pending.answered = true;
            let error = self.late_error(&pending);
            self.answer(ticket, Err(error));
        }
        let task = Task {
            ticket,
            file: known.file,
            work: Work::Remove,
            allowed: self.timeout,
        };
        self.push(task, Class::Removal, pending);
        Ok(())
    }

    fn push(&mut self, task: Task<F>, class: Class, pending: Pending) {
        let (ticket, store, directory) = (task.ticket, pending.store, pending.directory);
        self.operations.insert(ticket, pending);
        let line = self.directories[directory].line.as_ref();
        let line = line.expect("invariant: where files are, threads are");
        for dropped in line.push(store, class, task) {
            let pending = self
                .operations
                .remove(&dropped)
                .expect("invariant: what waits is pending");
            let error = ShuffleError::new(ErrorKind::Cancelled, "its file is being removed").by(Initiator::Own);
            let StoreName { job, partition } = pending.name.store;
            self.answer(dropped, Err(error.job(job).partition(partition)));
        }
    }

    fn sync_allowance(&self, bytes: u64) -> Duration {
        let steps = u32::try_from(bytes / SYNC_STEP).unwrap_or(u32::MAX - 1);
        self.timeout.saturating_mul(steps + 1)
    }
}
