//! Two servers and the link between them: senders on one side, receivers and the gate's credit book on the other. The link
//! is in order, and can be cut at any moment: everything under way is lost, and every channel is resumed.
//!
//! Oracle: item `n` of a channel is stamped `n`. Every item arrives exactly once, in order, is kept by its sender until
//! then, and finds a buffer; every buffer is free, reserved or viewed; once the faults end, everything ends.

mod fetch;
mod serve;

use std::collections::VecDeque;

use shuffle_protocol::ids::Sequence;
use shuffle_protocol::stream::{GateCredit, Receiver, ResumePoint, Sender};

use crate::model::input::Input;

const MOST_CHANNELS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    Open,
    /// The producer of a channel queues buffers, or an end marker that is not the last (0 buffers).
    Produce(usize, usize),
    /// The producer of a channel queues the last end marker.
    Finish(usize),
    /// The sender of a channel puts on the link what it may.
    Pump(usize),
    /// So many messages arrive, in either direction.
    ArriveDown(usize),
    ArriveUp(usize),
    /// Free buffers become credit.
    Assign,
    /// The fetching side tells credit and acknowledgement of a channel.
    Tell(usize),
    /// The reader of a channel checks so many items.
    Check(usize, usize),
    /// The reader of a channel drops a view.
    Release(usize),
    Cancel(usize),
    Cut,
    Connect,
}

