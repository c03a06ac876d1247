use super::memory::{Memory, bytes_of, head};
use crate::transport::uring::piece::{Gather, Piece};
use crate::transport::uring::plan::{Allowed, Cursor, Limits, Step, ZeroCopy, plan};

const WIDE: Limits = Limits { slices: 128, steps: 64 };

fn steps(gather: &Gather, cursor: Cursor, limits: Limits, allowed: Allowed) -> Vec<Step> {
    plan(gather, cursor, limits, allowed, &mut |_| Some(3))
}

fn shape(steps: &[Step]) -> Vec<(std::ops::Range<usize>, bool)> {
    let shape = |step: &Step| (step.pieces.clone(), step.extent.is_some());
    steps.iter().map(shape).collect()
}

#[test]
fn without_zero_copy_everything_is_one_message() {
    let memory = Memory::new();
    let gather = memory.gather(&[0, 1, 2]);
    let made = steps(&gather, Cursor::default(), WIDE, Allowed::None);
    assert_eq!(shape(&made), [(0..6, false)]);
    assert_eq!(made[0].bytes, bytes_of(&gather).len());
}

#[test]
fn one_send_tries_zero_copy_first() {
    let memory = Memory::new();
    let made = steps(&memory.gather(&[0, 1, 2]), Cursor::default(), WIDE, Allowed::One);
    assert_eq!(shape(&made), [(0..1, false), (1..2, true), (2..6, false)]);
}

#[test]
fn only_large_registered_payload_goes_without_a_copy() {
    let memory = Memory::new();
    let gather = Gather::new(vec![
        head(64 << 10, 1),
        memory.part(0, 100),
        memory.payload(1),
        memory.payload(2),
        head(40, 1),
    ]);
    let made = steps(&gather, Cursor::default(), WIDE, Allowed::All);
    assert_eq!(shape(&made), [(0..2, false), (2..3, true), (3..4, true), (4..5, false)]);

    let only_slot_2 = |piece: &Piece| match piece {
        Piece::Payload { slot, .. } if slot.slot == 2 => Some(9),
        _ => None,
    };
    let made = plan(&gather, Cursor::default(), WIDE, Allowed::All, &mut { only_slot_2 });
    assert_eq!(shape(&made), [(0..3, false), (3..4, true), (4..5, false)]);
}

#[test]
fn a_chain_keeps_its_limits_and_goes_on_where_it_stopped() {
    let memory = Memory::new();
    let gather = memory.gather(&[0, 1, 2]);
    let narrow = Limits { slices: 2, steps: 2 };
    let made = steps(&gather, Cursor::default(), narrow, Allowed::None);
    assert_eq!(shape(&made), [(0..2, false), (2..4, false)]);

    let mut cursor = Cursor::default();
    cursor.advance(&gather, 40 + 100);
    let rest = steps(&gather, cursor, WIDE, Allowed::None);
    assert_eq!((rest[0].pieces.clone(), rest[0].skip), (1..6, 100));
    assert_eq!(rest[0].bytes, bytes_of(&gather).len() - 140);
    cursor.advance(&gather, rest[0].bytes);
    assert!(cursor.is_at_end(&gather));
}

#[test]
fn empty_pieces_are_passed() {
    let gather = Gather::new(vec![head(0, 1), head(3, 1), head(0, 1)]);
    let mut cursor = Cursor::default();
    cursor.advance(&gather, 3);
    assert!(cursor.is_at_end(&gather));
    let nothing = Gather::new(vec![head(0, 1)]);
    let mut cursor = Cursor::default();
    cursor.advance(&nothing, 0);
    assert!(cursor.is_at_end(&nothing));
}

#[test]
fn one_notification_decides_and_copied_is_final() {
    let mut state = ZeroCopy::default();
    assert_eq!(state.allowed(), Allowed::One);
    state.handle_used();
    assert_eq!(state.allowed(), Allowed::None, "one at a time until it is known");
    state.handle_report(false);
    assert_eq!(state.allowed(), Allowed::All);
    state.handle_used();
    state.handle_report(true);
    assert_eq!(state, ZeroCopy::Off);
    state.handle_report(false);
    assert_eq!(state, ZeroCopy::Off);

    let mut refused = ZeroCopy::default();
    refused.handle_used();
    refused.handle_refused();
    assert_eq!(refused.allowed(), Allowed::None);
}
