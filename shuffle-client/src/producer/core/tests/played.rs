//! A server and readers that a test plays for the books of one writer.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use shuffle_protocol::frame::SlotEntry;
use shuffle_protocol::ids::{SubpartitionIndex, WriterId};
use shuffle_protocol::partition::{BufferKind, Totals};

use super::super::{Core, CoreConfig, HandOver, Need, Space};
use crate::codec::Compression;
use crate::consumer::{Assembly, Cursor};
use crate::producer::record::Encoder;

pub(super) const CAPACITY: usize = 16;

#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) slot: u32,
    pub(super) memory: [u8; CAPACITY],
}

impl Space for Buffer {
    fn slot(&self) -> u32 {
        self.slot
    }

    fn space(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    fn bytes(&self) -> &[u8] {
        &self.memory
    }
}

pub(super) fn config(subpartitions: u32, max_queued: u32) -> CoreConfig {
    CoreConfig {
        writer: WriterId::new(9),
        subpartitions,
        capacity: CAPACITY,
        max_queued,
        max_record: 1 << 20,
        after_each_record: false,
        checksums: true,
        compression: Compression::None,
        max_buffers: Some(65),
        sorted: false,
    }
}

pub(super) fn sub(index: u32) -> SubpartitionIndex {
    SubpartitionIndex::new(index)
}

/// Plays the server: grants up to the demand from a pool, takes what leaves, and consumes in order.
pub(super) struct Server {
    pub(super) core: Core<Buffer>,
    pub(super) pool: Vec<u32>,
    pub(super) granted: u64,
    pub(super) demand: u64,
    pub(super) queues: Vec<VecDeque<Slice>>,
    pub(super) limits: Vec<u64>,
    pub(super) read: Vec<Reader>,
}

/// A buffer that was handed over, or a slice of one: the buffer goes home with the last of its slices.
pub(super) struct Slice {
    pub(super) entry: SlotEntry,
    buffer: Rc<Buffer>,
}

impl Slice {
    pub(super) fn payload(&self) -> &[u8] {
        let (offset, length) = (self.entry.offset as usize, self.entry.length as usize);
        &self.buffer.memory[offset..offset + length]
    }
}

#[derive(Default)]
pub(super) struct Reader {
    pub(super) assembly: Assembly,
    pub(super) records: Vec<Bytes>,
    pub(super) totals: Totals,
}

impl Server {
    pub(super) fn new(config: CoreConfig, pool: u32) -> Self {
        let count = config.subpartitions as usize;
        Self {
            core: Core::new(config),
            pool: (0..pool).collect(),
            granted: 0,
            demand: 0,
            queues: (0..count).map(|_| VecDeque::new()).collect(),
            limits: vec![config.max_queued.into(); count],
            read: (0..count).map(|_| Reader::default()).collect(),
        }
    }

    pub(super) fn sync(&mut self) {
        self.core.check_invariants();
        self.demand = self.core.poll_demand().unwrap_or(self.demand);
        let mut slices = Vec::new();
        for HandOver { entry, buffer, used } in self.core.poll_leaving() {
            assert_eq!(
                entry.more_slices,
                buffer.is_none(),
                "the buffer comes with its last slice"
            );
            slices.push(entry);
            let Some(buffer) = buffer.map(Rc::new) else { continue };
            let mut end = 0;
            for entry in slices.drain(..) {
                assert_eq!((entry.slot, entry.offset), (buffer.slot, end));
                end += entry.length;
                let buffer = buffer.clone();
                self.queues[entry.subpartition.value() as usize].push_back(Slice { entry, buffer });
            }
            assert_eq!(end as usize, used);
        }
        assert!(slices.is_empty(), "the slices of a buffer leave together");
        for (queue, reader) in self.queues.iter().zip(&self.read) {
            for (at, slice) in queue.iter().enumerate() {
                assert_eq!(slice.entry.sequence.value(), reader.totals.buffers + at as u64);
            }
        }
    }

    /// Grants one buffer if one is wanted and there is one.
    pub(super) fn grant(&mut self) -> bool {
        self.sync();
        if self.granted >= self.demand {
            return false;
        }
        let Some(slot) = self.pool.pop() else {
            return false;
        };
        self.granted += 1;
        // What was there before must never show.
        self.core
            .handle_grant(Buffer {
                slot,
                memory: [0xEE; CAPACITY],
            })
            .unwrap();
        true
    }

    /// Reads one buffer of a subpartition and raises its limit.
    pub(super) fn consume(&mut self, index: usize) -> bool {
        self.sync();
        let Some(slice) = self.queues[index].pop_front() else {
            return false;
        };
        let entry = slice.entry;
        let reader = &mut self.read[index];
        reader
            .totals
            .add_buffer(entry.length, entry.checksum, entry.records, entry.kind);
        assert_eq!(entry.checksum, crc32fast::hash(slice.payload()));
        if entry.kind == BufferKind::Data {
            reader.assembly.handle_buffer(entry.partial_start).unwrap();
            let mut cursor = Cursor::new(Bytes::copy_from_slice(slice.payload()));
            while let Some(record) = reader.assembly.poll_record(&mut cursor, 1 << 20).unwrap() {
                reader.records.push(record);
            }
            assert_eq!(cursor.started(), entry.records);
        }
        if Rc::strong_count(&slice.buffer) == 1 {
            self.pool.push(entry.slot);
        }
        drop(slice);
        self.limits[index] += 1;
        let limit = self.limits[index];
        self.core.handle_limit(u32::try_from(index).unwrap(), limit).unwrap();
        self.sync();
        true
    }

    /// Writes a record, with grants and readers as fast as they are needed.
    pub(super) fn write(&mut self, index: u32, record: &[u8]) {
        if self.core.append(sub(index), record) {
            self.sync();
            return;
        }
        let mut encoder = Encoder::new(record).unwrap();
        self.run(|core| core.write_step(sub(index), &mut encoder, Instant::now()).unwrap());
    }

    pub(super) fn run(&mut self, mut step: impl FnMut(&mut Core<Buffer>) -> Need) {
        for _ in 0..100_000 {
            let need = step(&mut self.core);
            self.sync();
            match need {
                Need::Nothing => return,
                Need::Limit => assert!(
                    (0..self.queues.len()).any(|index| self.consume(index)),
                    "stuck on a limit"
                ),
                Need::Buffer => {
                    if self.grant() {
                        continue;
                    }
                    self.core.handle_starved(false);
                    self.sync();
                    let consumed = (0..self.queues.len()).any(|index| self.consume(index));
                    if !consumed && !self.grant() {
                        self.core.handle_starved(true);
                        self.sync();
                        let more = (0..self.queues.len()).any(|index| self.consume(index));
                        assert!(more || self.grant(), "stuck without a buffer");
                    }
                }
            }
        }
        panic!("no end");
    }

    pub(super) fn finish(mut self) -> (Vec<Reader>, Vec<Totals>) {
        self.run(|core| core.flush_step().unwrap());
        let unsent = self.core.take_unsent();
        self.pool.extend(unsent.iter().map(|buffer| buffer.slot));
        for index in 0..self.queues.len() {
            while self.consume(index) {}
        }
        self.pool.sort_unstable();
        let all: Vec<u32> = (0..u32::try_from(self.pool.len()).unwrap()).collect();
        assert_eq!(self.pool, all, "a buffer was lost or came back twice");
        let totals = self.core.totals();
        (self.read, totals)
    }
}
