//! One store's files: made at the first write, complete at the seal, gone at the removal.
//!
//! Everything here runs on a directory's threads and may take as long as a disk likes.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use buffer_pool::Leased;

use super::IndexSummary;
use super::failure::{Deed, Failure};
use super::memory::{self, Targets, wide};
use super::names::{FileName, Part};
use super::system::FileSystem;

/// Data files of one directory that stay open at most, beside those in use.
const MOST_OPEN: usize = 128;

/// An open directory and its open files.
pub(crate) struct Place<F: FileSystem> {
    pub(crate) fs: Arc<F>,
    pub(crate) dir: F::Dir,
    /// Files that may be open, the one opened last at the end.
    open: Mutex<VecDeque<Weak<StoreFile<F>>>>,
}

/// See the module's header.
pub(crate) struct StoreFile<F: FileSystem> {
    place: Arc<Place<F>>,
    pub(crate) name: FileName,
    state: Mutex<State<F::File>>,
}

struct State<T> {
    data: Data<T>,
    /// There may be an index, or one that was being written.
    indexed: bool,
    /// A sync has failed: what was written before may be lost, whatever a second one says.
    broken: bool,
}

enum Data<T> {
    Absent,
    Closed,
    Open(Arc<T>),
}

impl<F: FileSystem> Place<F> {
    pub(crate) fn new(fs: Arc<F>, dir: F::Dir) -> Self {
        Self {
            fs,
            dir,
            open: Mutex::default(),
        }
    }

    /// Closes the file that was opened first if there are too many.
    fn handle_opened(&self, file: &Arc<StoreFile<F>>) {
        let mut open = lock(&self.open);
        open.push_back(Arc::downgrade(file));
        if open.len() > MOST_OPEN
            && let Some(first) = open.pop_front()
            && first.upgrade().is_some_and(|file| !file.close())
        {
            // Somebody is opening it: later.
            open.push_back(first);
        }
    }

    fn forget(&self, file: &StoreFile<F>) {
        lock(&self.open).retain(|one| !std::ptr::eq(one.as_ptr(), file));
    }
}

impl<F: FileSystem> StoreFile<F> {
    /// Files that are not there yet.
    pub(crate) fn new(place: Arc<Place<F>>, name: FileName) -> Arc<Self> {
        Self::with(place, name, Data::Absent, false)
    }

    /// Files that were sealed before.
    pub(crate) fn sealed(place: Arc<Place<F>>, name: FileName) -> Arc<Self> {
        Self::with(place, name, Data::Closed, true)
    }

    fn with(place: Arc<Place<F>>, name: FileName, data: Data<F::File>, indexed: bool) -> Arc<Self> {
        let state = Mutex::new(State {
            data,
            indexed,
            broken: false,
        });
        Arc::new(Self { place, name, state })
    }

    /// Writes all of them, one behind the other; gives the bytes.
    pub(crate) fn write(self: &Arc<Self>, at: u64, from: &[Leased]) -> Result<u64, Failure> {
        let data = self.data(true)?;
        write_all(&*self.place.fs, &data, at, &mut memory::slices(from)).map_err(Failure::of(Deed::Write, Part::Data))
    }

    /// Fills all of them, one behind the other; gives the bytes.
    pub(crate) fn read(self: &Arc<Self>, at: u64, into: &mut Targets) -> Result<u64, Failure> {
        let failed = Failure::of(Deed::Read, Part::Data);
        let data = self.data(false)?;
        let bytes = into.bytes();
        let mut slices = into.slices().ok_or_else(|| {
            let message = "the pieces to be filled overlap, or do not lie within their buffers";
            failed(io::Error::new(io::ErrorKind::InvalidInput, message))
        })?;
        read_all(&*self.place.fs, &data, at, &mut slices, bytes).map_err(failed)
    }

    /// Gives the blocks of that part back.
    pub(crate) fn punch(self: &Arc<Self>, at: u64, bytes: u64) -> Result<u64, Failure> {
        let data = self.data(false)?;
        match self.place.fs.punch(&data, at, bytes) {
            // A file system that has no holes keeps its blocks until the file goes.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(0),
            result => result.map(|()| bytes).map_err(Failure::of(Deed::Punch, Part::Data)),
        }
    }

