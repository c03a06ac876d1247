//! What one side's outbox writes, in whatever pieces, is what the other side's inbound finds, and payload lies where it was
//! told to.

use std::io::{IoSlice, Write as _};
use std::rc::Rc;

use buffer_pool::{ArenaFile, ArenaKind, JobKey, MappedArena, SlotRef};
use proptest::prelude::*;
use shuffle_protocol::frame::{Arena, DataHead, Frame, NumberEntry, SlotEntry};
use shuffle_protocol::partition::{BufferKind, Codec};
use shuffle_protocol::{Sequence, StreamId, SubpartitionIndex};
use tokio::net::{TcpListener, TcpStream};

use super::outbox::{MAX_SLICES, Outbox, Piece};
use super::tcp::{Inbound, Incoming, Into};
use crate::node::Output;
use crate::notify::Signal;

const BUFFER: u32 = 4096;
const BUFFERS: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Item {
    Payload {
        slot: u32,
        offset: u32,
        length: u32,
        wanted: bool,
    },
    Acks(u8),
    Ping(u64),
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        3 => (0..BUFFERS, 0..=BUFFER, any::<bool>())
            .prop_flat_map(|(slot, length, wanted)| (Just(slot), 0..=BUFFER - length, Just(length), Just(wanted)))
            .prop_map(|(slot, offset, length, wanted)| Item::Payload { slot, offset, length, wanted }),
        1 => (1..200_u8).prop_map(Item::Acks),
        1 => any::<u64>().prop_map(Item::Ping),
    ]
}

fn arena() -> MappedArena {
    let bytes = u64::from(BUFFER) * u64::from(BUFFERS);
    let file = ArenaFile::create("test", bytes, bytes).unwrap();
    file.allocate(0).unwrap();
    MappedArena::map_writable(file.writable_fd(), BUFFERS, BUFFER).unwrap()
}

fn filled() -> MappedArena {
    let arena = arena();
    for slot in 0..BUFFERS {
        let mut buffer = arena.writable(slot).unwrap();
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = u8::try_from((index * 7 + index / 251 + usize::try_from(slot).unwrap() * 31) % 256).unwrap();
        }
        buffer.hand_over();
    }
    arena
}

fn entry(number: usize, slot: u32, offset: u32, length: u32) -> SlotEntry {
    SlotEntry {
        stream: StreamId::new(3),
        subpartition: SubpartitionIndex::new(0),
        sequence: Sequence::new(number.try_into().unwrap()),
        slot,
        offset,
        length,
        checksum: 0,
        records: 0,
        backlog: 0,
        arena: Arena::Write,
        kind: BufferKind::Data,
        continues: false,
        partial_start: false,
        unchecked: false,
        codec: Codec::Plain,
        more_slices: false,
    }
}

fn ack(number: u64) -> NumberEntry {
    NumberEntry {
        stream: StreamId::new(3),
        subpartition: SubpartitionIndex::new(0),
        number,
    }
}

/// An outbox with these items in it.
fn outbox(items: &[Item], arena: &MappedArena) -> Outbox {
    let mut outbox = Outbox::default();
    for (number, item) in items.iter().enumerate() {
        match *item {
            Item::Payload {
                slot, offset, length, ..
            } => {
                let place = SlotRef {
                    job: JobKey(1),
                    arena: ArenaKind::Write,
                    slot,
                };
                outbox.push_payload(
                    entry(number, slot, offset, length),
                    place,
                    arena.leased(slot, offset, length).unwrap(),
                    false,
                );
            }
            Item::Acks(count) => (0..count).for_each(|number| outbox.push(Output::Ack(ack(number.into()))).unwrap()),
            Item::Ping(nonce) => outbox.push(Output::Ping(nonce)).unwrap(),
        }
    }
    outbox.finish_run();
    outbox
}

