//! A disk that knows what lies where, and no payload.

use std::collections::BTreeMap;
use std::time::Instant;

use buffer_pool::NoBacking;
use shuffle_protocol::ShuffleError;

use crate::node::Node;
use crate::spill::{DiskOp, Index, StoreNo};

#[derive(Default)]
pub(super) struct ModelDisk {
    /// Where each buffer begins in each file, and its length, in bytes.
    files: BTreeMap<StoreNo, BTreeMap<u64, u32>>,
    pub(super) sealed: BTreeMap<StoreNo, Vec<u8>>,
    /// Nothing is answered.
    pub(super) stopped: bool,
    /// What the next operation fails with.
    pub(super) fault: Option<ShuffleError>,
    pub(super) writes: u32,
    pub(super) reads: u32,
    pub(super) punched_bytes: u64,
    /// Buffers of the largest write.
    pub(super) largest_write: usize,
}

impl ModelDisk {
    pub(super) fn run(&mut self, node: &mut Node<NoBacking>, now: Instant) -> bool {
        let mut moved = false;
        while !self.stopped
            && let Some((ticket, op)) = node.poll_disk()
        {
            moved = true;
            let outcome = self.fault.take().map_or_else(
                || {
                    self.perform(op);
                    Ok(())
                },
                Err,
            );
            node.handle_disk(now, ticket, outcome);
            node.check_invariants();
        }
        moved
    }

    fn perform(&mut self, op: DiskOp) {
        match op {
            DiskOp::Write {
                store, mut at, pieces, ..
            } => {
                self.writes += 1;
                self.largest_write = self.largest_write.max(pieces.len());
                for piece in pieces {
                    let before = self.files.entry(store).or_default().insert(at, piece.length);
                    assert_eq!(before, None, "written twice at {at}");
                    at += u64::from(piece.length);
                }
            }
            DiskOp::Read { store, mut at, pieces } => {
                self.reads += 1;
                for piece in pieces {
                    assert_eq!(
                        self.files[&store].get(&at),
                        Some(&piece.length),
                        "no such buffer at {at}"
                    );
                    at += u64::from(piece.length);
                }
            }
            DiskOp::Punch { store, at, bytes } => {
                self.punched_bytes += bytes;
                let file = self.files.get_mut(&store).unwrap();
                file.retain(|begin, _| *begin < at || *begin >= at + bytes);
            }
            DiskOp::Seal { store, index, .. } => {
                let said = Index::decode(&index).expect("an index that can be read");
                let file = self.files.entry(store).or_default();
                for entry in said.groups.iter().flat_map(|group| &group.entries) {
                    assert_eq!(
                        file.get(&entry.at),
                        Some(&entry.length),
                        "the index is ahead of the data"
                    );
                }
                self.sealed.insert(store, index);
            }
            DiskOp::Remove { store } => {
                self.files.remove(&store);
                self.sealed.remove(&store);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.sealed.is_empty()
    }
}
