//! Who is at the other end of the Unix socket, and whether that process still lives.
//!
//! The socket's closing and the process's death are two facts: a forked child may hold the socket
//! open, and a process may close it and live on with its buffers mapped. The second is watched
//! through a pidfd.

use std::os::fd::OwnedFd;

use nix::sys::socket::{getsockopt, sockopt};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use shuffle_protocol::ShuffleError;
use shuffle_protocol::error::ErrorKind;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use crate::config::ExecutorSection;

/// An executor's process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its process id, for logs.
    pub pid: i32,
    pidfd: AsyncFd<OwnedFd>,
}

impl Process {
    /// Resolves when the process has ended.
    pub(crate) async fn exited(&self) {
        // A pidfd that cannot be polled any more says nothing; then the process counts as gone with its socket.
        let _ = self.pidfd.readable().await;
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(self.pidfd.get_ref(), PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }
}

/// Checks the peer's credentials against the configuration and finds its process.
///
/// # Errors
/// *denied*, with the ids and the key to change; or *I/O* when the process cannot be watched.
pub(crate) fn identify(stream: &UnixStream, allowed: &ExecutorSection) -> Result<Process, ShuffleError> {
    let cred = stream
        .peer_cred()
        .map_err(|error| denied(format!("the peer's credentials cannot be read: {error}")))?;
    let (uid, gid) = (cred.uid(), cred.gid());
    let own = rustix::process::geteuid().as_raw();
    if uid != own && uid != 0 && !allowed.allowed_uids.contains(&uid) && !allowed.allowed_gids.contains(&gid) {
        return Err(denied(format!(
            "user {uid}, group {gid} may not attach; add the user to executor.allowed_uids or the group to executor.allowed_gids"
        )));
    }
    let pid = cred.pid().unwrap_or(0);
    let pidfd = open_pidfd(stream, pid).map_err(|error| {
        ShuffleError::new(
            ErrorKind::Io,
            format!("process {pid} cannot be watched: {error}; server and executor must share a PID namespace"),
        )
    })?;
    #[expect(
        deprecated,
        reason = "deprecated for types that do not own their descriptor; an OwnedFd does, and unsafe is forbidden here"
    )]
    let pidfd = AsyncFd::with_interest(pidfd, Interest::READABLE)
        .map_err(|error| ShuffleError::new(ErrorKind::Io, format!("process {pid} cannot be watched: {error}")))?;
    Ok(Process { pid, pidfd })
}

fn open_pidfd(stream: &UnixStream, pid: i32) -> std::io::Result<OwnedFd> {
    // SO_PEERPIDFD (Linux 6.5) is free of the race between the id and its reuse.
    if let Ok(pidfd) = getsockopt(stream, sockopt::PeerPidfd) {
        return Ok(pidfd);
    }
    let pid = Pid::from_raw(pid).ok_or(std::io::ErrorKind::NotFound)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn denied(message: String) -> ShuffleError {
    ShuffleError::new(ErrorKind::Denied, message)
}
