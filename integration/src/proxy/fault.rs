//! What the proxy does to the bytes that pass it, decided without I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use super::frames::Tracker;

/// Kinds of frames, as on the wire (docs/protocol.md).
pub mod kind {
    /// Control message.
    pub const CONTROL: u8 = 1;
    /// Payload of a channel.
    pub const DATA: u8 = 2;
    /// Acknowledgements.
    pub const ACK: u8 = 5;
    /// Credits.
    pub const CREDIT: u8 = 6;
    /// End markers.
    pub const END: u8 = 10;
    /// Sign of life.
    pub const PING: u8 = 11;
}

/// Direction through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the one who dialled to the server behind the proxy.
    Up,
    /// From the server behind the proxy.
    Down,
}

/// Where in the stream a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// So many bytes into one connection.
    Bytes(u64),
    /// `after` bytes into the `nth` frame (from 1) of a kind, counted over all connections since
    /// the fault was injected.
    Frame {
        /// Kind of frame.
        kind: u8,
        /// Which one, from 1.
        nth: u64,
        /// How far into it: 0 is before its first byte.
        after: u64,
    },
}

/// What happens there, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Both sides are reset; the bytes from here on are lost.
    Cut,
    /// The lowest bit of the byte is flipped.
    Flip,
}

/// One fault; it strikes once.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// In which direction.
    pub direction: Direction,
    /// Where.
    pub trigger: Trigger,
    /// What.
    pub action: Action,
}

/// State of the proxy that its connections share.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) faults: Vec<Fault>,
    pub(super) fired: u64,
    pub(super) connections: u64,
    pub(super) live: u64,
    pub(super) frames: BTreeMap<(Direction, u8), u64>,
    pub(super) bytes: BTreeMap<Direction, u64>,
    pub(super) delay: BTreeMap<Direction, Duration>,
}

/// One direction of one connection.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) direction: Direction,
    at: u64,
    tracker: Tracker,
    pending: Vec<(u64, Action)>,
}

impl Way {
    pub(super) fn new(direction: Direction) -> Self {
        Self {
            direction,
            at: 0,
            tracker: Tracker::default(),
            pending: Vec::new(),
        }
    }

    /// Judges the next bytes; flips in place. `Some(n)`: only `n` of them go on, then both sides
    /// are reset.
    pub(super) fn handle_bytes(&mut self, state: &mut State, bytes: &mut [u8]) -> Option<usize> {
        let start = self.at;
        let end = start + u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        *state.bytes.entry(self.direction).or_default() += end - start;
        self.strike_at_bytes(state, end);
        for seen in self.tracker.handle_bytes(bytes) {
            *state.frames.entry((self.direction, seen.kind)).or_default() += 1;
            self.strike_at_frame(state, seen.kind, seen.start);
        }
        self.at = end;
        let due: Vec<(u64, Action)> = self.pending.iter().copied().filter(|(at, _)| *at < end).collect();
        self.pending.retain(|(at, _)| *at >= end);
        state.fired += u64::try_from(due.len()).unwrap_or(0);
        let mut cut: Option<usize> = None;
        for (at, action) in due {
            let index = usize::try_from(at.saturating_sub(start)).unwrap_or(0);
            match action {
                Action::Flip => bytes[index] ^= 1,
                Action::Cut => cut = Some(cut.map_or(index, |cut| cut.min(index))),
            }
        }
        cut
    }

    fn strike_at_bytes(&mut self, state: &mut State, end: u64) {
        let direction = self.direction;
        let pending = &mut self.pending;
        state.faults.retain(|fault| match fault.trigger {
            Trigger::Bytes(at) if fault.direction == direction && at < end => {
                pending.push((at, fault.action));
                false
            }
            _ => true,
        });
    }

    fn strike_at_frame(&mut self, state: &mut State, kind: u8, start: u64) {
        let direction = self.direction;
        let pending = &mut self.pending;
        state.faults.retain_mut(|fault| match &mut fault.trigger {
            Trigger::Frame {
                kind: wanted,
                nth,
                after,
            } if *wanted == kind && fault.direction == direction => {
                *nth = nth.saturating_sub(1);
                if *nth == 0 {
                    pending.push((start + *after, fault.action));
                }
                *nth > 0
            }
            _ => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, Direction, Fault, State, Trigger, Way, kind};

    fn data_frame(body: u8) -> Vec<u8> {
        let mut frame = vec![0; 40 + usize::from(body)];
        frame[..4].copy_from_slice(b"SHUF");
        frame[5] = kind::DATA;
        frame[8] = body;
        frame
    }

    fn state(trigger: Trigger, action: Action) -> State {
        let fault = Fault {
            direction: Direction::Up,
            trigger,
            action,
        };
        State {
            faults: vec![fault],
            ..State::default()
        }
    }

    #[test]
    fn the_second_frame_is_hit_where_it_was_asked_for() {
        let trigger = Trigger::Frame {
            kind: kind::DATA,
            nth: 2,
            after: 45,
        };
        let mut state = state(trigger, Action::Flip);
        let mut way = Way::new(Direction::Up);
        let mut stream = [data_frame(10), data_frame(10)].concat();
        let before = stream.clone();
        let mut out = Vec::new();
        for piece in stream.chunks_mut(7) {
            assert_eq!(way.handle_bytes(&mut state, piece), None);
            out.extend_from_slice(piece);
        }
        let changed: Vec<usize> = (0..out.len()).filter(|at| out[*at] != before[*at]).collect();
        assert_eq!((changed, state.fired), (vec![95], 1));
    }

    #[test]
    fn a_cut_lets_exactly_the_bytes_before_it_through() {
        let mut state = state(Trigger::Bytes(60), Action::Cut);
        let mut way = Way::new(Direction::Up);
        let mut stream = [data_frame(10), data_frame(10)].concat();
        assert_eq!(way.handle_bytes(&mut state, &mut stream[..50]), None);
        assert_eq!(way.handle_bytes(&mut state, &mut stream[50..]), Some(10));
        assert_eq!(state.fired, 1);
    }

    #[test]
    fn the_other_direction_is_left_alone() {
        let mut state = state(Trigger::Bytes(0), Action::Cut);
        let mut way = Way::new(Direction::Down);
        assert_eq!(way.handle_bytes(&mut state, &mut data_frame(4)), None);
        assert_eq!((state.fired, state.faults.len()), (0, 1));
    }
}
