//! One channel: its sequence, its queue, and the counts of its subpartitions. Pure.
//!
//! - What arrives has sequence `next`, then `next` is one more: no gap, no repeat.
//! - Buffers queued here took at most the window of its credit; those that came in one slot took one.
//! - Behind a buffer without its checksum nothing comes out before it came once more.
//! - Nothing follows the end of a subpartition in it; the channel ends when each subpartition of its range has.

use std::collections::{BTreeMap, VecDeque};

use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::frame::{Arena, EndEntry, SlotEntry};
use shuffle_protocol::ids::{NodeAddress, PartitionId, Sequence, StreamId, SubpartitionIndex, SubpartitionRange};
use shuffle_protocol::partition::Totals;

use super::demux::{Arrival, Item};
use super::event::EventAssembly;
use super::mismatch::{Mismatch, Payload};
use super::record::Assembly;

/// Where a channel comes from, and how many buffers of it can be here at a time.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) stream: StreamId,
    pub(crate) node: NodeAddress,
    pub(crate) partition: PartitionId,
    pub(crate) range: SubpartitionRange,
    pub(crate) window: u64,
}

/// What came so far of one subpartition.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    came: Totals,
    pub(crate) records: Assembly,
    pub(crate) event: EventAssembly,
}

pub(crate) struct Channel<P> {
    source: Source,
    queue: VecDeque<Arrival<P>>,
    /// Credits that brought what is queued: buffers that came in one slot took one.
    queued_credits: u64,
    next: Sequence,
    checked: Sequence,
    /// Subpartitions of which something has come; `None`: ended.
    subpartitions: BTreeMap<SubpartitionIndex, Option<Progress>>,
    ended: u32,
    phase: Phase,
    /// The first of the queue, which did not match and is to come once more.
    awaited: Option<Sequence>,
}

/// What comes out of a channel.
pub(super) enum Next<P> {
    Item(Item<P>),
    /// Nothing, until this came once more.
    Mismatch(Mismatch),
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// More will arrive.
    Open,
    /// The last end has arrived.
    LastArrived,
    /// It has been delivered, and the end of the channel is next.
    EndDue,
    /// Ended or cancelled.
    Over,
}

impl<P: Payload> Channel<P> {
    /// A channel of an empty range has ended: nothing can come.
    pub(crate) fn new(source: Source) -> Self {
        let phase = if source.range.count == 0 {
            Phase::EndDue
        } else {
            Phase::Open
        };
        Self {
            source,
            queue: VecDeque::new(),
            queued_credits: 0,
            next: Sequence::ZERO,
            checked: Sequence::ZERO,
            subpartitions: BTreeMap::new(),
            ended: 0,
            phase,
            awaited: None,
        }
    }

    /// Puts an arrival in the queue. On a cancelled channel it is dropped.
    pub(super) fn handle_arrival(&mut self, arrival: Arrival<P>) -> Result<()> {
        let (sequence, subpartition) = match &arrival {
            Arrival::Buffer(entry, _) => (entry.sequence, entry.subpartition),
            Arrival::End(end) => (end.sequence, end.subpartition),
        };
        if self.awaited == Some(sequence) {
            return self.handle_repeated(arrival);
        }
        match self.phase {
            Phase::Over => return Ok(()),
            Phase::LastArrived | Phase::EndDue => {
                return Err(self.broken(subpartition, "something arrived behind the end of the channel"));
            }
            Phase::Open => {}
        }
        if sequence != self.next {
            let message = format!("sequence {sequence} arrived where {} was due", self.next);
            return Err(self.broken(subpartition, message));
        }
        if !self.source.range.contains(subpartition) {
            return Err(self.broken(subpartition, format!("the channel has {}", self.source.range)));
        }
        self.next = sequence
            .next()
            .ok_or_else(|| self.broken(subpartition, "the sequence numbers are used up"))?;
        match &arrival {
            Arrival::Buffer(entry, _) => {
                let last = self.queue.back();
                let joins = matches!(last, Some(Arrival::Buffer(last, _)) if shares_slot(last, entry));
                self.queued_credits += u64::from(!joins);
            }
            Arrival::End(end) if end.last => self.phase = Phase::LastArrived,
            Arrival::End(_) => {}
        }
        if self.queued_credits > self.source.window {
            let message = format!("more buffers arrived than the credit of {}", self.source.window);
            return Err(self.broken(subpartition, message));
        }
        self.queue.push_back(arrival);
        Ok(())
    }

