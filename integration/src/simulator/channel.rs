//! One channel of a consumer: what came, and whether it is what had to come.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shuffle_protocol::frame::{Arena, EndEntry, SlotEntry};
use shuffle_protocol::{JobId, ShuffleError, StreamId, SubpartitionIndex};

use super::data::{Content, content, describe, totals};
use super::workload::ChannelSpec;

/// How it went.
#[derive(Debug, Clone)]
pub(super) enum ChannelEnd {
    /// Everything came, to the last end marker, and is right.
    Complete,
    Failed(ShuffleError),
    /// Its gate never came to be.
    Refused(ShuffleError),
    /// The consumer gave it up.
    Cancelled,
    /// Its process died.
    Gone,
}

/// What came and was not looked at.
#[derive(Debug, Clone)]
pub(super) enum Item {
    /// Inline the content came along; else it lies in the arena.
    Buffer(SlotEntry, Option<Content>),
    End(EndEntry),
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) spec: ChannelSpec,
    pub(super) stream: StreamId,
    pub(super) end: Option<ChannelEnd>,
    pub(super) queue: VecDeque<Item>,
    /// Views that came and were not given back, by the slot that they are of.
    views: BTreeMap<(Arena, u32), u32>,
    /// Everything below is checked, and the server does not know it.
    pub(super) ack: Option<u64>,
    /// The first of the queue, which did not match and is to come once more.
    pub(super) awaited: Option<u64>,
    /// What was reported and has not come once more.
    reported: BTreeSet<u64>,
    job: JobId,
    /// Buffers that each subpartition of the partition has.
    counts: Vec<u64>,
    next: u64,
    /// Of each subpartition of the range: buffers that were checked, and whether it ended.
    came: Vec<(u64, bool)>,
}

impl Channel {
    pub(super) fn new(spec: ChannelSpec, stream: StreamId, job: JobId, counts: Vec<u64>) -> Self {
        Self {
            stream,
            end: None,
            queue: VecDeque::new(),
            views: BTreeMap::new(),
            ack: None,
            awaited: None,
            reported: BTreeSet::new(),
            job,
            counts,
            next: 0,
            came: vec![(0, false); spec.range.count as usize],
            spec,
        }
    }

    /// Something arrived: it must be the next.
    pub(super) fn handle_arrival(&mut self, item: Item) -> Result<(), String> {
        let (sequence, subpartition) = match &item {
            Item::Buffer(entry, _) => (entry.sequence, entry.subpartition),
            Item::End(entry) => (entry.sequence, entry.subpartition),
        };
        if sequence.value() != self.next {
            return Err(format!("sequence {sequence} came where {} was due", self.next));
        }
        if !self.spec.range.contains(subpartition) {
            return Err(format!("subpartition {subpartition} is not in {:?}", self.spec.range));
        }
        self.next += 1;
        if let Item::Buffer(entry, _) = &item {
            *self.views.entry((entry.arena, entry.slot)).or_default() += 1;
        }
        self.queue.push_back(item);
        Ok(())
    }

    /// A view is given back.
    pub(super) fn drop_view(&mut self, arena: Arena, slot: u32) {
        let views = self.views.get_mut(&(arena, slot)).expect("invariant: a view that came");
        *views -= 1;
        if *views == 0 {
            self.views.remove(&(arena, slot));
        }
    }

    /// Credits that are in use here: what came over the network takes one for each slot, what a writer handed over one for each
    /// view.
    pub(super) fn credits_used(&self) -> u32 {
        let used = |((arena, _), views): (&(Arena, u32), &u32)| match arena {
            Arena::Read => 1,
            Arena::Write => *views,
        };
        self.views.iter().map(used).sum()
    }

    /// The first does not match: it goes back to its place until it comes once more.
    pub(super) fn put_back(&mut self, entry: SlotEntry, inline: Option<Content>) {
        let sequence = entry.sequence.value();
        self.awaited = Some(sequence);
        self.reported.insert(sequence);
        self.queue.push_front(Item::Buffer(entry, inline));
    }

    /// Takes what comes once more. False: it was not reported.
    pub(super) fn handle_repeated(&mut self, item: &Item) -> bool {
        let Item::Buffer(entry, repeated) = item else {
            return false;
        };
        let sequence = entry.sequence.value();
        if !self.reported.remove(&sequence) {
            return false;
        }
        if self.awaited.take_if(|awaited| *awaited == sequence).is_some()
            && let Some(Item::Buffer(_, inline)) = self.queue.front_mut()
        {
            *inline = *repeated;
        }
        true
    }

    /// Something could come out.
    pub(super) fn is_ready(&self) -> bool {
        self.awaited.is_none() && !self.queue.is_empty()
    }

    /// Looks at a buffer, where this is what lies in it.
    pub(super) fn check_buffer(&mut self, entry: &SlotEntry, seen: Content) -> Result<(), String> {
        let (job, id) = (self.job, self.spec.id);
        let index = entry.subpartition.value();
        let (ordinal, ended) = self.progress(entry.subpartition);
        if *ended {
            return Err(format!("a buffer behind the end of subpartition {index}"));
        }
        let expected = content(job, id, index, *ordinal);
        let described = SlotEntry {
            stream: entry.stream,
            sequence: entry.sequence,
            slot: entry.slot,
            offset: entry.offset,
            backlog: entry.backlog,
            arena: entry.arena,
            ..describe(expected, index, *ordinal)
        };
        let at = *ordinal;
        *ordinal += 1;
        if *entry != described {
            return Err(format!(
                "buffer {at} of subpartition {index}: {described:?} was due, {entry:?} came"
            ));
        }
        if seen != expected {
            return Err(format!(
                "buffer {at} of subpartition {index} holds {seen:x} instead of {expected:x}"
            ));
        }
        self.ack = Some(entry.sequence.value() + 1);
        Ok(())
    }

    /// Looks at an end marker.
    pub(super) fn check_end(&mut self, entry: &EndEntry) -> Result<(), String> {
        let (job, id) = (self.job, self.spec.id);
        let index = entry.subpartition.value();
        let expected = self.counts.get(index as usize).copied().unwrap_or(0);
        let (came, ended) = self.progress(entry.subpartition);
        if std::mem::replace(ended, true) {
            return Err(format!("a second end of subpartition {index}"));
        }
        if *came != expected {
            return Err(format!("subpartition {index} ended after {came} of {expected} buffers"));
        }
        if entry.totals != totals(job, id, index, expected) {
            return Err(format!("wrong totals of subpartition {index}: {:?}", entry.totals));
        }
        self.ack = Some(entry.sequence.value() + 1);
        let all = self.came.iter().all(|(_, ended)| *ended);
        if entry.last != all {
            return Err(format!("LAST is {} where all subpartitions ended is {all}", entry.last));
        }
        if entry.last {
            self.end = Some(ChannelEnd::Complete);
        }
        Ok(())
    }

    fn progress(&mut self, subpartition: SubpartitionIndex) -> &mut (u64, bool) {
        &mut self.came[(subpartition.value() - self.spec.range.first) as usize]
    }
}
