//! From a specification to a gate.

use std::sync::Arc;

use shuffle_protocol::control::CloseGate;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::Result;
use shuffle_protocol::ids::{GateId, JobId, RequestId, StreamId};

use super::channel::{Channel, Source};
use super::demux::Demux;
use super::gate::Gate;
use super::inbox::Inbox;
use super::spec::GateSpec;
use crate::attach::{Lifeline, notify, request_or_undo};

/// A gate's place in its session. Its drop closes the gate at the server, whether opening it was answered yet or not.
pub(super) struct Registration {
    session: Arc<Lifeline>,
    inbox: Arc<Inbox>,
    gate: GateId,
    first: StreamId,
    channels: u32,
    /// The server knows of it, or will.
    announced: bool,
}

impl Registration {
    fn new(session: Arc<Lifeline>, channels: u32, capacity: u64) -> Result<Self> {
        let shared = session.shared();
        let (gate, first) = (shared.next_gate(), shared.next_streams(channels));
        let inbox = Arc::new(Inbox::new(capacity));
        shared.registry().add_routes(first, channels, &inbox)?;
        Ok(Self {
            session,
            inbox,
            gate,
            first,
            channels,
            announced: false,
        })
    }

    pub(super) fn session(&self) -> &Arc<Lifeline> {
        &self.session
    }

    pub(super) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    pub(super) fn channels(&self) -> u32 {
        self.channels
    }

    pub(super) fn job(&self) -> JobId {
        self.session.facts().job
    }

    pub(super) fn buffer_bytes(&self) -> usize {
        usize::try_from(self.session.facts().buffer_bytes).expect("invariant: Linux has at least 32 bits")
    }

    pub(super) fn max_record_bytes(&self) -> u64 {
        self.session.facts().max_record_bytes
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.session
            .shared()
            .registry()
            .remove_routes(self.first, self.channels);
        self.inbox.close();
        if self.announced {
            notify(&self.session, |request| close_message(request, self.gate));
        }
    }
}

fn close_message(request: RequestId, gate: GateId) -> Message {
    Message::CloseGate(CloseGate {
        request: request.value(),
        gate: gate.value(),
    })
}

/// Opens a gate with all its channels.
pub(crate) async fn open(session: Arc<Lifeline>, spec: GateSpec) -> Result<Gate> {
    spec.check()?;
    let count = u32::try_from(spec.channels.len()).expect("invariant: checked against the limit");
    let mut registration = Registration::new(session.clone(), count, spec.capacity())?;
    let first = registration.first;
    let own = &session.facts().node;
    let channels = (0u32..).zip(&spec.channels).map(|(index, channel)| {
        Channel::new(Source {
            stream: StreamId::new(first.value().wrapping_add(index)),
            node: channel.node.as_ref().unwrap_or(own).clone(),
            partition: channel.partition,
            range: channel.range,
            window: spec.window(),
        })
    });
    let demux = Demux::new(channels.collect());
    // A gate without channels, or of partitions without subpartitions, has ended; the server need not know.
    if spec.has_sources() {
        let gate = registration.gate;
        registration.announced = true;
        request_or_undo(
            &session,
            "opening a gate",
            spec.timeout,
            |request| Message::OpenGate(spec.to_message(request, gate, first)),
            |request| close_message(request, gate),
        )
        .await?;
    }
    Ok(Gate::new(registration, demux))
}
