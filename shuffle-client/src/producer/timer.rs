//! One timer per writer: partly filled buffers leave when they are old enough, also while the producer does nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;

use super::create::Registration;
use super::handle::WriterShared;
use super::spec::FlushInterval;
use crate::attach::SessionShared;

/// Shorter intervals are rounded up to this: it is what the runtime's clock can do.
const SHORTEST: Duration = Duration::from_millis(1);

/// Starts the timer, if this interval needs one.
pub(super) fn spawn(registration: &Registration, flush: FlushInterval) -> Option<AbortOnDropHandle<()>> {
    let FlushInterval::Every(interval) = flush else {
        return None;
    };
    // Not the lifeline: a timer does not keep the session open.
    let (session, writer) = (registration.session.shared().clone(), registration.writer.clone());
    Some(AbortOnDropHandle::new(tokio::spawn(run(
        session,
        writer,
        interval.max(SHORTEST),
    ))))
}

async fn run(session: Arc<SessionShared>, writer: Arc<WriterShared>, interval: Duration) {
    loop {
        let next = writer.with(&session.outbox, |core| core.handle_timeout(Instant::now(), interval));
        match next {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => writer.timer.notified().await,
        }
    }
}
