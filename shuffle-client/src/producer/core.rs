//! The books of one writer. Pure: `now` is passed in, memory is whatever [`Space`] is, and what leaves is collected in
//! a list that the caller sends.
//!
//! ```text
//!   granted --> free (LIFO) --> open, one per subpartition --> handed over
//!                 ^  \--> lent (WriteBuffer) --> committed ------^
//!                 \----------/ dropped unused
//! ```
//!
//! - `handed(s) <= limit(s)` for every subpartition `s`: the queue limit.
//! - `queued(s) = handed(s) - (limit(s) - max_queued)`, at least 0: the limit rises by one for each buffer consumed.
//!   `in_flight` is the sum of it.
//! - A record that fits the rest of the open buffer and one fresh buffer is written whole or not at all; only a longer
//!   one can be torn by a caller that gives up in its middle, and then the writer refuses to go on.

use std::time::{Duration, Instant};

use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::frame::SlotEntry;
use shuffle_protocol::ids::{Sequence, SubpartitionIndex, WriterId};
use shuffle_protocol::partition::{BufferKind, Totals};

use super::record::{Encoder, encode_record};

/// A granted buffer.
pub(crate) trait Space {
    /// Number of the buffer in the write arena.
    fn slot(&self) -> u32;
    /// Its memory.
    fn space(&mut self) -> &mut [u8];
    /// The same, to read.
    fn bytes(&self) -> &[u8];
}

/// What a step needs before it can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: it is done.
    Nothing,
    /// A granted buffer.
    Buffer,
    /// The queue limit of the subpartition to rise.
    Limit,
}

/// The fixed facts of a writer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CoreConfig {
    pub(crate) writer: WriterId,
    pub(crate) subpartitions: u32,
    pub(crate) capacity: usize,
    pub(crate) max_queued: u32,
    pub(crate) after_each_record: bool,
}

/// A buffer that leaves, with its descriptor.
pub(crate) struct HandOver<B> {
    pub(crate) entry: SlotEntry,
    pub(crate) buffer: B,
    pub(crate) used: usize,
}

/// One user event on its way into one or more buffers.
#[derive(Debug)]
pub(crate) struct EventCursor<'a> {
    rest: &'a [u8],
    started: bool,
    done: bool,
}

impl<'a> EventCursor<'a> {
    pub(crate) fn new(event: &'a [u8]) -> Self {
        Self {
            rest: event,
            started: false,
            done: false,
        }
    }

    /// Whether a part of it, but not all, is in the stream.
    pub(crate) fn is_torn(&self) -> bool {
        self.started && !self.done
    }
}

#[derive(Clone, Copy, Default)]
struct Shape {
    kind: BufferKind,
    continues: bool,
    partial_start: bool,
}

struct Subpartition {
    handed: u64,
    limit: u64,
    totals: Totals,
    /// Place in `Core::open`.
    open: Option<u32>,
}

impl Subpartition {
    fn queued(&self, window: u64) -> u64 {
        self.handed.saturating_sub(self.limit - window)
    }
}

struct Open<B> {
    buffer: B,
    subpartition: u32,
    used: usize,
    records: u32,
    partial_start: bool,
    opened_at: Instant,
    /// It is to leave as soon as the limit allows.
    due: bool,
}

pub(crate) struct Core<B> {
    config: CoreConfig,
    free: Vec<B>,
    open: Vec<Open<B>>,
    subpartitions: Vec<Subpartition>,
    leaving: Vec<HandOver<B>>,
    /// Buffers taken from `free`, less those put back.
    taken: u64,
    demanded: u64,
    prefetch: u64,
    in_flight: u64,
    torn: Option<SubpartitionIndex>,
    failure: Option<ShuffleError>,
}

/// Granted buffers kept in hand: at first, and once the producer had to wait.
const PREFETCH_LEAST: u64 = 2;
const PREFETCH_MOST: u64 = 8;

