//! Accepting connections, also when the process has no descriptor left.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{info, warn};

use crate::server::Service;

/// How long accepting pauses when there is no descriptor or no memory for one more connection.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that are turned away at each pause.
const TURNED_AWAY: usize = 16;

/// Held while a connection has not finished its handshake.
pub(crate) type HalfOpen = OwnedSemaphorePermit;

/// Accepts for ever; `serve` starts a task for each connection and drops the permit once the handshake is over.
pub(crate) async fn accept_all<S>(
    service: &Service,
    what: &str,
    accept: impl AsyncFn() -> io::Result<S>,
    serve: impl Fn(S, HalfOpen),
) {
    let half_open = Arc::new(Semaphore::new(
        usize::try_from(service.config.limits.half_open).unwrap_or(usize::MAX),
    ));
    let mut spare = Spare::open();
    let mut exhausted = false;
    loop {
        let Ok(permit) = Arc::clone(&half_open).acquire_owned().await else {
            return;
        };
        match accept().await {
            Ok(stream) => {
                if std::mem::take(&mut exhausted) {
                    info!("accepting on the {what} again");
                }
                spare.renew();
                serve(stream, permit);
            }
            Err(error) if is_exhausted(&error) => {
                service.count_exhausted();
                if !std::mem::replace(&mut exhausted, true) {
                    warn!("cannot accept on the {what}: {error}; raise the limit of open files (ulimit -n)");
                }
                turn_away(&mut spare, &accept).await;
                tokio::time::sleep(PAUSE).await;
            }
            // The connection died in the queue: the next one may be well.
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                warn!("cannot accept on the {what}: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Ends some waiting connections, so that their owners learn of it, with the descriptor that was kept for this.
async fn turn_away<S>(spare: &mut Spare, accept: &impl AsyncFn() -> io::Result<S>) {
    for _ in 0..TURNED_AWAY {
        spare.give_up();
        let accepted = tokio::time::timeout(Duration::ZERO, accept()).await;
        let more = matches!(accepted, Ok(Ok(_)));
        drop(accepted);
        spare.renew();
        if !more {
            return;
        }
    }
}

/// A descriptor that is kept for the time when there is no other.
struct Spare(Option<File>);

impl Spare {
    fn open() -> Self {
        Self(File::open("/dev/null").ok())
    }

    fn renew(&mut self) {
        if self.0.is_none() {
            *self = Self::open();
        }
    }

    fn give_up(&mut self) {
        self.0 = None;
    }
}

fn is_exhausted(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::INTR
                | Errno::PERM
                | Errno::PROTO
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::NOPROTOOPT
                | Errno::OPNOTSUPP
        )
    )
}
