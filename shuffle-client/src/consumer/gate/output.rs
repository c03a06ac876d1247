//! What becomes of an item that came out, and of a gate that fails.

use bytes::Bytes;
use shuffle_protocol::error::{ErrorKind, Initiator, Result, ShuffleError};
use shuffle_protocol::frame::{NumberEntry, SlotEntry};
use shuffle_protocol::ids::{Sequence, StreamId, SubpartitionIndex};
use shuffle_protocol::partition::Codec;

use super::Gate;
use crate::attach::{View, notify};
use crate::codec::unpack;
use crate::consumer::demux::{Demux, Item, Output};
use crate::consumer::item::Event;
use crate::consumer::record::RecordError;

impl Gate {
    pub(super) fn handle_output(&mut self, output: &Output<View>) {
        let (stream, below): (StreamId, Sequence) = output.ack;
        if let Item::Buffer(_, view) = &output.item {
            let bytes = u64::try_from(view.as_ref().len()).unwrap_or(u64::MAX);
            self.stats.buffers += 1;
            if view.is_local() {
                self.stats.local_bytes += bytes;
            } else {
                self.stats.remote_bytes += bytes;
            }
        }
        if !matches!(output.item, Item::EndOfChannel) {
            let ack = NumberEntry {
                stream,
                number: below.value(),
                ..NumberEntry::default()
            };
            self.registration.session().outbox().push(|out| out.ack(ack));
        }
    }

    /// Tells the server what did not match. It answers with the buffer, or with the failure of its channel.
    pub(super) fn report_mismatches(&mut self) {
        for mismatch in self.demux.take_mismatches() {
            let awaited = &self.registration.session().shared().awaited;
            awaited.insert(mismatch.stream, mismatch.entry.sequence);
            notify(self.registration.session(), |_| mismatch.to_message());
        }
    }

    /// The bytes as their writer filled them: in place, or on the heap where they were packed, and then the buffer goes back
    /// to the server now.
    pub(super) fn unpack(&mut self, channel: u32, entry: &SlotEntry, view: View) -> Result<Bytes> {
        let bytes = match entry.codec {
            Codec::Plain => view.into_bytes(),
            codec => unpack(codec, view.as_ref(), self.registration.buffer_bytes()).map_err(|error| {
                let error = error.by(Initiator::Peer).subpartition(entry.subpartition);
                self.fail(Some(channel), error)
            })?,
        };
        self.stats.unpacked_bytes += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        Ok(bytes)
    }

    pub(super) fn handle_event(&mut self, channel: u32, entry: &SlotEntry, view: View) -> Result<Option<Event>> {
        let subpartition = entry.subpartition;
        let max_bytes = self.registration.max_record_bytes();
        let part = self.unpack(channel, entry, view)?;
        let progress = self
            .demux
            .channel_mut(channel)
            .and_then(|channel| channel.progress(subpartition));
        let progress = progress.expect("invariant: a buffer that came out is counted");
        match progress.event.handle_part(part, entry.continues, max_bytes) {
            Ok(event) => Ok(event.map(|bytes| Event {
                channel,
                subpartition,
                bytes,
            })),
            Err(error) => Err(self.fail_in(channel, subpartition, error)),
        }
    }

    pub(super) fn fail_in(
        &mut self,
        channel: u32,
        subpartition: SubpartitionIndex,
        error: RecordError,
    ) -> ShuffleError {
        let kind = match error {
            RecordError::TooLarge { bytes, max_bytes } => ErrorKind::RecordTooLarge { bytes, max_bytes },
            RecordError::NoStart | RecordError::NoEnd { .. } => ErrorKind::Protocol,
        };
        let error = ShuffleError::new(kind, error.to_string())
            .by(Initiator::Peer)
            .subpartition(subpartition);
        self.fail(Some(channel), error)
    }

    /// The gate has failed, for good: drops what has not come out.
    pub(super) fn fail(&mut self, channel: Option<u32>, error: ShuffleError) -> ShuffleError {
        let error = match channel.and_then(|index| self.demux.channel(index)) {
            Some(channel) => channel.locate(error),
            None => error,
        };
        let error = error.job(self.registration.job());
        self.registration.inbox().handle_failure(None, error.clone());
        self.demux = Demux::new(Vec::new());
        self.current = None;
        self.failed = Some(error.clone());
        error
    }
}