impl<B: Space> Core<B> {
    pub(crate) fn new(config: CoreConfig) -> Self {
        let limit = u64::from(config.max_queued);
        let subpartitions = (0..config.subpartitions)
            .map(|_| Subpartition {
                handed: 0,
                limit,
                totals: Totals::default(),
                open: None,
            })
            .collect();
        Self {
            config,
            free: Vec::new(),
            open: Vec::new(),
            subpartitions,
            leaving: Vec::new(),
            taken: 0,
            demanded: 0,
            prefetch: PREFETCH_LEAST,
            in_flight: 0,
            torn: None,
            failure: None,
        }
    }

    // ------------------------------------------------------------------------------------------- from the server

    pub(crate) fn handle_grant(&mut self, buffer: B) {
        self.free.push(buffer);
    }

    /// The queue limit of a subpartition is now `limit`; a lower one is late and means nothing.
    pub(crate) fn handle_limit(&mut self, subpartition: u32, limit: u64) -> Result<()> {
        let Some(sub) = self.subpartitions.get_mut(to_index(subpartition)) else {
            return Err(broken(format!(
                "a queue limit for subpartition {subpartition}, which is not there"
            )));
        };
        let window = u64::from(self.config.max_queued);
        let before = sub.queued(window);
        sub.limit = sub.limit.max(limit);
        self.in_flight -= before - sub.queued(window);
        if let Some(open) = sub.open
            && self.open[to_index(open)].due
        {
            self.hand_over_open(subpartition);
        }
        Ok(())
    }

    /// The writer has failed. The first failure stays; its buffers are to be given back.
    pub(crate) fn handle_failure(&mut self, error: ShuffleError) -> Vec<B> {
        self.failure.get_or_insert(error);
        self.take_unsent()
    }

    // --------------------------------------------------------------------------------------------- the record layer

    /// Writes a record into the buffer that is open, if it fits. The hot path: nothing else happens unless the buffer
    /// is full then.
    #[inline]
    pub(crate) fn append(&mut self, subpartition: SubpartitionIndex, record: &[u8]) -> bool {
        let index = to_index(subpartition.value());
        let Some(place) = self.subpartitions.get(index).and_then(|sub| sub.open) else {
            return false;
        };
        if self.torn.is_some() {
            return false;
        }
        let open = &mut self.open[to_index(place)];
        let Some(n) = encode_record(&mut open.buffer.space()[open.used..], record) else {
            return false;
        };
        open.used += n;
        open.records += 1;
        if open.used == self.config.capacity || self.config.after_each_record {
            open.due = true;
            self.hand_over_open(subpartition.value());
        }
        true
    }

    /// Writes as much of a record as buffers and limit allow now.
    pub(crate) fn write_step(
        &mut self,
        subpartition: SubpartitionIndex,
        record: &mut Encoder<'_>,
        now: Instant,
    ) -> Result<Need> {
        self.check_usable(subpartition)?;
        let index = subpartition.value();
        while record.remaining() > 0 {
            let space = self.open_space(index);
            let tail = record.remaining().saturating_sub(space.unwrap_or(0));
            if !record.is_torn() && tail > 0 && tail <= self.config.capacity {
                // It needs exactly one fresh buffer: get all it needs before its first byte.
                if space.is_some() && !self.has_limit(index) {
                    self.mark_due(index);
                    return Ok(Need::Limit);
                }
                if self.free.is_empty() {
                    return Ok(Need::Buffer);
                }
            }
            match space {
                None => {
                    let Some(buffer) = self.take_free() else {
                        return Ok(self.need_in_record(subpartition, record, Need::Buffer));
                    };
                    self.open_buffer(index, buffer, record.is_torn(), now);
                }
                Some(0) if !self.hand_over_open(index) => {
                    return Ok(self.need_in_record(subpartition, record, Need::Limit));
                }
                Some(0) => {}
                Some(_) => self.fill_open(index, record),
            }
        }
        self.torn = None;
        if self.open_space(index) == Some(0) || self.config.after_each_record {
            self.mark_due(index);
            self.hand_over_open(index);
        }
        Ok(Need::Nothing)
    }

