//! Where the bytes of a buffer were changed, as far as that could be traced.

use std::fmt;

use super::kind::Initiator;

/// What came of tracing a checksum mismatch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// It could not be traced: nobody answered in time.
    Untraced,
    /// What the producing node holds in memory, as its writer handed it over, does not have the writer's checksum (any more).
    ProducerMemory,
    /// What the producing node's data file holds does not.
    Disk,
    /// What the producing node holds does: it was changed on the way to the reader, or where it arrived.
    WireOrReceivingMemory,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Untraced,
        Self::ProducerMemory,
        Self::Disk,
        Self::WireOrReceivingMemory,
    ];

    /// On the wire; never used for another one.
    pub const fn code(self) -> u32 {
        match self {
            Self::Untraced => 0,
            Self::ProducerMemory => 1,
            Self::Disk => 2,
            Self::WireOrReceivingMemory => 3,
        }
    }

    /// The reverse of [`Verdict::code`].
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|verdict| verdict.code() == code)
    }

    /// Whose doing it is.
    pub const fn initiator(self) -> Initiator {
        match self {
            Self::Untraced | Self::WireOrReceivingMemory => Initiator::Network,
            Self::ProducerMemory => Initiator::Peer,
            Self::Disk => Initiator::Disk,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Untraced => "it could not be traced",
            Self::ProducerMemory => "changed in the producer's memory",
            Self::Disk => "changed on disk",
            Self::WireOrReceivingMemory => "changed on the wire or in the receiver's memory",
        })
    }
}
