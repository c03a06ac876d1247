//! One reader's channel as the producing node sees it: a position in a range of subpartitions.
//!
//! Buffers of the range's subpartitions are merged fairly, in the order in which each comes; end
//! markers follow once all data has been sent. The channel's own arithmetic (sequence, credit,
//! resume) is `shuffle_protocol::stream::Sender`.

use std::collections::VecDeque;
use std::time::Instant;

use shuffle_protocol::partition::Totals;
use shuffle_protocol::stream::Sender;
use shuffle_protocol::{GroupRef, JobId, PartitionId, Sequence, ShuffleError, StreamId, SubpartitionRange};

use super::packing::Packing;
use super::reading::{Cursor, LOADED_WITHOUT_CREDIT, Load, READ_AHEAD, Stage};
use super::{
    Buffered, Moved, OutletNo, OutletPlace, Partition, PartitionNo, PartitionState, Place, Queue, Reading, SinkRef,
    Tracing, locate,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutletState {
    /// The partition is not registered yet.
    Waiting {
        since: Instant,
        deadline: Instant,
    },
    Open(PartitionNo),
    /// It has failed, and its reader is told with the verdict on its group.
    Failed,
}

/// What is sent and kept until it is acknowledged.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item {
    Buffer { subpartition: u32, buffer: Buffered },
    End { subpartition: u32, last: bool },
}

/// What [`Outlet::pull`] found to send.
#[derive(Debug)]
pub(crate) enum Pull {
    Buffer {
        sequence: Sequence,
        subpartition: u32,
        buffer: Buffered,
        backlog: u32,
        again: bool,
        /// In the frame of the one before it.
        joins: bool,
    },
    End {
        sequence: Sequence,
        subpartition: u32,
        totals: Totals,
        last: bool,
    },
    Backlog(u32),
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) job: JobId,
    pub(crate) id: PartitionId,
    pub(crate) range: SubpartitionRange,
    pub(crate) sink: SinkRef,
    pub(crate) stream: StreamId,
    pub(crate) group: Option<GroupRef>,
    pub(crate) state: OutletState,
    pub(crate) sender: Sender<Item>,
    /// Stands in its sink's list of outlets to look at.
    pub(crate) listed: bool,
    /// The connection's generation under which the reader last spoke of this channel.
    pub(crate) confirmed: u64,
    /// Local readers: buffers that may be viewed at one time, and views given back so far.
    pub(crate) window: u64,
    pub(crate) released: u64,
    /// It asked for a broadcast partition, and was told of so many consumers on its node (0: of none).
    pub(crate) told_of: Option<u32>,
    /// It takes these over from another channel.
    pub(crate) moved: Option<Moved>,
    /// What it has on its way from disk, where its partition may have something there.
    pub(crate) reading: Option<Box<Reading>>,
    /// A buffer that did not match at its reader.
    pub(crate) tracing: Tracing,
    /// Its reader takes several buffers in one frame.
    pub(super) packing: Option<Packing>,
    pub(super) ready: VecDeque<u32>,
    next_end: u32,
}

impl Outlet {
    pub(crate) fn new(place: OutletPlace, credit: u64, now: Instant, deadline: Instant) -> Result<Self, ShuffleError> {
        Ok(Self {
            job: place.job,
            id: place.id,
            range: place.range,
            sink: place.sink,
            stream: place.stream,
            group: place.group,
            state: OutletState::Waiting { since: now, deadline },
            sender: Sender::new(credit)?,
            listed: false,
            confirmed: 0,
            window: credit,
            released: 0,
            told_of: place.told_of,
            moved: place.moved,
            reading: None,
            tracing: Tracing::default(),
            packing: place.packed_into.map(Packing::new),
            ready: VecDeque::new(),
            next_end: 0,
        })
    }