    fn need_in_record(&mut self, subpartition: SubpartitionIndex, record: &Encoder<'_>, need: Need) -> Need {
        if record.is_torn() {
            self.torn = Some(subpartition);
        }
        need
    }

    fn fill_open(&mut self, index: u32, record: &mut Encoder<'_>) {
        let place = self.subpartitions[to_index(index)]
            .open
            .expect("invariant: the caller saw it open");
        let open = &mut self.open[to_index(place)];
        if !record.is_torn() {
            open.records += 1;
        }
        open.used += record.fill(&mut open.buffer.space()[open.used..]);
    }

    /// Writes as much of an event as buffers and limit allow now; what was open in the subpartition leaves before it.
    pub(crate) fn event_step(&mut self, subpartition: SubpartitionIndex, event: &mut EventCursor<'_>) -> Result<Need> {
        self.check_usable(subpartition)?;
        let index = subpartition.value();
        while !event.done {
            if self.is_open(index) {
                self.mark_due(index);
                if !self.hand_over_open(index) {
                    return Ok(Need::Limit);
                }
            }
            if !self.has_limit(index) {
                return Ok(Need::Limit);
            }
            let Some(mut buffer) = self.take_free() else {
                return Ok(Need::Buffer);
            };
            let (part, rest) = event.rest.split_at(event.rest.len().min(self.config.capacity));
            buffer.space()[..part.len()].copy_from_slice(part);
            (event.rest, event.started, event.done) = (rest, true, rest.is_empty());
            let shape = Shape {
                kind: BufferKind::Event,
                continues: !event.done,
                partial_start: false,
            };
            self.hand_over(index, buffer, part.len(), 0, shape);
        }
        Ok(Need::Nothing)
    }

    /// An event is under way in this subpartition and must not be given up; `None`: it is not.
    pub(crate) fn set_torn(&mut self, subpartition: Option<SubpartitionIndex>) {
        self.torn = subpartition;
    }

    // --------------------------------------------------------------------------------------------- the buffer layer

    /// A free buffer, for the caller to fill.
    pub(crate) fn lend(&mut self, subpartition: SubpartitionIndex) -> Result<Option<B>> {
        self.check_usable(subpartition)?;
        Ok(self.take_free())
    }

    /// A lent buffer comes back unused. `Err`: the writer has failed, and the buffer must go to the server.
    pub(crate) fn put_back(&mut self, buffer: B) -> std::result::Result<(), B> {
        if self.failure.is_some() {
            return Err(buffer);
        }
        self.taken -= 1;
        self.free.push(buffer);
        Ok(())
    }

    /// Hands a lent buffer over, behind what was open in the subpartition. The buffer is taken only when the answer is
    /// `Need::Nothing`.
    pub(crate) fn commit_step(
        &mut self,
        subpartition: SubpartitionIndex,
        buffer: &mut Option<B>,
        used: usize,
        records: u32,
    ) -> Result<Need> {
        self.check_usable(subpartition)?;
        let index = subpartition.value();
        if self.is_open(index) {
            self.mark_due(index);
            if !self.hand_over_open(index) {
                return Ok(Need::Limit);
            }
        }
        if !self.has_limit(index) {
            return Ok(Need::Limit);
        }
        if let Some(buffer) = buffer.take() {
            self.hand_over(index, buffer, used, records, Shape::default());
        }
        Ok(Need::Nothing)
    }

    // ------------------------------------------------------------------------------------------- partial buffers

    /// Lets every open buffer leave, as far as limits allow. `Need::Limit`: some are still here.
    pub(crate) fn flush_step(&mut self) -> Result<Need> {
        self.check_alive()?;
        self.hand_over_where(|_| true);
        Ok(if self.open.is_empty() {
            Need::Nothing
        } else {
            Need::Limit
        })
    }

