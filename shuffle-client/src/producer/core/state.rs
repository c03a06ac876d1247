//! What a writer has in its books, and what is true of it.

use std::time::Instant;

use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::ids::{SubpartitionIndex, WriterId};
use shuffle_protocol::partition::Totals;

use super::leaving::HandOver;
use super::sorted::Sorted;
use crate::codec::{Compression, Packer};
use crate::producer::record::RECORD_PREFIX_BYTES;

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
    /// Longest record, in bytes.
    pub(crate) max_record: usize,
    pub(crate) after_each_record: bool,
    pub(crate) checksums: bool,
    pub(crate) compression: Compression,
    /// The most buffers of its local pool.
    pub(crate) max_buffers: Option<u32>,
    /// Records go through a sort buffer.
    pub(crate) sorted: bool,
}

pub(super) struct Subpartition {
    pub(super) handed: u64,
    pub(super) limit: u64,
    pub(super) totals: Totals,
    /// Place in `Core::open`.
    pub(super) open: Option<u32>,
}

impl Subpartition {
    pub(super) fn queued(&self, window: u64) -> u64 {
        self.handed.saturating_sub(self.limit - window)
    }
}

pub(super) struct Open<B> {
    pub(super) buffer: B,
    pub(super) subpartition: u32,
    pub(super) used: usize,
    pub(super) records: u32,
    pub(super) partial_start: bool,
    pub(super) opened_at: Instant,
    /// It is to leave as soon as the limit allows.
    pub(super) due: bool,
}

pub(crate) struct Core<B> {
    pub(super) config: CoreConfig,
    pub(super) free: Vec<B>,
    pub(super) open: Vec<Open<B>>,
    pub(super) subpartitions: Vec<Subpartition>,
    pub(super) leaving: Vec<HandOver<B>>,
    /// Buffers taken from `free`, less those put back.
    pub(super) taken: u64,
    pub(super) demanded: u64,
    pub(super) prefetch: u64,
    pub(super) prefetch_most: u64,
    /// What had been taken when that was last raised: one wait raises it once.
    pub(super) taken_when_starved: u64,
    pub(super) in_flight: u64,
    pub(super) torn: Option<SubpartitionIndex>,
    pub(super) failure: Option<ShuffleError>,
    pub(super) sorted: Option<Sorted<B>>,
    pub(super) packer: Packer,
    /// Payload that was handed over, in bytes before it was packed.
    pub(super) unpacked_bytes: u64,
    #[cfg(any(test, debug_assertions))]
    checks: std::cell::Cell<u32>,
}

/// Granted buffers kept in hand: at first, and at most. Each time the producer has to wait they are doubled, so that a fast one
/// asks and hands over by the dozen and a slow one keeps little from others. Never more than half of what it may have: the
/// other half is on its way.
const PREFETCH_LEAST: u64 = 2;
const PREFETCH_MOST: u64 = 64;

