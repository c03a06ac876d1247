//! The system call of a ring, made to fail: the kernel has taken what it was given, or has not, and says an error that passes.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use io_uring::IoUring;

use crate::transport::uring::enter;
use crate::transport::uring::operation::Wait;

const ERRORS: [i32; 3] = [libc::EINTR, libc::EAGAIN, libc::EBUSY];

/// How often it struck.
#[derive(Debug, Default)]
pub(crate) struct Struck {
    /// Calls that failed before the kernel had seen them.
    pub(super) untaken: AtomicU64,
    /// Operations that the kernel took in calls that failed.
    pub(super) taken: AtomicU64,
}

struct Plan {
    random: u64,
    struck: Arc<Struck>,
}

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// From now on two of three calls on this thread fail.
pub(super) fn start(seed: u64, struck: &Arc<Struck>) {
    let struck = Arc::clone(struck);
    PLAN.set(Some(Plan {
        random: seed | 1,
        struck,
    }));
}

impl Plan {
    /// Xorshift (Marsaglia 2003).
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 32
    }
}

/// Stands in for [`enter::enter`].
pub(crate) fn enter(ring: &mut IoUring, wait: Wait) -> io::Result<usize> {
    PLAN.with_borrow_mut(|plan| {
        let Some(plan) = plan else {
            return enter::enter(ring, wait);
        };
        let error = ERRORS[usize::try_from(plan.draw() % 3).unwrap()];
        match plan.draw() % 3 {
            0 => return enter::enter(ring, wait),
            1 => plan.struck.untaken.fetch_add(1, Ordering::Relaxed),
            _ => {
                let taken = enter::enter(ring, Wait::No)?;
                plan.struck
                    .taken
                    .fetch_add(u64::try_from(taken).unwrap(), Ordering::Relaxed)
            }
        };
        Err(io::Error::from_raw_os_error(error))
    })
}
