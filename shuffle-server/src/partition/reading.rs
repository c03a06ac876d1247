//! What one reader has on its way from disk.
//!
//! ```text
//!   each subpartition of its range with something to send is in one place:
//!     ready      its next buffer is in memory                       (of the outlet)
//!     on_disk    its next buffer is on disk, ordered by where       ──plan──▶ loads
//!     loads      its next buffers are being loaded, or wait to be sent; with the last of them it goes back
//! ```

use std::collections::{BTreeSet, VecDeque};

use buffer_pool::PoolId;
use shuffle_protocol::SubpartitionRange;

use super::Buffered;
use crate::spill::DiskTicket;

/// Buffers that one reader may have loaded and not yet sent.
pub(crate) const READ_AHEAD: usize = 64;

/// Buffers that are loaded for a reader that has stopped: a reader holds what it may view or has credit for, and these.
pub(crate) const LOADED_WITHOUT_CREDIT: usize = 2;

/// How far a load has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Planned,
    /// By this read.
    Loading(DiskTicket),
    Loaded,
}

/// A buffer that is loaded, or being loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) subpartition: u32,
    /// Its place is the slot that it is loaded into.
    pub(crate) buffer: Buffered,
    pub(crate) stage: Stage,
    /// Nothing of its subpartition is planned behind it.
    pub(crate) last: bool,
}

/// The part of an outlet that reads from disk.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// Where its buffers come from, from the first load on.
    pub(crate) pool: Option<PoolId>,
    /// In the order in which they are sent.
    pub(crate) loads: VecDeque<Load>,
    /// Subpartitions whose next buffer is on disk, by where it lies.
    pub(crate) on_disk: BTreeSet<(u64, u32)>,
    /// Of what is kept, or broadcast: this reader's place in each subpartition of its range.
    pub(crate) cursors: Vec<Cursor>,
}

/// A reader's place in a subpartition that others read too.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    /// The next buffer to be sent or loaded.
    pub(crate) next: u64,
    /// Everything below is acknowledged.
    pub(crate) acked: u64,
    /// It is in one of the three places.
    pub(crate) listed: bool,
}

impl Reading {
    /// One that reads what others read too, from this buffer of each subpartition on.
    pub(crate) fn with_cursors(range: SubpartitionRange, from: u64) -> Self {
        let cursor = Cursor {
            next: from,
            acked: from,
            listed: false,
        };
        Self {
            cursors: vec![cursor; range.count as usize],
            ..Self::default()
        }
    }

    /// The first of those that are to be sent, if it is there.
    pub(crate) fn pop_loaded(&mut self) -> Option<Load> {
        self.loads.front().filter(|load| load.stage == Stage::Loaded)?;
        self.loads.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.loads.is_empty() && self.on_disk.is_empty()
    }

    /// The next so many that are planned are read by this read.
    pub(crate) fn handle_submitted(&mut self, loads: usize, ticket: DiskTicket) {
        let planned = self.loads.iter_mut().filter(|load| load.stage == Stage::Planned);
        for load in planned.take(loads) {
            load.stage = Stage::Loading(ticket);
        }
    }

    /// What this read was to fill is there; gives its length, in bytes.
    pub(crate) fn handle_loaded(&mut self, ticket: DiskTicket) -> u64 {
        let mut bytes = 0;
        for load in &mut self.loads {
            if load.stage == Stage::Loading(ticket) {
                load.stage = Stage::Loaded;
                bytes += u64::from(load.buffer.length);
            }
        }
        bytes
    }
}
