//! What the handles and the driver of one session share.
//!
//! Locks are taken in this order: registry, then a writer's books or a gate's inbox, then the outbox. None is held
//! across an await.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use shuffle_protocol::control::Reply;
use shuffle_protocol::error::{Result, ShuffleError};
use shuffle_protocol::ids::{GateId, Incarnation, JobId, NodeAddress, RequestId, StreamId, WriterId};
use shuffle_protocol::session::Features;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::awaited::Awaited;
use super::events::EventQueue;
use super::memory::Memory;
use super::outbox::Outbox;
use crate::consumer::Inbox;
use crate::producer::WriterShared;

/// What the handshake settled.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) job: JobId,
    pub(crate) node: NodeAddress,
    pub(crate) incarnation: Incarnation,
    pub(crate) buffer_bytes: u32,
    pub(crate) max_record_bytes: u64,
    pub(crate) request_timeout: Duration,
    /// Buffers that may wait in a subpartition of a partition that says nothing else.
    pub(crate) max_queued: u32,
    /// What both sides understand.
    pub(crate) features: Features,
}

/// Where arrivals of one channel go.
pub(crate) struct Route {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) index: u32,
}

pub(crate) struct SessionShared {
    pub(crate) facts: Facts,
    pub(crate) memory: Memory,
    pub(crate) outbox: Outbox,
    /// Of a driver's session.
    pub(crate) events: EventQueue,
    pub(crate) awaited: Awaited,
    /// Set once the connection is closed and the driver gone.
    pub(crate) done: CancellationToken,
    registry: Mutex<Registry>,
    next_request: AtomicU64,
    next_writer: AtomicU32,
    next_gate: AtomicU32,
    next_stream: AtomicU32,
}

/// Who waits for a reply.
pub(crate) enum Waiting {
    /// A caller.
    Caller(oneshot::Sender<Result<Reply>>),
    /// Nobody any more: if the reply says that something was made, this frame undoes it.
    Undo(Bytes),
}

#[derive(Default)]
pub(crate) struct Registry {
    requests: BTreeMap<RequestId, Waiting>,
    writers: BTreeMap<WriterId, Arc<WriterShared>>,
    routes: BTreeMap<StreamId, Route>,
    ended: Option<ShuffleError>,
}

impl SessionShared {
    pub(crate) fn new(facts: Facts, memory: Memory) -> Self {
        Self {
            facts,
            memory,
            outbox: Outbox::default(),
            events: EventQueue::default(),
            awaited: Awaited::default(),
            done: CancellationToken::new(),
            registry: Mutex::default(),
            next_request: AtomicU64::new(1),
            next_writer: AtomicU32::new(1),
            next_gate: AtomicU32::new(1),
            next_stream: AtomicU32::new(1),
        }
    }

    pub(crate) fn next_request(&self) -> RequestId {
        RequestId::new(self.next_request.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn next_writer(&self) -> WriterId {
        WriterId::new(self.next_writer.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn next_gate(&self) -> GateId {
        GateId::new(self.next_gate.fetch_add(1, Ordering::Relaxed))
    }

    /// The first of `count` streams in a row.
    pub(crate) fn next_streams(&self, count: u32) -> StreamId {
        StreamId::new(self.next_stream.fetch_add(count, Ordering::Relaxed))
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session has ended. Everything that is open fails with the same error; only the first end counts.
    pub(crate) fn end(&self, error: ShuffleError) {
        let (requests, writers, routes) = {
            let mut registry = self.registry();
            if registry.ended.is_some() {
                return;
            }
            registry.ended = Some(error.clone());
            (
                std::mem::take(&mut registry.requests),
                std::mem::take(&mut registry.writers),
                std::mem::take(&mut registry.routes),
            )
        };
        self.outbox.shut();
        self.events.end(&error);
        for waiting in requests.into_values() {
            if let Waiting::Caller(reply) = waiting {
                // Whoever asked may have gone.
                let _ = reply.send(Err(error.clone()));
            }
        }
        for writer in writers.into_values() {
            writer.handle_failure(error.clone(), &self.outbox);
        }
        for route in routes.into_values() {
            route.inbox.handle_failure(None, error.clone());
        }
    }
}

impl Registry {
    pub(crate) fn check_open(&self) -> Result<()> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn add_request(&mut self, request: RequestId) -> Result<oneshot::Receiver<Result<Reply>>> {
        self.check_open()?;
        let (sender, receiver) = oneshot::channel();
        self.requests.insert(request, Waiting::Caller(sender));
        Ok(receiver)
    }

    pub(crate) fn take_request(&mut self, request: RequestId) -> Option<Waiting> {
        self.requests.remove(&request)
    }

    /// Its caller waits no more. Does nothing if the reply has come.
    pub(crate) fn abandon_request(&mut self, request: RequestId, undo: Option<Bytes>) {
        if self.requests.remove(&request).is_some()
            && let Some(undo) = undo
        {
            self.requests.insert(request, Waiting::Undo(undo));
        }
    }

    pub(crate) fn add_writer(&mut self, id: WriterId, writer: Arc<WriterShared>) -> Result<()> {
        self.check_open()?;
        self.writers.insert(id, writer);
        Ok(())
    }

    pub(crate) fn remove_writer(&mut self, id: WriterId) {
        self.writers.remove(&id);
    }

    pub(crate) fn writer(&self, id: WriterId) -> Option<&Arc<WriterShared>> {
        self.writers.get(&id)
    }

    pub(crate) fn add_routes(&mut self, first: StreamId, count: u32, inbox: &Arc<Inbox>) -> Result<()> {
        self.check_open()?;
        for index in 0..count {
            let stream = StreamId::new(first.value().wrapping_add(index));
            self.routes.insert(
                stream,
                Route {
                    inbox: inbox.clone(),
                    index,
                },
            );
        }
        Ok(())
    }

    pub(crate) fn remove_routes(&mut self, first: StreamId, count: u32) {
        for index in 0..count {
            self.routes.remove(&StreamId::new(first.value().wrapping_add(index)));
        }
    }

    pub(crate) fn route(&self, stream: StreamId) -> Option<&Route> {
        self.routes.get(&stream)
    }
}

/// Held by everything that needs the connection: sessions, writers, gates, views. When the last one goes, the driver
/// says goodbye.
pub(crate) struct Lifeline {
    shared: Arc<SessionShared>,
}

impl Lifeline {
    pub(crate) fn new(shared: Arc<SessionShared>) -> Arc<Self> {
        Arc::new(Self { shared })
    }

    pub(crate) fn shared(&self) -> &Arc<SessionShared> {
        &self.shared
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.shared.facts
    }

    pub(crate) fn outbox(&self) -> &Outbox {
        &self.shared.outbox
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.shared.outbox.close();
    }
}
