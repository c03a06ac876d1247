//! What the server says, to whom it concerns.

use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::frame::{Batch, DataHead, EndEntry, Entry, Frame, GrantEntry, NumberEntry, SlotEntry};
use shuffle_protocol::ids::{RequestId, StreamId, WriterId};

use super::shared::{Lifeline, SessionShared, Waiting};
use crate::consumer::Arrival;
use crate::producer::release;

pub(super) struct Dispatch {
    shared: Arc<SessionShared>,
    /// Gone once nobody is left to whom anything could concern.
    lifeline: Weak<Lifeline>,
}

/// What a frame asks of the driver itself.
pub(super) enum Asked {
    Nothing,
    /// To answer a ping.
    Pong(u64),
}

impl Dispatch {
    pub(super) fn new(lifeline: &Arc<Lifeline>) -> Self {
        Self {
            shared: lifeline.shared().clone(),
            lifeline: Arc::downgrade(lifeline),
        }
    }

    pub(super) fn shared(&self) -> &Arc<SessionShared> {
        &self.shared
    }

    /// Passes a frame on. `Err`: the session ends for this reason.
    pub(super) fn handle_frame(&self, frame: Frame) -> Result<Asked> {
        match frame {
            Frame::Slots(slots) => self.handle_slots(&slots)?,
            Frame::End(ends) => self.handle_ends(&ends),
            Frame::Grant(grants) => self.handle_grants(&grants)?,
            Frame::Credit(limits) => self.handle_limits(&limits)?,
            Frame::Control(message) => self.handle_message(*message)?,
            Frame::Ping(nonce) => return Ok(Asked::Pong(nonce)),
            // A backlog is a hint between servers, and a pong has done its work by arriving.
            Frame::Pong(_) | Frame::Backlog(_) => {}
            Frame::Release(_) | Frame::Ack(_) | Frame::Demand(_) => {
                return Err(unexpected("a frame that only an executor sends"));
            }
        }
        Ok(Asked::Nothing)
    }

    /// Passes on buffers whose payload came inline.
    pub(super) fn handle_data(&self, head: &DataHead, mut payload: BytesMut) -> Result<()> {
        for entry in head.slots.iter() {
            let length = usize::try_from(entry.length).expect("invariant: Linux has at least 32 bits");
            let payload = payload.split_to(length).freeze();
            self.handle_inline(entry, payload)?;
        }
        Ok(())
    }

    /// Descriptors of one channel that come together are put into its gate together.
    fn handle_slots(&self, slots: &Batch<SlotEntry>) -> Result<()> {
        let Some(lifeline) = self.lifeline.upgrade() else {
            return Ok(());
        };
        let view = |entry: SlotEntry| {
            let mut view = self.shared.memory.view(&entry, None, lifeline.clone())?;
            if self.shared.awaited.take(entry.stream, entry.sequence) {
                view.disown();
            }
            Ok(Arrival::Buffer(entry, view))
        };
        by_runs(
            slots,
            |entry| entry.stream,
            view,
            |stream, arrivals| {
                self.handle_arrivals(stream, arrivals);
            },
        )
    }

    fn handle_inline(&self, entry: SlotEntry, payload: Bytes) -> Result<()> {
        let Some(lifeline) = self.lifeline.upgrade() else {
            return Ok(());
        };
        let mut view = self.shared.memory.view(&entry, Some(payload), lifeline)?;
        if self.shared.awaited.take(entry.stream, entry.sequence) {
            view.disown();
        }
        self.handle_arrivals(entry.stream, &mut vec![Arrival::Buffer(entry, view)]);
        Ok(())
    }

    fn handle_ends(&self, ends: &Batch<EndEntry>) {
        for end in ends.iter() {
            self.handle_arrivals(end.stream, &mut vec![Arrival::End(end)]);
        }
    }

    /// Of a channel that was cancelled meanwhile: the views are dropped, and so released.
    fn handle_arrivals(&self, stream: StreamId, arrivals: &mut Vec<Arrival<super::View>>) {
        let registry = self.shared.registry();
        match registry.route(stream) {
            Some(route) => {
                let (inbox, index) = (route.inbox.clone(), route.index);
                drop(registry);
                inbox.handle_arrivals(index, arrivals);
            }
            None => {
                drop(registry);
                arrivals.clear();
            }
        }
    }

