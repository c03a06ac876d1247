//! Who holds each slot of a job: beside the pool's books, which know the state, this knows the holder,
//! so that whatever a process says about a slot is checked before it is believed.

use buffer_pool::ArenaKind;

use super::{SessionId, ShareNo};
use crate::executor::GateNo;
use crate::partition::{OutletNo, PartitionNo};
use crate::peer::InletNo;

/// The holder of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Holder {
    #[default]
    Nobody,
    /// Granted to this partition's writer.
    Writer(PartitionNo),
    /// Waits in, or was sent from, a queue of this partition.
    Queue(PartitionNo),
    /// Promised to this gate's channels by credit, or being received into.
    Gate(GateNo),
    /// Loaded from disk, or being loaded, for this reader.
    Reading(OutletNo),
    /// Viewed by this session's executor, through this channel.
    View(SessionId, ChannelNo),
    /// Several hold it.
    Shared(ShareNo),
    /// Still held by this session's process though nobody counts on it; never granted again until it is given back.
    Quarantine(SessionId),
}

/// One channel of a consumer, wherever its producer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ChannelNo {
    /// The producer is on this node.
    Local(OutletNo),
    /// The producer is on another node.
    Remote(InletNo),
}

/// The holders of one job's slots, grown as slots come into use.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    write: Vec<Holder>,
    read: Vec<Holder>,
}

impl Holders {
    pub(crate) fn get(&self, arena: ArenaKind, slot: u32) -> Holder {
        self.side(arena).get(slot as usize).copied().unwrap_or_default()
    }

    pub(crate) fn set(&mut self, arena: ArenaKind, slot: u32, holder: Holder) {
        let side = match arena {
            ArenaKind::Write => &mut self.write,
            ArenaKind::Read => &mut self.read,
        };
        let index = slot as usize;
        if index >= side.len() {
            side.resize(index + 1, Holder::Nobody);
        }
        side[index] = holder;
    }

    /// Every slot that is held, in order.
    pub(crate) fn held(&self) -> impl Iterator<Item = (ArenaKind, u32, Holder)> {
        let write = (0u32..)
            .zip(&self.write)
            .map(|(slot, holder)| (ArenaKind::Write, slot, *holder));
        let read = (0u32..)
            .zip(&self.read)
            .map(|(slot, holder)| (ArenaKind::Read, slot, *holder));
        write.chain(read).filter(|(_, _, holder)| *holder != Holder::Nobody)
    }

    fn side(&self, arena: ArenaKind) -> &[Holder] {
        match arena {
            ArenaKind::Write => &self.write,
            ArenaKind::Read => &self.read,
        }
    }
}
