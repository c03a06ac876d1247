//! The timers of a connection.

use std::time::{Duration, Instant};

use shuffle_protocol::session::{Keepalive, KeepaliveAction};

const INTERVAL: Duration = Duration::from_secs(5);
const DEAD_AFTER: Duration = Duration::from_secs(15);

/// F51: a peer that says nothing is dead in time, whether we are idle or send all the while.
#[test]
fn a_silent_peer_is_dead_in_time() {
    for sends in [false, true] {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(INTERVAL, DEAD_AFTER, start);
        let (mut now, mut pings) = (start, 0);
        let silent_for = loop {
            match keepalive.poll(now) {
                KeepaliveAction::Dead { silent_for } => break silent_for,
                KeepaliveAction::SendPing => pings += 1,
                KeepaliveAction::Nothing => {}
            }
            if sends {
                keepalive.handle_sent(now);
                now += Duration::from_millis(100);
            } else {
                assert!(keepalive.poll_timeout() > now, "it would spin");
                now = keepalive.poll_timeout();
            }
        };
        assert_eq!((now - start, silent_for), (DEAD_AFTER, DEAD_AFTER), "sends: {sends}");
        assert_eq!(pings, 2, "sends: {sends}");
    }
}

/// Who only receives lets the other side know that it lives.
#[test]
fn a_side_that_only_receives_sends_pings() {
    let start = Instant::now();
    let mut keepalive = Keepalive::new(INTERVAL, DEAD_AFTER, start);
    let pings = (1..=600u32).filter(|step| {
        let now = start + Duration::from_millis(100) * *step;
        keepalive.handle_received(now);
        keepalive.poll(now) == KeepaliveAction::SendPing
    });
    assert_eq!(pings.count(), 12, "one per interval, in a minute");
}

/// Two sides that have nothing to say hear each other; neither is ever given up.
#[test]
fn idle_peers_keep_each_other_alive() {
    let start = Instant::now();
    let delay = Duration::from_millis(300);
    let mut sides = [(); 2].map(|()| Keepalive::new(INTERVAL, DEAD_AFTER, start));
    // Pings and pongs under way: when, to whom, and whether it wants an answer.
    let mut way: Vec<(Instant, usize, bool)> = Vec::new();
    let (mut answers, mut pings) = (Vec::new(), 0);
    for step in 0..6000u32 {
        let now = start + Duration::from_millis(100) * step;
        for (side, keepalive) in sides.iter_mut().enumerate() {
            for (_, _, asks) in way.extract_if(.., |(at, to, _)| *at <= now && *to == side) {
                keepalive.handle_received(now);
                if asks {
                    keepalive.handle_sent(now);
                    answers.push((now + delay, 1 - side, false));
                    pings += 1;
                }
            }
            match keepalive.poll(now) {
                KeepaliveAction::Nothing => {}
                KeepaliveAction::SendPing => {
                    keepalive.handle_sent(now);
                    answers.push((now + delay, 1 - side, true));
                }
                KeepaliveAction::Dead { .. } => panic!("side {side} was given up at {now:?}"),
            }
        }
        way.append(&mut answers);
    }
    assert!((100..=260).contains(&pings), "{pings} pings in ten minutes");
}

/// F106: a clock that seems to go back ends nothing.
#[test]
fn time_that_goes_back_ends_nothing() {
    let start = Instant::now() + Duration::from_secs(100);
    let mut keepalive = Keepalive::new(INTERVAL, DEAD_AFTER, start);
    keepalive.handle_received(start - Duration::from_secs(50));
    keepalive.handle_sent(start - Duration::from_secs(50));
    assert_eq!(
        keepalive.poll(start - Duration::from_secs(99)),
        KeepaliveAction::Nothing
    );
    assert_eq!(keepalive.poll(start + Duration::from_secs(4)), KeepaliveAction::Nothing);
}
