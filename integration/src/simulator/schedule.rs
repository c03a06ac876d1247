//! What happens when, in virtual microseconds.

use std::collections::BTreeMap;

use buffer_pool::SlotRef;
use shuffle_protocol::ShuffleError;
use shuffle_server::node::Dial;
use shuffle_server::spill::{DiskOp, DiskTicket};

use super::data::Content;

/// Virtual time, in microseconds since the start of the simulation.
pub(super) type Micros = u64;

pub(super) const MILLIS: Micros = 1000;
pub(super) const SECONDS: Micros = 1_000_000;

/// Something that is due.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A process starts and attaches to its node's server.
    Attach(usize),
    /// A process gets to run.
    Tick(usize),
    /// A stopped process goes on.
    Resume(usize),
    /// A process that lost its session writes where it still can.
    Haunt(usize),
    /// A process that lost its session exits.
    Exit(usize),
    /// The server's task of this end of a connection gets to run.
    Poll { connection: usize, end: usize },
    /// The next packet arrives at this end.
    Deliver { connection: usize, end: usize },
    /// The kernel is done with a slot that was sent.
    Written {
        host: usize,
        epoch: u32,
        slot: SlotRef,
        offset: u32,
        content: Content,
    },
    /// An operation of a server's disk is over; what was in its slots when it was asked for.
    Disk {
        host: usize,
        epoch: u32,
        ticket: DiskTicket,
        op: DiskOp,
        before: Vec<Content>,
    },
    /// The timers of a server are due.
    Timeout { host: usize, epoch: u32 },
    /// A server's dialling task gets to run.
    Dial { host: usize, epoch: u32 },
    /// A dial reaches its target.
    Knock { host: usize, epoch: u32, dial: Dial },
    /// A dial came to nothing.
    DialOver {
        host: usize,
        epoch: u32,
        dial: Dial,
        error: ShuffleError,
        refused: bool,
    },
    /// The dialler has waited long enough for the answer.
    HandshakeOver { connection: usize },
    /// A server that was killed is started again.
    Restart(usize),
    /// Something breaks.
    Fault,
    /// All faults end.
    Heal,
    /// The driver gives up what nobody came to read.
    Release,
    /// Is everything over?
    Look,
}

/// Events in order of time, then of being scheduled.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    due: BTreeMap<(Micros, u64), Event>,
    count: u64,
}

impl Schedule {
    pub(super) fn at(&mut self, at: Micros, event: Event) {
        self.count += 1;
        self.due.insert((at, self.count), event);
    }

    pub(super) fn pop(&mut self) -> Option<(Micros, Event)> {
        self.due.pop_first().map(|((at, _), event)| (at, event))
    }
}
