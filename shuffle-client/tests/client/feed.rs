//! Channels as a producer would fill them.

use shuffle_protocol::frame::{Arena, EndEntry, SlotEntry};
use shuffle_protocol::ids::{Sequence, StreamId};
use shuffle_protocol::partition::{BufferKind, Totals};

use crate::fake::Fake;

/// What a producer would write to one channel, buffer by buffer, into slots of the read arena.
pub(crate) struct Feed {
    pub(crate) stream: u32,
    pub(crate) sequence: u64,
    pub(crate) totals: Totals,
    pub(crate) arena: Arena,
}

impl Feed {
    pub(crate) fn new(stream: u32) -> Self {
        Self {
            stream,
            sequence: 0,
            totals: Totals::default(),
            arena: Arena::Read,
        }
    }

    fn next(&mut self) -> Sequence {
        self.sequence += 1;
        Sequence::new(self.sequence - 1)
    }

    pub(crate) fn entry(&mut self, slot: u32, payload: &[u8], records: u32) -> SlotEntry {
        let length = u32::try_from(payload.len()).unwrap();
        let checksum = crc32fast::hash(payload);
        self.totals.add_buffer(length, checksum, records, BufferKind::Data);
        SlotEntry {
            stream: StreamId::new(self.stream),
            sequence: self.next(),
            slot,
            length,
            checksum,
            records,
            arena: self.arena,
            ..SlotEntry::default()
        }
    }

    /// Puts the payload in a slot and describes it.
    pub(crate) fn buffer(&mut self, fake: &Fake, slot: u32, payload: &[u8], records: u32) -> SlotEntry {
        let arena = match self.arena {
            Arena::Write => &fake.write,
            Arena::Read => &fake.read,
        };
        let mut memory = arena.writable(slot).unwrap();
        memory[..payload.len()].copy_from_slice(payload);
        memory.hand_over();
        self.entry(slot, payload, records)
    }

    /// One buffer of whole records.
    pub(crate) fn records(&mut self, fake: &Fake, slot: u32, records: &[&[u8]]) -> SlotEntry {
        let payload = encoded(records);
        self.buffer(fake, slot, &payload, u32::try_from(records.len()).unwrap())
    }

    pub(crate) fn end(&mut self, last: bool) -> EndEntry {
        let sequence = self.next();
        EndEntry {
            stream: StreamId::new(self.stream),
            sequence,
            totals: self.totals,
            last,
            ..EndEntry::default()
        }
    }
}

pub(crate) fn encoded(records: &[&[u8]]) -> Vec<u8> {
    let mut payload = Vec::new();
    for record in records {
        payload.extend_from_slice(&u32::try_from(record.len()).unwrap().to_le_bytes());
        payload.extend_from_slice(record);
    }
    payload
}
