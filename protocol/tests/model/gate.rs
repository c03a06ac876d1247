//! The credit book of a gate against a plain oracle: every buffer of the gate's pool is free, reserved or viewed.

use shuffle_protocol::stream::GateCredit;

use super::input::Input;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    /// Another channel.
    Open,
    /// A buffer that waited at the sender arrives on a channel.
    Arrive(usize),
    /// So many more buffers wait at the sender of a channel.
    Backlog(usize, u32),
    /// The reader drops a view of a channel.
    Release(usize),
    /// A channel ends.
    Cancel(usize),
    /// Free buffers are assigned, at most so many.
    Assign(usize),
}

impl Op {
    fn read(input: &mut Input<'_>) -> Option<Self> {
        let op = input.byte()?;
        Some(match op % 8 {
            0 => Self::Open,
            1 | 2 => Self::Arrive(input.below(MOST_CHANNELS)?),
            3 => Self::Backlog(input.below(MOST_CHANNELS)?, (input.byte()? % 32).into()),
            4 | 5 => Self::Release(input.below(MOST_CHANNELS)?),
            6 if op >= 200 => Self::Cancel(input.below(MOST_CHANNELS)?),
            _ => Self::Assign(input.below(8)?),
        })
    }
}

const MOST_CHANNELS: usize = 6;

/// A channel as its owner sees it.
struct Channel {
    index: usize,
    open: bool,
    reserved: u32,
    viewed: u32,
    waiting: u32,
}

pub(crate) struct Gate {
    book: GateCredit,
    exclusive: u32,
    floating: u32,
    /// Buffers assigned in all, and home again in all.
    assigned: u64,
    home: u64,
    channels: Vec<Channel>,
}

/// First two bytes: exclusive and floating buffers. Then operations.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let (Some(exclusive), Some(floating)) = (input.below(4), input.below(10)) else {
        return;
    };
    let small = |n: usize| u32::try_from(n).expect("a small number");
    let mut gate = Gate::new(small(exclusive), small(floating));
    while let Some(op) = Op::read(&mut input) {
        gate.step(op);
    }
    gate.end();
}

impl Gate {
    pub(crate) fn new(exclusive: u32, floating: u32) -> Self {
        Self {
            book: GateCredit::new(exclusive, floating),
            exclusive,
            floating: if exclusive == 0 { floating.max(1) } else { floating },
            assigned: 0,
            home: 0,
            channels: Vec::new(),
        }
    }

    pub(crate) fn step(&mut self, op: Op) {
        match op {
            Op::Open if self.channels.len() < MOST_CHANNELS => {
                let index = self.book.add_channel();
                assert!(
                    self.channels.iter().all(|c| c.index != index),
                    "index {index} is in use"
                );
                let (reserved, viewed, waiting) = (0, 0, 0);
                self.channels.push(Channel {
                    index,
                    open: true,
                    reserved,
                    viewed,
                    waiting,
                });
            }
            Op::Arrive(at) => self.on_channel(at, |channel, book| {
                if channel.reserved > 0 {
                    channel.reserved -= 1;
                    channel.viewed += 1;
                    channel.waiting = channel.waiting.saturating_sub(1);
                    book.handle_buffer(channel.index, channel.waiting);
                }
                0
            }),
            Op::Backlog(at, waiting) => self.on_channel(at, |channel, book| {
                // What waits at a sender only shrinks by what it sends.
                channel.waiting += waiting;
                book.handle_backlog(channel.index, channel.waiting);
                0
            }),
            Op::Release(at) => self.release(at),
            Op::Cancel(at) => self.on_channel(at, |channel, book| {
                book.handle_cancel(channel.index, channel.reserved.into());
                channel.open = false;
                std::mem::take(&mut channel.reserved).into()
            }),
            Op::Assign(most) => {
                for _ in 0..most {
                    self.assign();
                }
            }
            Op::Open => {}
        }
        self.channels.retain(|channel| channel.open || channel.viewed > 0);
        self.check();
    }

    /// Everything is used and given back: who waits gets served, and no credit is lost.
    pub(crate) fn end(mut self) {
        loop {
            let before = (self.assigned, self.home);
            while self.assign() {}
            for at in 0..self.channels.len() {
                while self.channels[at].reserved.min(self.channels[at].waiting) > 0 {
                    self.step(Op::Arrive(at));
                }
            }
            for at in 0..self.channels.len() {
                while self.channels[at].viewed > 0 {
                    self.release(at);
                }
            }
            self.channels.retain(|channel| channel.open);
            if before == (self.assigned, self.home) {
                break;
            }
        }
        assert!(
            self.channels.iter().all(|channel| channel.waiting == 0),
            "someone waits for ever"
        );
        while !self.channels.is_empty() {
            self.step(Op::Cancel(0));
        }
        assert_eq!(self.assigned, self.home, "buffers were lost");
        assert_eq!(self.book.lent(), 0, "floating buffers were lost");
        assert!(!self.book.wants_buffer());
    }

    fn assign(&mut self) -> bool {
        let wanted = self.book.wants_buffer();
        let assigned = self.book.poll_assign();
        assert_eq!(wanted, assigned.is_some(), "wants_buffer says another thing");
        let Some(index) = assigned else { return false };
        let channel = self.channels.iter_mut().find(|channel| channel.index == index);
        let channel = channel.expect("a channel that exists gets the buffer");
        assert!(channel.open);
        let held = channel.reserved + channel.viewed;
        assert!(
            held < self.exclusive || channel.waiting > channel.reserved,
            "a floating buffer for a channel that cannot use it"
        );
        channel.reserved += 1;
        self.assigned += 1;
        true
    }

    fn release(&mut self, at: usize) {
        if let Some(channel) = self.channels.get_mut(at)
            && channel.viewed > 0
        {
            channel.viewed -= 1;
            self.book.handle_release(channel.index);
            self.home += 1;
        }
    }

    fn on_channel(&mut self, at: usize, act: impl FnOnce(&mut Channel, &mut GateCredit) -> u64) {
        if let Some(channel) = self.channels.get_mut(at)
            && channel.open
        {
            self.home += act(channel, &mut self.book);
        }
    }

    fn check(&self) {
        self.book.check_invariants();
        let mut out = 0;
        let mut lent = 0;
        for channel in &self.channels {
            let held = channel.reserved + channel.viewed;
            assert_eq!(self.book.held(channel.index), held, "of {}", channel.index);
            out += u64::from(held);
            lent += held.saturating_sub(self.exclusive);
        }
        assert_eq!(self.assigned - self.home, out, "the oracle itself");
        assert!(lent <= self.floating, "{lent} floating buffers are out");
    }
}