    /// The next thing to send, if credit and data allow.
    pub(crate) fn pull(&mut self, partition: &mut Partition) -> Pull {
        if let Some(again) = self.pull_again() {
            return again;
        }
        let joins = self.sender.resends_joined();
        if let Some((sequence, item)) = self.sender.poll_resend() {
            return match *item {
                Item::Buffer { subpartition, buffer } => Pull::Buffer {
                    sequence,
                    subpartition,
                    buffer,
                    backlog: 0,
                    again: true,
                    joins,
                },
                Item::End { subpartition, last } => Pull::End {
                    sequence,
                    subpartition,
                    totals: totals_of(partition, subpartition),
                    last,
                },
            };
        }
        let loading = self.reading.as_ref().is_some_and(|reading| !reading.is_empty());
        if self.ready.is_empty() && !loading {
            return self.pull_end(partition);
        }
        if let Some(joining) = self.pull_joining(partition) {
            return joining;
        }
        if !self.sender.can_send_buffer() {
            let waiting = self.backlog(partition);
            return self.sender.poll_backlog(waiting).map_or(Pull::Nothing, Pull::Backlog);
        }
        let Some((subpartition, buffer)) = self.next_loaded(partition).or_else(|| self.next_waiting(partition)) else {
            return Pull::Nothing;
        };
        let backlog = self.backlog(partition);
        let sequence = self.sender.send_buffer(Item::Buffer { subpartition, buffer });
        self.begin_frame(&buffer);
        Pull::Buffer {
            sequence,
            subpartition,
            buffer,
            backlog,
            again: false,
            joins: false,
        }
    }

    /// The next that has come from disk.
    fn next_loaded(&mut self, partition: &mut Partition) -> Option<(u32, Buffered)> {
        let load = self.reading.as_mut()?.pop_loaded()?;
        if load.last {
            self.list_next(partition, load.subpartition);
        }
        Some((load.subpartition, load.buffer))
    }

    /// The next that is in memory. Subpartitions that go on on disk leave the turn.
    pub(super) fn next_waiting(&mut self, partition: &mut Partition) -> Option<(u32, Buffered)> {
        loop {
            let subpartition = self.ready.pop_front()?;
            let cursor = self.cursor(partition, subpartition).map(|cursor| cursor.next);
            let queue = partition
                .queue_mut(subpartition)
                .expect("invariant: listed subpartitions exist");
            let next = queue.get(cursor.unwrap_or_else(|| queue.base()));
            let buffer = next.expect("invariant: a listed subpartition has a buffer waiting");
            match buffer.place {
                Place::Disk(_) => self.list_next(partition, subpartition),
                Place::Memory(_) | Place::Loaded { .. } | Place::Received(_) => {
                    match self.cursor_mut(subpartition) {
                        Some(cursor) => cursor.next += 1,
                        None => drop(partition.pop(subpartition)),
                    }
                    self.list_next(partition, subpartition);
                    return Some((subpartition, buffer));
                }
            }
        }
    }

    /// Puts a subpartition, of which nothing is being loaded, where its next buffer says.
    fn list_next(&mut self, partition: &mut Partition, subpartition: u32) {
        let next = self.next_place(partition, subpartition);
        match next {
            Some(Place::Disk(at)) => {
                let reading = self.reading.get_or_insert_default();
                reading.on_disk.insert((at, subpartition));
            }
            Some(_) => self.ready.push_back(subpartition),
            None => self.set_listed(partition, subpartition, false),
        }
    }

    /// Where this reader's next buffer of a subpartition lies.
    pub(super) fn next_place(&self, partition: &Partition, subpartition: u32) -> Option<Place> {
        let queue = partition.queue(subpartition)?;
        match self.cursor(partition, subpartition) {
            None => queue.get(queue.base()).map(|buffer| buffer.place),
            Some(cursor) => {
                let next = queue
                    .get(cursor.next)
                    .filter(|_| cursor.next < self.readable_end(partition, queue));
                next.map(|buffer| buffer.place)
            }
        }
    }

    pub(super) fn cursor(&self, partition: &Partition, subpartition: u32) -> Option<&Cursor> {
        if partition.kept.is_none() && partition.audience.is_none() {
            return None;
        }
        let index = (subpartition - self.range.first) as usize;
        self.reading.as_ref()?.cursors.get(index)
    }

    pub(crate) fn cursor_mut(&mut self, subpartition: u32) -> Option<&mut Cursor> {
        let index = (subpartition - self.range.first) as usize;
        self.reading.as_mut()?.cursors.get_mut(index)
    }

    /// It goes on in another partition, of which nothing is there yet.
    pub(super) fn move_to(&mut self, partition: PartitionNo) {
        self.state = OutletState::Open(partition);
        self.ready.clear();
        if let Some(cursor) = self.cursor_mut(0) {
            cursor.listed = false;
        }
    }

    fn set_listed(&mut self, partition: &mut Partition, subpartition: u32, listed: bool) {
        if let Some(cursor) = self.cursor_mut(subpartition) {
            cursor.listed = listed;
        } else if let Some(queue) = partition.queue_mut(subpartition) {
            queue.set_listed(listed);
        }
    }

