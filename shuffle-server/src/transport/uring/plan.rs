//! What of a gather leaves in which operation, and whether zero copy is worth trying. No I/O.
//!
//! ```text
//!   gather      [ head | payload | head | payload | head | ... ]
//!   copying     \_____________ one message ___________________/
//!   zero copy   [ copy ][ zero  ][ copy ][ zero   ][ copy ...  ]    linked: each starts when the one before has sent everything
//! ```

use std::ops::Range;

use super::piece::{Gather, Piece};

/// Payload of at least so many bytes goes without a copy. Below it the bookkeeping (a notification for each send) costs more
/// than the copy; see docs/performance.md.
pub(crate) const ZERO_COPY_BYTES: usize = 32 << 10;

/// Where in a gather the next byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cursor {
    pub(crate) piece: usize,
    /// Bytes of that piece that have left.
    pub(crate) skip: usize,
}

impl Cursor {
    /// So many bytes have left.
    ///
    /// # Panics
    /// If there were not so many.
    pub(crate) fn advance(&mut self, gather: &Gather, mut count: usize) {
        while count > 0 {
            let left = gather.pieces()[self.piece].as_ref().len() - self.skip;
            if count < left {
                self.skip += count;
                return;
            }
            count -= left;
            *self = Self {
                piece: self.piece + 1,
                skip: 0,
            };
        }
        self.pass_empty(gather);
    }

    pub(crate) fn is_at_end(&self, gather: &Gather) -> bool {
        self.piece == gather.pieces().len()
    }

    fn pass_empty(&mut self, gather: &Gather) {
        while gather
            .pieces()
            .get(self.piece)
            .is_some_and(|piece| piece.as_ref().len() == self.skip)
        {
            *self = Self {
                piece: self.piece + 1,
                skip: 0,
            };
        }
    }
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// The pieces it sends, whole but for `skip`.
    pub(crate) pieces: Range<usize>,
    /// Bytes of the first piece that have left already.
    pub(crate) skip: usize,
    pub(crate) bytes: usize,
    /// The registered extent that its only piece lies in: it goes without a copy.
    pub(crate) extent: Option<u16>,
}

/// How many of the next payloads may go without a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowed {
    None,
    One,
    All,
}

/// What one chain may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Pieces of one message.
    pub(crate) slices: usize,
    /// Operations of one chain.
    pub(crate) steps: usize,
}

/// The next operations of a gather, in order, from `cursor` on. `extent_of` says where a piece is registered and is asked
/// only for what may go without a copy.
pub(crate) fn plan(
    gather: &Gather,
    cursor: Cursor,
    limits: Limits,
    mut allowed: Allowed,
    extent_of: &mut dyn FnMut(&Piece) -> Option<u16>,
) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (at, piece) in gather.pieces().iter().enumerate().skip(cursor.piece) {
        let skip = if at == cursor.piece { cursor.skip } else { 0 };
        let bytes = piece.as_ref().len() - skip;
        let large = allowed != Allowed::None && matches!(piece, Piece::Payload { .. }) && bytes >= ZERO_COPY_BYTES;
        let extent = if large { extent_of(piece) } else { None };
        if extent.is_some() && allowed == Allowed::One {
            allowed = Allowed::None;
        }
        let joins = |last: &&mut Step| extent.is_none() && last.extent.is_none() && last.pieces.len() < limits.slices;
        if let Some(last) = steps.last_mut().filter(joins) {
            last.pieces.end += 1;
            last.bytes += bytes;
        } else if steps.len() == limits.steps {
            break;
        } else {
            steps.push(Step {
                pieces: at..at + 1,
                skip,
                bytes,
                extent,
            });
        }
    }
    steps
}

/// Whether zero copy works on a connection. One send finds out; the kernel's word *copied* is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ZeroCopy {
    #[default]
    Untried,
    /// One send is out, its notification is not there yet.
    Trying,
    On,
    Off,
}

impl ZeroCopy {
    /// What the next chain may do.
    pub(crate) fn allowed(self) -> Allowed {
        match self {
            Self::Untried => Allowed::One,
            Self::Trying | Self::Off => Allowed::None,
            Self::On => Allowed::All,
        }
    }

    /// A chain with such a send has been made.
    pub(crate) fn handle_used(&mut self) {
        if *self == Self::Untried {
            *self = Self::Trying;
        }
    }

    /// Such a send was given up before it began: whether it works is still not known.
    pub(crate) fn handle_unsent(&mut self) {
        if *self == Self::Trying {
            *self = Self::Untried;
        }
    }

    /// A notification says whether the kernel copied after all.
    pub(crate) fn handle_report(&mut self, copied: bool) {
        *self = match *self {
            Self::Off => Self::Off,
            _ if copied => Self::Off,
            _ => Self::On,
        };
    }

    /// Such a send failed where a copying one may not.
    pub(crate) fn handle_refused(&mut self) {
        *self = Self::Off;
    }
}