    /// Buffers of one writer that come together are put into its books together.
    fn handle_grants(&self, grants: &Batch<GrantEntry>) -> Result<()> {
        let filling = |grant: GrantEntry| self.shared.memory.filling(grant.slot);
        by_runs(
            grants,
            |grant| grant.writer,
            filling,
            |writer, buffers| {
                self.grant(writer, buffers);
            },
        )
    }

    fn grant(&self, id: WriterId, buffers: &mut Vec<super::Filling>) {
        let writer = self.shared.registry().writer(id).cloned();
        match writer {
            Some(writer) => writer.handle_grants(buffers, &self.shared.outbox),
            // A writer that ended meanwhile.
            None => release(id, std::mem::take(buffers), &self.shared.outbox),
        }
    }

    fn handle_limits(&self, limits: &Batch<NumberEntry>) -> Result<()> {
        for limit in limits.iter() {
            let writer = self.shared.registry().writer(limit.writer()).cloned();
            if let Some(writer) = writer {
                writer.handle_limit(limit.subpartition.value(), limit.number, &self.shared.outbox)?;
            }
        }
        Ok(())
    }

    fn handle_message(&self, message: Message) -> Result<()> {
        let error = |error: Option<shuffle_protocol::control::Error>| {
            let unnamed = || unexpected("a failure without an error");
            error
                .map_or_else(unnamed, ShuffleError::from)
                .job(self.shared.facts.job)
        };
        match message {
            Message::Reply(reply) => {
                let waiting = self.shared.registry().take_request(RequestId::new(reply.request));
                match waiting {
                    // It may have gone at this moment; then its own drop says the rest.
                    Some(Waiting::Caller(caller)) => drop(caller.send(Ok(reply))),
                    Some(Waiting::Undo(undo)) if reply.error.is_none() => self.shared.outbox.push_message(undo),
                    // Nobody waits for replies to what ends something.
                    Some(Waiting::Undo(_)) | None => {}
                }
            }
            Message::WriterFailed(failed) => {
                let writer = self.shared.registry().writer(WriterId::new(failed.writer)).cloned();
                if let Some(writer) = writer {
                    writer.handle_failure(error(failed.error), &self.shared.outbox);
                }
            }
            Message::ChannelFailed(failed) => {
                let stream = StreamId::new(failed.stream);
                self.shared.awaited.forget(stream);
                let registry = self.shared.registry();
                if let Some(route) = registry.route(stream) {
                    let (inbox, index) = (route.inbox.clone(), route.index);
                    drop(registry);
                    inbox.handle_failure(Some(index), error(failed.error));
                }
            }
            Message::PartitionEvents(events) => self.shared.events.handle_message(events)?,
            Message::Goodbye(goodbye) => {
                let reason = error(goodbye.reason);
                return Err(reason.node(&self.shared.facts.node));
            }
            _ => {
                return Err(unexpected(
                    "a control message that a server does not send to an executor",
                ));
            }
        }
        Ok(())
    }
}

/// Makes something of each entry, and hands over together what stands together and is for the same place.
fn by_runs<E: Entry, P: Copy + PartialEq, T>(
    entries: &Batch<E>,
    place: impl Fn(&E) -> P,
    make: impl Fn(E) -> Result<T>,
    hand_over: impl Fn(P, &mut Vec<T>),
) -> Result<()> {
    let mut run = Vec::with_capacity(entries.len());
    let mut of = None;
    for entry in entries.iter() {
        let to = place(&entry);
        if let Some(before) = of.replace(to).filter(|before| *before != to) {
            hand_over(before, &mut run);
        }
        run.push(make(entry)?);
    }
    if let Some(last) = of {
        hand_over(last, &mut run);
    }
    Ok(())
}

fn unexpected(message: &str) -> ShuffleError {
    ShuffleError::new(ErrorKind::Protocol, message)
}