    /// A subpartition of the range may have something to send that it had not. False: it has not, or was known to have.
    pub(crate) fn handle_more(&mut self, partition: &mut Partition, subpartition: u32) -> bool {
        let listed = match self.cursor(partition, subpartition) {
            Some(cursor) => cursor.listed,
            None => partition.queue(subpartition).is_some_and(Queue::is_listed),
        };
        if listed || self.next_place(partition, subpartition).is_none() {
            return false;
        }
        self.set_listed(partition, subpartition, true);
        self.list_next(partition, subpartition);
        true
    }

    /// Takes the next buffer that lies on disk, to be loaded into `slot`: where it lies, and its length, in bytes. `None`: there
    /// is none.
    pub(crate) fn plan_load(&mut self, partition: &mut Partition, slot: u32) -> Option<(u64, u32)> {
        let (at, subpartition) = self.reading.as_mut()?.on_disk.pop_first()?;
        let cursor = self.cursor_mut(subpartition).map(|cursor| {
            cursor.next += 1;
            cursor.next - 1
        });
        let queue = partition
            .queue_mut(subpartition)
            .expect("invariant: listed subpartitions exist");
        let taken = match cursor {
            Some(ordinal) => queue.get(ordinal),
            None => queue.pop(false),
        };
        let buffer = Buffered {
            place: Place::Loaded { slot, at },
            offset: 0,
            ..taken.expect("invariant: a listed subpartition has a buffer waiting")
        };
        let next = self.next_place(partition, subpartition);
        let reading = self.reading.as_mut()?;
        if let Some(Place::Disk(at)) = next {
            reading.on_disk.insert((at, subpartition));
        }
        let load = Load {
            subpartition,
            buffer,
            stage: Stage::Planned,
            last: !matches!(next, Some(Place::Disk(_))),
        };
        reading.loads.push_back(load);
        Some((at, buffer.length))
    }

    fn pull_end(&mut self, partition: &Partition) -> Pull {
        if partition.state != PartitionState::Finished || self.next_end == self.range.count {
            return Pull::Nothing;
        }
        let subpartition = self.range.first + self.next_end;
        if self.waiting_of(partition, subpartition) > 0 && partition.audience.is_some() {
            // It is still on its way to disk.
            return Pull::Nothing;
        }
        self.next_end += 1;
        let last = self.next_end == self.range.count;
        let sequence = self.sender.send_end(Item::End { subpartition, last });
        Pull::End {
            sequence,
            subpartition,
            totals: totals_of(partition, subpartition),
            last,
        }
    }

    /// Everything has been sent, to the last end marker.
    pub(crate) fn is_sent(&self) -> bool {
        self.next_end == self.range.count
    }

    /// Below which ordinal a reader with cursors can read: of what is kept, only what is on disk, and where what it has not
    /// acknowledged would keep its writer's buffers, too.
    fn readable_end(&self, partition: &Partition, queue: &Queue) -> u64 {
        let unacked = self.sender.sent().value() - self.sender.acked().value();
        let is_bound = matches!(self.sink, SinkRef::Path(_)) && unacked >= partition.max_unacked_in_memory;
        if partition.kept.is_some() || is_bound {
            queue.written()
        } else {
            queue.handed_over()
        }
    }

    /// Whether another buffer should be loaded: as many as can be sent, and never none. `begun`: with one before it; else only
    /// when half of them are gone, so that a read is worth its call.
    pub(crate) fn wants_load(&self, begun: bool) -> bool {
        let most = usize::try_from(self.sender.credit_left()).unwrap_or(READ_AHEAD);
        let most = most.clamp(LOADED_WITHOUT_CREDIT, READ_AHEAD);
        let enough = if begun { most } else { most / 2 + 1 };
        let reading = self.reading.as_ref();
        reading.is_some_and(|reading| !reading.on_disk.is_empty() && reading.loads.len() < enough)
    }

    /// A reader on this node holds views that it has not given back.
    pub(crate) fn has_views(&self) -> bool {
        self.sender.credit_left() < self.window
    }

    /// An error with everything that is known of this channel.
    pub(crate) fn locate(&self, error: ShuffleError) -> ShuffleError {
        locate(error, self.job, self.id, self.range)
    }
}

fn totals_of(partition: &Partition, subpartition: u32) -> Totals {
    partition.queue(subpartition).map(Queue::totals).unwrap_or_default()
}

/// Where an outlet stands in its sink's turn.
pub(crate) type Turn = VecDeque<OutletNo>;
