//! The books of a writer against a server and readers that are played by the test.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use shuffle_protocol::error::{ErrorKind, ShuffleError};
use shuffle_protocol::ids::{SubpartitionIndex, WriterId};
use shuffle_protocol::partition::{BufferKind, Totals};

use super::{Core, CoreConfig, EventCursor, HandOver, Need, Space};
use crate::consumer::{Assembly, Cursor};
use crate::producer::record::Encoder;

const CAPACITY: usize = 16;

#[derive(Debug)]
struct Buffer {
    slot: u32,
    memory: [u8; CAPACITY],
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

fn config(subpartitions: u32, max_queued: u32) -> CoreConfig {
    CoreConfig {
        writer: WriterId::new(9),
        subpartitions,
        capacity: CAPACITY,
        max_queued,
        after_each_record: false,
    }
}

fn sub(index: u32) -> SubpartitionIndex {
    SubpartitionIndex::new(index)
}

/// Plays the server: grants up to the demand from a pool, takes what leaves, and consumes in order.
struct Server {
    core: Core<Buffer>,
    pool: Vec<u32>,
    granted: u64,
    demand: u64,
    queues: Vec<VecDeque<HandOver<Buffer>>>,
    limits: Vec<u64>,
    read: Vec<Reader>,
}

#[derive(Default)]
struct Reader {
    assembly: Assembly,
    records: Vec<Bytes>,
    totals: Totals,
}

impl Server {
    fn new(config: CoreConfig, pool: u32) -> Self {
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

    fn sync(&mut self) {
        self.core.check_invariants();
        self.demand = self.core.poll_demand().unwrap_or(self.demand);
        for hand_over in self.core.poll_leaving() {
            let queue = &mut self.queues[hand_over.entry.subpartition.value() as usize];
            queue.push_back(hand_over);
        }
        for (queue, reader) in self.queues.iter().zip(&self.read) {
            for (at, hand_over) in queue.iter().enumerate() {
                assert_eq!(hand_over.entry.sequence.value(), reader.totals.buffers + at as u64);
            }
        }
    }

    /// Grants one buffer if one is wanted and there is one.
    fn grant(&mut self) -> bool {
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
    fn consume(&mut self, index: usize) -> bool {
        self.sync();
        let Some(HandOver { entry, buffer, used }) = self.queues[index].pop_front() else {
            return false;
        };
        let reader = &mut self.read[index];
        reader
            .totals
            .add_buffer(entry.length, entry.checksum, entry.records, entry.kind);
        assert_eq!(entry.length as usize, used);
        assert_eq!(entry.checksum, crc32fast::hash(&buffer.memory[..used]));
        if entry.kind == BufferKind::Data {
            reader.assembly.handle_buffer(entry.partial_start).unwrap();
            let mut cursor = Cursor::new(Bytes::copy_from_slice(&buffer.memory[..used]));
            while let Some(record) = reader.assembly.poll_record(&mut cursor, 1 << 20).unwrap() {
                reader.records.push(record);
            }
            assert_eq!(cursor.started(), entry.records);
        }
        self.pool.push(entry.slot);
        self.limits[index] += 1;
        let limit = self.limits[index];
        self.core.handle_limit(u32::try_from(index).unwrap(), limit).unwrap();
        self.sync();
        true
    }

    /// Writes a record, with grants and readers as fast as they are needed.
    fn write(&mut self, index: u32, record: &[u8]) {
        if self.core.append(sub(index), record) {
            self.sync();
            return;
        }
        let mut encoder = Encoder::new(record).unwrap();
        self.run(|core| core.write_step(sub(index), &mut encoder, Instant::now()).unwrap());
    }

    fn run(&mut self, mut step: impl FnMut(&mut Core<Buffer>) -> Need) {
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
                    assert!(consumed || self.grant(), "stuck without a buffer");
                }
            }
        }
        panic!("no end");
    }