impl<B: Space> Core<B> {
    pub(crate) fn new(config: CoreConfig) -> Self {
        let limit = u64::from(config.max_queued);
        let sorted = config.sorted.then(|| Sorted::new(&config));
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
            prefetch_most: config
                .max_buffers
                .map_or(PREFETCH_MOST, |most| u64::from(most) / 2)
                .clamp(PREFETCH_LEAST, PREFETCH_MOST),
            sorted,
            taken_when_starved: 0,
            in_flight: 0,
            torn: None,
            failure: None,
            packer: Packer::new(config.compression),
            unpacked_bytes: 0,
            #[cfg(any(test, debug_assertions))]
            checks: std::cell::Cell::new(0),
        }
    }

    // ------------------------------------------------------------------------------------------- from the server

    /// A granted buffer. `Err`: the writer has failed, and it must go back.
    pub(crate) fn handle_grant(&mut self, buffer: B) -> std::result::Result<(), B> {
        if self.failure.is_some() {
            return Err(buffer);
        }
        self.free.push(buffer);
        self.go_on_leaving();
        Ok(())
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
        if self.sorted.is_some() {
            self.go_on_leaving();
        }
        Ok(())
    }

    /// The writer has failed. The first failure stays; its buffers are to be given back.
    pub(crate) fn handle_failure(&mut self, error: ShuffleError) -> Vec<B> {
        self.failure.get_or_insert(error);
        self.take_unsent()
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

    /// Buffers that wait in a subpartition; `None` if it is blocked for a record of `bytes`: its queue is full, and its open
    /// buffer has no room for the record.
    pub(crate) fn load(&self, subpartition: u32, bytes: usize) -> Option<u64> {
        let sub = &self.subpartitions[to_index(subpartition)];
        if self.sorted.is_some() {
            return (sub.handed < sub.limit).then(|| sub.queued(u64::from(self.config.max_queued)));
        }
        let needed = bytes.saturating_add(RECORD_PREFIX_BYTES);
        let full = self.open_space(subpartition).is_none_or(|space| space < needed);
        let blocked = full && sub.handed == sub.limit;
        (!blocked).then(|| sub.queued(u64::from(self.config.max_queued)))
    }

    pub(crate) fn subpartitions(&self) -> u32 {
        self.config.subpartitions
    }

    pub(crate) fn has_open(&self) -> bool {
        !self.open.is_empty() || self.has_staged()
    }

    /// What was handed over, by subpartition.
    pub(crate) fn totals(&self) -> Vec<Totals> {
        self.subpartitions.iter().map(|sub| sub.totals).collect()
    }

    /// What was handed over, in bytes before it was packed.
    pub(crate) fn unpacked_bytes(&self) -> u64 {
        self.unpacked_bytes
    }

    /// Buffers that never leave; the writer is done.
    pub(crate) fn take_unsent(&mut self) -> Vec<B> {
        for open in &self.open {
            self.subpartitions[to_index(open.subpartition)].open = None;
        }
        let open = self.open.drain(..).map(|open| open.buffer);
        let mut unsent: Vec<B> = self.free.drain(..).chain(open).collect();
        if let Some(sorted) = &mut self.sorted {
            unsent.extend(sorted.buffer.take_slots());
        }
        unsent
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
                "an earlier write was dropped in the middle of a record that spans buffers, or of an event; the stream \
                 cannot go on from there",
            )
            .subpartition(subpartition)),
        }
    }

    pub(super) fn check_usable(&self, subpartition: SubpartitionIndex) -> Result<()> {
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

    pub(super) fn raise_prefetch(&mut self) {
        if self.taken > self.taken_when_starved {
            self.taken_when_starved = self.taken;
            self.prefetch = (2 * self.prefetch).min(self.prefetch_most);
        }
    }

    pub(super) fn take_free(&mut self) -> Option<B> {
        let buffer = self.free.pop()?;
        self.taken += 1;
        Some(buffer)
    }

    pub(super) fn is_open(&self, index: u32) -> bool {
        self.subpartitions[to_index(index)].open.is_some()
    }

    pub(super) fn has_limit(&self, index: u32) -> bool {
        let sub = &self.subpartitions[to_index(index)];
        sub.handed < sub.limit
    }

    pub(super) fn open_space(&self, index: u32) -> Option<usize> {
        let place = self.subpartitions[to_index(index)].open?;
        Some(self.config.capacity - self.open[to_index(place)].used)
    }

    pub(super) fn mark_due(&mut self, index: u32) {
        if let Some(place) = self.subpartitions[to_index(index)].open {
            self.open[to_index(place)].due = true;
        }
    }

    pub(super) fn open_buffer(&mut self, index: u32, buffer: B, partial_start: bool, now: Instant) {
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

    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check_invariants(&self) {
        // With many subpartitions now and then.
        self.checks.set(self.checks.get().wrapping_add(1));
        if !self
            .checks
            .get()
            .is_multiple_of((self.config.subpartitions / 64).max(1))
        {
            return;
        }
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

pub(super) fn to_index(value: u32) -> usize {
    usize::try_from(value).expect("invariant: Linux has at least 32 bits")
}

fn broken(message: String) -> ShuffleError {
    ShuffleError::new(ErrorKind::Protocol, message)
}
