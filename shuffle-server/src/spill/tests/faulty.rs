//! The file systems of this machine, and a rule that is asked before each call.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::spill::{FileSystem, Linux};

/// A call that is about to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    OpenDir,
    Lock,
    Names,
    Free,
    Create,
    Open,
    Length,
    Write,
    Read,
    Sync,
    SyncDir,
    Rename,
    Remove,
    Punch,
}

/// What becomes of it.
pub(super) enum Verdict {
    Go,
    /// That error, and nothing is done.
    Fail(rustix::io::Errno),
    /// So many bytes are moved at most.
    Short(usize),
}

type Rule = dyn Fn(Call, &Path) -> Verdict + Send + Sync;

#[derive(Clone)]
pub(super) struct Faulty(Arc<Rule>);

pub(super) struct Of<T> {
    real: T,
    directory: PathBuf,
}

impl Faulty {
    /// `rule` gets the call and the directory in which it is made.
    pub(super) fn new(rule: impl Fn(Call, &Path) -> Verdict + Send + Sync + 'static) -> Self {
        Self(Arc::new(rule))
    }

    fn ask(&self, call: Call, directory: &Path) -> io::Result<Option<usize>> {
        match (self.0)(call, directory) {
            Verdict::Go => Ok(None),
            Verdict::Short(most) => Ok(Some(most)),
            Verdict::Fail(error) => Err(error.into()),
        }
    }
}

impl FileSystem for Faulty {
    type Dir = Of<OwnedFd>;
    type File = Of<Arc<OwnedFd>>;

    fn open_dir(&self, path: &Path) -> io::Result<Self::Dir> {
        self.ask(Call::OpenDir, path)?;
        Ok(Of {
            real: Linux.open_dir(path)?,
            directory: path.to_owned(),
        })
    }

    fn lock(&self, dir: &Self::Dir, name: &str) -> io::Result<Option<Self::File>> {
        self.ask(Call::Lock, &dir.directory)?;
        let file = Linux.lock(&dir.real, name)?;
        Ok(file.map(|real| Of {
            real,
            directory: dir.directory.clone(),
        }))
    }

    fn names(&self, dir: &Self::Dir) -> io::Result<Vec<OsString>> {
        self.ask(Call::Names, &dir.directory)?;
        Linux.names(&dir.real)
    }

    fn free_bytes(&self, dir: &Self::Dir) -> io::Result<u64> {
        self.ask(Call::Free, &dir.directory)?;
        Linux.free_bytes(&dir.real)
    }

    fn create(&self, dir: &Self::Dir, name: &str) -> io::Result<Self::File> {
        self.ask(Call::Create, &dir.directory)?;
        Ok(Of {
            real: Linux.create(&dir.real, name)?,
            directory: dir.directory.clone(),
        })
    }

    fn open(&self, dir: &Self::Dir, name: &str) -> io::Result<Self::File> {
        self.ask(Call::Open, &dir.directory)?;
        Ok(Of {
            real: Linux.open(&dir.real, name)?,
            directory: dir.directory.clone(),
        })
    }

    fn length(&self, file: &Self::File) -> io::Result<u64> {
        self.ask(Call::Length, &file.directory)?;
        Linux.length(&file.real)
    }

    fn write(&self, file: &Self::File, at: u64, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.ask(Call::Write, &file.directory)? {
            None => Linux.write(&file.real, at, from),
            Some(most) => {
                let first = &from[0][..from[0].len().min(most)];
                Linux.write(&file.real, at, &[IoSlice::new(first)])
            }
        }
    }

    fn read(&self, file: &Self::File, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self.ask(Call::Read, &file.directory)? {
            None => Linux.read(&file.real, at, into),
            Some(most) => {
                let most = into[0].len().min(most);
                let first = &mut into[0][..most];
                Linux.read(&file.real, at, &mut [IoSliceMut::new(first)])
            }
        }
    }

    fn sync(&self, file: &Self::File) -> io::Result<()> {
        self.ask(Call::Sync, &file.directory)?;
        Linux.sync(&file.real)
    }

    fn sync_dir(&self, dir: &Self::Dir) -> io::Result<()> {
        self.ask(Call::SyncDir, &dir.directory)?;
        Linux.sync_dir(&dir.real)
    }

    fn rename(&self, dir: &Self::Dir, from: &str, to: &str) -> io::Result<()> {
        self.ask(Call::Rename, &dir.directory)?;
        Linux.rename(&dir.real, from, to)
    }

    fn remove(&self, dir: &Self::Dir, name: &str) -> io::Result<()> {
        self.ask(Call::Remove, &dir.directory)?;
        Linux.remove(&dir.real, name)
    }

    fn punch(&self, file: &Self::File, at: u64, bytes: u64) -> io::Result<()> {
        self.ask(Call::Punch, &file.directory)?;
        Linux.punch(&file.real, at, bytes)
    }
}
