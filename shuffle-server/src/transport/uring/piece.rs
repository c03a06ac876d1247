//! What one connection sends: bytes that do not change, and who lent them.

use buffer_pool::SlotRef;

pub(crate) use crate::transport::outbox::Piece;

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Head(bytes) => bytes,
            Self::Payload { lease, .. } => lease,
        }
    }
}

/// Pieces that leave in this order. Never changed once made: the kernel may be reading.
#[derive(Debug)]
pub(crate) struct Gather {
    pieces: Vec<Piece>,
}

impl Gather {
    pub(crate) fn new(pieces: Vec<Piece>) -> Self {
        Self { pieces }
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The buffers that the pieces lie in.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotRef> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Head(_) => None,
            Piece::Payload { slot, .. } => Some(*slot),
        })
    }
}
