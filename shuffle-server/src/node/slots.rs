//! Slots by name, who holds each, and the way home.

use buffer_pool::{ArenaKind, Backing, BufferState, JobKey, SlotRef};
use shuffle_protocol::JobId;

use super::{Holder, Node, SessionId};
use crate::partition::Place;

impl<B: Backing> Node<B> {
    pub(crate) fn holder(&self, job: JobId, arena: ArenaKind, slot: u32) -> Holder {
        self.jobs
            .get(&job)
            .map_or(Holder::Nobody, |of| of.holders.get(arena, slot))
    }

    pub(crate) fn set_holder(&mut self, slot: SlotRef, holder: Holder) {
        let job = JobId::new(slot.job.0);
        if let Some(of) = self.jobs.get_mut(&job) {
            of.holders.set(slot.arena, slot.slot, holder);
        }
    }

    /// The slot has no holder any more and goes home.
    pub(crate) fn send_home(&mut self, slot: SlotRef, from: BufferState) {
        self.set_holder(slot, Holder::Nobody);
        self.pool.release(slot, from);
        self.pool_changed = true;
    }

    pub(crate) fn quarantine(&mut self, slot: SlotRef, session: SessionId) {
        self.set_holder(slot, Holder::Quarantine(session));
        self.pool.quarantine(slot);
    }

    pub(crate) fn write_slot(job: JobId, slot: u32) -> SlotRef {
        Self::slot_of(job, ArenaKind::Write, slot)
    }

    pub(crate) fn read_slot(job: JobId, slot: u32) -> SlotRef {
        Self::slot_of(job, ArenaKind::Read, slot)
    }

    pub(crate) fn slot_of(job: JobId, arena: ArenaKind, slot: u32) -> SlotRef {
        let job = JobKey(job.value());
        SlotRef { job, arena, slot }
    }

    /// Where in memory it is, if it is.
    pub(crate) fn slot_at(job: JobId, place: Place) -> Option<SlotRef> {
        match place {
            Place::Memory(slot) => Some(Self::write_slot(job, slot)),
            Place::Loaded { slot, .. } | Place::Received(slot) => Some(Self::read_slot(job, slot)),
            Place::Disk(_) => None,
        }
    }

    /// A buffer of a partition is not needed any more: what of it is in memory goes home.
    pub(crate) fn send_place_home(&mut self, job: JobId, place: Place) {
        let Some(slot) = Self::slot_at(job, place) else { return };
        let from = match place {
            Place::Loaded { .. } => BufferState::ReadAhead,
            _ => BufferState::Queued,
        };
        match self.share_of(slot) {
            Some(share) => self.drop_claim(share),
            None => self.send_home(slot, from),
        }
    }
}
