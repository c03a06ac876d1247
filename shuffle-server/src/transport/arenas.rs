//! The jobs' arenas as this server sees them: all mapped, each once, at first use.

use std::io;
use std::os::fd::BorrowedFd;

use buffer_pool::{FileRange, JobKey, Leased, SlotRef, Writable};
use shuffle_protocol::error::{ErrorKind, Initiator};
use shuffle_protocol::{JobId, ShuffleError};

use crate::server::Service;

impl Service {
    /// `length` bytes at `offset` of a slot, to be sent from where they lie.
    ///
    /// # Errors
    /// The arena cannot be mapped.
    pub(crate) fn lease(&self, slot: SlotRef, offset: u32, length: u32) -> Result<Leased, ShuffleError> {
        let mapped = self
            .with_backing(|backing| backing.mapped(slot.job, slot.arena))
            .map_err(|error| unmapped(slot, &error))?;
        mapped
            .leased(slot.slot, offset, length)
            .map_err(|error| unmapped(slot, &error))
    }

    /// The same, as a part of the arena's file.
    ///
    /// # Errors
    /// There are no such bytes.
    pub(crate) fn file_range(&self, slot: SlotRef, offset: u32, length: u32) -> Result<FileRange, ShuffleError> {
        self.with_backing(|backing| backing.file_range(slot, offset, length))
            .ok_or_else(|| unmapped(slot, &"its bytes are not in the arena's file"))
    }

    /// A whole slot, to be received into.
    ///
    /// # Errors
    /// The arena cannot be mapped.
    pub(crate) fn writable(&self, slot: SlotRef) -> Result<Writable, ShuffleError> {
        let mapped = self
            .with_backing(|backing| backing.mapped(slot.job, slot.arena))
            .map_err(|error| unmapped(slot, &error))?;
        mapped.writable(slot.slot).map_err(|error| unmapped(slot, &error))
    }

    /// Uses what an executor of `job` gets: the write arena to map for writing, the read arena for reading.
    ///
    /// # Errors
    /// Those of `with`; not found if the job has no arenas here.
    pub(crate) fn with_descriptors<R>(
        &self,
        job: JobKey,
        with: impl FnOnce([BorrowedFd<'_>; 2]) -> io::Result<R>,
    ) -> io::Result<R> {
        self.with_backing(|backing| {
            let write = backing.write_arena_fd(job).ok_or(io::ErrorKind::NotFound)?;
            let read = backing
                .readonly_fd(job, buffer_pool::ArenaKind::Read)
                .ok_or(io::ErrorKind::NotFound)?;
            with([write, read])
        })
    }
}

fn unmapped(slot: SlotRef, error: &dyn std::fmt::Display) -> ShuffleError {
    ShuffleError::new(ErrorKind::Io, format!("buffer {} cannot be used: {error}", slot.slot))
        .by(Initiator::Own)
        .job(JobId::new(slot.job.0))
}