impl Op {
    fn read(input: &mut Input<'_>) -> Option<Self> {
        let (op, argument) = (input.byte()?, usize::from(input.byte()?));
        let (at, n) = (argument % MOST_CHANNELS, argument / MOST_CHANNELS % 8);
        Some(match op % 32 {
            0 | 1 => Self::Open,
            2..=5 => Self::Produce(at, n),
            6 => Self::Finish(at),
            7..=10 => Self::Pump(at),
            11..=14 => Self::ArriveDown(n + 1),
            15..=18 => Self::ArriveUp(n + 1),
            19..=21 => Self::Assign,
            22..=24 => Self::Tell(at),
            25 | 26 => Self::Check(at, n),
            27 | 28 => Self::Release(at),
            29 if argument >= 128 => Self::Cancel(at),
            30 if argument >= 128 => Self::Cut,
            _ => Self::Connect,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Item {
    Buffer,
    End { last: bool },
}

enum Down {
    Item {
        id: u64,
        sequence: Sequence,
        stamp: u64,
        item: Item,
        backlog: u32,
    },
    Backlog {
        id: u64,
        waiting: u32,
    },
}

enum Up {
    Open { id: u64, point: ResumePoint, resume: bool },
    Credit { id: u64, limit: u64 },
    Ack { id: u64, below: Sequence },
    Close { id: u64 },
}

struct Channel {
    id: u64,
    // The serving side.
    sender: Option<Sender<(u64, Item)>>,
    /// The channel was opened or resumed on this connection.
    attached: bool,
    queue: VecDeque<Item>,
    produced: u64,
    ended: bool,
    freed: u64,
    // The fetching side.
    receiver: Receiver,
    index: usize,
    viewed: u32,
    arrived: u64,
    checked: u64,
    cancelled: bool,
}

pub(crate) struct World {
    gate: GateCredit,
    pool: u32,
    free: u32,
    connected: bool,
    down: VecDeque<Down>,
    up: VecDeque<Up>,
    channels: Vec<Channel>,
    opened: u64,
    /// Channels that came to their end with every item.
    pub(crate) completed: u64,
}

/// First two bytes: exclusive and floating buffers. Then operations of two bytes.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let (Some(exclusive), Some(floating)) = (input.below(3), input.below(5)) else {
        return;
    };
    let mut world = World::new(exclusive, floating);
    while let Some(op) = Op::read(&mut input) {
        world.step(op);
    }
    world.end();
}

impl World {
    pub(crate) fn new(exclusive: usize, floating: usize) -> Self {
        let small = |n: usize| u32::try_from(n).expect("a small number");
        // Without exclusive buffers one buffer for the whole gate is enough.
        let pool = small((MOST_CHANNELS * exclusive + floating).max(1));
        Self {
            gate: GateCredit::new(small(exclusive), small(floating)),
            pool,
            free: pool,
            connected: true,
            down: VecDeque::new(),
            up: VecDeque::new(),
            channels: Vec::new(),
            opened: 0,
            completed: 0,
        }
    }

    pub(crate) fn step(&mut self, op: Op) {
        match op {
            Op::Open => self.open(),
            Op::Produce(at, n) => self.produce(at, n),
            Op::Finish(at) => {
                if let Some(channel) = self.channels.get_mut(at)
                    && !std::mem::replace(&mut channel.ended, true)
                {
                    channel.queue.push_back(Item::End { last: true });
                }
            }
            Op::Pump(at) => self.pump(at),
            Op::ArriveDown(n) => (0..n).for_each(|_| self.arrive_down()),
            Op::ArriveUp(n) => (0..n).for_each(|_| self.arrive_up()),
            Op::Assign => self.assign(),
            Op::Tell(at) => self.tell(at),
            Op::Check(at, n) => self.check(at, n),
            Op::Release(at) => self.release(at),
            Op::Cancel(at) => self.cancel(at),
            Op::Cut => self.cut(),
            Op::Connect => self.connect(),
        }
        self.forget();
        self.check_invariants();
    }

    /// The faults end: every channel must come to its end, and every buffer home.
    pub(crate) fn end(&mut self) {
        self.step(Op::Connect);
        (0..MOST_CHANNELS).for_each(|at| self.step(Op::Finish(at)));
        // One buffer may be all that goes round: then each item takes one.
        let queued: usize = self.channels.iter().map(|channel| channel.queue.len()).sum();
        let items: u64 = self.channels.iter().map(|channel| channel.produced + 64).sum();
        let rounds = items + u64::try_from(queued).expect("64 bits fit") + 64;
        for _ in 0..rounds {
            self.step(Op::Assign);
            (0..MOST_CHANNELS).for_each(|at| self.step(Op::Tell(at)));
            self.step(Op::ArriveUp(self.up.len()));
            (0..MOST_CHANNELS).for_each(|at| self.step(Op::Pump(at)));
            self.step(Op::ArriveDown(self.down.len()));
            (0..MOST_CHANNELS).for_each(|at| self.step(Op::Check(at, usize::MAX)));
            for at in 0..MOST_CHANNELS {
                while self.channels.get(at).is_some_and(|channel| channel.viewed > 0) {
                    self.step(Op::Release(at));
                }
            }
            if self.channels.is_empty() {
                break;
            }
        }
        assert!(self.channels.is_empty(), "{} channels never end", self.channels.len());
        assert_eq!(self.free, self.pool, "buffers were lost");
        assert_eq!(self.gate.lent(), 0, "floating buffers were lost");
    }

    fn cut(&mut self) {
        self.connected = false;
        self.down.clear();
        self.up.clear();
        for channel in &mut self.channels {
            channel.attached = false;
            channel.receiver.handle_disconnected();
        }
    }

    fn connect(&mut self) {
        if std::mem::replace(&mut self.connected, true) {
            return;
        }
        for channel in &self.channels {
            let id = channel.id;
            self.up.push_back(match channel.cancelled {
                true => Up::Close { id },
                false => Up::Open {
                    id,
                    point: channel.receiver.resume_point(),
                    resume: true,
                },
            });
        }
    }

    /// Channels that both sides are done with.
    fn forget(&mut self) {
        self.channels.retain(|channel| {
            let complete = channel.receiver.is_settled() && channel.freed == channel.arrived;
            let closed = channel.cancelled && channel.sender.is_none() && !channel.attached;
            if complete && !channel.cancelled {
                assert!(channel.queue.is_empty() && channel.arrived == channel.produced);
                self.completed += u64::from(channel.viewed == 0);
            }
            channel.viewed > 0 || !(complete || closed)
        });
    }

    fn check_invariants(&self) {
        self.gate.check_invariants();
        let mut out = 0;
        for channel in &self.channels {
            channel.receiver.check_invariants();
            if let Some(sender) = &channel.sender {
                sender.check_invariants();
                let kept: Vec<_> = sender.unacked().map(|(stamp, _)| *stamp).collect();
                assert_eq!(kept, (channel.freed..channel.produced).collect::<Vec<_>>(), "kept");
            }
            out += channel.receiver.outstanding_credit() + u64::from(channel.viewed);
        }
        assert_eq!(
            u64::from(self.free) + out,
            u64::from(self.pool),
            "the books do not balance"
        );
    }
}
