//! Who reads which subpartitions of a partition, and when all of them have.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use shuffle_protocol::{ShuffleError, SubpartitionRange, error::ErrorKind};

use super::{Listener, OutletNo, Partition};

#[derive(Debug)]
pub(super) struct ReaderRange {
    pub(super) count: u32,
    pub(super) reader: Option<OutletNo>,
}

impl Partition {
    /// Gives a range to a reader. Each subpartition of an ephemeral partition is read once.
    ///
    /// # Errors
    /// `InvalidRequest` for a range that is not there or is being read; `Released` for one that was read; what a
    /// persistent one has ended as.
    pub(crate) fn attach(
        &mut self,
        range: SubpartitionRange,
        reader: OutletNo,
        listener: Option<&Listener>,
    ) -> Result<(), ShuffleError> {
        let end = u64::from(range.first) + u64::from(range.count);
        if range.count == 0 || end > u64::from(self.subpartitions()) {
            return Err(self.refuse(
                ErrorKind::InvalidRequest,
                format!(
                    "subpartitions {}..{end} were asked for, the partition has {}",
                    range.first,
                    self.subpartitions()
                ),
            ));
        }
        if self.is_broadcast != listener.is_some() {
            let (is, asked) = if self.is_broadcast {
                ("is", "for a channel of one")
            } else {
                ("is not", "for one")
            };
            let message = format!("the partition {is} broadcast, and its consumer asked {asked}");
            return Err(self.refuse(ErrorKind::InvalidRequest, message));
        }
        if let Some(listener) = listener
            && let Some(queue) = self.queue(0)
            && !(queue.base()..=queue.handed_over()).contains(&listener.from())
            && listener.moved.is_some()
        {
            let (from, base) = (listener.from(), queue.base());
            let message =
                format!("a channel that begins with buffer {from} was asked for, {base} is the first there is");
            return Err(self.refuse(ErrorKind::InvalidRequest, message));
        }
        if let (Some(audience), Some(listener)) = (&mut self.audience, listener) {
            let attached = match &listener.moved {
                Some((of, moved)) => audience.take_over(reader, *of, moved.consumers, moved.from),
                None => audience.attach(reader, &listener.node, listener.declared, listener.consumers),
            };
            return attached.map_err(|error| error.job(self.job).partition(self.id));
        }
        if let Some(kept) = &mut self.kept {
            if let Some(ended) = &kept.ended {
                return Err(ended.answer(self.job, self.id));
            }
            kept.attach(reader, range);
            return Ok(());
        }
        let below = self.ranges.range(..=range.first).next_back();
        let above = self.ranges.range(range.first..).next();
        for (first, taken) in below.into_iter().chain(above) {
            let taken_end = u64::from(*first) + u64::from(taken.count);
            if u64::from(*first) < end && taken_end > u64::from(range.first) {
                return Err(if taken.reader.is_some() {
                    self.refuse(
                        ErrorKind::InvalidRequest,
                        format!("subpartitions {first}..{taken_end} have a reader already; an ephemeral partition is read once"),
                    )
                } else {
                    self.refuse(
                        ErrorKind::Released,
                        format!(
                            "subpartitions {first}..{taken_end} have been read, and an ephemeral partition is read once"
                        ),
                    )
                });
            }
        }
        match self.ranges.entry(range.first) {
            Entry::Vacant(place) => place.insert(ReaderRange {
                count: range.count,
                reader: Some(reader),
            }),
            Entry::Occupied(_) => unreachable!("an overlap was ruled out above"),
        };
        Ok(())
    }

    /// The range starting there has been read to its end, or its reader is gone: what still comes is thrown away, unless it is
    /// kept.
    pub(crate) fn detach(&mut self, first: u32, reader: OutletNo) {
        if let Some(kept) = &mut self.kept {
            return kept.detach(reader);
        }
        if let Some(audience) = &mut self.audience {
            return audience.detach(reader);
        }
        let range = self
            .ranges
            .get_mut(&first)
            .expect("invariant: a reader leaves the range it was given");
        assert!(range.reader.take().is_some(), "a reader left a range twice");
        self.done += range.count;
        for index in first..first + range.count {
            if let Some(queue) = self.queues.get_mut(index) {
                queue.set_listed(false);
            }
        }
    }

    /// Closes the partition to new readers. Gives the subpartitions that have none and so never will.
    pub(crate) fn give_up_unread(&mut self) -> Vec<u32> {
        let mut given_up = Vec::new();
        let mut gaps = Vec::new();
        let mut from = 0;
        for (&first, range) in &self.ranges {
            if first > from {
                gaps.push((from, first - from));
            }
            from = first + range.count;
        }
        if from < self.subpartitions() {
            gaps.push((from, self.subpartitions() - from));
        }
        for (first, count) in gaps {
            self.ranges.insert(first, ReaderRange { count, reader: None });
            self.done += count;
            given_up.extend((first..first + count).filter(|&index| self.queue(index).is_some()));
        }
        given_up
    }

    /// Nobody reads this subpartition and nobody ever will.
    pub(crate) fn is_discarding(&self, subpartition: u32) -> bool {
        if let Some(audience) = &self.audience {
            return audience.is_over();
        }
        range_in(&self.ranges, subpartition).is_some_and(|range| range.reader.is_none())
    }

    /// Every subpartition has been read or given up; what is kept: released or expired, and nobody reads it any more.
    pub(crate) fn is_consumed(&self) -> bool {
        match (&self.kept, &self.audience) {
            (Some(kept), _) => kept.ended.is_some() && !kept.is_read(),
            (None, Some(audience)) => audience.is_over(),
            (None, None) => self.done == self.subpartitions(),
        }
    }

    /// The readers there are.
    pub(crate) fn readers(&self) -> Vec<OutletNo> {
        match (&self.kept, &self.audience) {
            (Some(kept), _) => kept.readers().collect(),
            (None, Some(audience)) => audience.readers().collect(),
            (None, None) => self.ranges.values().filter_map(|range| range.reader).collect(),
        }
    }

    /// Who reads a subpartition that is read once.
    pub(crate) fn reader_of(&self, subpartition: u32) -> Option<OutletNo> {
        reader_in(&self.ranges, subpartition)
    }

    fn refuse(&self, kind: ErrorKind, message: String) -> ShuffleError {
        ShuffleError::new(kind, message).job(self.job).partition(self.id)
    }
}

/// Who reads a subpartition, by the ranges there are.
pub(super) fn reader_in(ranges: &BTreeMap<u32, ReaderRange>, subpartition: u32) -> Option<OutletNo> {
    range_in(ranges, subpartition)?.reader
}

fn range_in(ranges: &BTreeMap<u32, ReaderRange>, subpartition: u32) -> Option<&ReaderRange> {
    let (first, range) = ranges.range(..=subpartition).next_back()?;
    (subpartition - first < range.count).then_some(range)
}
