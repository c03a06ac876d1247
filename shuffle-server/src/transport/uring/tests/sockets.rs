//! A ring on real sockets.

use std::io::Read as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use buffer_pool::SlotRef;

use super::memory::{BUFFER_BYTES, Memory, ONE_COPIED, bytes_of, head, settings};
use crate::transport::uring::engine::Engine;
use crate::transport::uring::line::Line;
use crate::transport::uring::piece::Gather;
use crate::transport::uring::sender::ZeroCopySends;

const PATIENCE: Duration = Duration::from_secs(20);

fn engine() -> Rc<Engine> {
    Rc::new(Engine::start(settings()).unwrap())
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    here.set_nonblocking(true).unwrap();
    (here, listener.accept().unwrap().0)
}

async fn news(line: &Line, done: &mut Vec<SlotRef>) -> std::io::Result<()> {
    tokio::time::timeout(PATIENCE, line.wait()).await.expect("news in time");
    line.take_news(done).map(drop)
}

async fn until_room(line: &Line, done: &mut Vec<SlotRef>) {
    while !line.has_room() {
        news(line, done).await.unwrap();
    }
}

/// Everything that arrives, in small reads.
fn reader(mut from: impl std::io::Read + Send + 'static, at_once: usize) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let (mut all, mut some) = (Vec::new(), vec![0; at_once]);
        loop {
            match from.read(&mut some).unwrap() {
                0 => return all,
                count => all.extend(&some[..count]),
            }
        }
    })
}

/// Few buffers, written over as soon as they are back, go through a narrow socket and arrive as they were given.
pub(super) async fn few_buffers_go_through_a_narrow_socket(engine: &Rc<Engine>, memory: &Memory, rounds: u8) {
    let (here, there) = pair();
    socket2::SockRef::from(&here).set_send_buffer_size(4 << 10).unwrap();
    let received = reader(there, 3001);
    let mut line = Line::open(engine, &here).unwrap();
    let (mut expected, mut free, mut done) = (Vec::new(), (0..8).collect::<Vec<u32>>(), Vec::new());
    for round in 0..rounds {
        while free.len() < 2 || !line.has_room() {
            news(&line, &mut done).await.unwrap();
            free.extend(done.drain(..).map(|slot| slot.slot));
        }
        let slots: Vec<u32> = free.drain(..2).collect();
        // Written over as soon as it is back: whoever still read it would send the wrong bytes.
        memory.fill(slots[0], round);
        memory.fill(slots[1], !round);
        let gather = memory.gather(&slots);
        expected.extend(bytes_of(&gather));
        line.send(gather);
    }
    while !line.is_idle() {
        news(&line, &mut done).await.unwrap();
    }
    free.extend(done.drain(..).map(|slot| slot.slot));
    free.sort_unstable();
    assert_eq!(free, (0..8).collect::<Vec<_>>(), "each buffer is back once");
    line.finish(&mut done).await;
    assert!(done.is_empty());
    drop(here);
    assert!(received.join().unwrap() == expected);
}

#[tokio::test]
async fn bytes_arrive_whole_and_in_order_from_few_buffers_through_a_narrow_socket() {
    few_buffers_go_through_a_narrow_socket(&engine(), &Memory::new(), 200).await;
}

#[tokio::test]
async fn loopback_copies_and_zero_copy_is_off_after_the_first_try() {
    let (engine, memory) = (engine(), Memory::new());
    let (here, there) = pair();
    let received = reader(there, 1 << 20);
    let mut line = Line::open(&engine, &here).unwrap();
    let mut done = Vec::new();
    for _ in 0..10 {
        until_room(&line, &mut done).await;
        line.send(memory.gather(&[0, 1, 2, 3]));
        while !line.is_idle() {
            news(&line, &mut done).await.unwrap();
        }
    }
    assert_eq!(line.take_zero_copy_sends(), ONE_COPIED);
    assert_eq!(done.len(), 40);
    line.finish(&mut done).await;
    drop(here);
    let bytes = usize::try_from(BUFFER_BYTES).unwrap() + 40;
    assert_eq!(received.join().unwrap().len(), 40 * bytes);
}

