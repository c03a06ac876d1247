//! Requests that wait for buffers: two lines, each first come, first served.
//!
//! ```text
//!   CreatePartition   w1 -> w4 -> w9      need = 40 + 8 + 8       only the head is compared with what is there
//!   OpenGate          r2 -> r3            need = 12 + 2
//! ```

use std::collections::VecDeque;
use std::time::Instant;

use buffer_pool::ArenaKind;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{GroupId, JobId, ShuffleError, control};

use super::SessionId;

/// A request that waits for buffers.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) session: SessionId,
    pub(crate) request: u64,
    pub(crate) job: JobId,
    pub(crate) group: Option<GroupId>,
    pub(crate) deadline: Instant,
    /// Buffers that it must be guaranteed.
    pub(crate) need: u32,
    pub(crate) kind: PendingKind,
}

/// What is to be created.
#[derive(Debug)]
pub(crate) enum PendingKind {
    Partition(Box<control::CreatePartition>),
    Gate(Box<control::OpenGate>),
}

impl PendingKind {
    /// Where its buffers are to come from.
    pub(crate) fn arena(&self) -> ArenaKind {
        match self {
            Self::Partition(_) => ArenaKind::Write,
            Self::Gate(_) => ArenaKind::Read,
        }
    }
}

#[derive(Debug, Default)]
struct Line {
    /// With the number of each, counted over both lines.
    requests: VecDeque<(u64, Pending)>,
    need: u64,
}

/// Everything that waits for buffers.
#[derive(Debug, Default)]
pub(crate) struct PendingRequests {
    writers: Line,
    readers: Line,
    count: u64,
}

impl PendingRequests {
    pub(crate) fn len(&self) -> usize {
        self.writers.requests.len() + self.readers.requests.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether nobody waits for buffers of this kind.
    pub(crate) fn is_clear(&self, arena: ArenaKind) -> bool {
        self.line(arena).requests.is_empty()
    }

    /// Buffers of this kind that all who wait need together.
    pub(crate) fn need(&self, arena: ArenaKind) -> u64 {
        self.line(arena).need
    }

    pub(crate) fn push(&mut self, pending: Pending) {
        self.count += 1;
        let count = self.count;
        let line = self.line_mut(pending.kind.arena());
        line.need += u64::from(pending.need);
        line.requests.push_back((count, pending));
    }

    /// The heads of both lines, who came first before the other.
    pub(crate) fn heads(&self) -> impl Iterator<Item = &Pending> {
        let mut heads = [self.writers.requests.front(), self.readers.requests.front()];
        heads.sort_by_key(|head| head.map(|(count, _)| *count));
        heads.into_iter().flatten().map(|(_, pending)| pending)
    }

    pub(crate) fn pop_head(&mut self, arena: ArenaKind) -> Option<Pending> {
        let line = self.line_mut(arena);
        let (_, pending) = line.requests.pop_front()?;
        line.need -= u64::from(pending.need);
        Some(pending)
    }

    /// Takes out what is meant, in order; the rest keeps its place.
    pub(crate) fn take(&mut self, is_meant: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let mut taken = Vec::new();
        for line in [&mut self.writers, &mut self.readers] {
            if !line.requests.iter().any(|(_, pending)| is_meant(pending)) {
                continue;
            }
            for (count, pending) in std::mem::take(&mut line.requests) {
                if is_meant(&pending) {
                    line.need -= u64::from(pending.need);
                    taken.push(pending);
                } else {
                    line.requests.push_back((count, pending));
                }
            }
        }
        taken
    }

    /// When the first of them has waited its time.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.iter().map(|pending| pending.deadline).min()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pending> {
        let all = self.writers.requests.iter().chain(&self.readers.requests);
        all.map(|(_, pending)| pending)
    }

    pub(crate) fn check_invariants(&self) {
        for line in [&self.writers, &self.readers] {
            let need: u64 = line.requests.iter().map(|(_, pending)| u64::from(pending.need)).sum();
            assert_eq!(need, line.need, "what waits and what it needs disagree");
        }
    }

    fn line(&self, arena: ArenaKind) -> &Line {
        match arena {
            ArenaKind::Write => &self.writers,
            ArenaKind::Read => &self.readers,
        }
    }

    fn line_mut(&mut self, arena: ArenaKind) -> &mut Line {
        match arena {
            ArenaKind::Write => &mut self.writers,
            ArenaKind::Read => &mut self.readers,
        }
    }
}

/// A refusal of the pool as the caller sees it.
pub(crate) fn pool_error(error: &buffer_pool::PoolError) -> ShuffleError {
    match error {
        buffer_pool::PoolError::Insufficient {
            need,
            available,
            total,
            holders,
        } => ShuffleError::new(
            ErrorKind::InsufficientBuffers {
                need: *need,
                available: *available,
                total: *total,
                holders: name_holders(holders),
            },
            "ask for fewer buffers, let others finish, or give the server a larger pool",
        ),
        other => ShuffleError::new(ErrorKind::Io, other.to_string()),
    }
}

/// The largest of them by name; there may be as many as there are partitions and gates.
fn name_holders(holders: &[buffer_pool::Holder]) -> String {
    const NAMED: usize = 8;
    let mut named: Vec<String> = holders.iter().take(NAMED).map(ToString::to_string).collect();
    if let Some(more) = holders.len().checked_sub(NAMED).filter(|more| *more > 0) {
        named.push(format!("and {more} more"));
    }
    named.join(", ")
}
