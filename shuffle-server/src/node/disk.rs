//! What is on its way to and from the disks, and what becomes of it.
//!
//! ```text
//!   slots of an operation are pinned from its submission to its answer
//!   a store is removed when nothing is on its way to it any more
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use buffer_pool::{Backing, SlotRef};
use shuffle_protocol::ShuffleError;

use super::{Node, Wake};
use crate::partition::{OutletNo, PartitionNo};
use crate::spill::{DiskOp, DiskTicket, StoreNo};

/// Whose an operation is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DiskWork {
    /// The batch that a partition writes.
    Batch(PartitionNo),
    /// Buffers for a reader.
    Load(OutletNo),
    /// A buffer of a reader once more, which did not match.
    Reload(OutletNo),
    /// The end of a persistent partition's data.
    Seal(PartitionNo),
    /// Nobody waits for it.
    Unattended,
}

#[derive(Debug)]
struct Pending {
    work: DiskWork,
    store: StoreNo,
    slots: Vec<SlotRef>,
}

#[derive(Debug, Default)]
struct StoreUse {
    on_its_way: u32,
    removing: bool,
}

/// The operations of one node.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    stores_made: u64,
    tickets_made: u64,
    waiting: VecDeque<(DiskTicket, DiskOp)>,
    pending: BTreeMap<DiskTicket, Pending>,
    /// Stores that have, or are about to have, a file.
    stores: BTreeMap<StoreNo, StoreUse>,
    woken: bool,
}

impl Disks {
    pub(crate) fn new_store(&mut self) -> StoreNo {
        self.stores_made += 1;
        StoreNo(self.stores_made)
    }

    /// A store that an earlier start of the server has made.
    pub(crate) fn adopt_store(&mut self, store: StoreNo) {
        self.stores_made = self.stores_made.max(store.0);
        self.stores.insert(store, StoreUse::default());
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
}

impl<B: Backing> Node<B> {
    /// Something to be done on a disk; each is to be answered by [`Node::handle_disk`].
    pub fn poll_disk(&mut self) -> Option<(DiskTicket, DiskOp)> {
        let next = self.disks.waiting.pop_front();
        self.disks.woken = next.is_some();
        next
    }

    /// What became of an operation.
    pub fn handle_disk(&mut self, now: Instant, ticket: DiskTicket, outcome: Result<(), ShuffleError>) {
        let Some(pending) = self.disks.pending.remove(&ticket) else {
            return;
        };
        for slot in &pending.slots {
            self.pool_changed |= self.pool.unpin(*slot);
        }
        if let Some(store) = self.disks.stores.get_mut(&pending.store) {
            store.on_its_way -= 1;
        }
        match pending.work {
            DiskWork::Batch(no) => self.handle_batch(now, no, outcome),
            DiskWork::Load(no) => self.handle_load(now, no, ticket, outcome),
            DiskWork::Reload(no) => self.handle_reloaded(now, no, outcome),
            DiskWork::Seal(no) => self.handle_sealed(now, no, outcome),
            DiskWork::Unattended => {
                if let Err(error) = outcome {
                    tracing::warn!("a file of spilled data could not be given back: {error}");
                }
            }
        }
        self.remove_if_unused(pending.store);
        self.settle(now);
    }

    /// Has it done. Its slots are pinned until it is.
    pub(crate) fn submit(&mut self, op: DiskOp, work: DiskWork) -> DiskTicket {
        self.disks.tickets_made += 1;
        let ticket = DiskTicket(self.disks.tickets_made);
        let slots: Vec<SlotRef> = op.pieces().iter().map(|piece| piece.slot).collect();
        for slot in &slots {
            self.pool.pin(*slot);
        }
        let store = op.store();
        if !matches!(op, DiskOp::Remove { .. }) {
            self.disks.stores.entry(store).or_default().on_its_way += 1;
        }
        self.disks.pending.insert(ticket, Pending { work, store, slots });
        self.disks.waiting.push_back((ticket, op));
        if !std::mem::replace(&mut self.disks.woken, true) {
            self.wakes.push_back(Wake::Disk);
        }
        ticket
    }

    /// Nobody will read or write this store again.
    pub(crate) fn forget_store(&mut self, store: StoreNo) {
        if let Some(used) = self.disks.stores.get_mut(&store) {
            used.removing = true;
        }
        self.remove_if_unused(store);
    }

    fn remove_if_unused(&mut self, store: StoreNo) {
        let unused = |used: &StoreUse| used.removing && used.on_its_way == 0;
        if self.disks.stores.get(&store).is_some_and(unused) {
            self.disks.stores.remove(&store);
            self.submit(DiskOp::Remove { store }, DiskWork::Unattended);
        }
    }
}
