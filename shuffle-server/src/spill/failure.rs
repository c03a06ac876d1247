//! What went wrong with a file, and what that says of its directory.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use shuffle_protocol::ShuffleError;
use shuffle_protocol::error::{ErrorKind, Initiator};

use super::StoreName;
use super::names::{FileName, Part};

/// What is done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    Make,
    Open,
    Write,
    Read,
    Punch,
    Measure,
    Sync,
    Rename,
    SyncDirectory,
    Remove,
}

impl Deed {
    fn words(self) -> &'static str {
        match self {
            Self::Make => "make the file",
            Self::Open => "open the file",
            Self::Write => "write to it",
            Self::Read => "read from it",
            Self::Punch => "give space back",
            Self::Measure => "learn its length",
            Self::Sync => "sync it",
            Self::Rename => "give it its name",
            Self::SyncDirectory => "sync its directory",
            Self::Remove => "remove it",
        }
    }
}

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blame {
    /// There is no space left, for now.
    Full,
    /// Nothing that lies there can be relied on.
    Directory,
    /// Only this file, or what was asked of it.
    File,
}

/// A call that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) deed: Deed,
    pub(crate) part: Part,
    pub(crate) source: io::Error,
}

impl Failure {
    /// Makes one of an error, for `map_err`.
    pub(crate) fn of(deed: Deed, part: Part) -> impl Fn(io::Error) -> Self {
        move |source| Self { deed, part, source }
    }

    pub(crate) fn blame(&self) -> Blame {
        match Errno::from_io_error(&self.source) {
            Some(Errno::NOSPC | Errno::DQUOT) => Blame::Full,
            Some(
                Errno::IO
                | Errno::ROFS
                | Errno::NODEV
                | Errno::NXIO
                | Errno::STALE
                | Errno::UCLEAN
                | Errno::SHUTDOWN
                | Errno::NOTCONN,
            ) => Blame::Directory,
            // Wanting descriptors or memory says nothing of the disk.
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Blame::File,
            // A file cannot be made where others could: the directory has gone or is not ours any more.
            Some(_) if self.deed == Deed::Make => Blame::Directory,
            _ => Blame::File,
        }
    }

    /// As the core is to see it. `needed` and `free` are bytes, for when there is no space.
    pub(crate) fn error(&self, directory: &Path, name: &FileName, needed: u64, free: u64) -> ShuffleError {
        let path = directory.join(name.of(self.part));
        let message = format!("cannot {}: {}", self.deed.words(), self.source);
        let kind = match self.blame() {
            Blame::Full => ErrorKind::NoSpace { needed, free },
            Blame::Directory | Blame::File => ErrorKind::Io,
        };
        of_disk(kind, message, name.store).path(path.display().to_string())
    }
}

/// A disk's error about that partition.
pub(crate) fn of_disk(kind: ErrorKind, message: impl Into<String>, store: StoreName) -> ShuffleError {
    ShuffleError::new(kind, message)
        .by(Initiator::Disk)
        .job(store.job)
        .partition(store.partition)
}

/// The disk did not answer in time.
pub(crate) fn timed_out(what: &str, after: Duration, directory: &Path, name: &FileName) -> ShuffleError {
    let kind = ErrorKind::TimedOut {
        what: what.to_owned(),
        after,
    };
    let message = "the directory is taken out until it answers";
    of_disk(kind, message, name.store).path(directory.join(name.of(Part::Data)).display().to_string())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use shuffle_protocol::error::{ErrorKind, Initiator};
    use shuffle_protocol::{JobId, PartitionId, ResultId};

    use super::{Blame, Deed, Failure};
    use crate::spill::StoreName;
    use crate::spill::names::{FileName, Part};

    fn failure(errno: rustix::io::Errno, deed: Deed) -> Failure {
        Failure::of(deed, Part::Data)(io::Error::from_raw_os_error(errno.raw_os_error()))
    }

    #[test]
    fn full_is_not_broken_and_one_file_is_not_all() {
        use rustix::io::Errno;
        for (errno, deed, blame) in [
            (Errno::NOSPC, Deed::Write, Blame::Full),
            (Errno::DQUOT, Deed::Make, Blame::Full),
            (Errno::NOSPC, Deed::Sync, Blame::Full),
            (Errno::IO, Deed::Sync, Blame::Directory),
            (Errno::ROFS, Deed::Make, Blame::Directory),
            (Errno::NOENT, Deed::Make, Blame::Directory),
            (Errno::NOENT, Deed::Open, Blame::File),
            (Errno::MFILE, Deed::Make, Blame::File),
            (Errno::FBIG, Deed::Write, Blame::File),
        ] {
            assert_eq!(failure(errno, deed).blame(), blame, "{errno:?} {deed:?}");
        }
        let short = Failure::of(Deed::Read, Part::Data)(io::ErrorKind::UnexpectedEof.into());
        assert_eq!(short.blame(), Blame::File);
    }

    #[test]
    fn an_error_names_partition_path_and_whose_fault() {
        let partition = PartitionId {
            result: ResultId::new(2),
            index: 3,
            attempt: 4,
        };
        let store = StoreName {
            job: JobId::new(1),
            partition,
        };
        let name = FileName { store, serial: 5 };
        let error = failure(rustix::io::Errno::NOSPC, Deed::Write).error(Path::new("/d"), &name, 10, 3);
        assert_eq!(error.kind(), &ErrorKind::NoSpace { needed: 10, free: 3 });
        assert_eq!(error.initiator(), Initiator::Disk);
        assert_eq!(
            (error.location().job, error.location().partition),
            (Some(store.job), Some(partition))
        );
        assert_eq!(error.location().path, Some(format!("/d/{}", name.of(Part::Data))));
        assert!(error.is_retryable());
        let error = failure(rustix::io::Errno::IO, Deed::Sync).error(Path::new("/d"), &name, 10, 3);
        assert_eq!((error.kind(), error.initiator()), (&ErrorKind::Io, Initiator::Disk));
    }
}
