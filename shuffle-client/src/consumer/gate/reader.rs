//! The consumer's end: many channels, read as one.

use shuffle_protocol::control::CancelChannel;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::frame::SlotEntry;
use shuffle_protocol::ids::{Sequence, SubpartitionIndex};
use shuffle_protocol::partition::BufferKind;

use crate::attach::{View, notify};
use crate::consumer::demux::{Arrival, Demux, Item, Output};
use crate::consumer::item::{Buffer, BufferOrEvent, EndOfSubpartition, GateStats, Record, RecordOrEvent};
use crate::consumer::open::Registration;
use crate::consumer::record::{Assembly, Cursor};

/// Reads many channels as one, fairly, in order within each channel.
///
/// It is read in one of two layers, whichever is used first: buffers ([`next_buffer`](Self::next_buffer)) or records
/// ([`next_record`](Self::next_record)). Every buffer is checked against its producer's checksum before it comes out,
/// every end against its counts and digest. A buffer that does not match is traced by the servers, and fetched once more where
/// what its producer's node holds is intact; meanwhile the other channels go on.
///
/// The first failure of a channel fails the gate: that call and every later one return the same error. Views that
/// came out before stay valid.
///
/// **Dropping a future** loses nothing: what it would have returned comes with the next call. **Dropping the gate**
/// cancels what has not ended; buffers that the consumer holds go back one by one as they are dropped.
pub struct Gate {
    // What has not come out is dropped, and so given back, before the registration closes the gate.
    pub(super) current: Option<Current>,
    pub(super) demux: Demux<View>,
    /// Taken from the inbox, on the way to the demultiplexer.
    arrivals: Vec<(u32, Arrival<View>)>,
    pub(super) registration: Registration,
    layer: Option<Layer>,
    pub(super) failed: Option<ShuffleError>,
    pub(super) stats: GateStats,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layer {
    Buffers,
    Records,
}

/// The buffer whose records come out.
pub(super) struct Current {
    channel: u32,
    subpartition: SubpartitionIndex,
    sequence: Sequence,
    /// Records that its writer says start in it.
    records: u32,
    cursor: Cursor,
    /// Of its subpartition, taken along so that the next record is found without a search.
    assembly: Assembly,
}

impl Gate {
    pub(in crate::consumer) fn new(registration: Registration, demux: Demux<View>) -> Self {
        Self {
            registration,
            demux,
            arrivals: Vec::new(),
            layer: None,
            current: None,
            failed: None,
            stats: GateStats::default(),
        }
    }

    // ----------------------------------------------------------------------------------------------- buffers out

    /// The next buffer, event or end; `None` once every channel has ended or was cancelled.
    ///
    /// # Errors
    /// The first failure of a channel, with its place and first cause; `ChecksumMismatch`, `CountMismatch` or `Protocol`
    /// if what came is not what was sent; `InvalidRequest` on a gate that is read by records.
    pub async fn next_buffer(&mut self) -> Result<Option<BufferOrEvent>> {
        self.enter(Layer::Buffers)?;
        loop {
            let Some(output) = self.next_item().await? else {
                return Ok(None);
            };
            let channel = output.channel;
            return Ok(Some(match output.item {
                Item::Buffer(entry, view) if entry.kind == BufferKind::Event => {
                    match self.handle_event(channel, &entry, view)? {
                        Some(event) => BufferOrEvent::Event(event),
                        None => continue,
                    }
                }
                Item::Buffer(entry, view) => BufferOrEvent::Buffer(Buffer {
                    channel,
                    subpartition: entry.subpartition,
                    bytes: self.unpack(channel, &entry, view)?,
                    records: entry.records,
                    partial_start: entry.partial_start,
                }),
                Item::EndOfSubpartition(subpartition, totals) => BufferOrEvent::EndOfSubpartition(EndOfSubpartition {
                    channel,
                    subpartition,
                    totals,
                }),
                Item::EndOfChannel => BufferOrEvent::EndOfChannel { channel },
            }));
        }
    }

    // ----------------------------------------------------------------------------------------------- records out

    /// The next record; `None` once every channel has ended or was cancelled. Events are passed over, see
    /// [`next_record_or_event`](Self::next_record_or_event).
    ///
    /// # Errors
    /// As [`next_record_or_event`](Self::next_record_or_event).
    #[inline]
    pub async fn next_record(&mut self) -> Result<Option<Record>> {
        loop {
            if let Some(record) = self.poll_record()? {
                return Ok(Some(record));
            }
            match self.next_record_or_event().await? {
                None => return Ok(None),
                Some(RecordOrEvent::Record(record)) => return Ok(Some(record)),
                Some(_) => {}
            }
        }
    }

    /// The next record, event or end; `None` once every channel has ended or was cancelled.
    ///
    /// # Errors
    /// The first failure of a channel, with its place and first cause; `ChecksumMismatch`, `CountMismatch`,
    /// `RecordTooLarge` or `Protocol` if what came is not what was sent or not records; `InvalidRequest` on a gate that
    /// is read by buffers.
    pub async fn next_record_or_event(&mut self) -> Result<Option<RecordOrEvent>> {
        self.enter(Layer::Records)?;
        loop {
            if let Some(record) = self.poll_record()? {
                return Ok(Some(RecordOrEvent::Record(record)));
            }
            let Some(output) = self.next_item().await? else {
                return Ok(None);
            };
            let channel = output.channel;
            match output.item {
                Item::Buffer(entry, view) if entry.kind == BufferKind::Event => {
                    if let Some(event) = self.handle_event(channel, &entry, view)? {
                        return Ok(Some(RecordOrEvent::Event(event)));
                    }
                }
                Item::Buffer(entry, view) => self.begin_buffer(channel, &entry, view)?,
                Item::EndOfSubpartition(subpartition, totals) => {
                    let end = EndOfSubpartition {
                        channel,
                        subpartition,
                        totals,
                    };
                    return Ok(Some(RecordOrEvent::EndOfSubpartition(end)));
                }
                Item::EndOfChannel => return Ok(Some(RecordOrEvent::EndOfChannel { channel })),
            }
        }
    }

