//! A writer, as the client library behaves: demand, hand-over within limits, finish with totals.

use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{AbortPartition, Consumers, CreatePartition, FinishPartition, SubpartitionTotals};
use shuffle_protocol::frame::{Arena, Batch, DataHead, Frame, NumberEntry, SlotEntry};
use shuffle_protocol::{ShuffleError, StreamId, SubpartitionIndex, error::ErrorKind};

use super::connection::Packet;
use super::data::{BUFFER_BYTES, content, describe, totals};
use super::desk::{Asked, Desk};
use super::schedule::Micros;
use super::workload::{PartitionSpec, ProducerSpec, address};

/// The limit of a writer that leaves it to the server.
pub(super) const MAX_QUEUED: u32 = 10;

/// How it went.
#[derive(Debug, Clone)]
pub(super) enum WriterEnd {
    Finished,
    /// It never came to be.
    Refused(ShuffleError),
    Failed(ShuffleError),
    /// It gave up itself.
    Aborted,
    /// Its process died.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Creating,
    Writing,
    Finishing,
}

#[derive(Debug)]
pub(super) struct Producer {
    pub(super) spec: ProducerSpec,
    pub(super) partition: PartitionSpec,
    pub(super) end: Option<WriterEnd>,
    /// Granted and not handed over.
    pub(super) free: Vec<u32>,
    writer: u32,
    stage: Stage,
    limits: Vec<u64>,
    handed: Vec<u64>,
    /// Slots that were handed over.
    slots: u64,
    demanded: u64,
}

impl Producer {
    pub(super) fn new(writer: u32, spec: ProducerSpec, partition: PartitionSpec) -> Self {
        let max_queued = match partition.max_queued {
            0 => MAX_QUEUED,
            asked => asked,
        };
        Self {
            end: None,
            free: Vec::new(),
            writer,
            stage: Stage::Waiting,
            limits: vec![max_queued.into(); partition.counts.len()],
            handed: vec![0; partition.counts.len()],
            slots: 0,
            demanded: 0,
            spec,
            partition,
        }
    }

    /// When it next has something to do by itself.
    pub(super) fn next(&self, now: Micros) -> Option<Micros> {
        if self.end.is_some() {
            return None;
        }
        match self.stage {
            Stage::Waiting => Some(self.spec.start.max(now)),
            Stage::Writing if self.can_hand_over() || self.is_complete() || self.is_to_abort() => Some(now),
            _ => None,
        }
    }

    pub(super) fn step(&mut self, desk: &mut Desk<'_>) {
        if self.end.is_some() {
            return;
        }
        match self.stage {
            Stage::Waiting if self.spec.start <= desk.now => self.create(desk),
            Stage::Writing if self.is_to_abort() => self.abort(desk),
            Stage::Writing if self.is_complete() => self.finish(desk),
            Stage::Writing => self.write(desk),
            _ => {}
        }
    }

    pub(super) fn handle_created(&mut self, outcome: Result<(), ShuffleError>, desk: &mut Desk<'_>) {
        match outcome {
            Ok(()) if self.end.is_none() => {
                self.stage = Stage::Writing;
                self.demand(desk);
            }
            Ok(()) => {}
            Err(error) => {
                self.end.get_or_insert(WriterEnd::Refused(error));
            }
        }
    }

    pub(super) fn handle_finished(&mut self, outcome: Result<(), ShuffleError>) {
        let lied = self.spec.lies;
        self.end.get_or_insert(match outcome {
            Ok(()) => WriterEnd::Finished,
            Err(error) => WriterEnd::Failed(error),
        });
        if lied && matches!(self.end, Some(WriterEnd::Finished)) {
            let kind = ErrorKind::Protocol;
            self.end = Some(WriterEnd::Failed(ShuffleError::new(kind, "wrong counts were believed")));
        }
    }

    pub(super) fn handle_grant(&mut self, slot: u32, desk: &mut Desk<'_>) {
        if self.end.is_some() || self.stage == Stage::Finishing {
            return desk.release(&[(self.stream(), Arena::Write, slot)]);
        }
        self.free.push(slot);
    }

