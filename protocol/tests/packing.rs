//! Several buffers in one frame: one credit, one ordinal, and a sequence for each.

use shuffle_protocol::ids::Sequence;
use shuffle_protocol::stream::{Arrival, Receiver, Sender, StreamError};

fn seq(n: u64) -> Sequence {
    Sequence::new(n)
}

/// Two frames of which the first has three buffers, for two credits.
fn two_frames() -> Sender<u64> {
    let mut sender = Sender::new(2).expect("a credit within the window");
    assert_eq!(sender.send_buffer(0), seq(0));
    assert_eq!((sender.join_buffer(1), sender.join_buffer(2)), (seq(1), seq(2)));
    assert_eq!(sender.credit_left(), 1, "three buffers took one credit");
    assert_eq!(sender.send_buffer(3), seq(3));
    assert!(!sender.can_send_buffer());
    assert_eq!(sender.join_buffer(4), seq(4), "without a credit");
    sender.check_invariants();
    sender
}

/// What is sent again, by frames.
fn resent(sender: &mut Sender<u64>) -> Vec<Vec<u64>> {
    let mut frames: Vec<Vec<u64>> = Vec::new();
    loop {
        let joins = sender.resends_joined();
        let Some((_, stamp)) = sender.poll_resend() else {
            assert!(!joins, "nothing joins nothing");
            return frames;
        };
        match frames.last_mut().filter(|_| joins) {
            Some(frame) => frame.push(*stamp),
            None => frames.push(vec![*stamp]),
        }
    }
}

#[test]
fn what_was_sent_together_is_sent_again_together() {
    let mut sender = two_frames();
    drop(sender.handle_resume(seq(0), seq(0), 2).expect("from the beginning"));
    assert_eq!(resent(&mut sender), [vec![0, 1, 2], vec![3, 4]]);

    // The first frame has come and is acknowledged in part.
    let mut sender = two_frames();
    assert_eq!(sender.handle_ack(seq(1)).expect("sent").count(), 1);
    assert_eq!(sender.handle_resume(seq(2), seq(3), 2).expect("a frame").count(), 1);
    assert_eq!(resent(&mut sender), [vec![3, 4]]);
    sender.check_invariants();
}

/// A frame arrives whole or not at all: who says otherwise is not believed.
#[test]
fn nothing_resumes_within_a_frame() {
    for received in [1, 2, 4] {
        let mut sender = two_frames();
        let refused = sender
            .handle_resume(seq(0), seq(received), 2)
            .map(|freed| freed.count());
        assert!(matches!(refused, Err(StreamError::Resume { .. })), "{received}");
    }
    for received in [0, 3, 5] {
        let mut sender = two_frames();
        assert!(sender.handle_resume(seq(0), seq(received), 2).is_ok(), "{received}");
    }
}

#[test]
#[should_panic(expected = "a buffer joins one that was just sent")]
fn a_buffer_does_not_join_an_end() {
    let mut sender = Sender::new(1).expect("a credit within the window");
    sender.send_end(0u64);
    sender.join_buffer(1);
}

#[test]
fn a_frame_takes_one_credit_at_its_receiver() {
    let mut receiver = Receiver::new(2);
    assert_eq!(receiver.handle_frame(seq(0), 3), Ok(Arrival::Accept));
    assert_eq!(receiver.outstanding_credit(), 1);
    assert_eq!(receiver.handle_frame(seq(0), 3), Ok(Arrival::Duplicate));
    assert!(matches!(receiver.handle_frame(seq(2), 2), Ok(Arrival::Duplicate)));
    assert!(matches!(receiver.handle_frame(seq(4), 1), Err(StreamError::Gap { .. })));
    assert_eq!(receiver.handle_frame(seq(3), 256), Ok(Arrival::Accept));
    assert!(matches!(
        receiver.handle_buffer(seq(259)),
        Err(StreamError::BeyondCredit { .. })
    ));
    assert_eq!(receiver.resume_point().received, seq(259));
    receiver.check_invariants();
}
