//! In which state each buffer is, and how many are in each.
//!
//! ```text
//! bank         arena
//! unassigned <-> free -> granted --> queued ----------+--> viewed --> free
//!                  \                 (until acked)    |
//!                   +--> reserved -> receiving -------+
//!                   +--> read_ahead ------------------+
//!   anywhere but free: -> quarantined -> free          a living process still has it, nobody gets it
//!   released while pinned: -> kernel -> free           at the last unpin
//! ```
//!
//! ```text
//! unassigned + free + granted + queued + reserved + receiving + viewed + read_ahead + kernel + quarantined == total
//! ```

/// Where one buffer of an arena is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum BufferState {
    /// In an arena, held by nobody.
    Free,
    /// A writer has it and may write.
    Granted,
    /// Handed over; kept until every reader has acknowledged.
    Queued,
    /// Promised to a channel by a credit.
    Reserved,
    /// A frame is being read into it.
    Receiving,
    /// A reader has a view of it.
    Viewed,
    /// Read from disk, not yet asked for.
    ReadAhead,
    /// Released, but something outside the core's sight still reads it (see `NetworkPool::pin`).
    Kernel,
    /// Held by a living process that has lost its right to it; never granted until that process gives it back or dies.
    Quarantined,
}

const STATES: usize = 9;

/// How many buffers are in which state; the sum is the pool's total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// In the bank: in no arena.
    pub unassigned: u32,
    /// See [`BufferState::Free`].
    pub free: u32,
    /// See [`BufferState::Granted`].
    pub granted: u32,
    /// See [`BufferState::Queued`].
    pub queued: u32,
    /// See [`BufferState::Reserved`].
    pub reserved: u32,
    /// See [`BufferState::Receiving`].
    pub receiving: u32,
    /// See [`BufferState::Viewed`].
    pub viewed: u32,
    /// See [`BufferState::ReadAhead`].
    pub read_ahead: u32,
    /// See [`BufferState::Kernel`].
    pub kernel: u32,
    /// See [`BufferState::Quarantined`].
    pub quarantined: u32,
}

impl Books {
    /// Each state by its name, with how many buffers are in it.
    pub fn named(&self) -> [(&'static str, u32); 10] {
        [
            ("unassigned", self.unassigned),
            ("free", self.free),
            ("granted", self.granted),
            ("queued", self.queued),
            ("reserved", self.reserved),
            ("receiving", self.receiving),
            ("viewed", self.viewed),
            ("read_ahead", self.read_ahead),
            ("kernel", self.kernel),
            ("quarantined", self.quarantined),
        ]
    }

    /// All of them together: the pool's total, always.
    pub fn total(&self) -> u32 {
        self.unassigned + self.free + self.held()
    }

    /// Everything that some local pool holds: neither in the bank nor free.
    pub fn held(&self) -> u32 {
        self.granted
            + self.queued
            + self.reserved
            + self.receiving
            + self.viewed
            + self.read_ahead
            + self.kernel
            + self.quarantined
    }
}

/// The running counts behind [`Books`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) unassigned: u32,
    states: [u32; STATES],
}

impl Tally {
    /// All buffers in the bank.
    pub(crate) fn new(unassigned: u32) -> Self {
        Self {
            unassigned,
            states: [0; STATES],
        }
    }

    pub(crate) fn count(&self, state: BufferState) -> u32 {
        self.states[state as usize]
    }

    pub(crate) fn add(&mut self, state: BufferState, buffers: u32) {
        self.states[state as usize] += buffers;
    }

    /// Takes `buffers` out of `state`; a count below zero is a broken invariant.
    pub(crate) fn subtract(&mut self, state: BufferState, buffers: u32) {
        let count = &mut self.states[state as usize];
        *count = count
            .checked_sub(buffers)
            .expect("invariant: no state holds fewer than no buffers");
    }

    pub(crate) fn step(&mut self, from: BufferState, to: BufferState) {
        self.subtract(from, 1);
        self.add(to, 1);
    }

    pub(crate) fn sum(&self) -> u64 {
        u64::from(self.unassigned) + self.states.iter().map(|&count| u64::from(count)).sum::<u64>()
    }

    pub(crate) fn books(&self) -> Books {
        Books {
            unassigned: self.unassigned,
            free: self.count(BufferState::Free),
            granted: self.count(BufferState::Granted),
            queued: self.count(BufferState::Queued),
            reserved: self.count(BufferState::Reserved),
            receiving: self.count(BufferState::Receiving),
            viewed: self.count(BufferState::Viewed),
            read_ahead: self.count(BufferState::ReadAhead),
            kernel: self.count(BufferState::Kernel),
            quarantined: self.count(BufferState::Quarantined),
        }
    }
}

const _: () = assert!(BufferState::Quarantined as usize + 1 == STATES);
