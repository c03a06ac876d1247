//! The books of a writer against a server and readers that are played by the test.

mod model;
mod played;

use std::time::{Duration, Instant};

use shuffle_protocol::error::{ErrorKind, ShuffleError};

use super::{Core, CoreConfig, Need};
use crate::producer::record::Encoder;
use played::{Buffer, CAPACITY, Server, config, sub};

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
fn an_interval_beyond_all_time_is_never_over() {
    let mut server = Server::new(config(1, 10), 4);
    server.write(0, b"a");
    assert_eq!(server.core.handle_timeout(Instant::now(), Duration::MAX), None);
    assert!(server.core.has_open());
}

#[test]
fn a_record_over_the_limit_is_not_appended_though_it_would_fit() {
    let limited = CoreConfig {
        max_record: 2,
        ..config(1, 10)
    };
    let mut server = Server::new(limited, 4);
    server.write(0, b"a");
    assert!(!server.core.append(sub(0), b"abc"));
    assert!(server.core.append(sub(0), b"ab"));
}

#[test]
fn a_full_queue_blocks_its_subpartition_and_no_other() {
    let mut server = Server::new(config(2, 1), 8);
    while server.grant() {}
    // One is handed over, the next is full and stays.
    server.write(0, &[1; CAPACITY - 4]);
    server.grant();
    assert_eq!(server.core.load(0, 0), None);
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
    assert_eq!(server.core.load(1, 0), Some(0));
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
    for (slot, demand) in (1..).zip([Some(1 + 4), Some(2 + 8), Some(3 + 16), Some(4 + 32), None]) {
        core.handle_starved(false);
        assert_eq!(core.poll_demand(), demand, "twice as many ahead, up to 32");
        core.handle_starved(false);
        core.handle_starved(true);
        assert_eq!(core.poll_demand(), None, "one wait is one step");
        core.handle_grant(Buffer {
            slot,
            memory: [0; CAPACITY],
        })
        .unwrap();
        let mut record = Encoder::new(&[1; CAPACITY - 4]).unwrap();
        core.write_step(sub(0), &mut record, Instant::now()).unwrap();
    }
}

#[test]
fn a_subpartition_is_blocked_for_a_record_that_does_not_fit() {
    let mut server = Server::new(config(1, 1), 8);
    server.write(0, &[1; CAPACITY - 4]);
    server.grant();
    let mut fill = Encoder::new(&[2; CAPACITY - 10]).unwrap();
    assert_eq!(
        server.core.write_step(sub(0), &mut fill, Instant::now()).unwrap(),
        Need::Nothing
    );
    assert_eq!(server.core.load(0, 2), Some(1));
    assert_eq!(server.core.load(0, 3), None);
}
