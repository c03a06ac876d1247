//! What a server tells a job's driver of partitions, as values, and how they go into messages and come out of them.
//!
//! ```text
//!   PartitionChange --Packer--> PartitionEvents, each at most MAX_EVENTS_BYTES --Unpacker--> PartitionChange
//!                                  a partition of many subpartitions takes several events, one behind the other
//! ```

use std::sync::Arc;

use prost::Message as _;

use crate::control::{PartitionEvent, PartitionEvents, PartitionPhase, required};
use crate::error::{ErrorKind, Result, ShuffleError};
use crate::ids::PartitionId;
use crate::limits::{MAX_EVENTS_BYTES, MAX_SUBPARTITIONS, MAX_SUBPARTITIONS_PER_EVENT};

/// What happened to one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionChange {
    /// The partition and attempt.
    pub partition: PartitionId,
    /// What happened.
    pub state: PartitionState,
}

/// How far a partition is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartitionState {
    /// Its producer has created it.
    Registered,
    /// It can be read, if it is pipelined.
    FirstBuffer,
    /// Its producer has finished it.
    Finished {
        /// Bytes of each of its subpartitions.
        bytes: Arc<[u64]>,
    },
    /// Its producer, or the server, failed it.
    Failed {
        /// Why.
        cause: ShuffleError,
    },
    /// It is no longer there.
    Released,
}

impl PartitionState {
    /// The name of the state on the wire.
    pub const fn phase(&self) -> PartitionPhase {
        match self {
            Self::Registered => PartitionPhase::Registered,
            Self::FirstBuffer => PartitionPhase::FirstBuffer,
            Self::Finished { .. } => PartitionPhase::Finished,
            Self::Failed { .. } => PartitionPhase::Failed,
            Self::Released => PartitionPhase::Released,
        }
    }
}

/// Puts changes into messages.
#[derive(Debug, Default)]
pub struct Packer {
    full: Vec<PartitionEvents>,
    last: PartitionEvents,
    last_bytes: usize,
    bytes: usize,
}

impl Packer {
    /// Encoded bytes of all events that were put in.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts one change in.
    pub fn push(&mut self, change: &PartitionChange) {
        let event = PartitionEvent {
            partition: Some(change.partition.into()),
            phase: change.state.phase().into(),
            ..PartitionEvent::default()
        };
        match &change.state {
            PartitionState::Finished { bytes } => self.push_sizes(event, bytes),
            PartitionState::Failed { cause } => self.push_event(PartitionEvent {
                cause: Some(cause.into()),
                ..event
            }),
            _ => self.push_event(event),
        }
    }

    /// The messages, numbered from `first` on; at least one.
    #[must_use]
    pub fn finish(mut self, first: u64, snapshot_complete: bool) -> Vec<PartitionEvents> {
        self.last.snapshot_complete = snapshot_complete;
        self.full.push(self.last);
        for (number, message) in (first..).zip(&mut self.full) {
            message.number = number;
        }
        self.full
    }

    fn push_sizes(&mut self, event: PartitionEvent, sizes: &[u64]) {
        let subpartitions = u32::try_from(sizes.len()).expect("invariant: a partition has at most MAX_SUBPARTITIONS");
        let mut first = 0;
        loop {
            let end = sizes.len().min(first + MAX_SUBPARTITIONS_PER_EVENT as usize);
            self.push_event(PartitionEvent {
                subpartitions,
                first: u32::try_from(first).expect("invariant: less than the number of subpartitions"),
                bytes: sizes[first..end].to_vec(),
                continues: end < sizes.len(),
                ..event.clone()
            });
            if end == sizes.len() {
                return;
            }
            first = end;
        }
    }

    fn push_event(&mut self, event: PartitionEvent) {
        /// Its tag and its length.
        const HEAD: usize = 1 + 4;
        let bytes = HEAD + event.encoded_len();
        if self.last_bytes + bytes > MAX_EVENTS_BYTES as usize && !self.last.events.is_empty() {
            self.full.push(std::mem::take(&mut self.last));
            self.last_bytes = 0;
        }
        self.last_bytes += bytes;
        self.bytes += bytes;
        self.last.events.push(event);
    }
}

/// Takes changes out of messages.
#[derive(Debug, Default)]
pub struct Unpacker {
    begun: Option<(PartitionId, u32, Vec<u64>)>,
}

impl Unpacker {
    /// Takes in one event. `None`: the next one goes on with it.
    ///
    /// # Errors
    /// `Protocol` or `InvalidRequest` for an event that makes no sense, or not at this place.
    pub fn handle_event(&mut self, event: PartitionEvent) -> Result<Option<PartitionChange>> {
        let partition = PartitionId::from(required(event.partition, "partition")?);
        let phase = PartitionPhase::try_from(event.phase).unwrap_or_default();
        let begun = self.begun.take();
        if phase != PartitionPhase::Finished && begun.is_some() {
            return Err(nonsense("a partition's sizes are cut off"));
        }
        let state = match phase {
            PartitionPhase::Unspecified => return Err(nonsense("a phase that is not known")),
            PartitionPhase::Registered => PartitionState::Registered,
            PartitionPhase::FirstBuffer => PartitionState::FirstBuffer,
            PartitionPhase::Released => PartitionState::Released,
            PartitionPhase::Failed => PartitionState::Failed {
                cause: required(event.cause, "cause")?.into(),
            },
            PartitionPhase::Finished => match self.handle_sizes(begun, partition, event)? {
                Some(sizes) => PartitionState::Finished { bytes: sizes.into() },
                None => return Ok(None),
            },
        };
        Ok(Some(PartitionChange { partition, state }))
    }

    fn handle_sizes(
        &mut self,
        begun: Option<(PartitionId, u32, Vec<u64>)>,
        partition: PartitionId,
        event: PartitionEvent,
    ) -> Result<Option<Vec<u64>>> {
        let PartitionEvent {
            subpartitions,
            first,
            bytes,
            continues,
            ..
        } = event;
        if subpartitions > MAX_SUBPARTITIONS {
            return Err(nonsense("more subpartitions than a partition can have"));
        }
        let (of, count, mut sizes) = begun.unwrap_or((partition, subpartitions, Vec::new()));
        if of != partition || count != subpartitions || sizes.len() != first as usize {
            return Err(nonsense("sizes that do not go on where they were cut off"));
        }
        if sizes.len() + bytes.len() > subpartitions as usize || continues && bytes.is_empty() {
            return Err(nonsense("sizes of subpartitions that are not there"));
        }
        sizes.extend(bytes);
        if continues {
            self.begun = Some((partition, subpartitions, sizes));
            return Ok(None);
        }
        if sizes.len() < subpartitions as usize {
            return Err(nonsense("sizes of some subpartitions are missing"));
        }
        Ok(Some(sizes))
    }
}

fn nonsense(what: &str) -> ShuffleError {
    ShuffleError::new(ErrorKind::Protocol, format!("events of partitions: {what}"))
}