    fn finish(mut self) -> (Vec<Reader>, Vec<Totals>) {
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

#[derive(Clone, Debug)]
enum Op {
    Write { subpartition: u32, length: usize },
    Event { subpartition: u32, length: usize },
    Commit { subpartition: u32, used: usize },
    Flush,
    Timeout,
    Grant,
    Consume(u32),
}

fn ops(subpartitions: u32) -> impl Strategy<Value = Vec<Op>> {
    let index = 0..subpartitions;
    let lengths = prop_oneof![
        Just(0),
        Just(1),
        Just(CAPACITY - 4),
        Just(CAPACITY - 3),
        Just(CAPACITY),
        0usize..20,
        Just(5 * CAPACITY)
    ];
    let op = prop_oneof![
        8 => (index.clone(), lengths).prop_map(|(subpartition, length)| Op::Write { subpartition, length }),
        1 => (index.clone(), 0usize..40).prop_map(|(subpartition, length)| Op::Event { subpartition, length }),
        1 => (index.clone(), 0..=CAPACITY - 4).prop_map(|(subpartition, used)| Op::Commit { subpartition, used }),
        1 => Just(Op::Flush),
        1 => Just(Op::Timeout),
        2 => Just(Op::Grant),
        2 => index.prop_map(Op::Consume),
    ];
    prop::collection::vec(op, 0..60)
}

proptest! {
    /// Whatever the order of records, events, buffers, flushes, grants and readers: every record comes out of its
    /// subpartition once and in order, the totals fit, no buffer is lost, and nothing is ever stuck, with fewer buffers
    /// than subpartitions too.
    #[test]
    fn everything_written_is_read(ops in ops(3), pool in 1u32..6, max_queued in 1u32..4) {
        let mut server = Server::new(config(3, max_queued), pool);
        let mut expected: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 3];
        for (number, op) in ops.into_iter().enumerate() {
            let stamp = u8::try_from(number).unwrap();
            match op {
                Op::Write { subpartition, length } => {
                    let record = vec![stamp; length];
                    server.write(subpartition, &record);
                    expected[subpartition as usize].push(record);
                }
                Op::Event { subpartition, length } => {
                    let event = vec![stamp; length];
                    let mut cursor = EventCursor::new(&event);
                    server.run(|core| core.event_step(sub(subpartition), &mut cursor).unwrap());
                }
                Op::Commit { subpartition, used } => {
                    let mut buffer = None;
                    server.run(|core| {
                        buffer = core.lend(sub(subpartition)).unwrap();
                        if buffer.is_some() { Need::Nothing } else { Need::Buffer }
                    });
                    let record = vec![stamp; used];
                    let mut lent = buffer.take().unwrap();
                    let used = crate::encode_record(lent.space(), &record).unwrap();
                    buffer = Some(lent);
                    server.run(|core| core.commit_step(sub(subpartition), &mut buffer, used, 1).unwrap());
                    prop_assert!(buffer.is_none());
                    expected[subpartition as usize].push(record);
                }
                Op::Flush => server.run(|core| core.flush_step().unwrap()),
                Op::Timeout => {
                    server.core.handle_timeout(Instant::now() + Duration::from_secs(1), Duration::from_millis(1));
                }
                Op::Grant => { server.grant(); }
                Op::Consume(index) => { server.consume(index as usize); }
            }
        }
        let (readers, totals) = server.finish();
        for ((reader, records), totals) in readers.iter().zip(&expected).zip(totals) {
            prop_assert_eq!(&reader.records, records);
            prop_assert_eq!(reader.totals, totals);
        }
    }
}

#[test]
fn a_partial_buffer_leaves_after_the_interval_and_not_before() {
    let mut server = Server::new(config(1, 10), 4);
    server.write(0, b"a");
    let interval = Duration::from_millis(100);
    let opened = Instant::now();
    let next = server.core.handle_timeout(opened, interval).expect("one is open");
    assert!(next <= opened + interval && !server.core.has_leaving());
    assert_eq!(server.core.handle_timeout(next, interval), None);
    assert!(server.core.has_leaving() && !server.core.has_open());
}

#[test]
fn a_full_queue_blocks_its_subpartition_and_no_other() {
    let mut server = Server::new(config(2, 1), 8);
    while server.grant() {}
    // One is handed over, the next is full and stays.
    server.write(0, &[1; CAPACITY - 4]);
    server.grant();
    assert_eq!(server.core.load(0), None);
    let mut fill = Encoder::new(&[1; CAPACITY - 4]).unwrap();
    assert_eq!(
        server.core.write_step(sub(0), &mut fill, Instant::now()).unwrap(),
        Need::Nothing
    );
    assert!(!server.core.has_leaving() && server.core.has_open());
    assert!(!server.core.append(sub(0), b""));
    let mut more = Encoder::new(b"x").unwrap();
    assert_eq!(
        server.core.write_step(sub(0), &mut more, Instant::now()).unwrap(),
        Need::Limit
    );
    assert!(!more.is_torn());
    server.write(1, b"free");
    assert_eq!(server.core.load(1), Some(0));
    // The full one leaves by itself once a reader makes room.
    assert!(server.consume(0));
    assert_eq!(server.queues[0].len(), 1);
}

#[test]
fn a_starved_writer_gives_partial_buffers_away() {
    let mut server = Server::new(config(3, 10), 2);
    server.write(0, b"a");
    server.write(1, b"b");
    assert!(!server.grant(), "the pool is used up");
    server.write(2, b"c");
    let (readers, _) = server.finish();
    assert_eq!(
        readers.iter().map(|reader| reader.records.len()).collect::<Vec<_>>(),
        [1, 1, 1]
    );
}

#[test]
fn a_record_given_up_in_its_middle_stops_the_writer() {
    let mut core = Core::new(config(2, 10));
    core.handle_grant(Buffer {
        slot: 0,
        memory: [0; CAPACITY],
    })
    .unwrap();
    let mut long = Encoder::new(&[7; 3 * CAPACITY]).unwrap();
    assert_eq!(
        core.write_step(sub(1), &mut long, Instant::now()).unwrap(),
        Need::Buffer
    );
    assert!(long.is_torn());
    let error = core.check_alive().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled));
    assert_eq!(error.location().subpartition, Some(sub(1)));
    assert!(core.flush_step().is_err());
    assert!(!core.append(sub(0), b"x"));
}

