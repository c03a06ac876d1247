//! Several buffers in one frame, which takes one credit and one buffer of the reader's node.
//!
//! ```text
//!   credits given <= buffers that wait here       so every credit is used, and none sits on what other channels wait for
//!   a buffer joins only if more wait than there are credits left: those that stay behind use them up
//! ```
//!
//! So what is told as backlog may be fewer than wait, and never more.

use super::{Buffered, Item, Outlet, Partition, Place, Pull};

/// Subpartitions that are asked how much waits in them.
const LOOKED_AT: usize = 8;

/// Most buffers of one frame. More would save little, and each costs books on both sides until it is acknowledged and given back.
const MOST: u32 = 64;

const _: () = assert!(MOST <= shuffle_protocol::limits::MAX_SLICES);

/// The frame that a channel is filling.
#[derive(Debug)]
pub(crate) struct Packing {
    /// Payload that a frame may have, in bytes.
    buffer_bytes: u32,
    /// What may still join, in buffers and bytes; nothing where there is no frame.
    room: (u32, u32),
}

impl Packing {
    pub(super) fn new(buffer_bytes: u32) -> Self {
        Self {
            buffer_bytes,
            room: (0, 0),
        }
    }
}

impl Outlet {
    /// What is pulled next begins a frame.
    pub(crate) fn end_frame(&mut self) {
        if let Some(packing) = &mut self.packing {
            packing.room = (0, 0);
        }
    }

    pub(super) fn begin_frame(&mut self, first: &Buffered) {
        if let Some(packing) = &mut self.packing {
            let left = packing.buffer_bytes.saturating_sub(first.length);
            packing.room = match first.place {
                Place::Memory(_) => (MOST - 1, left),
                Place::Received(_) | Place::Disk(_) | Place::Loaded { .. } => (0, 0),
            };
        }
    }

    /// Whether the next buffer goes in the frame of the last one.
    pub(crate) fn continues_frame(&self, partition: &Partition) -> bool {
        self.sender.resends_joined() || self.room_behind_next(partition).is_some()
    }

    /// What room there is once the next buffer has joined the frame that was begun; `None`: it must not.
    fn room_behind_next(&self, partition: &Partition) -> Option<(u32, u32)> {
        let (buffers, bytes) = self.packing.as_ref()?.room;
        // Each of them has at least one that waits.
        let waiting = self.ready.len() as u64;
        if buffers == 0 || waiting <= self.sender.credit_left() || self.sender.is_resending() {
            return None;
        }
        let next = self.next_in_memory(partition)?;
        Some((buffers - 1, bytes.checked_sub(next.length)?))
    }

    /// The next buffer, if it may go in the frame that was begun.
    pub(super) fn pull_joining(&mut self, partition: &mut Partition) -> Option<Pull> {
        let room = self.room_behind_next(partition)?;
        let (subpartition, buffer) = self.next_waiting(partition)?;
        if let Some(packing) = &mut self.packing {
            packing.room = room;
        }
        let sequence = self.sender.join_buffer(Item::Buffer { subpartition, buffer });
        Some(Pull::Buffer {
            sequence,
            subpartition,
            buffer,
            backlog: self.backlog(partition),
            again: false,
            joins: true,
        })
    }

    /// The buffer whose turn it is, if it is read once and lies in memory.
    fn next_in_memory(&self, partition: &Partition) -> Option<Buffered> {
        if partition.kept.is_some() || partition.audience.is_some() {
            return None;
        }
        let queue = partition.queue(*self.ready.front()?)?;
        let next = queue.get(queue.base())?;
        matches!(next.place, Place::Memory(_)).then_some(next)
    }

    /// Buffers that wait for this reader. One number for the channel, so at most a few subpartitions are asked.
    pub(super) fn backlog(&self, partition: &Partition) -> u32 {
        let reading = self.reading.as_deref();
        let on_disk = reading
            .into_iter()
            .flat_map(|reading| reading.on_disk.iter().map(|(_, index)| *index));
        let loaded = reading.map_or(0, |reading| reading.loads.len() as u64);
        let waiting = self.ready.iter().copied().chain(on_disk).take(LOOKED_AT);
        let waiting = waiting.fold(loaded, |sum, index| sum + self.waiting_of(partition, index));
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        self.frames_of(partition, waiting)
    }

    /// Buffers of a subpartition that this reader could have.
    pub(super) fn waiting_of(&self, partition: &Partition, subpartition: u32) -> u64 {
        let Some(queue) = partition.queue(subpartition) else {
            return 0;
        };
        let next = self.cursor(partition, subpartition);
        next.map_or(queue.waiting_len().into(), |cursor| {
            let end = match partition.kept {
                Some(_) => queue.written(),
                None => queue.handed_over(),
            };
            end.saturating_sub(cursor.next)
        })
    }

    /// How many frames so many buffers make, going by the next few; at least one, and no more than there are buffers.
    fn frames_of(&self, partition: &Partition, buffers: u32) -> u32 {
        let Some(packing) = &self.packing else { return buffers };
        let few = self.ready.iter().take(LOOKED_AT);
        let lengths = few.filter_map(|index| {
            let queue = partition.queue(*index)?;
            Some(queue.get(queue.base())?.length)
        });
        let (count, bytes) = lengths.fold((0u32, 0u64), |(count, bytes), length| {
            (count + 1, bytes + u64::from(length))
        });
        if count == 0 || partition.kept.is_some() || partition.audience.is_some() {
            return buffers;
        }
        let each = (bytes / u64::from(count)).max(1);
        let together = u64::from(packing.buffer_bytes) / each;
        let together = u32::try_from(together).unwrap_or(u32::MAX).clamp(1, MOST);
        let others = u32::try_from(self.ready.len().saturating_sub(LOOKED_AT)).unwrap_or(u32::MAX);
        buffers.saturating_add(others).div_ceil(together)
    }
}