    /// The buffer that did not match came once more: it takes its place.
    fn handle_repeated(&mut self, arrival: Arrival<P>) -> Result<()> {
        match (arrival, self.queue.front_mut()) {
            (Arrival::Buffer(entry, repeated), Some(Arrival::Buffer(first, payload)))
                if entry.length == first.length =>
            {
                payload.renew(repeated);
                self.awaited = None;
                Ok(())
            }
            (Arrival::Buffer(entry, _), _) => Err(self.broken(entry.subpartition, "another buffer came once more")),
            (Arrival::End(end), _) => Err(self.broken(end.subpartition, "an end came where a buffer was awaited")),
        }
    }

    /// It waits for a buffer to come once more.
    pub(super) fn is_awaiting(&self) -> bool {
        self.awaited.is_some()
    }

    /// It has something to come out now.
    pub(super) fn has_queued(&self) -> bool {
        (self.awaited.is_none() && !self.queue.is_empty()) || self.phase == Phase::EndDue
    }

    /// Takes the next item and proves it.
    pub(super) fn poll_next(&mut self) -> Result<Next<P>> {
        if self.phase == Phase::EndDue {
            self.phase = Phase::Over;
            return Ok(Next::Item(Item::EndOfChannel));
        }
        let (item, sequence) = match self.queue.pop_front() {
            None => return Ok(Next::Nothing),
            Some(Arrival::Buffer(entry, payload)) => {
                if let Some(mismatch) = self.find_mismatch(&entry, payload.as_ref()) {
                    self.awaited = Some(entry.sequence);
                    self.queue.push_front(Arrival::Buffer(entry, payload));
                    return Ok(Next::Mismatch(mismatch));
                }
                let next = self.queue.front();
                let is_followed = matches!(next, Some(Arrival::Buffer(next, _)) if shares_slot(&entry, next));
                self.queued_credits -= u64::from(!is_followed);
                self.count_buffer(&entry)?;
                (Item::Buffer(entry, payload), entry.sequence)
            }
            Some(Arrival::End(end)) => {
                self.check_end(&end)?;
                (Item::EndOfSubpartition(end.subpartition, end.totals), end.sequence)
            }
        };
        self.checked = sequence.next().expect("invariant: it was there at arrival");
        Ok(Next::Item(item))
    }

    /// Everything below came out and was proven.
    pub(super) fn checked(&self) -> Sequence {
        self.checked
    }

    /// Gives the channel up. False: it was over.
    pub(super) fn cancel(&mut self) -> bool {
        let was_open = self.phase != Phase::Over;
        self.phase = Phase::Over;
        self.awaited = None;
        self.queue.clear();
        self.queued_credits = 0;
        self.subpartitions.clear();
        was_open
    }

    #[cfg(any(test, debug_assertions))]
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// What has come of a subpartition that has not ended.
    pub(crate) fn progress(&mut self, subpartition: SubpartitionIndex) -> Option<&mut Progress> {
        self.subpartitions.get_mut(&subpartition)?.as_mut()
    }

    /// Adds to an error where the channel comes from.
    pub(crate) fn locate(&self, error: ShuffleError) -> ShuffleError {
        error
            .partition(self.source.partition)
            .node(&self.source.node)
            .stream(self.source.stream)
    }

    fn find_mismatch(&self, entry: &SlotEntry, payload: &[u8]) -> Option<Mismatch> {
        if entry.unchecked {
            return None;
        }
        let got = crc32fast::hash(payload);
        (got != entry.checksum).then_some(Mismatch {
            stream: self.source.stream,
            entry: *entry,
            got,
        })
    }

    fn count_buffer(&mut self, entry: &SlotEntry) -> Result<()> {
        match self
            .subpartitions
            .entry(entry.subpartition)
            .or_insert_with(|| Some(Progress::default()))
        {
            Some(progress) => {
                progress
                    .came
                    .add_buffer(entry.length, entry.checksum, entry.records, entry.kind);
                Ok(())
            }
            None => Err(self.broken(entry.subpartition, "a buffer behind the end of its subpartition")),
        }
    }

