//! The machines of a channel, case by case; arbitrary runs are in `models.rs`.

use shuffle_protocol::error::{ErrorKind, Initiator, ShuffleError};
use shuffle_protocol::ids::Sequence;
use shuffle_protocol::limits::MAX_CREDIT_WINDOW;
use shuffle_protocol::stream::{Arrival, GateCredit, Receiver, ResumePoint, Sender, StreamError};

fn seq(n: u64) -> Sequence {
    Sequence::new(n)
}

fn sender(credit: u64) -> Sender<u64> {
    Sender::new(credit).expect("a credit within the window")
}

/// A sender that has sent the stamps `0 .. n`.
fn sent(n: u64) -> Sender<u64> {
    let mut sender = sender(n);
    for stamp in 0..n {
        assert_eq!(sender.send_buffer(stamp), seq(stamp));
    }
    sender
}

#[test]
fn a_sender_keeps_what_is_not_acknowledged() {
    let mut sender = sent(4);
    assert_eq!(sender.send_end(4), seq(4), "an end marker takes a sequence");
    assert_eq!(sender.credit_left(), 0, "and no credit");
    assert!(!sender.can_send_buffer());
    assert_eq!(sender.handle_ack(seq(2)).unwrap().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(sender.handle_ack(seq(1)).unwrap().len(), 0, "late, and ignored");
    assert_eq!(sender.unacked().copied().collect::<Vec<_>>(), [2, 3, 4]);
    sender.check_invariants();
    assert_eq!(sender.close(), [2, 3, 4]);
}

#[test]
fn freed_items_that_nobody_takes_are_dropped() {
    let mut sender = sent(4);
    drop(sender.handle_ack(seq(3)).unwrap());
    sender.check_invariants();
    assert_eq!(sender.unacked().count(), 1);
}

/// F99: credit of 0, at the maximum and beyond.
#[test]
fn credit_is_absolute_and_bounded() {
    let mut sender = sender(0);
    assert!(!sender.can_send_buffer());
    for beyond in [MAX_CREDIT_WINDOW + 1, u64::MAX, u64::MAX - 6] {
        let error = sender.handle_credit(beyond).unwrap_err();
        assert!(matches!(error, StreamError::CreditBeyondWindow { .. }));
        assert!(Sender::<u64>::new(beyond).is_err());
        let resumed = sender.handle_resume(seq(0), seq(0), beyond).map(|freed| freed.count());
        assert!(resumed.is_err());
    }
    assert_eq!(sender.credit_left(), 0, "refused credit counts for nothing");
    sender.handle_credit(MAX_CREDIT_WINDOW).unwrap();
    sender.handle_credit(1).unwrap();
    assert_eq!(sender.credit_left(), MAX_CREDIT_WINDOW, "a lower limit came late");
    sender.send_buffer(0);
    sender.handle_credit(MAX_CREDIT_WINDOW + 1).unwrap();
    sender.check_invariants();
}

/// F99, F100: numbers for what was never sent are the other side's fault, and change nothing.
#[test]
fn numbers_from_the_future_are_refused() {
    let mut sender = sent(2);
    let refused = |result: Result<usize, StreamError>| {
        let error = ShuffleError::from(result.unwrap_err());
        assert_eq!(
            (error.kind(), error.initiator()),
            (&ErrorKind::Protocol, Initiator::Peer)
        );
    };
    for below in [3, u64::MAX] {
        refused(sender.handle_ack(seq(below)).map(|freed| freed.len()));
    }
    for (acknowledged, received) in [(0, 3), (2, 1), (3, 3), (0, u64::MAX)] {
        let resumed = sender.handle_resume(seq(acknowledged), seq(received), 9);
        refused(resumed.map(|freed| freed.len()));
    }
    assert_eq!(sender.handle_ack(seq(1)).unwrap().len(), 1);
    refused(sender.handle_resume(seq(0), seq(1), 9).map(|freed| freed.len()));
    assert_eq!((sender.credit_left(), sender.is_resending()), (0, false));
}

#[test]
fn a_resumed_sender_goes_on_where_the_receiver_stood() {
    let mut sender = sent(5);
    let freed: Vec<_> = sender.handle_resume(seq(2), seq(3), 6).unwrap().collect();
    assert_eq!(freed, [0, 1]);
    assert!(
        !sender.can_send_buffer() && !sender.can_send_end(),
        "first what was lost"
    );
    assert_eq!(sender.poll_resend(), Some((seq(3), &3)));
    // Resumed again before everything was sent again.
    assert_eq!(sender.handle_resume(seq(2), seq(3), 6).unwrap().len(), 0);
    assert_eq!(sender.poll_resend(), Some((seq(3), &3)));
    assert_eq!(sender.poll_resend(), Some((seq(4), &4)));
    assert_eq!(sender.poll_resend(), None);
    assert!(sender.can_send_buffer(), "one credit is left");
    assert_eq!(sender.send_buffer(5), seq(5));
    sender.check_invariants();
}

#[test]
fn what_is_acknowledged_is_not_sent_again() {
    let mut sender = sent(3);
    assert_eq!(sender.handle_resume(seq(0), seq(0), 3).unwrap().len(), 0);
    assert_eq!(sender.handle_ack(seq(2)).unwrap().len(), 2);
    assert_eq!(sender.poll_resend(), Some((seq(2), &2)));
    assert_eq!(sender.poll_resend(), None);
}

#[test]
fn backlog_is_told_once_per_stall() {
    let mut sender = sender(1);
    assert_eq!(sender.poll_backlog(3), None, "there is credit");
    sender.send_buffer(0);
    assert_eq!(sender.poll_backlog(2), Some(2));
    assert_eq!(sender.poll_backlog(5), None, "told already");
    sender.handle_credit(1).unwrap();
    assert_eq!(sender.poll_backlog(5), None, "a limit that was known is no credit");
    assert_eq!(sender.poll_backlog(0), None);
    assert_eq!(sender.poll_backlog(1), Some(1), "the queue was empty in between");
    sender.handle_credit(2).unwrap();
    sender.send_buffer(1);
    assert_eq!(sender.poll_backlog(4), Some(4), "credit came in between");
    assert_eq!(sender.handle_resume(seq(0), seq(2), 2).unwrap().len(), 0);
    assert_eq!(sender.poll_backlog(4), Some(4), "it may have been lost");
}

#[test]
fn a_receiver_takes_everything_once_and_in_order() {
    let mut receiver = Receiver::new(2);
    assert_eq!(receiver.poll_credit(), Some(2));
    assert_eq!(receiver.poll_credit(), None);
    assert_eq!(receiver.expects(seq(0)), Ok(Arrival::Accept));
    assert_eq!(receiver.handle_buffer(seq(0)), Ok(Arrival::Accept));
    assert_eq!(receiver.handle_buffer(seq(0)), Ok(Arrival::Duplicate));
    let gap = StreamError::Gap {
        got: seq(2),
        expected: seq(1),
    };
    assert_eq!(receiver.handle_buffer(seq(2)), Err(gap));
    assert_eq!(receiver.handle_end(seq(2), true), Err(gap));
    assert_eq!(receiver.handle_end(seq(1), false), Ok(Arrival::Accept));
    assert_eq!(receiver.outstanding_credit(), 1, "an end marker takes no credit");
    assert_eq!(receiver.handle_buffer(seq(2)), Ok(Arrival::Accept));
    let beyond = StreamError::BeyondCredit {
        sequence: seq(3),
        limit: 2,
    };
    assert_eq!(receiver.handle_buffer(seq(3)), Err(beyond), "F99: data beyond credit");
    assert_eq!(receiver.handle_end(seq(3), true), Ok(Arrival::Accept));
    assert_eq!(
        receiver.handle_end(seq(4), true),
        Err(StreamError::AfterLast { got: seq(4) })
    );
    assert_eq!(
        receiver.handle_buffer(seq(4)),
        Err(StreamError::AfterLast { got: seq(4) })
    );
    assert!(receiver.is_finished() && !receiver.is_settled());
    receiver.check_invariants();
}

#[test]
fn acknowledgement_is_what_the_reader_checked() {
    let mut receiver = Receiver::new(3);
    for sequence in 0..3 {
        receiver.handle_buffer(seq(sequence)).unwrap();
    }
    assert_eq!(receiver.poll_ack(), None, "nothing was checked");
    receiver.handle_checked(seq(2)).unwrap();
    receiver.handle_checked(seq(1)).unwrap();
    assert_eq!(receiver.poll_ack(), Some(seq(2)));
    assert_eq!(receiver.poll_ack(), None);
    let beyond = StreamError::CheckedBeyondReceived {
        below: seq(4),
        received: seq(3),
    };
    assert_eq!(receiver.handle_checked(seq(4)), Err(beyond));
}

#[test]
fn a_new_connection_is_told_everything_anew() {
    let mut receiver = Receiver::new(2);
    receiver.handle_buffer(seq(0)).unwrap();
    receiver.handle_checked(seq(1)).unwrap();
    receiver.add_credit(1);
    assert_eq!((receiver.poll_credit(), receiver.poll_ack()), (Some(3), Some(seq(1))));
    receiver.handle_disconnected();
    let point = ResumePoint {
        acknowledged: seq(1),
        received: seq(1),
        credit: 3,
    };
    assert_eq!(receiver.resume_point(), point);
    assert_eq!((receiver.poll_credit(), receiver.poll_ack()), (Some(3), Some(seq(1))));
}

/// A channel can be resumed after its unused credit went home: its last acknowledgement is still owed.
#[test]
fn a_finished_channel_resumes_for_its_acknowledgement() {
    let mut sender = sender(4);
    let mut receiver = Receiver::new(4);
    let buffer = sender.send_buffer(0);
    let end = sender.send_end(1);
    receiver.handle_buffer(buffer).unwrap();
    receiver.handle_end(end, true).unwrap();
    assert_eq!(receiver.reclaim_credit(), 3);
    receiver.handle_disconnected();
    receiver.handle_checked(seq(2)).unwrap();
    assert!(receiver.is_settled());
    let ResumePoint {
        acknowledged,
        received,
        credit,
    } = receiver.resume_point();
    let freed = sender.handle_resume(acknowledged, received, credit).unwrap();
    assert_eq!(freed.collect::<Vec<_>>(), [0, 1]);
}

/// F100: what is under way when a channel is cancelled is dropped, and takes nothing.
#[test]
fn a_cancelled_channel_drops_what_still_comes() {
    let mut receiver = Receiver::new(3);
    receiver.handle_buffer(seq(0)).unwrap();
    assert_eq!(receiver.cancel(), 2);
    assert_eq!(receiver.poll_ack(), Some(seq(1)), "nobody will check it");
    for sequence in [0, 1, 2, u64::MAX] {
        assert_eq!(receiver.handle_buffer(seq(sequence)), Ok(Arrival::Duplicate));
        assert_eq!(receiver.handle_end(seq(sequence), true), Ok(Arrival::Duplicate));
    }
    assert_eq!((receiver.outstanding_credit(), receiver.poll_credit()), (0, None));
    assert_eq!(receiver.cancel(), 0, "twice is once");
    receiver.check_invariants();
}

// ------------------------------------------------------------------------------- gate credit

/// F38: one buffer for the whole gate goes round, so nobody starves.
#[test]
fn one_floating_buffer_serves_all_channels_in_turn() {
    let mut gate = GateCredit::new(0, 0);
    let channels: Vec<_> = (0..3).map(|_| gate.add_channel()).collect();
    assert_eq!(gate.poll_assign(), None, "nothing is lent to who needs nothing");
    for channel in &channels {
        gate.handle_backlog(*channel, 3);
    }
    let mut waiting = [3; 3];
    let mut order = Vec::new();
    while let Some(channel) = gate.poll_assign() {
        assert_eq!(gate.poll_assign(), None, "there is only one");
        waiting[channel] -= 1;
        gate.handle_buffer(channel, waiting[channel]);
        gate.handle_release(channel);
        gate.check_invariants();
        order.push(channel);
    }
    assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn exclusive_buffers_come_first_and_come_back() {
    let mut gate = GateCredit::new(2, 1);
    let (a, b) = (gate.add_channel(), gate.add_channel());
    gate.handle_backlog(b, 10);
    let assigned: Vec<_> = std::iter::from_fn(|| gate.poll_assign()).collect();
    assert_eq!(
        assigned,
        [a, b, a, b, b],
        "two each, and one lent to the one with a backlog"
    );
    gate.handle_buffer(b, 9);
    gate.handle_release(b);
    assert_eq!(gate.poll_assign(), Some(b), "lent again");
    gate.handle_buffer(a, 0);
    assert_eq!(gate.poll_assign(), None, "its buffer is at the reader");
    gate.handle_release(a);
    assert_eq!(gate.poll_assign(), Some(a), "its own comes back without a backlog");
    gate.check_invariants();
}

/// F44: who has credit for all that waits gets no more, so an idle channel sits on nothing.
#[test]
fn floating_buffers_are_lent_for_what_waits_only() {
    let mut gate = GateCredit::new(1, 8);
    let (a, b) = (gate.add_channel(), gate.add_channel());
    gate.handle_backlog(a, 3);
    let assigned: Vec<_> = std::iter::from_fn(|| gate.poll_assign()).collect();
    assert_eq!(assigned, [a, b, a, a]);
    for waiting in [2, 1, 0] {
        gate.handle_buffer(a, waiting);
        gate.handle_release(a);
    }
    assert_eq!(gate.lent(), 0);
    assert_eq!(std::iter::from_fn(|| gate.poll_assign()).collect::<Vec<_>>(), [a]);
}

/// Channels opened, read once and cancelled 100 000 times on one connection: no credit is lost.
#[test]
fn no_credit_is_lost_over_many_channels() {
    let (mut gate, pool) = (GateCredit::new(2, 3), 5u32);
    let mut free = pool;
    for round in 0..100_000u32 {
        let channel = gate.add_channel();
        let (mut receiver, mut sender) = (Receiver::new(0), sender(0));
        gate.handle_backlog(channel, 4);
        while free > 0
            && let Some(assigned) = gate.poll_assign()
        {
            assert_eq!(assigned, channel, "only this one is open");
            free -= 1;
            receiver.add_credit(1);
        }
        sender.handle_credit(receiver.poll_credit().unwrap()).unwrap();
        let arrives = sender.send_buffer(u64::from(round));
        receiver.handle_buffer(arrives).unwrap();
        gate.handle_buffer(channel, 3);
        // Half of them drop the view before they cancel, half after.
        let mut release = |gate: &mut GateCredit| {
            gate.handle_release(channel);
            free += 1;
        };
        if round % 2 == 0 {
            release(&mut gate);
        }
        let reserved = receiver.cancel();
        gate.handle_cancel(channel, reserved);
        if round % 2 == 1 {
            release(&mut gate);
        }
        free += u32::try_from(reserved).unwrap();
        assert_eq!((free, gate.lent(), gate.held(channel)), (pool, 0, 0), "round {round}");
    }
    gate.check_invariants();
}