    /// Makes data and index outlive this process and a power failure, the data first.
    pub(crate) fn seal(self: &Arc<Self>, index: &[u8]) -> Result<u64, Failure> {
        let Place { fs, dir, .. } = &*self.place;
        let data = self.data(true)?;
        let length = fs.length(&data).map_err(Failure::of(Deed::Measure, Part::Data))?;
        let summary =
            IndexSummary::of(index).map_err(|error| Failure::of(Deed::Write, Part::Index)(io::Error::other(error)))?;
        if length != summary.data_bytes {
            let message = format!("the file has {length} bytes, its index says {}", summary.data_bytes);
            return Err(Failure::of(Deed::Measure, Part::Data)(io::Error::other(message)));
        }
        self.sync_once(&data)?;
        lock(&self.state).indexed = true;
        let (temporary, complete) = (self.name.of(Part::NewIndex), self.name.of(Part::Index));
        let file = match fs.create(dir, &temporary) {
            // Of a seal that has failed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs.remove(dir, &temporary)
                    .map_err(Failure::of(Deed::Remove, Part::NewIndex))?;
                fs.create(dir, &temporary)
            }
            result => result,
        }
        .map_err(Failure::of(Deed::Make, Part::NewIndex))?;
        write_all(&**fs, &file, 0, &mut [IoSlice::new(index)]).map_err(Failure::of(Deed::Write, Part::NewIndex))?;
        fs.sync(&file).map_err(Failure::of(Deed::Sync, Part::NewIndex))?;
        fs.rename(dir, &temporary, &complete)
            .map_err(Failure::of(Deed::Rename, Part::NewIndex))?;
        fs.sync_dir(dir)
            .map_err(Failure::of(Deed::SyncDirectory, Part::Index))?;
        Ok(wide(index.len()))
    }

    /// Takes all files of the store away.
    pub(crate) fn remove(&self) -> Result<u64, Failure> {
        let (is_there, indexed) = {
            let mut state = lock(&self.state);
            let data = std::mem::replace(&mut state.data, Data::Absent);
            (!matches!(data, Data::Absent), std::mem::take(&mut state.indexed))
        };
        self.place.forget(self);
        if is_there {
            remove_files(&*self.place.fs, &self.place.dir, &self.name, indexed)?;
        }
        Ok(0)
    }

    fn sync_once(&self, data: &F::File) -> Result<(), Failure> {
        let failed = Failure::of(Deed::Sync, Part::Data);
        if lock(&self.state).broken {
            return Err(failed(io::Error::other("an earlier sync has failed")));
        }
        self.place.fs.sync(data).map_err(|error| {
            lock(&self.state).broken = true;
            failed(error)
        })
    }

    /// The data file, open; made if that is wanted and it is not there.
    fn data(self: &Arc<Self>, make: bool) -> Result<Arc<F::File>, Failure> {
        let Place { fs, dir, .. } = &*self.place;
        let name = self.name.of(Part::Data);
        let file = {
            let mut state = lock(&self.state);
            let opened = match &state.data {
                Data::Open(file) => return Ok(Arc::clone(file)),
                Data::Absent if make => fs.create(dir, &name).map_err(Failure::of(Deed::Make, Part::Data)),
                Data::Absent => Err(Failure::of(Deed::Open, Part::Data)(io::ErrorKind::NotFound.into())),
                Data::Closed => fs.open(dir, &name).map_err(Failure::of(Deed::Open, Part::Data)),
            };
            let file = Arc::new(opened?);
            state.data = Data::Open(Arc::clone(&file));
            file
        };
        self.place.handle_opened(self);
        Ok(file)
    }

    /// Whether it is not open afterwards.
    fn close(&self) -> bool {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if matches!(state.data, Data::Open(_)) {
            state.data = Data::Closed;
        }
        true
    }
}

/// The index first: it never stands without its data, also after a power failure.
pub(crate) fn remove_files<F: FileSystem>(fs: &F, dir: &F::Dir, name: &FileName, indexed: bool) -> Result<(), Failure> {
    let remove = |part| match fs.remove(dir, &name.of(part)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(Failure::of(Deed::Remove, part)),
    };
    if indexed {
        remove(Part::NewIndex)?;
        remove(Part::Index)?;
        fs.sync_dir(dir)
            .map_err(Failure::of(Deed::SyncDirectory, Part::Index))?;
    }
    remove(Part::Data)
}

fn write_all<F: FileSystem>(fs: &F, file: &F::File, at: u64, mut rest: &mut [IoSlice<'_>]) -> io::Result<u64> {
    let mut done = 0;
    while !rest.is_empty() {
        let written = fs.write(file, at + done, rest)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, written);
        done += wide(written);
    }
    Ok(done)
}

/// Fills all slices; what is missing is never left as it was without an error.
pub(crate) fn read_all<F: FileSystem>(
    fs: &F,
    file: &F::File,
    at: u64,
    mut rest: &mut [IoSliceMut<'_>],
    bytes: u64,
) -> io::Result<u64> {
    let mut done = 0;
    while !rest.is_empty() {
        let read = fs.read(file, at + done, rest)?;
        if read == 0 {
            let message = format!("{bytes} bytes expected at {at}, the file ends after {done} of them");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        IoSliceMut::advance_slices(&mut rest, read);
        done += wide(read);
    }
    Ok(done)
}

/// A thread that panics ends the process, so nobody sees what it left.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