    /// The next record of the current buffer.
    #[inline]
    fn poll_record(&mut self) -> Result<Option<Record>> {
        let Some(current) = &mut self.current else {
            return Ok(None);
        };
        let max_bytes = self.registration.max_record_bytes();
        match current.assembly.poll_record(&mut current.cursor, max_bytes) {
            Ok(Some(bytes)) => {
                let (channel, subpartition) = (current.channel, current.subpartition);
                Ok(Some(Record {
                    channel,
                    subpartition,
                    bytes,
                }))
            }
            Ok(None) => self.end_buffer().map(|()| None),
            Err(error) => {
                let (channel, subpartition) = (current.channel, current.subpartition);
                Err(self.fail_in(channel, subpartition, error))
            }
        }
    }

    fn begin_buffer(&mut self, channel: u32, entry: &SlotEntry, view: View) -> Result<()> {
        let subpartition = entry.subpartition;
        let progress = self
            .demux
            .channel_mut(channel)
            .and_then(|channel| channel.progress(subpartition));
        let progress = progress.expect("invariant: a buffer that came out is counted");
        let assembly = std::mem::take(&mut progress.records);
        if let Err(error) = assembly.handle_buffer(entry.partial_start) {
            return Err(self.fail_in(channel, subpartition, error));
        }
        let bytes = self.unpack(channel, entry, view)?;
        self.current = Some(Current {
            channel,
            subpartition,
            sequence: entry.sequence,
            records: entry.records,
            cursor: Cursor::new(bytes),
            assembly,
        });
        Ok(())
    }

    /// The current buffer is used up: what is left of it in the middle of a record goes back to its subpartition.
    fn end_buffer(&mut self) -> Result<()> {
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        let got = current.cursor.started();
        if got != current.records {
            let kind = ErrorKind::CountMismatch {
                what: "records that start in a buffer".to_owned(),
                expected: current.records.into(),
                got: got.into(),
            };
            let message = format!("in the buffer with sequence {}", current.sequence);
            let error = ShuffleError::new(kind, message).subpartition(current.subpartition);
            return Err(self.fail(Some(current.channel), error));
        }
        let channel = self.demux.channel_mut(current.channel);
        if let Some(progress) = channel.and_then(|channel| channel.progress(current.subpartition)) {
            progress.records = current.assembly;
        }
        Ok(())
    }

    // ------------------------------------------------------------------------------------------------ both layers

    /// Number of channels.
    pub fn channels(&self) -> u32 {
        self.registration.channels()
    }

    /// What came out so far.
    pub fn stats(&self) -> GateStats {
        self.stats
    }

    /// Gives up one channel, by its number in the gate: what has not come out of it never does, and its buffers and
    /// credits go back. On a channel that has ended, nothing happens.
    pub fn cancel_channel(&mut self, channel: u32) {
        if self.current.as_ref().is_some_and(|current| current.channel == channel) {
            self.current = None;
        }
        let Some(stream) = self.demux.channel(channel).map(|channel| channel.source().stream) else {
            return;
        };
        if self.demux.cancel(channel) {
            notify(self.registration.session(), |request| {
                Message::CancelChannel(CancelChannel {
                    request: request.value(),
                    stream: stream.value(),
                })
            });
        }
    }

    fn enter(&mut self, layer: Layer) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match self.layer {
            Some(entered) if entered != layer => Err(ShuffleError::new(
                ErrorKind::InvalidRequest,
                format!("the gate is read by {entered:?}, so it cannot be read by {layer:?}"),
            )),
            _ => {
                self.layer = Some(layer);
                Ok(())
            }
        }
    }

    /// The next item, checked and acknowledged.
    async fn next_item(&mut self) -> Result<Option<Output<View>>> {
        loop {
            self.take_arrivals()?;
            let polled = self.demux.poll_item();
            self.report_mismatches();
            #[cfg(debug_assertions)]
            if polled.is_ok() {
                self.demux.check_invariants();
            }
            match polled {
                Err(error) => return Err(self.fail(None, error)),
                Ok(Some(output)) => {
                    self.handle_output(&output);
                    return Ok(Some(output));
                }
                Ok(None) if self.demux.is_finished() => return Ok(None),
                Ok(None) => self.registration.inbox().ready().await,
            }
        }
    }

    fn take_arrivals(&mut self) -> Result<()> {
        if let Err((channel, error)) = self.registration.inbox().take(&mut self.arrivals) {
            return Err(self.fail(channel, error));
        }
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for (index, arrival) in arrivals.drain(..) {
            self.demux
                .handle_arrival(index, arrival)
                .map_err(|error| self.fail(None, error))?;
        }
        self.arrivals = arrivals;
        self.stats.refetched_buffers = self.demux.refetched();
        Ok(())
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("channels", &self.channels())
            .field("stats", &self.stats)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
