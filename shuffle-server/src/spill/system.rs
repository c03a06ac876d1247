//! Every call to a file system that this room makes, and no other: tests put another one in its place, which ends the process or
//! forgets what was not synced.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

/// What is needed of a file system. Each function is one system call (but for [`Self::open_dir`] and [`Self::names`]). Reads and writes
/// may be short: of however many slices they are given, the kernel takes 1024 at most. Names are of files within a directory that is
/// open, so whatever is mounted or renamed meanwhile, the files are the same.
pub trait FileSystem: Send + Sync + 'static {
    /// An open directory.
    type Dir: Send + Sync;
    /// An open file.
    type File: Send + Sync;

    /// Opens a directory; it is made if there is none.
    fn open_dir(&self, path: &Path) -> io::Result<Self::Dir>;
    /// The file of that name, held by this process alone as long as it is open; `None` if another one holds it.
    fn lock(&self, dir: &Self::Dir, name: &str) -> io::Result<Option<Self::File>>;
    /// What lies in the directory.
    fn names(&self, dir: &Self::Dir) -> io::Result<Vec<OsString>>;
    /// Bytes that this process may still write there.
    fn free_bytes(&self, dir: &Self::Dir) -> io::Result<u64>;
    /// A new file, for reading and writing.
    fn create(&self, dir: &Self::Dir, name: &str) -> io::Result<Self::File>;
    /// A file that is there, for reading and writing.
    fn open(&self, dir: &Self::Dir, name: &str) -> io::Result<Self::File>;
    /// How long it is.
    fn length(&self, file: &Self::File) -> io::Result<u64>;
    /// Writes some of that, at that place.
    fn write(&self, file: &Self::File, at: u64, from: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Reads some of what stands at that place.
    fn read(&self, file: &Self::File, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;
    /// What was written outlives a power failure.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// What was made, renamed and removed in the directory does.
    fn sync_dir(&self, dir: &Self::Dir) -> io::Result<()>;
    /// Gives a file another name, in place of whichever has that name.
    fn rename(&self, dir: &Self::Dir, from: &str, to: &str) -> io::Result<()>;
    /// Takes a file away.
    fn remove(&self, dir: &Self::Dir, name: &str) -> io::Result<()>;
    /// Gives the blocks of a part of a file back; its length stays.
    fn punch(&self, file: &Self::File, at: u64, bytes: u64) -> io::Result<()>;
}

/// The file systems of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Linux;

const FILE_FLAGS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const DIRECTORY_MODE: u32 = 0o700;

fn open_at(dir: &OwnedFd, name: &str, more: OFlags) -> io::Result<OwnedFd> {
    Ok(retry_on_intr(|| {
        rustix::fs::openat(dir, name, FILE_FLAGS | more, FILE_MODE)
    })?)
}

impl FileSystem for Linux {
    type Dir = OwnedFd;
    type File = Arc<OwnedFd>;

    fn open_dir(&self, path: &Path) -> io::Result<OwnedFd> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))?)
    }

    fn lock(&self, dir: &OwnedFd, name: &str) -> io::Result<Option<Arc<OwnedFd>>> {
        let file = open_at(dir, name, OFlags::CREATE)?;
        match retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(Some(Arc::new(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn names(&self, dir: &OwnedFd) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(dir)? {
            let name = entry?.file_name().to_owned().into_bytes();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn free_bytes(&self, dir: &OwnedFd) -> io::Result<u64> {
        let space = retry_on_intr(|| rustix::fs::fstatvfs(dir))?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn create(&self, dir: &OwnedFd, name: &str) -> io::Result<Arc<OwnedFd>> {
        open_at(dir, name, OFlags::CREATE | OFlags::EXCL).map(Arc::new)
    }

    fn open(&self, dir: &OwnedFd, name: &str) -> io::Result<Arc<OwnedFd>> {
        open_at(dir, name, OFlags::empty()).map(Arc::new)
    }

    fn length(&self, file: &Arc<OwnedFd>) -> io::Result<u64> {
        let stat = retry_on_intr(|| rustix::fs::fstat(file))?;
        u64::try_from(stat.st_size).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    fn write(&self, file: &Arc<OwnedFd>, at: u64, from: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::pwritev(file, from, at))?)
    }

    fn read(&self, file: &Arc<OwnedFd>, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::preadv(file, &mut *into, at))?)
    }

    fn sync(&self, file: &Arc<OwnedFd>) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fsync(file))?)
    }

    fn sync_dir(&self, dir: &OwnedFd) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fsync(dir))?)
    }

    fn rename(&self, dir: &OwnedFd, from: &str, to: &str) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::renameat(dir, from, dir, to))?)
    }

    fn remove(&self, dir: &OwnedFd, name: &str) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::unlinkat(dir, name, AtFlags::empty()))?)
    }

    fn punch(&self, file: &Arc<OwnedFd>, at: u64, bytes: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(retry_on_intr(|| rustix::fs::fallocate(file, flags, at, bytes))?)
    }
}