/// Everything as bytes: some are written, `step` at a time, then as many are taken off, and so on.
fn written(items: &[Item], arena: &MappedArena, mut step: usize) -> Vec<u8> {
    let mut outbox = outbox(items, arena);
    let (mut bytes, mut done) = (Vec::new(), Vec::new());
    while !outbox.is_empty() {
        let count = {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let filled = outbox.gather(&mut slices);
            let mut left = step;
            for slice in &slices[..filled] {
                let part = left.min(slice.len());
                bytes.write_all(&slice[..part]).unwrap();
                left -= part;
            }
            step - left
        };
        outbox.advance(count, &mut done);
        step = step % 977 + 1;
        for piece in outbox.take(step, 2) {
            match piece {
                Piece::Head(head) => bytes.extend_from_slice(&head),
                Piece::Payload { lease, slot } => {
                    bytes.extend_from_slice(&lease);
                    done.push(slot);
                }
            }
        }
    }
    let sent: Vec<u32> = done.iter().map(|slot| slot.slot).collect();
    let expected: Vec<u32> = items
        .iter()
        .filter_map(|item| match item {
            Item::Payload { slot, .. } => Some(*slot),
            _ => None,
        })
        .collect();
    assert_eq!(sent, expected, "each slot is done with once, in order");
    assert_eq!((outbox.unsent_heads(), outbox.unsent_payload()), (0, 0));
    bytes
}

/// Runs of acknowledgements that follow each other become one frame.
fn expected(items: &[Item]) -> Vec<Item> {
    let mut merged: Vec<Item> = Vec::new();
    let mut waiting = 0_u32;
    let flush = |merged: &mut Vec<Item>, waiting: &mut u32| {
        while *waiting > 0 {
            let part = (*waiting).min(1024);
            merged.extend((0..part).map(|_| Item::Acks(1)));
            *waiting -= part;
        }
    };
    for item in items {
        match item {
            Item::Acks(count) => waiting += u32::from(*count),
            other => {
                flush(&mut merged, &mut waiting);
                merged.push(*other);
            }
        }
    }
    flush(&mut merged, &mut waiting);
    merged
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (one.unwrap(), other.unwrap().0)
}

