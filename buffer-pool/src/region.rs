//! A job's memory as this process sees it: a mapped memfd, cut into buffers that are leased one by one.
//!
//! ```text
//!   base                                                      base + buffers * buffer_bytes
//!    | buffer 0 | buffer 1 | buffer 2 |    ...     | buffer n-1 |      <- MmapRaw, MAP_SHARED
//!    |  lease 0 |  lease 1 |  lease 2 |    ...     |  lease n-1 |      <- private to this process
//! ```
//!
//! JUSTIFICATION. Payload is written and read where it lies, in memory that other processes map: no safe API gives
//! `&mut [u8]` to that. The safe way, copying each buffer into private memory, costs what the shuffle exists to avoid: a
//! cold 32 KiB copy runs at 4.7 GB/s on one core (MEASUREMENTS, "Memory"), 0.2 core-seconds per GB and per copy, where the
//! whole local path takes 0.13 to 0.17.
//!
//! What the four blocks rest on:
//! 1. *Bounds*: `slot < buffers` is checked when a lease is given, and the mapping is exactly `buffers * buffer_bytes` long.
//! 2. *Life*: a lease holds the region, the region holds the mapping.
//! 3. *Pages*: the file is at least that long and sealed against shrinking (checked before mapping), so no access lies beyond
//!    its end: no SIGBUS.
//! 4. *Aliasing in this process*: the lease word gives one writer or n readers.
//! 5. *Aliasing across processes*: the server grants a buffer to one process at a time and a writer gives it up as it hands
//!    it over. A process that breaks this breaks its own job only: jobs share no memory. Payload is never interpreted by
//!    the server, lengths come from control data, and the reader's checksum names what changed.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    sync::{Arc, atomic::AtomicU32},
};

use memmap2::{MmapOptions, MmapRaw};

use crate::{arena::verify_seals, ids::to_usize, lease::LeaseWord};

/// Why a buffer could not be leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// There is no such buffer.
    #[error("slot {slot} is not one of {buffers} buffers")]
    NoSuchSlot {
        /// As asked for.
        slot: u32,
        /// Buffers of the arena.
        buffers: u32,
    },
    /// The bytes asked for do not lie within one buffer.
    #[error("{length} bytes at {offset} do not lie within a buffer of {buffer_bytes} bytes")]
    OutOfRange {
        /// As asked for.
        offset: u32,
        /// As asked for.
        length: u32,
        /// Bytes of one buffer.
        buffer_bytes: u32,
    },
    /// This process already uses the buffer in a way that excludes the one asked for.
    #[error("slot {slot} is in use in this process")]
    InUse {
        /// As asked for.
        slot: u32,
    },
    /// The arena is mapped read-only.
    #[error("slot {slot} lies in an arena that is mapped read-only")]
    ReadOnly {
        /// As asked for.
        slot: u32,
    },
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Region {
    map: MmapRaw,
    leases: Box<[LeaseWord]>,
    buffers: u32,
    buffer_bytes: u32,
    writable: bool,
}

impl Region {
    /// Maps the whole arena; `writable` needs a descriptor opened read-write.
    pub(crate) fn map(fd: impl AsFd, buffers: u32, buffer_bytes: u32, writable: bool) -> io::Result<Arc<Self>> {
        let bytes = u64::from(buffers) * u64::from(buffer_bytes);
        verify_seals(&fd, bytes)?;
        let length = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let raw = fd.as_fd().as_raw_fd();
        let mut options = MmapOptions::new();
        options.len(length);
        let map = if writable {
            options.map_raw(raw)?
        } else {
            options.map_raw_read_only(raw)?
        };
        let leases = (0..buffers).map(|_| LeaseWord::new()).collect();
        Ok(Arc::new(Self {
            map,
            leases,
            buffers,
            buffer_bytes,
            writable,
        }))
    }

