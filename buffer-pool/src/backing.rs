//! What moves memory when the books move an extent.

use std::io;

use crate::ids::{ArenaKind, JobKey};

/// The memory behind a [`NetworkPool`](crate::NetworkPool).
///
/// Extents are numbered from the start of their arena: extent `e` is the buffers `e * extent_buffers ..`. The pool calls
/// `move_in` only for an absent extent and `move_out` only for a present one that holds no buffer in use. What arrives by
/// `move_in` reads as zero.
pub trait Backing {
    /// Makes both arenas of a job, empty.
    ///
    /// # Errors
    /// Whatever the operating system says; then nothing has been made.
    fn create_job(&mut self, job: JobKey) -> io::Result<()>;

    /// Forgets both arenas of a job; all their extents have been moved out.
    fn remove_job(&mut self, job: JobKey);

    /// Bank to arena.
    ///
    /// # Errors
    /// Whatever the operating system says; then the extent is still the bank's.
    fn move_in(&mut self, job: JobKey, arena: ArenaKind, extent: u32) -> io::Result<()>;

    /// Arena to bank.
    ///
    /// # Errors
    /// Whatever the operating system says; then the extent is still the arena's.
    fn move_out(&mut self, job: JobKey, arena: ArenaKind, extent: u32) -> io::Result<()>;
}

/// Whoever has made the kernel hold an extent's pages (registered them with io_uring), and must undo that before they go: a
/// punched page that is still registered would be sent with stale bytes.
pub trait PageHolder: Send + Sync {
    /// Called before the extent is punched; the kernel holds none of its pages when this returns. The extent has no buffer in use.
    ///
    /// # Errors
    /// The pages are still held: the extent stays where it is.
    fn let_go(&self, job: JobKey, arena: ArenaKind, extent: u32) -> io::Result<()>;
}

/// Books without memory, for the simulator and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBacking;

impl Backing for NoBacking {
    fn create_job(&mut self, _job: JobKey) -> io::Result<()> {
        Ok(())
    }

    fn remove_job(&mut self, _job: JobKey) {}

    fn move_in(&mut self, _job: JobKey, _arena: ArenaKind, _extent: u32) -> io::Result<()> {
        Ok(())
    }

    fn move_out(&mut self, _job: JobKey, _arena: ArenaKind, _extent: u32) -> io::Result<()> {
        Ok(())
    }
}
