//! How the other side of a channel can break the protocol.

use thiserror::Error;

use crate::error::{ErrorKind, ShuffleError};
use crate::ids::Sequence;

/// What the other side of a channel did wrong. The machine that says so has not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum StreamError {
    /// It promised more buffers than any pool has.
    #[error("credit up to buffer {limit} when {sent} were sent: more than {window} at once")]
    CreditBeyondWindow {
        /// The limit that came.
        limit: u64,
        /// Buffers sent so far.
        sent: u64,
        /// The most that may lie between.
        window: u64,
    },
    /// It acknowledged what was never sent.
    #[error("acknowledged below {below} when only what is below {sent} was sent")]
    AckBeyondSent {
        /// The acknowledgement that came.
        below: Sequence,
        /// The next sequence to be sent.
        sent: Sequence,
    },
    /// It resumes at a place that does not fit what both said before.
    #[error("resumed at acknowledged {acknowledged}, received {received}, which does not fit")]
    Resume {
        /// Everything below is acknowledged, it says.
        acknowledged: Sequence,
        /// Everything below has arrived, it says.
        received: Sequence,
    },
    /// Something is missing before what came.
    #[error("got {got} where {expected} was next")]
    Gap {
        /// The sequence that came.
        got: Sequence,
        /// The next that can be accepted.
        expected: Sequence,
    },
    /// A buffer came for which no credit was given.
    #[error("buffer {sequence} is beyond the credit of {limit} buffers")]
    BeyondCredit {
        /// Its sequence.
        sequence: Sequence,
        /// The limit, in buffers.
        limit: u64,
    },
    /// Something came after the last end marker.
    #[error("got {got} after the last end marker")]
    AfterLast {
        /// Its sequence.
        got: Sequence,
    },
    /// A sequence that no channel reaches.
    #[error("sequence {got} is the end of all numbers")]
    Exhausted {
        /// The sequence that came.
        got: Sequence,
    },
    /// The reader says that it checked what it never got.
    #[error("checked below {below} when only what is below {received} has arrived")]
    CheckedBeyondReceived {
        /// What the reader said.
        below: Sequence,
        /// The next sequence to arrive.
        received: Sequence,
    },
}

impl From<StreamError> for ShuffleError {
    fn from(error: StreamError) -> Self {
        Self::new(ErrorKind::Protocol, error.to_string())
    }
}