    /// Lets buffers leave that were opened `interval` ago, and says when to call again; `None`: when one is opened.
    pub(crate) fn handle_timeout(&mut self, now: Instant, interval: Duration) -> Option<Instant> {
        self.hand_over_where(|open| now.saturating_duration_since(open.opened_at) >= interval);
        self.open
            .iter()
            .filter(|open| !open.due)
            .map(|open| open.opened_at + interval)
            .min()
    }

    /// The producer has to wait for a buffer. If little of what was granted is on its way to readers, waiting would not
    /// help: then the fuller half of the open buffers leaves, and comes back once consumed.
    pub(crate) fn handle_starved(&mut self, waited_long: bool) {
        self.prefetch = PREFETCH_MOST;
        let wanted = (self.open.len() / 2).max(1);
        if !waited_long && self.in_flight >= wanted.try_into().unwrap_or(u64::MAX) {
            return;
        }
        let mut fullest: Vec<(usize, u32)> = self
            .open
            .iter()
            .filter(|open| self.has_limit(open.subpartition))
            .map(|open| (open.used, open.subpartition))
            .collect();
        fullest.sort_unstable_by(|a, b| b.cmp(a));
        for (_, subpartition) in fullest.into_iter().take(wanted) {
            self.hand_over_open(subpartition);
        }
    }

    fn hand_over_where(&mut self, chosen: impl Fn(&Open<B>) -> bool) {
        let mut place = 0;
        while let Some(open) = self.open.get_mut(place) {
            if chosen(open) {
                open.due = true;
                let subpartition = open.subpartition;
                if self.hand_over_open(subpartition) {
                    // The last one took its place.
                    continue;
                }
            }
            place += 1;
        }
    }

    // --------------------------------------------------------------------------------------------------- output

