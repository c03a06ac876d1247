//! What a buffer, an arena and a local pool are called.

use std::fmt;

/// The job a pair of arenas belongs to. Opaque here: the pool only tells jobs apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey(pub u64);

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {}", self.0)
    }
}

/// Which of a job's two arenas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ArenaKind {
    /// The job's writers map it writable, its local readers read-only.
    Write,
    /// What came from peers and disk: only the server writes it.
    Read,
}

impl ArenaKind {
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Write => 0,
            Self::Read => 1,
        }
    }
}

impl fmt::Display for ArenaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write arena",
            Self::Read => "read arena",
        })
    }
}

/// One buffer: `slot` counts buffers from the start of the arena's memfd, so its byte offset is `slot * buffer_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotRef {
    /// The job whose memory it is.
    pub job: JobKey,
    /// Write or read arena.
    pub arena: ArenaKind,
    /// Buffer number within the arena, below the pool's `total_buffers`.
    pub slot: u32,
}

const _: () = assert!(size_of::<SlotRef>() == 16);

impl fmt::Display for SlotRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} slot {}", self.job, self.arena, self.slot)
    }
}

/// A local pool. Never reused: a later pool in the same place has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(u64);

impl PoolId {
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    pub(crate) fn index(self) -> u32 {
        u32::try_from(self.0 & u64::from(u32::MAX)).expect("invariant: masked to 32 bits")
    }

    pub(crate) fn generation(self) -> u32 {
        u32::try_from(self.0 >> 32).expect("invariant: shifted to 32 bits")
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {}.{}", self.index(), self.generation())
    }
}

pub(crate) fn to_usize(at: u32) -> usize {
    usize::try_from(at).expect("invariant: u32 fits usize")
}

pub(crate) fn to_u32(at: usize) -> u32 {
    u32::try_from(at).expect("invariant: counts of buffers, pools and arenas fit u32")
}
