//! A job's memfd, seen from its two sides: the server moves extents in and out, everybody maps it.
//!
//! ```text
//! memfd, mode 0, sealed SHRINK | GROW | SEAL, as long as the whole pool
//! | extent 0 |   hole   | extent 2 |   hole   |   hole   | ...
//!    blocks                blocks
//!
//! server    read-write descriptor   fallocate, punch, map
//! writer    read-write descriptor   map                      (write arena)
//! reader    read-only descriptor    map read-only            (mode 0: another uid cannot open it anew for writing)
//! ```
//!
//! The seals make the length a fact: nobody who has a descriptor can truncate the file under somebody's mapping, so no
//! access ever raises SIGBUS. FUTURE_WRITE is not among them: holes could not be punched then.

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags},
    io::{Errno, retry_on_intr},
};

use crate::{
    buffer::{Home, Leased, Shared, Writable},
    file_range::FileRange,
    ids::to_usize,
    region::{LeaseError, Region, SharedWords},
};

/// What every arena must have.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Bytes of a block in what `fstat` reports.
const BLOCK_BYTES: u64 = 512;

/// The server's side of an arena: a sealed memfd whose extents come and go.
#[derive(Debug)]
pub struct ArenaFile {
    writable: OwnedFd,
    readonly: Arc<OwnedFd>,
    extent_bytes: u64,
}

impl ArenaFile {
    /// A memfd of `bytes` without a single block. `name` shows in `/proc/PID/maps`.
    ///
    /// # Errors
    /// Whatever the operating system says.
    pub fn create(name: &str, bytes: u64, extent_bytes: u64) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let writable = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3 do not know the flag.
            Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
            other => other?,
        };
        rustix::fs::ftruncate(&writable, bytes)?;
        let path = format!("/proc/self/fd/{}", writable.as_raw_fd());
        let readonly = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::fchmod(&writable, Mode::empty())?;
        rustix::fs::fcntl_add_seals(&writable, SEALS)?;
        Ok(Self {
            writable,
            readonly: Arc::new(readonly),
            extent_bytes,
        })
    }

    /// Gives an extent its pages.
    ///
    /// # Errors
    /// Whatever the operating system says; then it has none of them.
    pub fn allocate(&self, extent: u32) -> io::Result<()> {
        // Size is fixed already; KEEP_SIZE only says that it stays.
        self.fallocate(FallocateFlags::KEEP_SIZE, extent)
    }

    /// Takes an extent's pages away; it reads as zero from now on.
    ///
    /// # Errors
    /// Whatever the operating system says.
    pub fn punch(&self, extent: u32) -> io::Result<()> {
        self.fallocate(FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE, extent)
    }

    /// Bytes of memory behind the file.
    ///
    /// # Errors
    /// Whatever the operating system says.
    pub fn allocated_bytes(&self) -> io::Result<u64> {
        let blocks = rustix::fs::fstat(&self.writable)?.st_blocks;
        Ok(u64::try_from(blocks).map_err(|_| io::ErrorKind::InvalidData)? * BLOCK_BYTES)
    }

    /// For the server and the job's writers.
    pub fn writable_fd(&self) -> BorrowedFd<'_> {
        self.writable.as_fd()
    }

    /// For the job's readers.
    pub fn readonly_fd(&self) -> BorrowedFd<'_> {
        self.readonly.as_fd()
    }

    /// A part of the file, to be sent from where it lies.
    pub fn range(&self, offset: u64, length: u32) -> FileRange {
        FileRange::new(Arc::clone(&self.readonly), offset, length)
    }

    fn fallocate(&self, flags: FallocateFlags, extent: u32) -> io::Result<()> {
        let offset = u64::from(extent) * self.extent_bytes;
        Ok(retry_on_intr(|| {
            rustix::fs::fallocate(&self.writable, flags, offset, self.extent_bytes)
        })?)
    }
}

/// Checks that a descriptor is a memfd of at least `bytes` that nobody can shrink: what makes mapping it safe.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] says what is missing; else whatever the operating system says.
pub fn verify_seals(fd: impl AsFd, bytes: u64) -> io::Result<()> {
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let seals = match rustix::fs::fcntl_get_seals(&fd) {
        Err(Errno::INVAL) => return refuse("the descriptor is not a memfd: it has no seals".to_owned()),
        other => other?,
    };
    if !seals.contains(SEALS) {
        return refuse(format!("the memfd has the seals {seals:?}, it needs {SEALS:?}"));
    }
    let size = u64::try_from(rustix::fs::fstat(&fd)?.st_size).map_err(|_| io::ErrorKind::InvalidData)?;
    if size < bytes {
        return refuse(format!("the memfd has {size} bytes, {bytes} are to be mapped"));
    }
    Ok(())
}

