//! The life of one result partition.
//!
//! ```text
//!   created ─▶ producing ─▶ finished ─▶ released      every range read to its end, or nobody left who would
//!                  └──────────┴───────▶ failed        with the first cause; its buffers go home at once
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use buffer_pool::PoolId;
use shuffle_protocol::{GroupRef, JobId, PartitionId, ShuffleError, SubpartitionRange, WriterId, error::ErrorKind};

use super::{OutletNo, Queue};
use crate::node::SessionId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartitionState {
    Producing,
    Finished,
}

/// One attempt's output on this node: ephemeral, pipelined, bounded.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) job: JobId,
    pub(crate) id: PartitionId,
    pub(crate) session: SessionId,
    pub(crate) writer: WriterId,
    pub(crate) group: Option<GroupRef>,
    pub(crate) state: PartitionState,
    pub(crate) max_queued: u32,
    /// The writer's local buffer pool; given back when it finishes.
    pub(crate) pool: Option<PoolId>,
    /// Buffers the writer has asked for, and was granted, since its creation.
    pub(crate) demand: u64,
    pub(crate) granted: u64,
    queues: Vec<Option<Box<Queue>>>,
    ranges: BTreeMap<u32, ReaderRange>,
    /// Subpartitions whose range has been read to its end or given up.
    done: u32,
}

#[derive(Debug)]
struct ReaderRange {
    count: u32,
    reader: Option<OutletNo>,
}

/// What the creator of a partition says of it.
#[derive(Debug)]
pub(crate) struct PartitionOrigin {
    pub(crate) job: JobId,
    pub(crate) id: PartitionId,
    pub(crate) session: SessionId,
    pub(crate) writer: WriterId,
    pub(crate) group: Option<GroupRef>,
    pub(crate) subpartitions: u32,
    pub(crate) max_queued: u32,
    /// `None` where there is no subpartition that could take a buffer.
    pub(crate) pool: Option<PoolId>,
}

impl Partition {
    pub(crate) fn new(origin: PartitionOrigin) -> Self {
        let mut queues = Vec::new();
        queues.resize_with(origin.subpartitions as usize, || None);
        Self {
            job: origin.job,
            id: origin.id,
            session: origin.session,
            writer: origin.writer,
            group: origin.group,
            state: PartitionState::Producing,
            max_queued: origin.max_queued,
            pool: origin.pool,
            demand: 0,
            granted: 0,
            queues,
            ranges: BTreeMap::new(),
            done: 0,
        }
    }

    pub(crate) fn subpartitions(&self) -> u32 {
        u32::try_from(self.queues.len()).unwrap_or(u32::MAX)
    }

    /// The queue of a subpartition that is there; made at the first buffer.
    pub(crate) fn queue_mut(&mut self, subpartition: u32) -> Option<&mut Queue> {
        let reader = match self.queues.get(subpartition as usize)? {
            Some(_) => None,
            None => self.range_of(subpartition).and_then(|range| range.reader),
        };
        let place = self.queues.get_mut(subpartition as usize)?;
        Some(place.get_or_insert_with(|| Box::new(Queue::new(reader))))
    }

    pub(crate) fn queue(&self, subpartition: u32) -> Option<&Queue> {
        self.queues.get(subpartition as usize)?.as_deref()
    }

    pub(crate) fn queues(&self) -> impl Iterator<Item = (u32, &Queue)> {
        (0u32..)
            .zip(self.queues.iter())
            .filter_map(|(index, queue)| Some((index, queue.as_deref()?)))
    }

    /// Subpartitions of a range in which something waits.
    pub(crate) fn waiting_in(&self, range: SubpartitionRange) -> Vec<u32> {
        let end = range.first.saturating_add(range.count).min(self.subpartitions());
        (range.first..end)
            .filter(|&index| self.queue(index).is_some_and(|queue| !queue.is_waiting_empty()))
            .collect()
    }

    /// Gives a range to a reader. Each subpartition of an ephemeral partition is read once.
    ///
    /// # Errors
    /// `InvalidRequest` for a range that is not there or is being read; `Released` for one that was read.
    pub(crate) fn attach(&mut self, range: SubpartitionRange, reader: OutletNo) -> Result<(), ShuffleError> {
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
        for index in range.first..range.first + range.count {
            if let Some(queue) = self.queues[index as usize].as_deref_mut() {
                queue.reader = Some(reader);
            }
        }
        Ok(())
    }

    /// The range starting there has been read to its end, or its reader is gone: what still comes is thrown away.
    pub(crate) fn detach(&mut self, first: u32) {
        let range = self
            .ranges
            .get_mut(&first)
            .expect("invariant: a reader leaves the range it was given");
        assert!(range.reader.take().is_some(), "a reader left a range twice");
        self.done += range.count;
        for index in first..first + range.count {
            if let Some(queue) = self.queues[index as usize].as_deref_mut() {
                queue.reader = None;
                queue.listed = false;
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
        self.range_of(subpartition).is_some_and(|range| range.reader.is_none())
    }

    /// Every subpartition has been read or given up.
    pub(crate) fn is_consumed(&self) -> bool {
        self.done == self.subpartitions()
    }

    /// The readers there are.
    pub(crate) fn readers(&self) -> Vec<OutletNo> {
        self.ranges.values().filter_map(|range| range.reader).collect()
    }

    fn range_of(&self, subpartition: u32) -> Option<&ReaderRange> {
        let (first, range) = self.ranges.range(..=subpartition).next_back()?;
        (subpartition - first < range.count).then_some(range)
    }

    fn refuse(&self, kind: ErrorKind, message: String) -> ShuffleError {
        ShuffleError::new(kind, message).job(self.job).partition(self.id)
    }

    pub(crate) fn check_invariants(&self) {
        for (_, queue) in self.queues() {
            queue.check_invariants(self.max_queued);
        }
        let done: u32 = self
            .ranges
            .values()
            .filter(|r| r.reader.is_none())
            .map(|r| r.count)
            .sum();
        assert_eq!(done, self.done);
        assert!(self.granted <= self.demand, "more buffers granted than asked for");
    }
}
