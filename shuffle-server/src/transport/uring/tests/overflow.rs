//! F67: completions that find no place in a small queue, of many sockets that are ready at once.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::memory::{BUFFER_BYTES, Memory, bytes_of, head, settings};
use crate::transport::uring::engine::{Engine, Settings};
use crate::transport::uring::line::Line;
use crate::transport::uring::operation::{Completion, Manner, Tag, Wait};
use crate::transport::uring::piece::Gather;
use crate::transport::uring::ring::Ring;

const ENTRIES: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn completions_beyond_the_queue_come_all_the_same() {
    const MESSAGES: usize = 2000;
    let (here, mut there) = UnixStream::pair().unwrap();
    let mut ring = Ring::open(ENTRIES).unwrap();
    ring.make_tables(1, 1).unwrap();
    ring.set_file(0, here.as_fd()).unwrap();
    let value = |number: usize| u8::try_from(number % 251).unwrap();
    let manner = Manner {
        linked: false,
        more: false,
    };
    for number in 0..MESSAGES {
        let began = Instant::now();
        while !ring.make_room(1).unwrap() {
            assert!(began.elapsed() < PATIENCE, "the queue is never emptied");
        }
        let gather = Rc::new(Gather::new(vec![head(1, value(number))]));
        let tag = Tag {
            line: 0,
            job: u64::try_from(number).unwrap(),
            step: 0,
        };
        ring.send(0, &gather, 0..1, 0, manner, tag);
        let mut byte = [0];
        ring.submit(Wait::No).unwrap();
        there.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [value(number)], "the kernel took it in turn");
    }
    assert!(ring.has_overflowed(), "2000 completions have no place in a queue of 16");

    let mut seen = vec![false; MESSAGES];
    let began = Instant::now();
    while ring.sends() > 0 {
        assert!(began.elapsed() < PATIENCE, "{} are lost", ring.sends());
        ring.submit(Wait::No).unwrap();
        while let Some(completion) = ring.next_completion() {
            let Completion::Send {
                tag, sent, released, ..
            } = completion
            else {
                panic!("{completion:?}")
            };
            assert!(matches!(sent, Some(Ok(1))) && released);
            assert!(!std::mem::replace(&mut seen[usize::try_from(tag.job).unwrap()], true));
        }
    }
    assert!(seen.iter().all(|seen| *seen));
}

/// Both ends of a thousand connections are in this process.
fn raise_the_limit_of_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
}

#[tokio::test]
async fn a_thousand_connections_ready_at_once_through_a_ring_of_eight_entries() {
    const CONNECTIONS: usize = 1000;
    raise_the_limit_of_descriptors();
    let small = Settings {
        entries: ENTRIES,
        ..settings()
    };
    let (engine, memory) = (Rc::new(Engine::start(small).unwrap()), Memory::new());
    for slot in 0..4 {
        memory.fill(slot, u8::try_from(slot).unwrap());
    }
    let gather = |number: usize| {
        let value = u8::try_from(number % 251).unwrap();
        Gather::new(vec![
            head(40, value),
            memory.payload(u32::try_from(number % 4).unwrap()),
        ])
    };
    let mut lines = Vec::new();
    for _ in 0..CONNECTIONS {
        let (here, there) = UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        lines.push((Line::open(&engine, &here).unwrap(), there));
    }
    // The ring's thread looks at all of it at once.
    let (go_on, wait) = sync_channel::<()>(1);
    let wait = Arc::new(Mutex::new(wait));
    engine.make(move || {
        let _ = wait.lock().unwrap().recv_timeout(PATIENCE);
        Ok(())
    });
    for (number, (line, _)) in lines.iter().enumerate() {
        line.send(gather(number));
        line.send(gather(number + 1));
    }
    go_on.send(()).unwrap();
    for (number, (mut line, mut there)) in lines.into_iter().enumerate() {
        there.set_read_timeout(Some(PATIENCE)).unwrap();
        for number in [number, number + 1] {
            let mut arrived = vec![0; 40 + usize::try_from(BUFFER_BYTES).unwrap()];
            there.read_exact(&mut arrived).unwrap();
            assert!(arrived == bytes_of(&gather(number)), "of connection {number}");
        }
        let mut done = Vec::new();
        while !line.is_idle() {
            let news = tokio::time::timeout(PATIENCE, line.wait()).await;
            news.expect("no completion is lost");
            line.take_news(&mut done).unwrap();
        }
        line.finish(&mut done).await;
        assert_eq!(done.len(), 2, "each buffer is back once");
    }
}
