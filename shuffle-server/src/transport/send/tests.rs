//! `sendfile` over real sockets: what arrives, when its slots are done, and what an end does.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use buffer_pool::{ArenaFile, ArenaKind, JobKey, MappedArena, SlotRef};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::{Deframer, Event, Frame, SlotEntry};
use tokio::net::{TcpListener, TcpStream};

use super::counters::Counted;
use super::sendfile::MARK;
use super::{SendCounters, SendStrategy, SendfileSend, Strategy};
use crate::transport::outbox::Outbox;

const BUFFER: u32 = 32 << 10;
const BUFFERS: u32 = 4;

struct Arena {
    file: ArenaFile,
    mapped: MappedArena,
}

/// As many bytes as are written at a time.
const LARGE: u32 = 256 << 10;
const LARGE_BUFFERS: u32 = 2;

fn arena() -> Arena {
    arena_of(BUFFER, BUFFERS)
}

fn arena_of(buffer_bytes: u32, buffers: u32) -> Arena {
    let bytes = u64::from(buffer_bytes) * u64::from(buffers);
    let file = ArenaFile::create("test", bytes, bytes).unwrap();
    file.allocate(0).unwrap();
    let mapped = MappedArena::map_writable(file.writable_fd(), buffers, buffer_bytes).unwrap();
    for slot in 0..buffers {
        write(&mapped, slot, u8::try_from(slot).unwrap());
    }
    Arena { file, mapped }
}

fn write(mapped: &MappedArena, slot: u32, byte: u8) {
    let mut buffer = mapped.writable(slot).unwrap();
    buffer.fill(byte);
    buffer.hand_over();
}

fn slot(slot: u32) -> SlotRef {
    SlotRef {
        job: JobKey(1),
        arena: ArenaKind::Write,
        slot,
    }
}

/// Every buffer of the arena, from its file.
fn outbox(arena: &Arena) -> Outbox {
    outbox_of(arena, BUFFER, BUFFERS)
}

fn outbox_of(arena: &Arena, buffer_bytes: u32, buffers: u32) -> Outbox {
    let mut outbox = Outbox::default();
    for number in 0..buffers {
        let entry = SlotEntry {
            slot: number,
            length: buffer_bytes,
            ..SlotEntry::default()
        };
        let range = arena
            .file
            .range(u64::from(number) * u64::from(buffer_bytes), buffer_bytes);
        outbox.push_file(entry, slot(number), range, false);
    }
    outbox
}

async fn pair() -> (SendfileSend, Rc<SendCounters>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let counters = Rc::default();
    let counted = Counted::new(&counters, Strategy::Sendfile);
    let send = SendfileSend::new(Rc::new(one.unwrap()), counted, Duration::from_secs(60));
    (send, counters, other.unwrap().0)
}

async fn send_all(send: &SendfileSend, outbox: &mut Outbox, done: &mut Vec<SlotRef>) {
    while !outbox.is_empty() {
        match send.try_send(outbox, done) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                send.ready().await.unwrap();
            }
        }
    }
}

