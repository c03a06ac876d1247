//! An operation that was given to a directory and has not come back.

use buffer_pool::SlotRef;

use crate::spill::StoreNo;
use crate::spill::line::Work;
use crate::spill::names::FileName;

/// See the module's header.
pub(super) struct Pending {
    pub(super) store: StoreNo,
    pub(super) directory: usize,
    pub(super) name: FileName,
    pub(super) what: What,
    /// Bytes that it is about.
    pub(super) bytes: u64,
    pub(super) slots: Vec<SlotRef>,
    /// It has been answered, and is still being done.
    pub(super) answered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Write,
    Read,
    Punch,
    Seal,
    Remove,
}

impl What {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Write => "writing",
            Self::Read => "reading",
            Self::Punch => "giving space back",
            Self::Seal => "making the partition durable",
            Self::Remove => "removing",
        }
    }
}

impl From<&Work> for What {
    fn from(work: &Work) -> Self {
        match work {
            Work::Write(..) => Self::Write,
            Work::Read(..) => Self::Read,
            Work::Punch(..) => Self::Punch,
            Work::Seal(_) => Self::Seal,
            Work::Remove => Self::Remove,
        }
    }
}