    /// What leaves, in order.
    pub(crate) fn poll_leaving(&mut self) -> std::vec::Drain<'_, HandOver<B>> {
        self.leaving.drain(..)
    }

    pub(crate) fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The number of buffers wanted in total, if it is time to say so.
    pub(crate) fn poll_demand(&mut self) -> Option<u64> {
        let wanted = self.taken + self.prefetch;
        if self.failure.is_some() || wanted < self.demanded + self.prefetch / 2 {
            return None;
        }
        self.demanded = wanted;
        Some(wanted)
    }

    /// Buffers that wait in a subpartition; `None` if it is blocked: its queue and its open buffer are full.
    pub(crate) fn load(&self, subpartition: u32) -> Option<u64> {
        let sub = &self.subpartitions[to_index(subpartition)];
        let full = sub
            .open
            .is_none_or(|place| self.open[to_index(place)].used == self.config.capacity);
        let blocked = full && sub.handed == sub.limit;
        (!blocked).then(|| sub.queued(u64::from(self.config.max_queued)))
    }

    pub(crate) fn subpartitions(&self) -> u32 {
        self.config.subpartitions
    }

    pub(crate) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// What was handed over, by subpartition.
    pub(crate) fn totals(&self) -> Vec<Totals> {
        self.subpartitions.iter().map(|sub| sub.totals).collect()
    }

    /// Buffers that never leave; the writer is done.
    pub(crate) fn take_unsent(&mut self) -> Vec<B> {
        for open in &self.open {
            self.subpartitions[to_index(open.subpartition)].open = None;
        }
        let open = self.open.drain(..).map(|open| open.buffer);
        self.free.drain(..).chain(open).collect()
    }

    /// Whether calls can still succeed.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        match self.torn {
            None => Ok(()),
            Some(subpartition) => Err(ShuffleError::new(
                ErrorKind::Cancelled,
                "an earlier write was dropped in the middle of a record or event that spans buffers; the stream \
                 cannot go on from there",
            )
            .subpartition(subpartition)),
        }
    }

    fn check_usable(&self, subpartition: SubpartitionIndex) -> Result<()> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        if subpartition.value() >= self.config.subpartitions {
            return Err(ShuffleError::new(
                ErrorKind::InvalidRequest,
                format!("the partition has {} subpartitions", self.config.subpartitions),
            )
            .subpartition(subpartition));
        }
        Ok(())
    }

    // ------------------------------------------------------------------------------------------------- helpers

    fn take_free(&mut self) -> Option<B> {
        let buffer = self.free.pop()?;
        self.taken += 1;
        Some(buffer)
    }

    fn is_open(&self, index: u32) -> bool {
        self.subpartitions[to_index(index)].open.is_some()
    }

    fn has_limit(&self, index: u32) -> bool {
        let sub = &self.subpartitions[to_index(index)];
        sub.handed < sub.limit
    }

    fn open_space(&self, index: u32) -> Option<usize> {
        let place = self.subpartitions[to_index(index)].open?;
        Some(self.config.capacity - self.open[to_index(place)].used)
    }

    fn mark_due(&mut self, index: u32) {
        if let Some(place) = self.subpartitions[to_index(index)].open {
            self.open[to_index(place)].due = true;
        }
    }

    fn open_buffer(&mut self, index: u32, buffer: B, partial_start: bool, now: Instant) {
        let place = u32::try_from(self.open.len()).expect("invariant: no more open than subpartitions");
        self.open.push(Open {
            buffer,
            subpartition: index,
            used: 0,
            records: 0,
            partial_start,
            opened_at: now,
            due: false,
        });
        self.subpartitions[to_index(index)].open = Some(place);
    }

    /// Hands the open buffer of a subpartition over, if there is one and the limit allows.
    fn hand_over_open(&mut self, index: u32) -> bool {
        let Some(place) = self.subpartitions[to_index(index)].open else {
            return false;
        };
        if !self.has_limit(index) {
            return false;
        }
        let open = self.open.swap_remove(to_index(place));
        self.subpartitions[to_index(index)].open = None;
        if let Some(moved) = self.open.get(to_index(place)) {
            self.subpartitions[to_index(moved.subpartition)].open = Some(place);
        }
        let shape = Shape {
            partial_start: open.partial_start,
            ..Shape::default()
        };
        self.hand_over(index, open.buffer, open.used, open.records, shape);
        true
    }

    fn hand_over(&mut self, index: u32, buffer: B, used: usize, records: u32, shape: Shape) {
        let sub = &mut self.subpartitions[to_index(index)];
        debug_assert!(sub.handed < sub.limit);
        let checksum = crc32fast::hash(&buffer.bytes()[..used]);
        let length = u32::try_from(used).expect("invariant: a buffer is at most 16 MiB");
        sub.totals.add_buffer(length, checksum, records, shape.kind);
        let entry = SlotEntry {
            stream: self.config.writer.into(),
            subpartition: SubpartitionIndex::new(index),
            sequence: Sequence::new(sub.handed),
            slot: buffer.slot(),
            length,
            checksum,
            records,
            kind: shape.kind,
            continues: shape.continues,
            partial_start: shape.partial_start,
            ..SlotEntry::default()
        };
        sub.handed += 1;
        self.in_flight += 1;
        self.leaving.push(HandOver { entry, buffer, used });
    }

    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check_invariants(&self) {
        let window = u64::from(self.config.max_queued);
        let in_flight: u64 = self.subpartitions.iter().map(|sub| sub.queued(window)).sum();
        assert_eq!(in_flight, self.in_flight);
        for (place, open) in self.open.iter().enumerate() {
            assert_eq!(
                self.subpartitions[to_index(open.subpartition)].open.map(to_index),
                Some(place)
            );
            assert!(open.used <= self.config.capacity);
        }
        let open = self.subpartitions.iter().filter(|sub| sub.open.is_some()).count();
        assert_eq!(open, self.open.len());
        assert!(self.subpartitions.iter().all(|sub| sub.handed <= sub.limit));
    }
}

fn to_index(value: u32) -> usize {
    usize::try_from(value).expect("invariant: Linux has at least 32 bits")
}

fn broken(message: String) -> ShuffleError {
    ShuffleError::new(ErrorKind::Protocol, message)
}
