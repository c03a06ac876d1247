//! One reader's channel as the producing node sees it: a position in a range of subpartitions.
//!
//! Buffers of the range's subpartitions are merged fairly, in the order in which each comes; end
//! markers follow once all data has been sent. The channel's own arithmetic (sequence, credit,
//! resume) is `shuffle_protocol::stream::Sender`.

use std::collections::VecDeque;
use std::time::Instant;

use shuffle_protocol::partition::Totals;
use shuffle_protocol::stream::Sender;
use shuffle_protocol::{
    GroupRef, JobId, PartitionId, Sequence, ShuffleError, StreamId, SubpartitionIndex, SubpartitionRange,
};

use super::{Buffered, OutletNo, Partition, PartitionNo, PartitionState};
use crate::node::SessionId;
use crate::peer::PathId;

/// Where an outlet leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SinkRef {
    /// An executor on this node: descriptors; its buffers come home when it releases its views.
    Session(SessionId),
    /// Another node: payload; its buffers come home when they are acknowledged.
    Path(PathId),
}

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
    ready: VecDeque<u32>,
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
            ready: VecDeque::new(),
            next_end: 0,
        })
    }

    /// A subpartition of the range has data to send.
    pub(crate) fn handle_ready(&mut self, subpartition: u32) {
        self.ready.push_back(subpartition);
    }

    /// The next thing to send, if credit and data allow.
    pub(crate) fn pull(&mut self, partition: &mut Partition) -> Pull {
        if let Some((sequence, item)) = self.sender.poll_resend() {
            return match *item {
                Item::Buffer { subpartition, buffer } => Pull::Buffer {
                    sequence,
                    subpartition,
                    buffer,
                    backlog: 0,
                    again: true,
                },
                Item::End { subpartition, last } => Pull::End {
                    sequence,
                    subpartition,
                    totals: totals_of(partition, subpartition),
                    last,
                },
            };
        }
        if self.ready.is_empty() {
            return self.pull_end(partition);
        }
        if !self.sender.can_send_buffer() {
            let waiting = self.backlog(partition);
            return self.sender.poll_backlog(waiting).map_or(Pull::Nothing, Pull::Backlog);
        }
        let Some(subpartition) = self.ready.pop_front() else {
            return Pull::Nothing;
        };
        let queue = partition
            .queue_mut(subpartition)
            .expect("invariant: listed subpartitions exist");
        let buffer = queue
            .pop()
            .expect("invariant: a listed subpartition has a buffer waiting");
        if queue.is_waiting_empty() {
            queue.listed = false;
        } else {
            self.ready.push_back(subpartition);
        }
        let backlog = self.backlog(partition);
        let sequence = self.sender.send_buffer(Item::Buffer { subpartition, buffer });
        Pull::Buffer {
            sequence,
            subpartition,
            buffer,
            backlog,
            again: false,
        }
    }

    fn pull_end(&mut self, partition: &Partition) -> Pull {
        if partition.state != PartitionState::Finished || self.next_end == self.range.count {
            return Pull::Nothing;
        }
        let subpartition = self.range.first + self.next_end;
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

    /// Buffers that wait for this reader. One number for the channel, so at most a few subpartitions are asked.
    fn backlog(&self, partition: &Partition) -> u32 {
        const LOOKED_AT: usize = 8;
        self.ready
            .iter()
            .take(LOOKED_AT)
            .filter_map(|&subpartition| partition.queue(subpartition))
            .fold(0u32, |sum, queue| sum.saturating_add(queue.waiting_len()))
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

/// An error with everything that is known of a channel.
pub(crate) fn locate(error: ShuffleError, job: JobId, id: PartitionId, range: SubpartitionRange) -> ShuffleError {
    let error = error.job(job).partition(id);
    if range.count == 1 {
        error.subpartition(SubpartitionIndex::new(range.first))
    } else {
        error
    }
}

/// Which channel, of what, to whom.
#[derive(Debug)]
pub(crate) struct OutletPlace {
    pub(crate) job: JobId,
    pub(crate) id: PartitionId,
    pub(crate) range: SubpartitionRange,
    pub(crate) sink: SinkRef,
    pub(crate) stream: StreamId,
    pub(crate) group: Option<GroupRef>,
}

fn totals_of(partition: &Partition, subpartition: u32) -> Totals {
    partition
        .queue(subpartition)
        .map(|queue| *queue.totals())
        .unwrap_or_default()
}

/// Where an outlet stands in its sink's turn.
pub(crate) type Turn = VecDeque<OutletNo>;
