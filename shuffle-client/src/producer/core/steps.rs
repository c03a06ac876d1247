//! What the producer does, in steps that end where it has to wait.

use std::time::Instant;

use shuffle_protocol::error::Result;
use shuffle_protocol::ids::SubpartitionIndex;
use shuffle_protocol::partition::BufferKind;

use super::leaving::Shape;
use super::state::{Core, Need, Space, to_index};
use crate::producer::record::{Encoder, encode_record};

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

impl<B: Space> Core<B> {
    // --------------------------------------------------------------------------------------------- the record layer

    /// Writes a record into the buffer that is open, if it fits. The hot path: nothing else happens unless the buffer
    /// is full then.
    #[inline]
    pub(crate) fn append(&mut self, subpartition: SubpartitionIndex, record: &[u8]) -> bool {
        if let Some(sorted) = &mut self.sorted {
            let in_turn = self.torn.is_none() && record.len() <= self.config.max_record;
            let is_there = subpartition.value() < self.config.subpartitions;
            let fast = in_turn && is_there && !self.config.after_each_record;
            return fast && sorted.append(subpartition, record);
        }
        let index = to_index(subpartition.value());
        let Some(place) = self.subpartitions.get(index).and_then(|sub| sub.open) else {
            return false;
        };
        if self.torn.is_some() || record.len() > self.config.max_record {
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
        if self.sorted.is_some() {
            return self.write_sorted(subpartition, record, now);
        }
        self.write_whole(subpartition, record, now)
    }

    /// The same, into buffers of this subpartition alone.
    pub(super) fn write_whole(
        &mut self,
        subpartition: SubpartitionIndex,
        record: &mut Encoder<'_>,
        now: Instant,
    ) -> Result<Need> {
        let index = subpartition.value();
        while record.remaining() > 0 {
            let space = self.open_space(index);
            let fits_space = space.is_some_and(|space| record.remaining() <= space);
            if !record.is_torn() && !fits_space && record.remaining() <= self.config.capacity {
                // It fits one buffer, so it takes one fresh buffer: get all it needs before its first byte.
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
        let need = self.drain();
        if need != Need::Nothing {
            return Ok(need);
        }
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
        self.check_alive()?;
        self.check_usable(subpartition)?;
        // What is staged needs buffers to leave: they are not lent first.
        if self.drain() != Need::Nothing {
            return Ok(None);
        }
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
        self.check_alive()?;
        self.check_usable(subpartition)?;
        let index = subpartition.value();
        let need = self.drain();
        if need != Need::Nothing {
            return Ok(need);
        }
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
}
