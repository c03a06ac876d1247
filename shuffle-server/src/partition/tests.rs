//! Queues against the plainest thing that could be one, and what their pages take.

use std::collections::VecDeque;

use shuffle_protocol::partition::{BufferKind, Codec, Totals};

use super::queues::Queues;
use super::{Buffered, Place, Queue};

/// Numbers that look random, the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 33).expect("31 bits") % end
    }

    fn chance(&mut self) -> bool {
        self.below(2) == 0
    }

    fn buffer(&mut self, place: Place) -> Buffered {
        Buffered {
            place,
            offset: if matches!(place, Place::Disk(_)) {
                0
            } else {
                self.below(1 << 24)
            },
            length: self.below(1 << 24),
            checksum: self.below(u32::MAX),
            records: self.below(u32::MAX),
            kind: if self.chance() {
                BufferKind::Data
            } else {
                BufferKind::Event
            },
            continues: self.chance(),
            partial_start: self.chance(),
            unchecked: self.chance(),
            codec: [Codec::Plain, Codec::Lz4, Codec::Zstd][self.below(3) as usize],
        }
    }
}

/// What a queue is to do, without a thought of room.
#[derive(Default)]
struct Model {
    waiting: VecDeque<Buffered>,
    totals: Totals,
    held: u32,
}

impl Model {
    fn push(&mut self, buffer: Buffered) {
        self.totals
            .add_buffer(buffer.length, buffer.checksum, buffer.records, buffer.kind);
        self.held += 1;
        self.waiting.push_back(buffer);
    }

    fn check(&self, queue: &Queue) {
        assert_eq!(queue.totals(), self.totals);
        assert_eq!(queue.handed_over(), self.totals.buffers);
        assert!(queue.waiting().eq(self.waiting.iter().copied()));
        let base = self.totals.buffers - self.waiting.len() as u64;
        assert_eq!(queue.base(), base);
        assert_eq!(queue.limit(10), self.totals.buffers - u64::from(self.held) + 10);
        assert_eq!(queue.get(base), self.waiting.front().copied());
        assert_eq!(queue.is_waiting_empty(), self.waiting.is_empty());
        let unwritten: Vec<u64> = queue.unwritten(0).collect();
        for (ordinal, buffer) in (base..).zip(&self.waiting) {
            let in_memory = !matches!(buffer.place, Place::Disk(_));
            assert!(
                !in_memory || unwritten.contains(&ordinal),
                "{ordinal} is not known to lie in memory"
            );
        }
        queue.check_invariants(None);
    }
}

#[test]
fn a_queue_does_what_the_plainest_one_does() {
    for seed in 0..64 {
        let mut numbers = Numbers(seed);
        let keeps_room = numbers.chance();
        // A few that come and go, or more and more of them.
        let (pushes, most) = (1 + numbers.below(4), 1 + numbers.below(12));
        let (mut queue, mut model) = (Queue::default(), Model::default());
        for step in 0..600u32 {
            match numbers.below(6) {
                0 | 1 if numbers.below(4) < pushes && model.waiting.len() < most as usize => {
                    let place = if seed % 8 == 0 {
                        Place::Received(step)
                    } else {
                        Place::Memory(step)
                    };
                    let buffer = numbers.buffer(place);
                    queue.push(buffer, keeps_room);
                    model.push(buffer);
                }
                2 => assert_eq!(queue.pop(keeps_room), model.waiting.pop_front()),
                3 if model.held > u32::try_from(model.waiting.len()).expect("few") => {
                    queue.handle_gone();
                    model.held -= 1;
                }
                4 => {
                    // As a batch does it: from the first that is not written.
                    let base = queue.base();
                    let Some(ordinal) = queue.unwritten(0).find(|ordinal| {
                        matches!(queue.get(*ordinal).map(|buffer| buffer.place), Some(Place::Memory(_)))
                    }) else {
                        continue;
                    };
                    let at = u64::from(step) << 30 | 5;
                    let index = usize::try_from(ordinal - base).expect("few");
                    let Place::Memory(slot) = model.waiting[index].place else {
                        panic!("seed {seed}: {ordinal} is not in memory")
                    };
                    assert_eq!(queue.handle_written(ordinal, at), Some(slot));
                    model.waiting[index].place = Place::Disk(at);
                    model.waiting[index].offset = 0;
                }
                5 => {
                    let flag = numbers.chance();
                    let was = queue.is_listed();
                    queue.set_listed(flag);
                    assert!(queue.set_limit_raised(true) && !queue.set_limit_raised(true));
                    assert!(queue.is_listed() == flag && queue.set_limit_raised(false));
                    queue.set_listed(was);
                }
                _ => {}
            }
            model.check(&queue);
        }
    }
}

/// What is counted in 32 bits goes on above them, also where the queue was empty and will be again.
#[test]
fn counts_go_on_above_32_bits() {
    for keeps_room in [false, true] {
        let (mut queue, mut model) = (Queue::default(), Model::default());
        for step in 0..3 {
            let buffer = Buffered {
                length: 3 << 30,
                records: u32::MAX,
                ..Numbers(step).buffer(Place::Memory(7))
            };
            queue.push(buffer, keeps_room);
            model.push(buffer);
            model.check(&queue);
            assert_eq!(queue.pop(keeps_room), model.waiting.pop_front());
            model.check(&queue);
        }
        assert_eq!(queue.totals().bytes, 9 << 30);
        assert_eq!(queue.totals().records, 3 * u64::from(u32::MAX));
    }
}

#[test]
fn a_recovered_queue_is_on_disk_whole() {
    for count in [1, 2, 4, 5, 40] {
        let mut numbers = Numbers(count);
        let buffers: Vec<Buffered> = (0..count)
            .map(|index| numbers.buffer(Place::Disk(index << 33)))
            .collect();
        let queue = Queue::recovered(buffers.iter().copied());
        assert!(queue.waiting().eq(buffers));
        assert_eq!((queue.written(), queue.limit(0)), (count, count), "of {count}");
        assert_eq!(queue.unwritten(0).filter(|ordinal| *ordinal >= 2).count(), 0);
    }
}

/// What DESIGN section 4 allows: 100 bytes for a subpartition that is empty, whether it had something or not.
#[test]
fn an_empty_subpartition_takes_few_bytes() {
    const MANY: u32 = 100_001;
    let mut queues = Queues::new(MANY);
    assert!(queues.book_bytes() < u64::from(MANY) / 3);
    assert!(queues.get(5).is_none() && queues.get_or_make(MANY).is_none());
    let mut numbers = Numbers(1);
    for index in 0..MANY {
        let queue = queues.get_or_make(index).expect("there is one");
        queue.push(numbers.buffer(Place::Memory(index)), false);
        assert!(queue.pop(false).is_some());
    }
    assert!(queues.used().map(|(index, _)| index).eq(0..MANY));
    assert!(queues.book_bytes() <= 33 * u64::from(MANY));
    assert!(queues.get(MANY).is_none() && queues.get_mut(MANY - 1).is_some());
}
