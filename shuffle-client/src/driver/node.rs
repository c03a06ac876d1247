//! One node of a driver: its connection, made again where it breaks, and its events in order.
//!
//! ```text
//!   up ──events──▶ driver            broken ──attached again, same incarnation──▶ up: a snapshot, of which only news are told
//!    └── connection breaks ──▶ broken ──another incarnation, refused, or too long──▶ lost: told once, with the cause
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prost::Message as _;
use shuffle_protocol::control::PartitionEvents;
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::frame::HEADER_BYTES;
use shuffle_protocol::ids::{Incarnation, NodeAddress};
use shuffle_protocol::notify::Unpacker;
use tokio::sync::{mpsc, watch};

use super::known::Known;
use super::options::JobDriverOptions;
use super::{Counters, DriverEvent};
use crate::attach::{AttachOptions, Session};

/// How a node can be reached now.
#[derive(Debug)]
pub(super) enum Link {
    Up(Session),
    Broken,
    Lost(ShuffleError),
}

pub(super) struct NodeTask {
    pub(super) attach: AttachOptions,
    pub(super) options: JobDriverOptions,
    pub(super) address: NodeAddress,
    pub(super) incarnation: Incarnation,
    pub(super) link: watch::Sender<Link>,
    pub(super) events: mpsc::Sender<DriverEvent>,
    pub(super) counters: Arc<Counters>,
}

/// Attaches and subscribes; both have deadlines.
pub(super) async fn subscribe(attach: &AttachOptions, linger: Duration) -> Result<Session> {
    let session = Session::attach(attach.clone()).await?;
    session.subscribe(linger).await?;
    Ok(session)
}

impl NodeTask {
    /// Runs until the node is lost or nobody listens.
    pub(super) async fn run(self, mut session: Session) {
        let mut known = Known::default();
        loop {
            self.counters.connections.fetch_add(1, Ordering::Relaxed);
            known.begin_snapshot();
            let Err(broke) = self.stream(&session, &mut known).await else {
                return;
            };
            drop(session);
            self.link.send_replace(Link::Broken);
            tracing::debug!(node = %self.address, "the driver's connection broke: {broke}");
            match self.connect_again(broke).await {
                Ok(again) => {
                    self.link.send_replace(Link::Up(again.clone()));
                    session = again;
                }
                Err(cause) => {
                    let cause = cause.node(&self.address);
                    self.link.send_replace(Link::Lost(cause.clone()));
                    let node = self.address.clone();
                    // Nobody may listen any more.
                    let _ = self.events.send(DriverEvent::NodeLost { node, cause }).await;
                    return;
                }
            }
        }
    }

    /// Passes events on. `Ok`: nobody listens any more.
    async fn stream(&self, session: &Session, known: &mut Known) -> Result<()> {
        let mut unpacker = Unpacker::default();
        loop {
            let message = session.next_events().await?;
            self.count(&message);
            let PartitionEvents {
                number,
                events,
                snapshot_complete,
            } = message;
            let mut changes = Vec::with_capacity(events.len());
            for event in events {
                let change = unpacker.handle_event(event)?;
                changes.extend(change.filter(|change| known.handle_change(change)));
            }
            if snapshot_complete {
                changes.extend(known.finish_snapshot());
            }
            if !changes.is_empty() {
                let node = self.address.clone();
                let event = DriverEvent::Partitions { node, changes };
                if self.events.send(event).await.is_err() {
                    return Ok(());
                }
            }
            session.say_seen(number);
            self.counters.acknowledgements.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count(&self, message: &PartitionEvents) {
        // A tag and a length stand between the head of a frame and a message of this size.
        let wrapped = |bytes: usize| 2 + prost::length_delimiter_len(bytes) + bytes;
        let bytes = HEADER_BYTES + wrapped(message.encoded_len());
        let add = |to: &std::sync::atomic::AtomicU64, n: usize| to.fetch_add(n as u64, Ordering::Relaxed);
        add(&self.counters.messages_in, 1);
        add(&self.counters.bytes_in, bytes);
        add(&self.counters.events, message.events.len());
    }

    async fn connect_again(&self, broke: ShuffleError) -> Result<Session> {
        let deadline = Instant::now() + self.options.reconnect_within;
        let mut last = broke;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(last);
            }
            match tokio::time::timeout(left, subscribe(&self.attach, self.options.linger)).await {
                Ok(Ok(session)) if session.incarnation() == self.incarnation => return Ok(session),
                Ok(Ok(_)) => {
                    let message = "the server was restarted and has forgotten the job";
                    return Err(ShuffleError::new(ErrorKind::PeerRestarted, message).because(last));
                }
                Ok(Err(error)) if !is_worth_another(&error) => return Err(error.because(last)),
                Ok(Err(error)) => {
                    last = ShuffleError::new(error.kind().clone(), error.message()).because(last.first_cause().clone())
                }
                Err(_) => return Err(last),
            }
            tokio::time::sleep(self.options.retry_every.min(left)).await;
        }
    }
}

/// Whether the same attempt may succeed a moment later.
fn is_worth_another(error: &ShuffleError) -> bool {
    error.is_retryable() && !matches!(error.kind(), ErrorKind::Draining)
}
