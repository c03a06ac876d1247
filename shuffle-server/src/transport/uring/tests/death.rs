//! A ring whose thread dies: nobody waits for it, and nothing is freed before the kernel is done with it.

use std::io::{self, Read as _};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use buffer_pool::{ArenaKind, SlotRef};

use super::memory::{JOB, Memory, settings};
use crate::transport::uring::engine::Engine;
use crate::transport::uring::line::Line;

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    here.set_nonblocking(true).unwrap();
    (here, listener.accept().unwrap().0)
}

/// A connection whose other side has taken some bytes, so that the rest of eight buffers lies with the ring and stays there.
pub(super) fn stuck(engine: &Rc<Engine>, memory: &Memory) -> (Line, TcpStream, TcpStream) {
    let (here, there) = pair();
    socket2::SockRef::from(&here).set_send_buffer_size(4 << 10).unwrap();
    socket2::SockRef::from(&there).set_recv_buffer_size(4 << 10).unwrap();
    let line = Line::open(engine, &here).unwrap();
    line.send(memory.gather(&[0, 1, 2, 3, 4, 5]));
    line.send(memory.gather(&[6, 7]));
    (&there).read_exact(&mut [0; 100]).unwrap();
    (line, here, there)
}

async fn broken(line: &Line, done: &mut Vec<SlotRef>) -> io::Error {
    loop {
        tokio::time::timeout(PATIENCE, line.wait()).await.expect("news in time");
        if let Err(error) = line.take_news(done) {
            return error;
        }
    }
}

async fn dies(deed: impl Fn() -> io::Result<()> + Clone + Send + 'static) {
    let engine = Rc::new(Engine::start(settings()).unwrap());
    let memory = Memory::new();
    let holder = engine.page_holder();
    let (mut busy, here, there) = stuck(&engine, &memory);
    let (idle_here, _idle_there) = pair();
    let mut idle = Line::open(&engine, &idle_here).unwrap();

    engine.make(deed);
    let mut done = Vec::new();
    for line in [&busy, &idle] {
        let error = broken(line, &mut done).await;
        assert_eq!(error.to_string(), "its io_uring thread has ended");
    }
    let refused = Line::open(&engine, &idle_here).expect_err("there is no ring any more");
    assert!(refused.to_string().contains("ended"), "{refused}");
    holder.let_go(JOB, ArenaKind::Write, 0).unwrap();

    // As whoever carries the connection does: what lies in the socket, the kernel may read until it is reset.
    socket2::SockRef::from(&here).set_linger(Some(Duration::ZERO)).unwrap();
    drop(here);
    let ended = async {
        busy.finish(&mut done).await;
        idle.finish(&mut Vec::new()).await;
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("an end in time");
    let mut slots: Vec<u32> = done.iter().map(|slot| slot.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..8).collect::<Vec<_>>(), "each buffer comes back once");
    assert!((0..8).all(|slot| memory.is_free(slot)), "and nobody reads it any more");
    assert_eq!(engine.registered_extents(), 0);

    // Too late: it comes back all the same.
    busy.send(memory.gather(&[3]));
    done.clear();
    busy.take_news(&mut done).unwrap();
    assert_eq!(done.len(), 1);
    drop(there);
}

#[tokio::test]
async fn a_ring_that_fails_tells_its_connections_and_gives_everything_back() {
    dies(|| Err(io::Error::from_raw_os_error(libc::EBADF))).await;
}

/// What was given to a ring that is dying, and what it had not looked at yet, is not lost.
#[tokio::test]
async fn what_a_dying_ring_has_not_heard_of_comes_back() {
    let engine = Rc::new(Engine::start(settings()).unwrap());
    let memory = Memory::new();
    let (here, _there) = pair();
    let (go_on, wait) = std::sync::mpsc::sync_channel::<()>(1);
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    engine.make(move || {
        let _ = wait.lock().unwrap().recv_timeout(PATIENCE);
        Err(io::ErrorKind::Other.into())
    });
    let mut line = Line::open(&engine, &here).unwrap();
    line.send(memory.gather(&[0, 1]));
    go_on.send(()).unwrap();
    let mut done = Vec::new();
    broken(&line, &mut done).await;
    tokio::time::timeout(PATIENCE, line.finish(&mut done))
        .await
        .expect("an end in time");
    assert_eq!(done.len(), 2);
    assert!(memory.is_free(0) && memory.is_free(1));
}
