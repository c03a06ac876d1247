//! What a task in a simulated executor has at hand while it runs.

use std::collections::BTreeMap;

use buffer_pool::{ArenaKind, JobKey, SlotRef};
use shuffle_protocol::control::control::Message;
use shuffle_protocol::frame::{Arena, Batch, Frame, ReleaseEntry};
use shuffle_protocol::{JobId, StreamId};

use super::connection::Packet;
use super::data::Memory;
use super::random::Random;
use super::schedule::Micros;

/// What a request was about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Create(usize),
    Finish(usize),
    Open(usize),
    /// Nobody waits for the answer, but there must be one.
    Other,
}

/// Who in a process was told of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    Writer(usize),
    Gate(usize),
    Channel(StreamId),
}

/// Requests that a process has made and that were not answered.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pub(super) waiting: BTreeMap<u64, (Micros, Asked)>,
    count: u64,
}

/// See the module.
pub(super) struct Desk<'a> {
    pub(super) now: Micros,
    pub(super) job: JobId,
    /// Payload travels inline; else it lies in `memory`.
    pub(super) inline: bool,
    /// Bits may change, so what does not match is reported.
    pub(super) flips: bool,
    /// What a request may wait, as it says itself; 0 where it leaves that to the server.
    pub(super) timeout_ms: u32,
    pub(super) random: &'a mut Random,
    /// The arenas of the node's server.
    pub(super) memory: &'a mut Memory,
    pub(super) requests: &'a mut Requests,
    /// What is sent to the server, in order.
    pub(super) out: &'a mut Vec<Packet>,
    /// What must never happen, and did.
    pub(super) wrong: &'a mut Option<String>,
}

impl Desk<'_> {
    /// Sends a request, made from its number.
    pub(super) fn ask(&mut self, about: Asked, request: impl FnOnce(u64) -> Message) {
        self.requests.count += 1;
        let number = self.requests.count;
        self.requests.waiting.insert(number, (self.now, about));
        self.send(Frame::Control(Box::new(request(number))));
    }

    pub(super) fn send(&mut self, frame: Frame) {
        self.out.push(Packet::Frame(frame));
    }

    /// Gives slots back.
    pub(super) fn release(&mut self, slots: &[(StreamId, Arena, u32)]) {
        let entries: Vec<ReleaseEntry> = slots
            .iter()
            .map(|&(stream, arena, slot)| ReleaseEntry { stream, slot, arena })
            .collect();
        if !entries.is_empty() {
            self.send(Frame::Release(Batch::from_entries(&entries)));
        }
    }

    pub(super) fn slot(&self, arena: Arena, slot: u32) -> SlotRef {
        slot_of(self.job, arena, slot)
    }

    /// Notes what must never happen.
    pub(super) fn accuse(&mut self, message: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            *self.wrong = Some(message());
        }
    }
}

pub(super) fn slot_of(job: JobId, arena: Arena, slot: u32) -> SlotRef {
    SlotRef {
        job: JobKey(job.value()),
        arena: match arena {
            Arena::Write => ArenaKind::Write,
            Arena::Read => ArenaKind::Read,
        },
        slot,
    }
}
