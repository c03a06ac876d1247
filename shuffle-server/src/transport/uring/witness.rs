//! Notices when the kernel is done with a ring: only then it closes the last of what was registered there.
//!
//! ```text
//!   pipe   [ one end: read here ]   [ other end: in the ring's table of files, and nowhere else ]
//!   ring closed -> every operation is cancelled or completes -> the table goes -> hang-up here
//! ```
//!
//! Closing a ring does not wait for that, and afterwards there is no queue left in which the kernel could say it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Witness(OwnedFd);

impl Witness {
    /// The witness, and what is to be registered and not to be kept.
    ///
    /// # Errors
    /// No pipe can be had.
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok((Self(read), write))
    }

    /// Waits until the kernel is done with the ring, however long that takes.
    pub(crate) fn wait(self) {
        let mut pipe = [PollFd::new(&self.0, PollFlags::empty())];
        // What interrupts it, or makes it fail for now, passes.
        while poll(&mut pipe, None).map_or(true, |ready| ready == 0) {}
    }
}