    pub(super) fn handle_limit(&mut self, subpartition: u32, limit: u64) {
        if let Some(known) = self.limits.get_mut(subpartition as usize) {
            *known = limit.max(*known);
        }
    }

    /// The server says that the partition has failed: what is held goes back.
    pub(super) fn handle_failed(&mut self, error: ShuffleError, desk: &mut Desk<'_>) {
        self.give_back(desk);
        self.end.get_or_insert(WriterEnd::Failed(error));
        let writer = self.writer;
        desk.ask(Asked::Other, |request| {
            Message::AbortPartition(AbortPartition {
                request,
                writer,
                cause: None,
            })
        });
    }

    pub(super) fn abort(&mut self, desk: &mut Desk<'_>) {
        let known = matches!(self.stage, Stage::Creating | Stage::Writing);
        if self.end.is_some() || !known {
            return;
        }
        let give_back_first = desk.random.chance(50);
        if give_back_first {
            self.give_back(desk);
        }
        let (writer, cause) = (
            self.writer,
            ShuffleError::new(ErrorKind::Cancelled, "the producer gave up"),
        );
        desk.ask(Asked::Other, |request| {
            Message::AbortPartition(AbortPartition {
                request,
                writer,
                cause: Some((&cause).into()),
            })
        });
        self.give_back(desk);
        self.end = Some(WriterEnd::Aborted);
    }

    /// Its process or session is gone.
    pub(super) fn lose(&mut self, end: WriterEnd) {
        self.end.get_or_insert(end);
        self.free.clear();
    }

    /// What the server should think of it.
    pub(super) fn is_registered(&self) -> bool {
        matches!(self.end, Some(WriterEnd::Finished)) || (self.end.is_none() && self.stage != Stage::Waiting)
    }

    fn create(&mut self, desk: &mut Desk<'_>) {
        self.stage = Stage::Creating;
        let partition = &self.partition;
        let (writer, timeout_ms) = (self.writer, desk.timeout_ms);
        desk.ask(Asked::Create(writer as usize), |request| {
            Message::CreatePartition(
                CreatePartition {
                    request,
                    writer,
                    partition: Some(partition.id.into()),
                    subpartitions: u32::try_from(partition.counts.len()).expect("invariant: a few subpartitions"),
                    min_buffers: partition.min_buffers,
                    max_buffers: partition.max_buffers,
                    max_queued_per_subpartition: partition.max_queued,
                    group: partition.group.as_ref().map(Into::into),
                    timeout_ms,
                    broadcast: partition.broadcast.is_some(),
                    consumers: partition.broadcast.iter().flatten().map(consumers).collect(),
                    ..CreatePartition::default()
                }
                .with_kind(partition.kind),
            )
        });
    }

    fn write(&mut self, desk: &mut Desk<'_>) {
        let batch = desk.random.between(1, 4);
        let mut entries = Vec::new();
        for _ in 0..batch {
            let open: Vec<u32> = (0u32..)
                .zip(&self.handed)
                .filter(|&(index, _)| self.is_open(index as usize))
                .map(|(index, _)| index)
                .collect();
            let Some(subpartition) = desk.random.pick(&open) else {
                break;
            };
            let Some(slot) = self.free.pop() else { break };
            self.slots += 1;
            let ordinal = &mut self.handed[subpartition as usize];
            let content = content(self.partition.job, self.partition.id, subpartition, *ordinal);
            let entry = SlotEntry {
                stream: StreamId::new(self.writer),
                slot,
                ..describe(content, subpartition, *ordinal)
            };
            *ordinal += 1;
            if desk.inline {
                let head = DataHead {
                    slots: Batch::from_entries(&[entry]),
                    payload_bytes: entry.length,
                    sequence: entry.sequence,
                    stream: entry.stream,
                };
                desk.out.push(Packet::Head(head.clone()));
                desk.out.push(Packet::Body(head, vec![content]));
            } else {
                let place = desk.slot(Arena::Write, slot);
                desk.memory.write(place, content);
                if self.spec.sorts {
                    self.write_slices(entry, desk);
                } else {
                    entries.push(entry);
                }
            }
        }
        if !entries.is_empty() {
            desk.send(Frame::Slots(Batch::from_entries(&entries)));
        }
        self.demand(desk);
    }

