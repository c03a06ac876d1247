//! The one call by which a ring's operations reach the kernel.

use std::io;

use io_uring::IoUring;
use io_uring::types::{SubmitArgs, Timespec};

use super::operation::Wait;

/// Submits what is queued; gives how many operations the kernel took.
///
/// # Errors
/// What `io_uring_enter` says.
pub(crate) fn enter(ring: &mut IoUring, wait: Wait) -> io::Result<usize> {
    match wait {
        Wait::No => ring.submit(),
        Wait::Forever => ring.submit_and_wait(1),
        Wait::AtMost(time) => {
            let time = Timespec::from(time);
            ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
        }
    }
}
