//! Registered memory: it goes before its pages do.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use buffer_pool::{ArenaKind, Backing as _, MemfdBacking, PoolConfig};

use super::memory::{BUFFER_BYTES, BUFFERS, EXTENT_BUFFERS, JOB, Memory, fill, payload_of, settings};
use crate::transport::uring::engine::Engine;
use crate::transport::uring::line::Line;
use crate::transport::uring::piece::{Gather, Piece};

const PATIENCE: Duration = Duration::from_secs(20);

/// Sends one buffer on a connection of its own, which therefore tries zero copy; gives what arrived.
async fn send_alone(engine: &Rc<Engine>, payload: Piece) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut there = listener.accept().unwrap().0;
    let line = Line::open(engine, &here).unwrap();
    line.send(Gather::new(vec![payload]));
    let mut arrived = vec![0; usize::try_from(BUFFER_BYTES).unwrap()];
    there.read_exact(&mut arrived).unwrap();
    let mut done = Vec::new();
    while !line.is_idle() {
        tokio::time::timeout(PATIENCE, line.wait()).await.expect("news in time");
        line.take_news(&mut done).unwrap();
    }
    assert_eq!(line.zero_copy_sends(), (1, 0), "it went through a registered buffer");
    line.finish(&mut done).await;
    assert_eq!(done.len(), 1);
    arrived
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
    assert_eq!(engine.registered_extents(), 1);
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
        assert_eq!(engine.registered_extents(), 0);
        backing.move_in(JOB, ArenaKind::Write, 1).unwrap();
    }
}