/// An arena mapped into this process. Cloning shares the mapping, which goes with the last handle to a buffer of it.
#[derive(Clone, Debug)]
pub struct MappedArena {
    region: Arc<Region>,
}

impl MappedArena {
    /// Maps `buffers * buffer_bytes` bytes for reading and writing.
    ///
    /// # Errors
    /// As [`verify_seals`]; [`io::ErrorKind::PermissionDenied`] if the descriptor is read-only.
    pub fn map_writable(fd: impl AsFd, buffers: u32, buffer_bytes: u32) -> io::Result<Self> {
        Ok(Self {
            region: Region::map(fd, buffers, buffer_bytes, true)?,
        })
    }

    /// Maps `buffers * buffer_bytes` bytes for reading.
    ///
    /// # Errors
    /// As [`verify_seals`].
    pub fn map_readonly(fd: impl AsFd, buffers: u32, buffer_bytes: u32) -> io::Result<Self> {
        Ok(Self {
            region: Region::map(fd, buffers, buffer_bytes, false)?,
        })
    }

    pub(crate) fn of(region: Arc<Region>) -> Self {
        Self { region }
    }

    /// Where these buffers lie in this process, for those who register memory with the kernel; `None` if they are not all
    /// the arena's. The addresses are good as long as a clone of this arena is there.
    pub fn span(&self, slots: Range<u32>) -> Option<Range<*const u8>> {
        if slots.is_empty() || slots.end > self.buffers() {
            return None;
        }
        let start = self.region.start(slots.start).cast_const();
        let bytes = to_usize(slots.end - slots.start) * to_usize(self.buffer_bytes());
        Some(start..start.wrapping_add(bytes))
    }

    /// Buffers of the arena, present or not.
    pub fn buffers(&self) -> u32 {
        self.region.buffers()
    }

    /// Bytes of one buffer.
    pub fn buffer_bytes(&self) -> u32 {
        self.region.buffer_bytes()
    }

    /// The buffer for writing; nobody is told when the handle is dropped.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn writable(&self, slot: u32) -> Result<Writable, LeaseError> {
        Ok(Writable::new(self.region.lease_exclusive(slot)?, None))
    }

    /// The buffer for writing; `home` is told when the handle, or the last view it was frozen into, is dropped.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn writable_from(&self, slot: u32, home: Arc<dyn Home>, tag: u64) -> Result<Writable, LeaseError> {
        Ok(Writable::new(self.region.lease_exclusive(slot)?, Some((home, tag))))
    }

    /// The buffer as words for several processes at a time; nobody is told when the handle is dropped.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn words(&self, slot: u32) -> Result<SharedWords, LeaseError> {
        Ok(SharedWords::new(self.region.lease_exclusive(slot)?))
    }

    /// `length` bytes at `offset` of the buffer for reading, for one holder; nobody is told when it is dropped.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn leased(&self, slot: u32, offset: u32, length: u32) -> Result<Leased, LeaseError> {
        let (start, end) = self.bounds(offset, length)?;
        Ok(Leased::new(self.region.lease_shared(slot)?, start, end))
    }

    /// `length` bytes at `offset` of the buffer for reading; nobody is told when the view is dropped.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn shared(&self, slot: u32, offset: u32, length: u32) -> Result<Shared, LeaseError> {
        self.view(slot, offset, length, None)
    }

    /// `length` bytes at `offset` of the buffer for reading; `home` is told when the last clone of this view is dropped.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub fn shared_from(
        &self,
        slot: u32,
        offset: u32,
        length: u32,
        home: Arc<dyn Home>,
        tag: u64,
    ) -> Result<Shared, LeaseError> {
        self.view(slot, offset, length, Some((home, tag)))
    }

    fn view(
        &self,
        slot: u32,
        offset: u32,
        length: u32,
        address: Option<(Arc<dyn Home>, u64)>,
    ) -> Result<Shared, LeaseError> {
        let (start, end) = self.bounds(offset, length)?;
        Ok(Shared::new(self.region.lease_shared(slot)?, start, end, address))
    }

    fn bounds(&self, offset: u32, length: u32) -> Result<(usize, usize), LeaseError> {
        let buffer_bytes = self.buffer_bytes();
        match offset.checked_add(length).filter(|&end| end <= buffer_bytes) {
            Some(end) => Ok((to_usize(offset), to_usize(end))),
            None => Err(LeaseError::OutOfRange {
                offset,
                length,
                buffer_bytes,
            }),
        }
    }
}