async fn read_exactly(stream: &TcpStream, mut space: &mut [u8]) {
    while !space.is_empty() {
        stream.readable().await.unwrap();
        match stream.try_read(space) {
            Ok(0) => panic!("closed"),
            Ok(count) => space = &mut space[count..],
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
}

/// Reads frames up to a ping; gives its nonce and the buffers before it.
async fn read_to_ping(stream: &TcpStream) -> (u64, Vec<Vec<u8>>) {
    let (mut deframer, mut payloads) = (Deframer::new(), Vec::new());
    loop {
        match deframer.poll_event().unwrap() {
            Some(Event::Frame(Frame::Ping(nonce))) => return (nonce, payloads),
            Some(Event::Frame(other)) => panic!("{other:?}"),
            Some(Event::Data(head)) => {
                let mut payload = vec![0; usize::try_from(head.payload_bytes).unwrap()];
                read_exactly(stream, &mut payload).await;
                payloads.push(payload);
            }
            None => {
                let space = deframer.space();
                let length = space.len();
                read_exactly(stream, space).await;
                deframer.handle_read(length);
            }
        }
    }
}

#[tokio::test]
async fn a_slot_is_done_when_the_ping_behind_it_is_answered() {
    let arena = arena();
    let (send, counters, other) = pair().await;
    let (mut outbox, mut done) = (outbox(&arena), Vec::new());
    let (_, (nonce, payloads)) = tokio::join!(send_all(&send, &mut outbox, &mut done), read_to_ping(&other));
    let whole = |byte: u32| vec![u8::try_from(byte).unwrap(); usize::try_from(BUFFER).unwrap()];
    assert!(payloads == (0..BUFFERS).map(whole).collect::<Vec<_>>(), "the bytes");
    assert_eq!(done, [], "nobody has said that they were read");
    assert!(send.holds_slots());

    send.handle_pong(7, &mut done).unwrap();
    assert_eq!(done, [], "a pong for somebody else");
    let error = send.handle_pong(nonce + 1, &mut done).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Protocol), "{error}");
    send.handle_pong(nonce, &mut done).unwrap();
    assert_eq!(done, [0, 1, 2, 3].map(slot));
    assert!(!send.holds_slots());
    send.handle_pong(nonce, &mut done).unwrap();
    send.handle_pong(MARK, &mut done).unwrap();
    assert_eq!(done.len(), 4, "each once");
    let counted = std::collections::BTreeMap::from(counters.named());
    let bytes = u64::from(BUFFERS * BUFFER);
    assert_eq!(
        (counted["send_bytes_uncopied"], counted["send_bytes_copied"]),
        (bytes, 0)
    );
}

/// Few large buffers, which the socket takes in one go: nothing more is to be sent that could bring the ping.
#[tokio::test]
async fn the_last_slot_that_is_sent_has_a_ping_behind_it() {
    let arena = arena_of(LARGE, LARGE_BUFFERS);
    let (send, _, other) = pair().await;
    rustix::net::sockopt::set_socket_send_buffer_size(&*send.stream, 8 << 20).unwrap();
    let (mut outbox, mut done) = (outbox_of(&arena, LARGE, LARGE_BUFFERS), Vec::new());
    let sent = send_all(&send, &mut outbox, &mut done);
    let ping = tokio::time::timeout(Duration::from_secs(20), read_to_ping(&other));
    let (_, read) = tokio::join!(sent, ping);
    let (nonce, payloads) = read.expect("a ping comes");
    assert_eq!((nonce, payloads.len()), (MARK | 2, 2));
}

/// The kernel does refer to the pages: this is what the pings are for. Were this to fail, they would not be needed.
#[tokio::test]
async fn what_is_written_before_the_other_side_reads_is_what_it_reads() {
    let arena = arena();
    let (send, _, other) = pair().await;
    let (mut outbox, mut done) = (outbox(&arena), Vec::new());
    // The first buffer is in the socket for sure: a new connection takes that much.
    let _ = send.try_send(&mut outbox, &mut done);
    write(&arena.mapped, 0, 99);
    let (_, (_, payloads)) = tokio::join!(send_all(&send, &mut outbox, &mut done), read_to_ping(&other));
    assert_eq!(payloads[0][0], 99);
}

#[tokio::test]
async fn a_connection_that_ends_with_slots_held_is_reset() {
    let arena = arena();
    let (send, counters, other) = pair().await;
    let (mut outbox, mut done) = (outbox(&arena), Vec::new());
    let _ = send.try_send(&mut outbox, &mut done);
    send.finish(&mut done).await;
    done.extend(outbox.abandon());
    assert_eq!(done, [0, 1, 2, 3].map(slot), "all come back, each once");
    other.readable().await.unwrap();
    let error = other.take_error().unwrap().expect("reset, not closed");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(
        std::collections::BTreeMap::from(counters.named())["peer_connections_sendfile"],
        0
    );
}
