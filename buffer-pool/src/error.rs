//! What can go wrong, and who is in the way.

use std::{fmt, io, sync::Arc};

use crate::ids::{ArenaKind, JobKey};

/// Why the network pool refused or failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PoolError {
    /// The configuration cannot work.
    #[error("the buffer pool cannot be built: {0}")]
    Config(String),
    /// A local pool's specification contradicts itself.
    #[error("invalid local pool \"{label}\": {reason}")]
    InvalidSpec {
        /// Which one.
        label: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The minimum cannot be guaranteed now; it may be once others have given theirs back.
    #[error("need {need} buffers, {available} of {total} available, held by {}", HolderList(.holders))]
    Insufficient {
        /// Buffers asked for.
        need: u32,
        /// Buffers that could be guaranteed to this caller now.
        available: u32,
        /// Buffers such a caller could ever have: writers may not take the read reserve.
        total: u32,
        /// Who holds or is guaranteed the rest, largest first.
        holders: Vec<Holder>,
    },
    /// The job is already there.
    #[error("{0} has its arenas already")]
    JobExists(JobKey),
    /// The job was never added, or is gone.
    #[error("{0} has no arenas here")]
    JobUnknown(JobKey),
    /// The job cannot go while buffers of it are out.
    #[error("{job} still has {out} buffers out")]
    JobBusy {
        /// Which job.
        job: JobKey,
        /// Buffers that are not home.
        out: u32,
    },
    /// A job's arenas could not be made.
    #[error("cannot create the arenas of {job}: {cause}")]
    CreateJob {
        /// Which job.
        job: JobKey,
        /// What the operating system said.
        cause: Arc<io::Error>,
    },
    /// An extent could not be moved between the bank and an arena. The books are as if it had not been tried.
    #[error("cannot move extent {extent} {direction} the {arena} of {job}: {cause}")]
    Move {
        /// Whose arena.
        job: JobKey,
        /// Which arena.
        arena: ArenaKind,
        /// Extent number within the arena.
        extent: u32,
        /// "into" or "out of".
        direction: &'static str,
        /// What the operating system said.
        cause: Arc<io::Error>,
    },
    /// The whole budget could not be allocated at start.
    #[error("the buffer pool needs {need_bytes} bytes, there are {have_bytes}: {limit}")]
    Budget {
        /// `total_buffers * buffer_bytes`.
        need_bytes: u64,
        /// What the tightest limit leaves.
        have_bytes: u64,
        /// Which limit, and how it is called.
        limit: String,
    },
    /// The operating system refused a step of building the pool.
    #[error("cannot {doing}: {cause}")]
    System {
        /// The step.
        doing: &'static str,
        /// What the operating system said.
        cause: Arc<io::Error>,
    },
}

impl PoolError {
    pub(crate) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::System {
            doing,
            cause: Arc::new(cause),
        }
    }
}

/// One local pool that holds buffers or is guaranteed some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The label it was created with.
    pub label: String,
    /// Buffers it has now.
    pub held: u32,
    /// Buffers it is guaranteed; 0 once it has been destroyed.
    pub minimum: u32,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (holds {}, guaranteed {})", self.label, self.held, self.minimum)
    }
}

/// How many holders a message names; the error's field has them all.
const HOLDERS_SHOWN: usize = 8;

struct HolderList<'a>(&'a [Holder]);

impl fmt::Display for HolderList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nobody");
        }
        for (at, holder) in self.0.iter().take(HOLDERS_SHOWN).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{holder}")?;
        }
        match self.0.len().saturating_sub(HOLDERS_SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