    /// Hands a slot over in slices, as far as it reaches: each in a frame of its own, so that anything may come between.
    fn write_slices(&mut self, first: SlotEntry, desk: &mut Desk<'_>) {
        let mut slices = vec![first];
        let mut end = first.length;
        for _ in 0..desk.random.between(0, 5) {
            let subpartition = desk.random.index(self.handed.len());
            if !self.is_open(subpartition) {
                continue;
            }
            let ordinal = self.handed[subpartition];
            let index = u32::try_from(subpartition).expect("invariant: a few subpartitions");
            let content = content(self.partition.job, self.partition.id, index, ordinal);
            let entry = SlotEntry {
                stream: first.stream,
                slot: first.slot,
                offset: end,
                ..describe(content, index, ordinal)
            };
            if entry.length > BUFFER_BYTES - end {
                break;
            }
            end += entry.length;
            self.handed[subpartition] += 1;
            let place = desk.slot(Arena::Write, first.slot);
            desk.memory.write_behind(place, entry.offset, content);
            slices.push(entry);
        }
        let last = slices.len() - 1;
        for (at, mut entry) in slices.into_iter().enumerate() {
            entry.more_slices = at < last;
            desk.send(Frame::Slots(Batch::from_entries(&[entry])));
        }
    }

    fn demand(&mut self, desk: &mut Desk<'_>) {
        let wanted = self.slots + self.spec.prefetch;
        if wanted > self.demanded {
            self.demanded = wanted;
            desk.send(Frame::Demand(Batch::from_entries(&[NumberEntry {
                stream: self.stream(),
                subpartition: SubpartitionIndex::new(0),
                number: wanted,
            }])));
        }
    }

    fn finish(&mut self, desk: &mut Desk<'_>) {
        self.stage = Stage::Finishing;
        if desk.random.chance(50) {
            self.give_back(desk);
        }
        let name_empty = desk.random.chance(50);
        let (job, id) = (self.partition.job, self.partition.id);
        let mut said: Vec<SubpartitionTotals> = (0u32..)
            .zip(&self.handed)
            .filter(|&(_, &handed)| handed > 0 || name_empty)
            .map(|(index, &handed)| {
                SubpartitionTotals::new(SubpartitionIndex::new(index), &totals(job, id, index, handed))
            })
            .collect();
        if self.spec.lies {
            match said.first_mut() {
                Some(first) => first.digest ^= 1,
                None => self.spec.lies = false,
            }
        }
        let writer = self.writer;
        desk.ask(Asked::Finish(writer as usize), |request| {
            Message::FinishPartition(FinishPartition {
                request,
                writer,
                totals: said,
            })
        });
        self.give_back(desk);
    }

    fn give_back(&mut self, desk: &mut Desk<'_>) {
        let stream = self.stream();
        let slots: Vec<_> = self.free.drain(..).map(|slot| (stream, Arena::Write, slot)).collect();
        desk.release(&slots);
    }

    fn stream(&self) -> StreamId {
        StreamId::new(self.writer)
    }

    fn total_handed(&self) -> u64 {
        self.handed.iter().sum()
    }

    fn is_open(&self, index: usize) -> bool {
        self.handed[index] < self.partition.counts[index].min(self.limits[index])
    }

    fn can_hand_over(&self) -> bool {
        !self.free.is_empty() && (0..self.handed.len()).any(|index| self.is_open(index))
    }

    fn is_complete(&self) -> bool {
        self.handed == self.partition.counts
    }

    fn is_to_abort(&self) -> bool {
        self.spec.abort_after.is_some_and(|after| self.total_handed() >= after)
    }
}

fn consumers((host, count): &(usize, u32)) -> Consumers {
    Consumers {
        node: address(*host).to_string(),
        count: *count,
    }
}