#[test]
fn a_record_that_needs_one_more_buffer_is_all_or_nothing() {
    let mut core = Core::new(config(1, 10));
    core.handle_grant(Buffer {
        slot: 0,
        memory: [0; CAPACITY],
    })
    .unwrap();
    let mut first = Encoder::new(&[7; 6]).unwrap();
    assert_eq!(
        core.write_step(sub(0), &mut first, Instant::now()).unwrap(),
        Need::Nothing
    );
    let mut second = Encoder::new(&[8; 6]).unwrap();
    assert_eq!(
        core.write_step(sub(0), &mut second, Instant::now()).unwrap(),
        Need::Buffer
    );
    assert!(!second.is_torn() && second.remaining() == 10);
    core.check_alive().unwrap();
}

#[test]
fn a_grant_in_the_middle_of_a_long_record_is_kept() {
    let mut core = Core::new(config(1, 10));
    let grant = |core: &mut Core<Buffer>, slot| {
        core.handle_grant(Buffer {
            slot,
            memory: [0; CAPACITY],
        })
    };
    grant(&mut core, 0).unwrap();
    let mut long = Encoder::new(&[7; CAPACITY]).unwrap();
    assert_eq!(
        core.write_step(sub(0), &mut long, Instant::now()).unwrap(),
        Need::Buffer
    );
    grant(&mut core, 1).unwrap();
    assert_eq!(
        core.write_step(sub(0), &mut long, Instant::now()).unwrap(),
        Need::Nothing
    );
    core.check_alive().unwrap();
}

#[test]
fn the_first_failure_stays_and_frees_everything() {
    let mut core = Core::new(config(1, 10));
    for slot in 0..3 {
        core.handle_grant(Buffer {
            slot,
            memory: [0; CAPACITY],
        })
        .unwrap();
    }
    let mut record = Encoder::new(b"x").unwrap();
    core.write_step(sub(0), &mut record, Instant::now()).unwrap();
    let lent = core.lend(sub(0)).unwrap().unwrap();
    let failure = |kind| ShuffleError::new(kind, "");
    assert_eq!(core.handle_failure(failure(ErrorKind::GroupFailed)).len(), 2);
    assert!(core.handle_failure(failure(ErrorKind::ConnectionLost)).is_empty());
    assert!(matches!(core.check_alive().unwrap_err().kind(), ErrorKind::GroupFailed));
    assert!(core.put_back(lent).is_err(), "it must go to the server");
    assert_eq!(core.poll_demand(), None);
}

#[test]
fn a_subpartition_that_is_not_there_is_refused() {
    let mut core = Core::<Buffer>::new(config(2, 10));
    let mut record = Encoder::new(b"x").unwrap();
    let error = core.write_step(sub(2), &mut record, Instant::now()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest));
    assert!(matches!(
        core.handle_limit(2, 20).unwrap_err().kind(),
        ErrorKind::Protocol
    ));
    assert!(!core.append(sub(2), b"x"));
}

#[test]
fn demand_is_absolute_and_keeps_a_few_buffers_ahead() {
    let mut core = Core::new(config(1, 10));
    assert_eq!(core.poll_demand(), Some(2));
    assert_eq!(core.poll_demand(), None);
    core.handle_grant(Buffer {
        slot: 0,
        memory: [0; CAPACITY],
    })
    .unwrap();
    let mut record = Encoder::new(b"x").unwrap();
    core.write_step(sub(0), &mut record, Instant::now()).unwrap();
    assert_eq!(core.poll_demand(), Some(3));
    core.handle_starved(false);
    assert_eq!(core.poll_demand(), Some(9));
}
