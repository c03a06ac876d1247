//! The tasks that run as long as the server (accepting, dialling, the timer and the sampler), and how any task is started.

use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, UnixListener};

use super::{Service, disks};
use crate::loud::AbortOnPanic;
use crate::transport;

/// How often the process is measured while it does something.
const SAMPLE: Duration = Duration::from_millis(100);
/// How often the arenas are looked at while anybody could overdraw them.
const LOOK: Duration = Duration::from_secs(1);

/// Starts a task on the server's thread. A panic in it is a broken invariant of our own and ends the process, loudly: whoever
/// went on after it would serve from books that are wrong.
pub(crate) fn spawn(task: impl Future<Output = ()> + 'static) {
    tokio::task::spawn_local(async move {
        let _guard = AbortOnPanic;
        task.await;
    });
}

/// Starts those that are always there.
pub(crate) fn spawn_all(service: &Rc<Service>, unix: UnixListener, tcp: TcpListener) {
    let of = Rc::clone(service);
    spawn(async move {
        let serve = |stream, permit| {
            spawn(transport::serve_unix(Rc::clone(&of), stream, permit));
        };
        transport::accept_all(&of, "executors' socket", async || Ok(unix.accept().await?.0), serve).await;
    });
    let of = Rc::clone(service);
    spawn(async move {
        let serve = |(stream, from), permit| {
            spawn(transport::serve_tcp(Rc::clone(&of), stream, from, permit));
        };
        transport::accept_all(&of, "port", async || tcp.accept().await, serve).await;
    });
    spawn(transport::dial_all(Rc::clone(service)));
    spawn(disks::drive(Rc::clone(service)));
    spawn(keep_time(Rc::clone(service)));
    spawn(measure(Rc::clone(service)));
}

async fn keep_time(service: Rc<Service>) {
    loop {
        match service.next_timeout() {
            Some(at) if at <= Instant::now() => service.with(|core, now| core.handle_timeout(now)),
            Some(at) => {
                tokio::select! {
                    () = tokio::time::sleep_until(at.into()) => {}
                    () = service.timer.notified() => {}
                }
            }
            None => service.timer.notified().await,
        }
    }
}

/// A server that does nothing is not measured, and one without connections sleeps until something happens.
async fn measure(service: Rc<Service>) {
    let mut looked: Option<Instant> = None;
    loop {
        let active = service.take_activity();
        service.sample();
        let mut unmoved = false;
        if looked.is_none_or(|at| at.elapsed() >= LOOK) {
            looked = Some(Instant::now());
            service.drop_overdrawn();
            if let Some(error) = service.with(|core, now| core.retry_moves(now)) {
                tracing::warn!("memory could not be moved between jobs, it is tried again: {error}");
                unmoved = true;
            }
            // What was done here is no reason to look again.
            service.take_activity();
        }
        if active {
            tokio::time::sleep(SAMPLE).await;
        } else if unmoved || service.connections() > 0 {
            // A process may write where it must not without a word to the server.
            let _ = tokio::time::timeout(LOOK, service.activity.notified()).await;
        } else {
            service.activity.notified().await;
        }
    }
}