async fn found(items: &[Item], bytes: &[u8], source: &MappedArena, mut piece: usize) -> Vec<Item> {
    let (sender, receiver) = pair().await;
    sender.set_nodelay(true).unwrap();
    let target = arena();
    let signal = Rc::new(Signal::default());
    let mut inbound = Inbound::new(Rc::clone(&signal));
    let send = async {
        let mut rest = bytes;
        while !rest.is_empty() {
            sender.writable().await.unwrap();
            match sender.try_write(&rest[..piece.min(rest.len())]) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            piece = piece % 5000 + 13;
            tokio::task::yield_now().await;
        }
        drop(sender);
    };
    let receive = async {
        let mut found = Vec::new();
        loop {
            while let Some(incoming) = inbound.next().unwrap() {
                match incoming {
                    Incoming::Frame(Frame::Ack(batch)) => found.extend(batch.iter().map(|_| Item::Acks(1))),
                    Incoming::Frame(Frame::Ping(nonce)) => found.push(Item::Ping(nonce)),
                    Incoming::Frame(other) => panic!("{other:?}"),
                    Incoming::Head(head) => {
                        let number = usize::try_from(head.sequence.value()).unwrap();
                        let wanted = matches!(items[number], Item::Payload { wanted: true, .. });
                        if wanted {
                            let slot = head.slots.iter().next().unwrap().slot;
                            signal.arriving().replace(target.writable(slot).unwrap());
                        }
                        inbound.expect(head, if wanted { Into::Buffer } else { Into::Nowhere });
                    }
                    Incoming::Payload(head) => {
                        let SlotEntry {
                            slot, offset, length, ..
                        } = head.slots.iter().next().unwrap();
                        let number = usize::try_from(head.sequence.value()).unwrap();
                        let wanted = matches!(items[number], Item::Payload { wanted: true, .. });
                        if wanted {
                            let (got, sent) = (
                                target.shared(slot, 0, length).unwrap(),
                                source.shared(slot, offset, length).unwrap(),
                            );
                            assert!(got.as_ref() == sent.as_ref(), "the bytes of item {number}");
                        }
                        found.push(Item::Payload {
                            slot,
                            offset,
                            length,
                            wanted,
                        });
                    }
                }
            }
            match inbound.try_read(&receiver) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => receiver.readable().await.unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(inbound.is_at_boundary());
        found
    };
    tokio::join!(send, receive).1
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_in_pieces_arrives_whole(
        items in proptest::collection::vec(item(), 0..40),
        step in 1..200_000_usize,
        piece in 1..5000_usize,
    ) {
        let source = filled();
        let bytes = written(&items, &source, step);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let found = runtime.block_on(found(&items, &bytes, &source, piece));
        prop_assert_eq!(found, expected(&items));
    }
}

/// A connection on which one buffer arrives, of which so many bytes, head and all, have been sent.
async fn begun(length: u32, bytes: usize) -> (TcpStream, TcpStream, Rc<Signal>, Inbound, DataHead) {
    let (sender, receiver) = pair().await;
    let item = Item::Payload {
        slot: 1,
        offset: 0,
        length,
        wanted: true,
    };
    let written = written(&[item], &filled(), 1 << 20);
    sender.writable().await.unwrap();
    assert_eq!(sender.try_write(&written[..bytes]).unwrap(), bytes);
    let signal = Rc::new(Signal::default());
    let mut inbound = Inbound::new(Rc::clone(&signal));
    let head = loop {
        match inbound.next().unwrap() {
            Some(Incoming::Head(head)) => break head,
            Some(_) => panic!("a head comes first"),
            None => {
                receiver.readable().await.unwrap();
                let _ = inbound.try_read(&receiver);
            }
        }
    };
    (sender, receiver, signal, inbound, head)
}

/// What comes into a part of a buffer leaves the rest as it is, also where the connection ends in the middle of it.
#[tokio::test]
async fn what_lies_beside_a_part_stays() {
    const AT: usize = 100;
    const LENGTH: usize = 1000;
    for sent in [88 + LENGTH, 88 + LENGTH / 2] {
        let (_sender, receiver, signal, mut inbound, head) = begun(1000, sent).await;
        let (source, target) = (filled(), filled());
        signal.expect(target.writable(2).unwrap(), true);
        inbound.expect(head, Into::Part(AT));
        receiver.readable().await.unwrap();
        assert_eq!(inbound.try_read(&receiver).unwrap(), sent - 88);
        match inbound.next().unwrap() {
            Some(Incoming::Payload(_)) => {}
            _ => signal.close(shuffle_protocol::ShuffleError::new(
                shuffle_protocol::error::ErrorKind::ConnectionLost,
                "gone",
            )),
        }
        let (came, now) = (
            source.leased(1, 0, BUFFER).unwrap(),
            target.leased(2, 0, BUFFER).unwrap(),
        );
        let before = source.leased(2, 0, BUFFER).unwrap();
        let until = AT + sent - 88;
        assert_eq!(now[AT..until], came[..sent - 88]);
        assert!(now[..AT] == before[..AT] && now[until..] == before[until..]);
    }
}

#[tokio::test]
async fn a_closed_connection_gives_up_its_buffer_at_once() {
    let (_sender, receiver, signal, mut inbound, head) = begun(BUFFER, 2000).await;
    let target = arena();
    signal.arriving().replace(target.writable(1).unwrap());
    inbound.expect(head, Into::Buffer);
    receiver.readable().await.unwrap();
    assert!(inbound.try_read(&receiver).unwrap() > 0);
    assert!(target.writable(1).is_err(), "it is leased");
    let gone = shuffle_protocol::ShuffleError::new(shuffle_protocol::error::ErrorKind::ConnectionLost, "gone");
    signal.close(gone);
    assert!(target.writable(1).is_ok(), "the next owner gets it");
    assert!(
        inbound.try_read(&receiver).is_err(),
        "and nothing is written into it any more"
    );
}
