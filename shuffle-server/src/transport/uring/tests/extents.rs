//! Registered memory: it goes before its pages do.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use buffer_pool::{ArenaKind, Backing as _, MemfdBacking, PoolConfig};

use super::memory::{BUFFER_BYTES, BUFFERS, EXTENT_BUFFERS, JOB, Memory, ONE_COPIED, fill, payload_of, settings};
use crate::transport::uring::engine::Engine;
use crate::transport::uring::extents::{ExtentKey, LEAVING, Registered};
use crate::transport::uring::line::Line;
use crate::transport::uring::piece::{Gather, Piece};

const PATIENCE: Duration = Duration::from_secs(20);

/// Sends one buffer on a connection of its own, which therefore tries zero copy; gives what arrived.
async fn send_alone(engine: &Rc<Engine>, payload: Piece) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut there = listener.accept().unwrap().0;
    let mut line = Line::open(engine, &here).unwrap();
    line.send(Gather::new(vec![payload]));
    let mut arrived = vec![0; usize::try_from(BUFFER_BYTES).unwrap()];
    there.read_exact(&mut arrived).unwrap();
    let mut done = Vec::new();
    while !line.is_idle() {
        tokio::time::timeout(PATIENCE, line.wait()).await.expect("news in time");
        line.take_news(&mut done).unwrap();
    }
    assert_eq!(
        line.take_zero_copy_sends(),
        ONE_COPIED,
        "it went through a registered buffer"
    );
    line.finish(&mut done).await;
    assert_eq!(done.len(), 1);
    arrived
}

/// The ring forgets on its own thread, and nobody waits for it.
async fn until_registered(engine: &Engine, extents: usize) {
    let until = Instant::now() + PATIENCE;
    while engine.registered_extents() != extents {
        assert!(Instant::now() < until, "{} are registered", engine.registered_extents());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The ring's thread stands still, and the server's does not: an extent leaves, is punched and comes back, and what is sent
/// then are its new bytes.
#[tokio::test]
async fn the_server_does_not_wait_for_a_ring_to_forget() {
    let engine = Rc::new(Engine::start(settings()).unwrap());
    let memory = Memory::new();
    let holder = engine.page_holder();
    memory.fill(0, 1);
    send_alone(&engine, memory.payload(0)).await;
    let (go_on, wait) = std::sync::mpsc::sync_channel::<()>(1);
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    engine.make(move || {
        let _ = wait.lock().unwrap().recv_timeout(PATIENCE);
        Ok(())
    });
    holder.let_go(JOB, ArenaKind::Write, 0).unwrap();
    memory.file.punch(0).unwrap();
    memory.file.allocate(0).unwrap();
    memory.fill(0, 2);
    assert_eq!(engine.registered_extents(), 1, "the ring has not even heard of it");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut there = listener.accept().unwrap().0;
    let mut line = Line::open(&engine, &here).unwrap();
    line.send(Gather::new(vec![memory.payload(0)]));
    go_on.send(()).unwrap();
    let mut arrived = vec![0; usize::try_from(BUFFER_BYTES).unwrap()];
    there.read_exact(&mut arrived).unwrap();
    assert!(arrived.iter().all(|byte| *byte == 2), "not the page that was punched");
    line.finish(&mut Vec::new()).await;
    assert_eq!(engine.registered_extents(), 1);
}

/// The kernel keeps the pages of what is on its way out: so only so many may be.
#[test]
fn no_more_extents_leave_at_once_than_may() {
    let registered = Registered::default();
    let key = |extent| ExtentKey {
        job: JOB,
        arena: ArenaKind::Write,
        extent,
    };
    let most = u32::try_from(LEAVING).unwrap();
    for extent in 0..=most {
        registered.note(key(extent));
    }
    assert_eq!(registered.leave(key(1000)).unwrap(), None);
    for extent in 0..most {
        assert_eq!(registered.leave(key(extent)).unwrap(), Some(key(extent)));
    }
    let refused = registered.leave(key(most)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock);
    registered.has_left();
    assert_eq!(registered.leave(key(most)).unwrap(), Some(key(most)));
    assert_eq!(registered.len(), LEAVING);
}

#[tokio::test]
async fn an_extent_is_registered_once_and_let_go_before_it_is_punched() {
    let engine = Rc::new(Engine::start(settings()).unwrap());
    let memory = Memory::new();
    let holder = engine.page_holder();
    memory.fill(0, 1);
    memory.fill(EXTENT_BUFFERS, 2);
    assert!(
        send_alone(&engine, memory.payload(0))
            .await
            .iter()
            .all(|byte| *byte == 1)
    );
    assert_eq!(engine.registered_extents(), 1);
    send_alone(&engine, memory.payload(1)).await;
    assert_eq!(engine.registered_extents(), 1, "of the same extent");
    assert!(
        send_alone(&engine, memory.payload(EXTENT_BUFFERS))
            .await
            .iter()
            .all(|byte| *byte == 2)
    );
    assert_eq!(engine.registered_extents(), 2);

    holder.let_go(JOB, ArenaKind::Write, 0).unwrap();
    until_registered(&engine, 1).await;
    holder.let_go(JOB, ArenaKind::Read, 1).unwrap();
    holder.let_go(JOB, ArenaKind::Write, 3).unwrap();
    assert_eq!(
        engine.registered_extents(),
        1,
        "what was never registered is let go already"
    );

    memory.file.punch(0).unwrap();
    memory.file.allocate(0).unwrap();
    memory.fill(0, 3);
    let arrived = send_alone(&engine, memory.payload(0)).await;
    assert!(
        arrived.iter().all(|byte| *byte == 3),
        "the new page, not the pinned old one"
    );
}

#[tokio::test]
async fn an_extent_that_leaves_an_arena_is_registered_no_more() {
    let engine = Rc::new(Engine::start(settings()).unwrap());
    let config = PoolConfig {
        total_buffers: BUFFERS,
        buffer_bytes: BUFFER_BYTES,
        extent_buffers: EXTENT_BUFFERS,
        read_reserve_buffers: 0,
    };
    let mut backing = MemfdBacking::new(config).unwrap();
    backing.set_page_holder(engine.page_holder());
    backing.create_job(JOB).unwrap();
    backing.move_in(JOB, ArenaKind::Write, 1).unwrap();
    let arena = backing.mapped(JOB, ArenaKind::Write).unwrap();
    for round in 0..3 {
        fill(&arena, EXTENT_BUFFERS, round);
        let arrived = send_alone(&engine, payload_of(&arena, EXTENT_BUFFERS, BUFFER_BYTES)).await;
        assert!(arrived.iter().all(|byte| *byte == round));
        assert_eq!(engine.registered_extents(), 1);
        backing.move_out(JOB, ArenaKind::Write, 1).unwrap();
        until_registered(&engine, 0).await;
        backing.move_in(JOB, ArenaKind::Write, 1).unwrap();
    }
}
