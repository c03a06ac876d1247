//! Bits that change: on the wire, in the memory of a producer, on disk, and where something is loaded. What was changed how is
//! remembered, so that each verdict can be judged.

use std::collections::BTreeMap;

use shuffle_protocol::control::ReportMismatch;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::{ErrorKind, Verdict};
use shuffle_protocol::frame::{Arena, Frame, SlotEntry};

use super::connection::Packet;
use super::data::{Content, describe};
use super::desk::Desk;
use super::random::Random;
use super::world::World;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Between two servers, or on the way to an executor without shared memory.
    Wire,
    /// The producer's slot, when it was handed over.
    Memory,
    /// The data file.
    Disk,
    /// The slot that something is loaded into.
    Load,
}

impl Way {
    /// Of a thousand buffers.
    const fn chance(self) -> u64 {
        match self {
            Self::Wire | Self::Load => 40,
            Self::Memory => 5,
            Self::Disk => 10,
        }
    }
}

#[derive(Debug)]
pub(super) struct Flips {
    /// Its own, so that a seed without flips means what it meant.
    random: Random,
    pub(super) may: bool,
    /// What was made of what.
    made: BTreeMap<Content, Content>,
    /// By the writer's checksum.
    done: BTreeMap<u32, Vec<Way>>,
}

impl Flips {
    pub(super) fn new(seed: u64, may: bool) -> Self {
        Self {
            random: Random::new(seed ^ 0xF11B),
            may,
            made: BTreeMap::new(),
            done: BTreeMap::new(),
        }
    }

    /// The content as it arrives there. What has no checksum is left alone: nobody could tell.
    pub(super) fn pass(&mut self, way: Way, content: Content) -> Content {
        let described = describe(content, 0, 0);
        let may = self.may && !described.unchecked && !self.is_flipped(content);
        if !may || self.random.below(1000) >= way.chance() {
            return content;
        }
        let flipped = content ^ (1 << self.random.between(32, 63));
        self.made.insert(flipped, content);
        self.done.entry(described.checksum).or_default().push(way);
        flipped
    }

    pub(super) fn is_flipped(&self, content: Content) -> bool {
        self.made.contains_key(&content)
    }

    /// A slot with this content may be filled once more while the kernel still refers to it: its reader has it.
    pub(super) fn may_change(&self, content: Content) -> bool {
        self.is_flipped(content) || self.done.contains_key(&describe(content, 0, 0).checksum)
    }

    pub(super) fn count(&self) -> u64 {
        self.done.values().map(|ways| ways.len() as u64).sum()
    }

    /// Whether that verdict can come of what was done to the buffer.
    pub(super) fn excuse(&self, error: &ErrorKind) -> bool {
        let ErrorKind::ChecksumMismatch { expected, verdict, .. } = error else {
            return false;
        };
        let ways = self.done.get(expected).map_or(&[][..], Vec::as_slice);
        let count = |meant: &[Way]| ways.iter().filter(|way| meant.contains(way)).count();
        match verdict {
            Verdict::ProducerMemory => count(&[Way::Memory]) > 0,
            // What is changed in memory may be written so, and what is loaded wrong twice looks like it.
            Verdict::Disk => count(&[Way::Disk, Way::Memory]) > 0 || count(&[Way::Load]) > 1,
            Verdict::WireOrReceivingMemory => count(&[Way::Wire, Way::Load]) > 1,
            Verdict::Untraced => false,
        }
    }
}

/// The reader of a channel says that this is not as its writer described it.
pub(super) fn report(entry: &SlotEntry, seen: Content, desk: &mut Desk<'_>) {
    desk.send(Frame::Control(Box::new(Message::ReportMismatch(ReportMismatch {
        stream: entry.stream.value(),
        sequence: entry.sequence.value(),
        subpartition: entry.subpartition.value(),
        slot: entry.slot,
        write_arena: entry.arena == Arena::Write,
        length: entry.length,
        expected: entry.checksum,
        got: describe(seen, 0, 0).checksum,
        offset: entry.offset,
    }))));
}

/// Whether a reader finds another checksum than the writer's.
pub(super) fn differs(entry: &SlotEntry, seen: Content) -> bool {
    !entry.unchecked && describe(seen, 0, 0).checksum != entry.checksum
}

impl World {
    /// What a process hands over may be changed right after.
    pub(super) fn flip_handed_over(&mut self, process: usize, packet: Packet) -> Packet {
        let of = &self.processes[process];
        let (job, host, epoch) = (of.spec.job, of.spec.host, of.memory_epoch());
        match packet {
            Packet::Frame(Frame::Slots(batch)) => {
                for entry in batch.iter() {
                    let slot = super::desk::slot_of(job, entry.arena, entry.slot);
                    let memory = &mut self.hosts[host].memories[epoch];
                    let content = memory.read(slot, entry.offset);
                    memory.write_behind(slot, entry.offset, self.flips.pass(Way::Memory, content));
                }
                Packet::Frame(Frame::Slots(batch))
            }
            Packet::Body(head, contents) => {
                let passed = contents.into_iter().map(|one| self.flips.pass(Way::Memory, one));
                Packet::Body(head, passed.collect())
            }
            packet => packet,
        }
    }
}
