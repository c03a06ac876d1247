use std::rc::Rc;

use super::memory::Memory;
use crate::transport::uring::in_flight::{Held, InFlight, Purpose};
use crate::transport::uring::operation::{Completion, Tag, Usage};

const MORE: u32 = 1 << 1;
const NOTIFICATION: u32 = 1 << 3;

fn send(memory: &Memory, in_flight: &mut InFlight) -> u64 {
    let tag = Tag {
        line: 1,
        job: 2,
        step: 3,
    };
    let _gather = Rc::new(memory.gather(&[0]));
    in_flight.insert(Held::Piece { _gather }, Purpose::Send(tag)).0
}

fn released(completion: Option<Completion>) -> bool {
    match completion {
        Some(Completion::Send { released, .. }) => released,
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_is_dropped_at_the_last_completion_in_either_order() {
    let memory = Memory::new();
    let mut in_flight = InFlight::default();
    let key = send(&memory, &mut in_flight);
    assert!(!released(in_flight.handle_completion(key, 10, MORE)));
    assert!(!memory.is_free(0));
    assert!(released(in_flight.handle_completion(key, 0, NOTIFICATION)));
    assert!(memory.is_free(0));

    let key = send(&memory, &mut in_flight);
    assert!(!released(in_flight.handle_completion(key, i32::MIN, NOTIFICATION)));
    assert!(!memory.is_free(0));
    assert!(released(in_flight.handle_completion(key, 10, MORE)));
    assert!(memory.is_free(0));

    let key = send(&memory, &mut in_flight);
    assert!(released(in_flight.handle_completion(key, -libc::EPIPE, 0)));
    assert!(memory.is_free(0));
    assert_eq!(in_flight.sends(), 0);
}

fn usage(completion: Option<Completion>) -> Option<Usage> {
    match completion {
        Some(Completion::Send { usage, .. }) => usage,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_notification_reports_counts_for_the_bytes_that_were_sent() {
    let memory = Memory::new();
    let mut in_flight = InFlight::default();
    for (word, copied) in [(0, false), (i32::MIN, true)] {
        let key = send(&memory, &mut in_flight);
        assert_eq!(usage(in_flight.handle_completion(key, 10, MORE)), None);
        let said = usage(in_flight.handle_completion(key, word, NOTIFICATION));
        assert_eq!(said, Some(Usage { copied, bytes: 10 }));
        let key = send(&memory, &mut in_flight);
        assert_eq!(usage(in_flight.handle_completion(key, word, NOTIFICATION)), None);
        let said = usage(in_flight.handle_completion(key, 10, MORE));
        assert_eq!(said, Some(Usage { copied, bytes: 10 }));
    }
    let key = send(&memory, &mut in_flight);
    in_flight.handle_completion(key, -libc::ECANCELED, MORE);
    let said = usage(in_flight.handle_completion(key, 0, NOTIFICATION));
    assert_eq!(said, None, "nothing was sent, so nothing went without a copy");
}

#[test]
fn a_notification_that_was_not_promised_is_nobodys() {
    let memory = Memory::new();
    let mut in_flight = InFlight::default();
    let first = send(&memory, &mut in_flight);
    assert!(released(in_flight.handle_completion(first, -libc::ECANCELED, 0)));
    let second = send(&memory, &mut in_flight);
    assert!(in_flight.handle_completion(first, i32::MIN, NOTIFICATION).is_none());
    assert!(!memory.is_free(0), "the second is still out");
    assert!(released(in_flight.handle_completion(second, 10, 0)));
}

#[test]
#[should_panic(expected = "completes what it was given")]
fn a_result_of_nothing_is_a_broken_invariant() {
    InFlight::default().handle_completion(77, 1, 0);
}

#[test]
fn what_is_in_flight_at_the_end_is_never_freed() {
    let memory = Memory::new();
    let mut in_flight = InFlight::default();
    send(&memory, &mut in_flight);
    drop(in_flight);
    assert!(!memory.is_free(0));
}