#[tokio::test]
async fn what_is_out_when_a_connection_ends_comes_back_by_its_completion() {
    let (engine, memory) = (engine(), Memory::new());
    let (here, there) = pair();
    socket2::SockRef::from(&here).set_send_buffer_size(4 << 10).unwrap();
    socket2::SockRef::from(&there).set_recv_buffer_size(4 << 10).unwrap();
    let mut line = Line::open(&engine, &here).unwrap();
    line.send(memory.gather(&[0, 1, 2, 3, 4, 5]));
    line.send(memory.gather(&[6, 7]));
    assert!(!line.has_room());
    // Wait until the kernel has taken what fits: then the rest is out and stays out.
    let mut first = vec![0; 100];
    (&there).read_exact(&mut first).unwrap();
    assert!((0..8).all(|slot| !memory.is_free(slot)), "nobody reads: all is held");
    let mut done = Vec::new();
    assert!(!line.take_news(&mut done).unwrap());
    socket2::SockRef::from(&here).set_linger(Some(Duration::ZERO)).unwrap();
    drop(here);
    tokio::time::timeout(PATIENCE, line.finish(&mut done))
        .await
        .expect("finished in time");
    let mut slots: Vec<u32> = done.iter().map(|slot| slot.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..8).collect::<Vec<_>>());
    assert!((0..8).all(|slot| memory.is_free(slot)));
    // The ring let go of the socket: with linger 0 that is a reset.
    let mut rest = Vec::new();
    let end = (&there).read_to_end(&mut rest);
    assert_eq!(
        end.map_err(|error| error.kind()),
        Err(std::io::ErrorKind::ConnectionReset)
    );
}

#[tokio::test]
async fn a_peer_that_has_gone_breaks_the_connection_once() {
    let (engine, memory) = (engine(), Memory::new());
    let (here, there) = pair();
    let mut line = Line::open(&engine, &here).unwrap();
    here.shutdown(Shutdown::Write).unwrap();
    line.send(memory.gather(&[0, 1]));
    let mut done = Vec::new();
    let error = news(&line, &mut done).await.expect_err("nothing can be sent");
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    while !line.is_idle() {
        news(&line, &mut done).await.unwrap();
    }
    assert_eq!(done.len(), 2);
    line.send(memory.gather(&[0]));
    news(&line, &mut done).await.unwrap();
    assert_eq!(done.len(), 3, "given back unsent");
    line.finish(&mut done).await;
    drop((here, there));
}

#[tokio::test]
async fn more_connections_than_the_ring_has_entries() {
    const CONNECTIONS: usize = 300;
    let (engine, memory) = (engine(), Memory::new());
    let mut lines = Vec::new();
    for _ in 0..CONNECTIONS {
        let (here, there) = UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        lines.push((Line::open(&engine, &here).unwrap(), there));
    }
    for (number, (line, _)) in lines.iter().enumerate() {
        line.send(Gather::new(vec![
            head(8 << 10, u8::try_from(number % 251).unwrap()),
            memory.payload(3),
        ]));
    }
    for (number, (mut line, mut there)) in lines.into_iter().enumerate() {
        let mut arrived = vec![0; (8 << 10) + (32 << 10)];
        there.read_exact(&mut arrived).unwrap();
        let value = u8::try_from(number % 251).unwrap();
        assert!(arrived[..8 << 10].iter().all(|byte| *byte == value));
        let mut done = Vec::new();
        while !line.is_idle() {
            news(&line, &mut done).await.unwrap();
        }
        // A Unix socket refuses it; the notification that comes all the same is about nothing.
        assert_eq!((done.len(), line.take_zero_copy_sends()), (1, ZeroCopySends::default()));
        line.finish(&mut done).await;
        assert_eq!(
            (&there).read(&mut arrived).unwrap(),
            0,
            "the ring has let go of the socket"
        );
    }
}

#[tokio::test]
async fn places_are_used_again_and_run_out() {
    let engine = engine();
    let (here, _there) = UnixStream::pair().unwrap();
    for _ in 0..2000 {
        Line::open(&engine, &here).unwrap().finish(&mut Vec::new()).await;
    }
    let mut lines = Vec::new();
    let full = loop {
        match Line::open(&engine, &here) {
            Ok(line) => lines.push(line),
            Err(error) => break error,
        }
        assert!(lines.len() <= 1024);
    };
    assert!(full.to_string().contains("place"), "{full}");
}

#[tokio::test]
async fn the_end_does_not_wait_for_a_peer_that_never_reads() {
    let (engine, memory) = (engine(), Memory::new());
    let (here, there) = pair();
    let line = Line::open(&engine, &here).unwrap();
    socket2::SockRef::from(&here).set_send_buffer_size(4 << 10).unwrap();
    line.send(memory.gather(&[0, 1, 2, 3, 4, 5, 6, 7]));
    let began = Instant::now();
    drop(line);
    drop(engine);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    drop((here, there));
}
