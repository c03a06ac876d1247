//! Any order of operations.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::{CoreConfig, EventCursor, Need, Space};
use super::played::{CAPACITY, Server, config, sub};

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
    fn everything_written_is_read(ops in ops(3), pool in 1u32..6, max_queued in 1u32..4, sorted: bool) {
        let pool = if sorted { pool + 1 } else { pool };
        let config = CoreConfig { sorted, ..config(3, max_queued) };
        let mut server = Server::new(config, pool);
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
