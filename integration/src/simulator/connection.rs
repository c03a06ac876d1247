//! A connection: two ends, and what is on its way between them, in order.
//!
//! ```text
//!   core ──poll──▶ outbox ──(window)──▶ pipe ──(delay, hole, cut)──▶ the other end
//!                  slots pinned         payload was read
//! ```

use std::collections::VecDeque;

use shuffle_protocol::frame::{DataHead, Frame};
use shuffle_server::node::{Dial, Landing, LinkId, Output, SessionId};

use super::data::Content;
use super::schedule::Micros;

/// What travels.
#[derive(Debug, Clone)]
pub(super) enum Packet {
    /// The acceptor's answer to the dialler, sent by this incarnation.
    Welcome(u64),
    Frame(Frame),
    /// The head of a data frame; its body is a packet of its own, so that a connection can break between them.
    Head(DataHead),
    /// Of each buffer of the head what lies in it.
    Body(DataHead, Vec<Content>),
    /// The other side has closed, or the network has.
    Fin,
}

/// Who is at one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Party {
    /// A server, on a connection to another server. `None`: the dialler, until it is welcome.
    Link {
        host: usize,
        epoch: u32,
        id: Option<LinkId>,
    },
    /// A server, on a connection from an executor.
    Session {
        host: usize,
        epoch: u32,
        id: SessionId,
        inline: bool,
    },
    /// An executor.
    Process(usize),
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) party: Party,
    pub(super) open: bool,
    /// Polled from the core and not written yet.
    pub(super) outbox: VecDeque<Output>,
    /// The core has more.
    pub(super) wants_poll: bool,
    pub(super) poll_scheduled: bool,
    /// Where the payload goes whose head has come.
    pub(super) landing: Option<Landing>,
}

impl End {
    pub(super) fn new(party: Party) -> Self {
        Self {
            party,
            open: true,
            outbox: VecDeque::new(),
            wants_poll: false,
            poll_scheduled: false,
            landing: None,
        }
    }

    /// The server at this end, if there is one.
    pub(super) fn host(&self) -> Option<(usize, u32)> {
        match self.party {
            Party::Link { host, epoch, .. } | Party::Session { host, epoch, .. } => Some((host, epoch)),
            Party::Process(_) => None,
        }
    }
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub(super) packets: VecDeque<(Micros, Packet)>,
    /// Nothing arrives before what was sent before it.
    pub(super) last: Micros,
    /// The connection is broken: nothing more can be sent.
    pub(super) shut: bool,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) ends: [End; 2],
    /// `pipes[i]` leads to `ends[i]`.
    pub(super) pipes: [Pipe; 2],
    /// What the dialler asked for, between servers.
    pub(super) dial: Option<Dial>,
}

impl Connection {
    pub(super) fn new(ends: [End; 2], dial: Option<Dial>) -> Self {
        Self {
            ends,
            pipes: [Pipe::default(), Pipe::default()],
            dial,
        }
    }

    /// The two servers, where it is between servers.
    pub(super) fn hosts(&self) -> Option<(usize, usize)> {
        match (self.ends[0].party, self.ends[1].party) {
            (Party::Link { host: a, .. }, Party::Link { host: b, .. }) => Some((a, b)),
            _ => None,
        }
    }
}
