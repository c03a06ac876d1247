//! The writer of many subpartitions: records wait in a sort buffer, and leave as slices of shared buffers.
//!
//! ```text
//!   free --> staged, ordered by arrival --full, flushed, or starved--> leaving, ordered by subpartition
//!     ^                                                                   |  copied, slice by slice
//!     |                                                                   v
//!     '---------- staged buffers, when everything has left       a shared buffer --> handed over, once for each slice
//! ```
//!
//! - A buffer is staged only if another one is left in hand, so what is staged can always begin to leave.
//! - Nothing is staged while something is leaving. It leaves in order, so the first subpartition whose queue is full stops
//!   the writer until its reader goes on.
//! - Events, buffers that are lent, and records longer than a buffer go their own way, when nothing is staged.

use std::time::{Duration, Instant};

use shuffle_protocol::error::Result;
use shuffle_protocol::frame::SlotEntry;
use shuffle_protocol::ids::SubpartitionIndex;
use shuffle_protocol::limits::MAX_SLICES_OF_SLOT;

use super::leaving::{HandOver, Shape};
use super::state::{Core, CoreConfig, Need, Space};
use crate::producer::record::{Encoder, RECORD_PREFIX_BYTES, encode_record};
use crate::producer::sort_buffer::SortBuffer;

/// What is staged for each subpartition before it leaves, in bytes, where there are buffers for that: shorter slices cost more
/// in descriptors than they carry.
const BYTES_PER_SUBPARTITION: usize = 512;

/// Most buffers that are staged.
const STAGED_MOST: usize = 512;

pub(super) struct Sorted<B> {
    pub(super) buffer: SortBuffer<B>,
    /// Buffers to stage at most: ever, and now.
    most: usize,
    now: usize,
    /// When the first of what is staged was written.
    since: Option<Instant>,
    /// Something was staged since this was last asked.
    started: bool,
}

/// A shared buffer that is being filled.
struct Shared<B> {
    buffer: B,
    used: usize,
    slices: Vec<SlotEntry>,
}

impl<B: Space> Sorted<B> {
    pub(super) fn new(config: &CoreConfig) -> Self {
        let wanted = (config.subpartitions as usize).saturating_mul(BYTES_PER_SUBPARTITION) / config.capacity;
        let allowed = config.max_buffers.map_or(STAGED_MOST, |most| most as usize * 2 / 3);
        let most = wanted.clamp(2, STAGED_MOST).min(allowed.max(1));
        Self {
            buffer: SortBuffer::new(config.subpartitions, config.capacity),
            most,
            now: most,
            since: None,
            started: false,
        }
    }

    /// Buffers to have in hand.
    fn prefetch(&self) -> u64 {
        u64::try_from(self.most + self.most / 2 + 2).unwrap_or(u64::MAX)
    }

    #[inline]
    pub(super) fn append(&mut self, subpartition: SubpartitionIndex, record: &[u8]) -> bool {
        let bytes = record.len() + RECORD_PREFIX_BYTES;
        let space = self.buffer.reserve(subpartition.value(), bytes);
        space.is_some_and(|space| encode_record(space, record).is_some())
    }
}

impl<B: Space> Core<B> {
    /// Writes a record by way of the sort buffer. A record that fits a buffer is staged whole or not at all.
    pub(super) fn write_sorted(
        &mut self,
        subpartition: SubpartitionIndex,
        record: &mut Encoder<'_>,
        now: Instant,
    ) -> Result<Need> {
        let bytes = record.remaining();
        if record.is_torn() || bytes > self.config.capacity {
            if !record.is_torn() {
                let need = self.drain();
                if need != Need::Nothing {
                    return Ok(need);
                }
            }
            let need = self.write_whole(subpartition, record, now)?;
            if need == Need::Nothing {
                // What is staged later must not overtake it.
                self.mark_due(subpartition.value());
                self.hand_over_open(subpartition.value());
            }
            return Ok(need);
        }
        loop {
            if self.is_leaving() {
                let need = self.drain();
                if need != Need::Nothing {
                    return Ok(need);
                }
            }
            let Some(sorted) = &mut self.sorted else {
                return Ok(Need::Nothing);
            };
            if let Some(space) = sorted.buffer.reserve(subpartition.value(), bytes) {
                record.fill(space);
                if sorted.since.is_none() {
                    sorted.since = Some(now);
                    sorted.started = true;
                }
                break;
            }
            // From now on it wants enough for a batch and its way out.
            let wanted = sorted.prefetch();
            (self.prefetch, self.prefetch_most) = (wanted, wanted);
            let staged = sorted.buffer.slots();
            if staged >= sorted.now && staged > 0 {
                sorted.buffer.start_leaving();
            } else if self.free.len() < 2 {
                return Ok(Need::Buffer);
            } else {
                if staged == 0 {
                    self.plan_staging();
                }
                self.stage_another();
            }
        }
        if self.config.after_each_record {
            self.start_leaving();
            self.drain();
        }
        Ok(Need::Nothing)
    }

