//! Changes of partitions into messages and out again.

use proptest::prelude::*;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::{ErrorKind, ShuffleError};
use shuffle_protocol::frame::{Deframer, Event, Frame, encode_control};
use shuffle_protocol::ids::{PartitionId, ResultId};
use shuffle_protocol::limits::{MAX_EVENTS_BYTES, MAX_SUBPARTITIONS, MAX_UNSEEN_EVENTS};
use shuffle_protocol::notify::{Packer, PartitionChange, PartitionState, Unpacker};

fn partition(index: u32) -> PartitionId {
    PartitionId {
        result: ResultId::new(7),
        index,
        attempt: 1,
    }
}

/// Over the wire and back.
fn carried(changes: &[PartitionChange]) -> (Vec<PartitionChange>, usize) {
    let mut packer = Packer::default();
    changes.iter().for_each(|change| packer.push(change));
    let messages = packer.finish(1, true);
    let (count, mut came, mut unpacker) = (messages.len(), Vec::new(), Unpacker::default());
    let mut wire = bytes::BytesMut::new();
    for (number, message) in (1..).zip(messages) {
        assert_eq!(
            (message.number, message.snapshot_complete),
            (number, number == count as u64)
        );
        encode_control(&Message::PartitionEvents(message), &mut wire).expect("a message that may be sent");
    }
    let (mut deframer, mut at) = (Deframer::new(), 0);
    while at < wire.len() {
        at += deframer.handle_bytes(&wire[at..]);
        while let Some(event) = deframer.poll_event().expect("a frame") {
            let Event::Frame(Frame::Control(message)) = event else {
                panic!("{event:?}")
            };
            let Message::PartitionEvents(message) = *message else {
                panic!("{message:?}")
            };
            for event in message.events {
                came.extend(unpacker.handle_event(event).expect("an event"));
            }
        }
    }
    (came, count)
}

fn state() -> impl Strategy<Value = PartitionState> {
    prop_oneof![
        Just(PartitionState::Registered),
        Just(PartitionState::FirstBuffer),
        Just(PartitionState::Released),
        "[a-z]{0,40}".prop_map(|text| PartitionState::Failed {
            cause: ShuffleError::new(ErrorKind::Io, text)
        }),
        proptest::collection::vec(any::<u64>(), 0..50)
            .prop_map(|bytes| PartitionState::Finished { bytes: bytes.into() }),
    ]
}

proptest! {
    #[test]
    fn whatever_goes_in_comes_out(states in proptest::collection::vec(state(), 0..60)) {
        let changes: Vec<_> = (0..).zip(states).map(|(index, state)| PartitionChange { partition: partition(index), state }).collect();
        let (came, _) = carried(&changes);
        prop_assert_eq!(came, changes);
    }
}

/// The widest partition with the widest numbers, and many at once: every message is small, and there are few of them.
#[test]
fn the_widest_partition_goes_into_few_small_messages() {
    let wide = PartitionChange {
        partition: partition(0),
        state: PartitionState::Finished {
            bytes: vec![u64::MAX; MAX_SUBPARTITIONS as usize].into(),
        },
    };
    let (came, messages) = carried(std::slice::from_ref(&wide));
    assert_eq!(came, [wide]);
    assert_eq!(messages, 4);
    let narrow: Vec<_> = (0..20_000)
        .map(|index| PartitionChange {
            partition: partition(index),
            state: PartitionState::Registered,
        })
        .collect();
    let (came, messages) = carried(&narrow);
    assert_eq!(came, narrow);
    assert!(messages <= 20_000 * 20 / MAX_EVENTS_BYTES as usize + 1 && messages < MAX_UNSEEN_EVENTS as usize);
}

#[test]
fn sizes_that_do_not_fit_together_are_refused() {
    let piece = |index, subpartitions, first, bytes: usize, continues| control::PartitionEvent {
        partition: Some(partition(index).into()),
        phase: control::PartitionPhase::Finished.into(),
        subpartitions,
        first,
        bytes: vec![1; bytes],
        continues,
        ..control::PartitionEvent::default()
    };
    let registered = control::PartitionEvent {
        partition: Some(partition(1).into()),
        phase: control::PartitionPhase::Registered.into(),
        ..control::PartitionEvent::default()
    };
    for (name, events) in [
        ("too many", vec![piece(1, 2, 0, 3, false)]),
        ("too few", vec![piece(1, 2, 0, 1, false)]),
        ("a gap", vec![piece(1, 9, 0, 3, true), piece(1, 9, 4, 5, false)]),
        ("not its beginning", vec![piece(1, 9, 4, 5, false)]),
        (
            "another partition",
            vec![piece(1, 9, 0, 3, true), piece(2, 9, 3, 6, false)],
        ),
        ("another width", vec![piece(1, 9, 0, 3, true), piece(1, 8, 3, 5, false)]),
        ("cut off", vec![piece(1, 9, 0, 3, true), registered.clone()]),
        ("nothing to go on with", vec![piece(1, 9, 0, 0, true)]),
        ("wider than can be", vec![piece(1, MAX_SUBPARTITIONS + 1, 0, 1, true)]),
        (
            "no phase",
            vec![control::PartitionEvent {
                phase: 99,
                ..registered.clone()
            }],
        ),
        ("no cause", vec![control::PartitionEvent { phase: 4, ..registered }]),
        ("nobody", vec![control::PartitionEvent::default()]),
    ] {
        let mut unpacker = Unpacker::default();
        let outcome: Result<Vec<_>, _> = events.into_iter().map(|event| unpacker.handle_event(event)).collect();
        assert!(outcome.is_err(), "{name}: {outcome:?}");
    }
}
