//! What of a partition goes to its data file, and when.
//!
//! ```text
//!   handed over ──▶ dirty ──batch──▶ writing ──answer──▶ on disk        one batch at a time, ordered by subpartition
//! ```
//!
//! A persistent partition writes everything, in batches of 2 MiB or more while nobody waits for them. An ephemeral one
//! writes when memory is wanted, and never the first buffers of a queue that is being read.

use std::collections::BTreeSet;
use std::ops::Range;

use super::readers::reader_in;
use super::{Partition, Place};
use crate::spill::StoreNo;

/// A batch is worth a write of its own from here on, in bytes.
pub(crate) const RUN_BYTES: u64 = 2 << 20;

/// A stretch of a file that is shorter is not given back by itself, in bytes.
const PUNCH_BYTES: u64 = 64 << 10;

/// No batch is larger than this by more than one buffer, in bytes.
const BATCH_BYTES: u64 = 8 << 20;

/// Pieces of one batch: what the kernel takes in one call.
const BATCH_PIECES: usize = 1024;

/// Buffers of a queue that is being read that stay in memory.
pub(super) const HEAD: u64 = 2;

/// One buffer of a batch: where it goes, and which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) subpartition: u32,
    pub(crate) ordinal: u64,
    pub(crate) at: u64,
    pub(crate) slot: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// The data file of a partition as the core sees it.
#[derive(Debug)]
pub(crate) struct Spool {
    pub(crate) store: StoreNo,
    /// Where the next batch goes; everything before is written or being written, in bytes.
    pub(crate) end: u64,
    /// Of that, what is not given back, in bytes.
    pub(crate) held: u64,
    /// Subpartitions that may have something in memory only.
    dirty: BTreeSet<u32>,
    /// What waits in memory only, or is being written: buffers, and their payload in bytes.
    pub(crate) in_memory: u32,
    pub(crate) in_memory_bytes: u64,
    /// The last stretch of the file that was consumed and not yet given back.
    consumed: Range<u64>,
    /// The batch on its way.
    pub(crate) writing: Vec<Written>,
    /// Subpartitions of which the head alone is in memory.
    heads: BTreeSet<u32>,
    /// Where the next look begins.
    next: u32,
}

impl Spool {
    pub(crate) fn new(store: StoreNo) -> Self {
        Self {
            store,
            end: 0,
            held: 0,
            dirty: BTreeSet::new(),
            heads: BTreeSet::new(),
            in_memory: 0,
            in_memory_bytes: 0,
            consumed: 0..0,
            writing: Vec::new(),
            next: 0,
        }
    }

    pub(crate) fn handle_pushed(&mut self, subpartition: u32, length: u32) {
        self.dirty.insert(subpartition);
        self.in_memory += 1;
        self.in_memory_bytes += u64::from(length);
    }

    /// A buffer is in memory no more: it was written, read or thrown away.
    pub(crate) fn handle_left_memory(&mut self, length: u32) {
        self.in_memory -= 1;
        self.in_memory_bytes -= u64::from(length);
    }

    /// Payload on disk will not be read again. Gives where and how many bytes can be given back, once it is worth it.
    pub(crate) fn handle_consumed(&mut self, at: u64, length: u32) -> Option<(u64, u64)> {
        let end = at + u64::from(length);
        let follows = self.consumed.end == at;
        if follows {
            self.consumed.end = end;
            if end - self.consumed.start < RUN_BYTES {
                return None;
            }
            let done = std::mem::replace(&mut self.consumed, end..end);
            return Some((done.start, done.end - done.start));
        }
        let before = std::mem::replace(&mut self.consumed, at..end);
        let bytes = before.end - before.start;
        (bytes >= PUNCH_BYTES).then_some((before.start, bytes))
    }

    /// Whether everything is on disk.
    pub(crate) fn is_clean(&self) -> bool {
        self.writing.is_empty() && self.in_memory == 0
    }
}

impl Partition {
    /// Chooses the next batch, ordered by subpartition. Empty: there is nothing that could go now. `all`: also what its readers
    /// will want next.
    pub(crate) fn plan_batch(&mut self, all: bool) -> &[Written] {
        let keeps_heads = !all && self.kept.is_none() && self.is_readable();
        let Some(spool) = self.spool.as_mut() else { return &[] };
        assert!(spool.writing.is_empty(), "one batch at a time");
        let (before, after) = (spool.dirty.range(..spool.next), spool.dirty.range(spool.next..));
        let mut looked_at: Vec<u32> = after.chain(before).copied().collect();
        if all {
            looked_at.extend(&spool.heads);
        }
        let mut bytes = 0;
        for subpartition in looked_at {
            let Some(queue) = self.queues.get(subpartition) else {
                continue;
            };
            let is_read = reader_in(&self.ranges, subpartition).is_some();
            let keep = if keeps_heads && is_read { HEAD } else { 0 };
            for ordinal in queue.unwritten(keep) {
                if bytes >= BATCH_BYTES || spool.writing.len() == BATCH_PIECES {
                    return &spool.writing;
                }
                let Some(buffer) = queue.get(ordinal) else { break };
                let Place::Memory(slot) = buffer.place else { continue };
                spool.writing.push(Written {
                    subpartition,
                    ordinal,
                    at: spool.end,
                    slot,
                    offset: buffer.offset,
                    length: buffer.length,
                });
                spool.end += u64::from(buffer.length);
                bytes += u64::from(buffer.length);
            }
            spool.next = subpartition.saturating_add(1);
            spool.dirty.remove(&subpartition);
            if keep == 0 {
                spool.heads.remove(&subpartition);
            } else {
                spool.heads.insert(subpartition);
            }
        }
        &spool.writing
    }
}