    pub(crate) fn buffers(&self) -> u32 {
        self.buffers
    }

    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.buffer_bytes
    }

    /// The only lease of a buffer in this process.
    pub(crate) fn lease_exclusive(self: &Arc<Self>, slot: u32) -> Result<ExclusiveLease, LeaseError> {
        if !self.writable {
            return Err(LeaseError::ReadOnly { slot });
        }
        let lease = self.word(slot)?;
        if !lease.try_write() {
            return Err(LeaseError::InUse { slot });
        }
        Ok(ExclusiveLease(Lease {
            region: Arc::clone(self),
            slot,
            mode: Mode::Exclusive,
        }))
    }

    /// One of any number of leases for reading.
    pub(crate) fn lease_shared(self: &Arc<Self>, slot: u32) -> Result<SharedLease, LeaseError> {
        let lease = self.word(slot)?;
        if !lease.try_share() {
            return Err(LeaseError::InUse { slot });
        }
        Ok(SharedLease(Lease {
            region: Arc::clone(self),
            slot,
            mode: Mode::Shared,
        }))
    }

    fn word(&self, slot: u32) -> Result<&LeaseWord, LeaseError> {
        self.leases.get(to_usize(slot)).ok_or(LeaseError::NoSuchSlot {
            slot,
            buffers: self.buffers,
        })
    }

    /// First byte of a buffer.
    pub(crate) fn start(&self, slot: u32) -> *mut u8 {
        assert!(slot < self.buffers, "invariant: only existing buffers are leased");
        let offset = to_usize(slot) * to_usize(self.buffer_bytes);
        // SAFETY: (1) slot < buffers, so offset + buffer_bytes lies within the mapping of buffers * buffer_bytes bytes, one
        // allocation, whose length fitted usize when it was mapped and isize because the kernel maps less than half of the
        // address space.
        unsafe { self.map.as_mut_ptr().add(offset) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Exclusive,
    Shared,
}

/// Ends as it says in `mode`.
#[derive(Debug)]
struct Lease {
    region: Arc<Region>,
    slot: u32,
    mode: Mode,
}

impl Lease {
    fn word(&self) -> &LeaseWord {
        &self.region.leases[to_usize(self.slot)]
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: (1) to (3): the buffer lies in the mapping, which `self.region` keeps, and its pages exist. (4): this lease
        // is one of n sharers or the only writer, and the latter lends `&mut` only for `&mut self`. (5) across processes.
        // Every byte of a mapped file is initialized and u8 has no invalid value.
        unsafe { std::slice::from_raw_parts(self.region.start(self.slot), to_usize(self.region.buffer_bytes)) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match self.mode {
            Mode::Exclusive => self.word().end_write(),
            Mode::Shared => self.word().end_share(),
        }
    }
}

/// The right to write one buffer.
#[derive(Debug)]
pub(crate) struct ExclusiveLease(Lease);

impl ExclusiveLease {
    pub(crate) fn slot(&self) -> u32 {
        self.0.slot
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let region = &self.0.region;
        // SAFETY: as in `Lease::bytes`; moreover the region is mapped writable (checked when the lease was given), this is the
        // only lease of the buffer in this process, and `&mut self` makes the slice the only one of this lease.
        unsafe { std::slice::from_raw_parts_mut(region.start(self.0.slot), to_usize(region.buffer_bytes)) }
    }

    /// No more writing.
    pub(crate) fn freeze(mut self) -> SharedLease {
        self.0.word().freeze();
        self.0.mode = Mode::Shared;
        SharedLease(self.0)
    }
}

/// The right to read one buffer.
#[derive(Debug)]
pub(crate) struct SharedLease(Lease);

impl SharedLease {
    pub(crate) fn slot(&self) -> u32 {
        self.0.slot
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.0.region
    }

    /// The right to write, if nobody else reads and the region can be written.
    pub(crate) fn reclaim(mut self) -> Result<ExclusiveLease, Self> {
        if !self.0.region.writable || !self.0.word().try_reclaim() {
            return Err(self);
        }
        self.0.mode = Mode::Exclusive;
        Ok(ExclusiveLease(self.0))
    }
}

/// The words of one buffer, which other processes that map the arena change meanwhile: for counters and rings of numbers,
/// not for payload.
#[derive(Debug)]
pub struct SharedWords(ExclusiveLease);

impl SharedWords {
    pub(crate) fn new(lease: ExclusiveLease) -> Self {
        Self(lease)
    }

    /// `buffer_bytes / 4` words, all of the buffer.
    pub fn words(&self) -> &[AtomicU32] {
        let region = &self.0.0.region;
        let start = region.start(self.0.slot()).cast::<AtomicU32>();
        assert!(start.is_aligned(), "invariant: buffers are whole words");
        // SAFETY: as in `Lease::bytes`, rounded down to whole words; the start is aligned (asserted). (4): the lease inside is
        // the only one of the buffer in this process and is lent to nobody, so that these words are reached through this
        // function alone, as atomics. Other processes may change them at any time, which atomics allow, if they too use
        // atomics; what one that does not can do is (5).
        unsafe { std::slice::from_raw_parts(start, to_usize(region.buffer_bytes) / size_of::<AtomicU32>()) }
    }
}
