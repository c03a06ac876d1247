//! A control message and the reply to it.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use shuffle_protocol::control::Reply;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::frame::encode_control;
use shuffle_protocol::ids::RequestId;
use tokio::sync::oneshot;

use super::shared::{Lifeline, SessionShared};

/// How much longer than the server we wait for its answer, so that its more precise error arrives first.
const GRACE: Duration = Duration::from_secs(5);

/// Sends a request and waits for its reply: at most `timeout` (the server's request timeout if that is shorter) and
/// some grace. Dropping the future forgets the reply, not the request.
pub(crate) async fn request(
    session: &Arc<Lifeline>,
    what: &'static str,
    timeout: Option<Duration>,
    message: impl FnOnce(RequestId) -> Message,
) -> Result<Reply> {
    start(session, None, message)?.wait(what, timeout).await
}

/// Sends a request that makes something. If nobody waits any more when the server says that it is made, `undo` is sent.
pub(crate) async fn request_or_undo(
    session: &Arc<Lifeline>,
    what: &'static str,
    timeout: Option<Duration>,
    message: impl FnOnce(RequestId) -> Message,
    undo: impl FnOnce(RequestId) -> Message,
) -> Result<Reply> {
    let undo = encode(&undo(session.shared().next_request()))?;
    start(session, Some(undo), message)?.wait(what, timeout).await
}

fn start(
    session: &Arc<Lifeline>,
    undo: Option<Bytes>,
    message: impl FnOnce(RequestId) -> Message,
) -> Result<Pending<'_>> {
    let shared = session.shared();
    let number = shared.next_request();
    let frame = encode(&message(number))?;
    let mut pending = Pending::new(shared, number)?;
    shared.outbox.push_request(frame)?;
    pending.undo = undo;
    Ok(pending)
}

/// The frame of a control message.
pub(crate) fn encode(message: &Message) -> Result<Bytes> {
    let mut frame = BytesMut::new();
    encode_control(message, &mut frame).map_err(|error| {
        ShuffleError::new(
            ErrorKind::InvalidRequest,
            format!("the request cannot be encoded: {error}"),
        )
    })?;
    Ok(frame.freeze())
}

/// Sends a message that ends something. One that cannot be encoded is sent without what made it so.
pub(crate) fn notify(session: &Lifeline, message: impl FnOnce(RequestId) -> Message) {
    let number = session.shared().next_request();
    match encode(&message(number)) {
        Ok(frame) => session.outbox().push_message(frame),
        Err(error) => tracing::error!(%error, "a message to the server was not sent"),
    }
}

/// Milliseconds on the wire: rounded up, and 0 for "the server's default".
pub(crate) fn millis(timeout: Option<Duration>) -> u32 {
    timeout.map_or(0, |timeout| {
        let rounded = timeout.as_nanos().div_ceil(1_000_000).max(1);
        u32::try_from(rounded).unwrap_or(u32::MAX)
    })
}

/// Forgotten by the registry when dropped, but for what is to be undone.
struct Pending<'a> {
    shared: &'a SessionShared,
    number: RequestId,
    reply: oneshot::Receiver<Result<Reply>>,
    undo: Option<Bytes>,
}

impl<'a> Pending<'a> {
    fn new(shared: &'a SessionShared, number: RequestId) -> Result<Self> {
        let reply = shared.registry().add_request(number)?;
        Ok(Self {
            shared,
            number,
            reply,
            undo: None,
        })
    }

    async fn wait(mut self, what: &'static str, timeout: Option<Duration>) -> Result<Reply> {
        let facts = &self.shared.facts;
        let after = timeout.unwrap_or(facts.request_timeout).min(facts.request_timeout) + GRACE;
        match tokio::time::timeout(after, &mut self.reply).await {
            Ok(Ok(Ok(Reply { error: Some(error), .. }))) => Err(ShuffleError::from(error).job(facts.job)),
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Err(ShuffleError::new(ErrorKind::SessionClosed, "the session ended").node(&facts.node)),
            Err(_) => {
                let kind = ErrorKind::TimedOut {
                    what: what.to_owned(),
                    after,
                };
                Err(ShuffleError::new(kind, "the server did not answer")
                    .job(facts.job)
                    .node(&facts.node))
            }
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.shared.registry().abandon_request(self.number, self.undo.take());
    }
}
