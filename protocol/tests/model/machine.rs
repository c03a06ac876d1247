//! One sender and one receiver, each against the other side from hell: numbers of any kind at any time. Nothing panics, a
//! refused call has changed nothing, the invariants hold after each step.

use std::fmt::Debug;

use shuffle_protocol::ids::Sequence;
use shuffle_protocol::stream::{Arrival, Receiver, Sender};

use super::input::Input;

/// First byte: the first credit. Then pairs of an operation and its arguments.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let Some(first) = input.number(0) else { return };
    let mut sender = Sender::new(first).unwrap_or_else(|_| Sender::new(2).expect("two are few"));
    let mut receiver = Receiver::new(2);
    let mut stamp = 0u64;
    while step_sender(&mut sender, &mut stamp, &mut input).is_some()
        && step_receiver(&mut receiver, &mut input).is_some()
    {
        sender.check_invariants();
        receiver.check_invariants();
    }
}

fn step_sender(sender: &mut Sender<u64>, stamp: &mut u64, input: &mut Input<'_>) -> Option<()> {
    let (sent, acked) = (sender.sent().value(), sender.acked().value());
    let ordinal = sent;
    match input.byte()? % 8 {
        0 => {
            let limit = input.number(ordinal + sender.credit_left())?;
            unchanged_if_refused(sender, |sender| sender.handle_credit(limit));
        }
        1 => {
            let below = Sequence::new(input.number(acked)?);
            unchanged_if_refused(sender, |sender| {
                sender.handle_ack(below).map(|freed| in_order(freed.collect()))
            });
        }
        2 => {
            let acknowledged = Sequence::new(input.number(acked)?);
            let received = Sequence::new(input.number(sent)?);
            let credit = input.number(ordinal)?;
            unchanged_if_refused(sender, |sender| {
                let freed = sender.handle_resume(acknowledged, received, credit);
                freed.map(|freed| in_order(freed.collect()))
            });
        }
        3 | 4 if sender.can_send_buffer() => {
            let credit = sender.credit_left();
            assert_eq!(sender.send_buffer(*stamp).value(), sent);
            assert_eq!(sender.credit_left(), credit - 1);
            *stamp += 1;
        }
        5 if sender.can_send_end() => {
            assert_eq!(sender.send_end(*stamp).value(), sent);
            *stamp += 1;
        }
        6 => {
            if let Some((sequence, item)) = sender.poll_resend() {
                assert_eq!(*item, sequence.value(), "something else is sent again");
            }
        }
        _ => {
            let waiting = input.byte()?.into();
            let told = sender.poll_backlog(waiting);
            assert!(told.is_none_or(|told| told == waiting && sender.credit_left() == 0));
            assert_eq!(sender.poll_backlog(waiting), None, "told twice");
        }
    }
    in_order(sender.unacked().copied().collect());
    Some(())
}

fn step_receiver(receiver: &mut Receiver, input: &mut Input<'_>) -> Option<()> {
    let point = receiver.resume_point();
    let next = point.received.value();
    match input.byte()? % 8 {
        0 | 1 => {
            let sequence = Sequence::new(input.number(next)?);
            let foreseen = receiver.expects(sequence);
            let arrival = unchanged_if_refused(receiver, |receiver| receiver.handle_buffer(sequence));
            assert_eq!(foreseen.ok(), arrival, "expects says another thing");
            if arrival == Some(Arrival::Accept) {
                assert_eq!(sequence, point.received);
            }
        }
        2 => {
            let sequence = Sequence::new(input.number(next)?);
            let last = input.byte()? >= 250;
            unchanged_if_refused(receiver, |receiver| receiver.handle_end(sequence, last));
        }
        3 => {
            let below = Sequence::new(input.number(point.acknowledged.value())?);
            unchanged_if_refused(receiver, |receiver| receiver.handle_checked(below));
        }
        4 if input.byte()? >= 250 => {
            let reserved = receiver.outstanding_credit();
            assert_eq!(receiver.cancel(), reserved);
            assert_eq!(receiver.outstanding_credit(), 0);
        }
        5 => receiver.handle_disconnected(),
        _ => {
            // Nothing more can come on a channel that is finished or cancelled: then no credit is given.
            let told = receiver.poll_credit();
            assert!(told.is_none_or(|told| told == receiver.resume_point().credit));
            assert_eq!(receiver.poll_credit(), None, "told twice");
            let told = receiver.poll_ack();
            assert!(told.is_none_or(|told| told == receiver.resume_point().acknowledged));
            assert_eq!(receiver.poll_ack(), None, "told twice");
        }
    }
    Some(())
}

/// Stamps count from 0 as sequences do.
fn in_order(items: Vec<u64>) {
    assert!(
        items.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        "out of order: {items:?}"
    );
}

fn unchanged_if_refused<S: Debug, T, E: Debug>(state: &mut S, call: impl FnOnce(&mut S) -> Result<T, E>) -> Option<T> {
    let before = format!("{state:?}");
    match call(state) {
        Ok(value) => Some(value),
        Err(error) => {
            assert_eq!(before, format!("{state:?}"), "refused with {error:?}, and changed");
            None
        }
    }
}
