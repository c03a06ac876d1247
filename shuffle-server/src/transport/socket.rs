//! The Unix socket on which this node's executors attach.
//!
//! ```text
//! lock <socket>.lock -> look at the path -> bind <socket>.new, mode already set -> listen -> rename to <socket>
//! ```
//!
//! The lock is held for as long as the server lives, so of two servers that start at once one gets
//! the path and the other an error. At no moment can somebody connect whom the mode forbids: the
//! socket's mode is set before it has a name, and nobody can connect before `listen`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, chmodat, fchmod, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};

const BACKLOG: i32 = 1024;

const WRITABLE_BY_OTHERS: u32 = 0o022;
/// With this bit a directory lets everyone in but keeps each name to its owner, as `/tmp` does.
const STICKY: u32 = 0o1000;

/// Why the socket could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another server holds the path.
    #[error("another server is using {path}; stop it or choose another executor.socket")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something that is no socket is in the way; it was left alone.
    #[error("{path} is {what}, not a socket, and was left as it is; remove it or choose another executor.socket")]
    Foreign {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// The directory belongs to somebody who could replace the socket.
    #[error(
        "the directory {path} belongs to user {owner}; choose an executor.socket in a directory of this user or root"
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others may rename what is in the directory, and with it the socket.
    #[error(
        "the directory {path} can be written by others (mode {mode:04o}); run chmod go-w on it, or choose an \
         executor.socket in another directory"
    )]
    Writable {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A listening Unix socket with its name and its lock; dropping it removes both from the disk.
#[derive(Debug)]
pub struct ExecutorSocket {
    listener: Option<OwnedFd>,
    path: PathBuf,
    _lock: Lock,
    // Device and inode of the socket's name: only our own is removed.
    identity: (u64, u64),
}

impl ExecutorSocket {
    /// Takes `path` with permission bits `mode`, whatever the umask.
    ///
    /// A socket on which nobody listens any more is replaced.
    ///
    /// # Errors
    /// [`SocketError`]; whatever was at the path is then still there.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, SocketError> {
        prepare_directory(path)?;
        let lock = Lock::take(path)?;
        refuse_foreign(path)?;
        let listener = listen_at(path, mode)?;
        let metadata = path.symlink_metadata().map_err(failed("look at", path))?;
        Ok(Self {
            listener: Some(listener),
            path: path.to_owned(),
            _lock: lock,
            identity: (metadata.dev(), metadata.ino()),
        })
    }

    /// The listening socket, non-blocking; the first call gets it.
    pub fn take_listener(&mut self) -> Option<OwnedFd> {
        self.listener.take()
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ExecutorSocket {
    fn drop(&mut self) {
        let ours = self
            .path
            .symlink_metadata()
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if ours {
            // Nothing can be done about a failure here: the next start takes the stale socket over.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The right to the socket's path; its file goes when it is dropped.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn take(socket: &Path) -> Result<Self, SocketError> {
        let path = beside(socket, ".lock");
        let file = lock_file(&path, socket)?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked: whoever opens the file now finds afterwards that it has lost its name.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn prepare_directory(path: &Path) -> Result<(), SocketError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Not what a wide umask would leave: who may write to a directory may replace the socket in it.
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(failed("create the directory", directory))?;
    let metadata = directory.metadata().map_err(failed("look at", directory))?;
    let owner = metadata.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(SocketError::Directory {
            path: directory.to_owned(),
            owner,
        });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & WRITABLE_BY_OTHERS != 0 && mode & STICKY == 0 {
        return Err(SocketError::Writable {
            path: directory.to_owned(),
            mode,
        });
    }
    Ok(())
}

fn lock_file(lock_path: &Path, path: &Path) -> Result<File, SocketError> {
    loop {
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0))
            .open(lock_path)
            .map_err(failed("open the lock", lock_path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
            if errno == rustix::io::Errno::WOULDBLOCK {
                SocketError::InUse { path: path.to_owned() }
            } else {
                failed("lock", lock_path)(errno.into())
            }
        })?;
        // The holder before us removes the file at its end: a lock on a file without a name binds nobody.
        let ours = lock.metadata().map_err(failed("look at", lock_path))?;
        let named = lock_path.symlink_metadata().ok();
        if named.is_some_and(|named| (named.dev(), named.ino()) == (ours.dev(), ours.ino())) {
            return Ok(lock);
        }
    }
}

/// Fails unless the path is free or holds a socket on which nobody listens.
fn refuse_foreign(path: &Path) -> Result<(), SocketError> {
    let kind = match path.symlink_metadata() {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", path)(error)),
    };
    let what = if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_file() {
        "a regular file"
    } else if !kind.is_socket() {
        "a special file"
    } else {
        return refuse_live(path);
    };
    Err(SocketError::Foreign {
        path: path.to_owned(),
        what,
    })
}

fn refuse_live(path: &Path) -> Result<(), SocketError> {
    let probe = new_socket(path)?;
    let address = SocketAddrUnix::new(path).map_err(|errno| failed("name", path)(errno.into()))?;
    match connect(&probe, &address) {
        Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT) => Ok(()),
        // A full backlog (EAGAIN) or another socket type is somebody's too.
        Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::PROTOTYPE) => {
            Err(SocketError::InUse { path: path.to_owned() })
        }
        Err(errno) => Err(failed("probe", path)(errno.into())),
    }
}

fn listen_at(path: &Path, mode: u32) -> Result<OwnedFd, SocketError> {
    let temporary = beside(path, ".new");
    match std::fs::remove_file(&temporary) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("remove the left-over", &temporary)(error)),
    }
    let socket = new_socket(path)?;
    let mode = Mode::from_raw_mode(mode);
    let address = SocketAddrUnix::new(&temporary).map_err(|errno| failed("name", &temporary)(errno.into()))?;
    // The kernel gives the name the socket's own mode less the umask; chmod adds back what the umask took.
    fchmod(&socket, mode)
        .and_then(|()| bind(&socket, &address))
        .and_then(|()| chmodat(CWD, &temporary, mode, AtFlags::empty()))
        .and_then(|()| listen(&socket, BACKLOG))
        .map_err(|errno| failed("bind", path)(errno.into()))?;
    std::fs::rename(&temporary, path).map_err(failed("name", path))?;
    Ok(socket)
}

fn new_socket(path: &Path) -> Result<OwnedFd, SocketError> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|errno| failed("make a socket for", path)(errno.into()))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    let path = path.to_owned();
    move |source| SocketError::Io { action, path, source }
}