    fn check_end(&mut self, end: &EndEntry) -> Result<()> {
        let subpartition = end.subpartition;
        let progress = match self.subpartitions.insert(subpartition, None) {
            Some(None) => return Err(self.broken(subpartition, "a second end of its subpartition")),
            Some(Some(progress)) => progress,
            None => Progress::default(),
        };
        let counted = end.totals.verify(&progress.came);
        counted.map_err(|error| self.locate(error.subpartition(subpartition)))?;
        if progress.event.is_under_way() || !progress.records.is_at_boundary() {
            return Err(self.broken(subpartition, "it ended in the middle of a record or event"));
        }
        self.ended += 1;
        if end.last {
            if self.ended != self.source.range.count {
                let kind = ErrorKind::CountMismatch {
                    what: "ends of subpartitions".to_owned(),
                    expected: self.source.range.count.into(),
                    got: self.ended.into(),
                };
                let message = format!("the channel ended; it has {}", self.source.range);
                return Err(self.locate(ShuffleError::new(kind, message)));
            }
            self.phase = Phase::EndDue;
            self.subpartitions.clear();
        }
        Ok(())
    }

    fn broken(&self, subpartition: SubpartitionIndex, message: impl Into<String>) -> ShuffleError {
        self.locate(ShuffleError::new(ErrorKind::Protocol, message).subpartition(subpartition))
    }
}

/// Whether two buffers that follow each other came in one slot, for one credit. A slot is filled again only when all that came in
/// it is given back.
pub(super) fn shares_slot(first: &SlotEntry, next: &SlotEntry) -> bool {
    (first.arena, next.arena) == (Arena::Read, Arena::Read) && first.slot == next.slot
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use shuffle_protocol::error::ErrorKind;
    use shuffle_protocol::frame::{Arena, SlotEntry};
    use shuffle_protocol::ids::{NodeAddress, PartitionId, ResultId, Sequence, StreamId, SubpartitionRange};

    use super::{Channel, Next, Source};
    use crate::consumer::demux::Arrival;

    fn channel(window: u64) -> Channel<Bytes> {
        let partition = PartitionId {
            result: ResultId::new(11),
            index: 3,
            attempt: 5,
        };
        Channel::new(Source {
            stream: StreamId::new(1),
            node: NodeAddress::parse("node:1").unwrap(),
            partition,
            range: SubpartitionRange::new(0, 1).unwrap(),
            window,
        })
    }

    fn packed(sequence: u64, slot: u32, payload: &'static [u8]) -> Arrival<Bytes> {
        let entry = SlotEntry {
            sequence: Sequence::new(sequence),
            slot,
            length: u32::try_from(payload.len()).unwrap(),
            checksum: crc32fast::hash(payload),
            arena: Arena::Read,
            ..SlotEntry::default()
        };
        Arrival::Buffer(entry, Bytes::from_static(payload))
    }

    /// What came in one slot took one credit, however much of it has come out.
    #[test]
    fn buffers_in_one_slot_take_one_credit() {
        let mut channel = channel(2);
        // The first has no payload, so the second begins where it does.
        for (sequence, slot, payload) in [(0, 7, &b""[..]), (1, 7, b"x"), (2, 7, b"y"), (3, 9, b"z")] {
            channel.handle_arrival(packed(sequence, slot, payload)).unwrap();
        }
        assert!(
            matches!(channel.poll_next(), Ok(Next::Item(_))),
            "two of the first slot stay"
        );
        let error = channel.handle_arrival(packed(4, 8, b"")).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Protocol), "{error}");
    }

    /// Those of a slot come out before the others of it are here, or together; then its credit may bring the next.
    #[test]
    fn a_slot_whose_buffers_have_come_out_takes_no_credit() {
        for together in [1, 2, 3] {
            let mut channel = channel(1);
            for sequence in 0..12 {
                let slot = u32::try_from(sequence / 3).unwrap();
                channel.handle_arrival(packed(sequence, slot, b"abc")).unwrap();
                if sequence % 3 == 2 || (sequence + 1) % together == 0 {
                    while let Ok(Next::Item(_)) = channel.poll_next() {}
                }
            }
        }
    }
}