    /// How many buffers may be staged this time: with some on their way to readers, which come back, all that are in hand.
    fn plan_staging(&mut self) {
        let free = self.free.len();
        let Some(sorted) = &mut self.sorted else { return };
        let some = free - free.div_ceil(3);
        let planned = if self.in_flight == 0 {
            some
        } else {
            sorted.now.max(some).min(free - 1)
        };
        sorted.now = planned.clamp(1, sorted.most);
    }

    fn stage_another(&mut self) {
        if let Some(buffer) = self.take_free()
            && let Some(sorted) = &mut self.sorted
        {
            sorted.buffer.add_slot(buffer);
        }
    }

    fn is_leaving(&self) -> bool {
        self.sorted.as_ref().is_some_and(|sorted| sorted.buffer.is_leaving())
    }

    fn start_leaving(&mut self) {
        if let Some(sorted) = &mut self.sorted
            && !sorted.buffer.is_empty()
            && !sorted.buffer.is_leaving()
        {
            sorted.buffer.start_leaving();
        }
    }

    /// Lets everything that is staged leave, as far as buffers and limits allow.
    pub(super) fn drain(&mut self) -> Need {
        self.start_leaving();
        self.go_on_leaving()
    }

    /// The same, of what is leaving already.
    pub(super) fn go_on_leaving(&mut self) -> Need {
        if !self.is_leaving() {
            return Need::Nothing;
        }
        let mut shared: Option<Shared<B>> = None;
        let need = loop {
            let next = self.sorted.as_ref().and_then(|sorted| sorted.buffer.next());
            let Some((index, bytes)) = next else {
                break Need::Nothing;
            };
            if self.is_open(index) {
                self.mark_due(index);
            }
            if self.is_open(index) && !self.hand_over_open(index) || !self.has_limit(index) {
                break Need::Limit;
            }
            let is_full = shared.as_ref().is_some_and(|shared| {
                self.config.capacity - shared.used < bytes || shared.slices.len() == MAX_SLICES_OF_SLOT as usize
            });
            if is_full {
                self.hand_over_shared(shared.take());
            }
            match &mut shared {
                Some(shared) => self.add_slice(index, shared),
                None => match self.take_free() {
                    None => break Need::Buffer,
                    Some(buffer) => {
                        let mut fresh = Shared {
                            buffer,
                            used: 0,
                            slices: Vec::new(),
                        };
                        self.add_slice(index, &mut fresh);
                        shared = Some(fresh);
                    }
                },
            }
        };
        self.hand_over_shared(shared);
        if need == Need::Nothing {
            self.unstage();
        }
        need
    }

    /// Copies the next records into a shared buffer, as one slice.
    fn add_slice(&mut self, index: u32, shared: &mut Shared<B>) {
        let Some(sorted) = &mut self.sorted else { return };
        let gathered = sorted.buffer.gather(&mut shared.buffer.space()[shared.used..]);
        let range = shared.used..shared.used + gathered.bytes;
        let entry = self.describe(index, &mut shared.buffer, range, gathered.records, Shape::default());
        shared.used += entry.length as usize;
        shared.slices.push(entry);
    }

    fn hand_over_shared(&mut self, shared: Option<Shared<B>>) {
        let Some(Shared { buffer, used, slices }) = shared else {
            return;
        };
        let mut buffer = Some(buffer);
        let last = slices.len() - 1;
        for (at, mut entry) in slices.into_iter().enumerate() {
            entry.more_slices = at < last;
            let buffer = if at == last { buffer.take() } else { None };
            self.leaving.push(HandOver { entry, buffer, used });
        }
    }

    /// Takes the staged buffers back: everything has left them.
    fn unstage(&mut self) {
        let Some(sorted) = &mut self.sorted else { return };
        let before = self.free.len();
        self.free.extend(sorted.buffer.take_slots());
        self.taken -= u64::try_from(self.free.len() - before).unwrap_or(u64::MAX);
        sorted.since = None;
    }

    /// Lets what was staged `interval` ago leave, and says when to call again.
    pub(super) fn handle_staged_timeout(&mut self, now: Instant, interval: Duration) -> Option<Instant> {
        let sorted = self.sorted.as_ref()?;
        let since = sorted.since.filter(|_| !sorted.buffer.is_leaving())?;
        if now.saturating_duration_since(since) < interval {
            return since.checked_add(interval);
        }
        self.drain();
        None
    }

    /// The producer has waited long for a buffer: what is staged leaves, and less is staged from now on.
    pub(super) fn handle_staging_starved(&mut self) {
        let Some(sorted) = &mut self.sorted else { return };
        if sorted.buffer.is_empty() || sorted.buffer.is_leaving() {
            return;
        }
        sorted.now = sorted.buffer.slots().max(1);
        self.drain();
    }

    /// Whether something is staged.
    pub(super) fn has_staged(&self) -> bool {
        self.sorted.as_ref().is_some_and(|sorted| !sorted.buffer.is_empty())
    }

    /// Whether something was staged since this was last asked: the timer is to look.
    pub(crate) fn take_started(&mut self) -> bool {
        let sorted = self.sorted.as_mut();
        sorted.is_some_and(|sorted| std::mem::take(&mut sorted.started))
    }
}
