//! The disk of a server: files that outlive it, operations that take their time and sometimes fail.

use std::collections::BTreeMap;

use shuffle_protocol::{ShuffleError, error::ErrorKind, error::Initiator};
use shuffle_server::node::Node;
use shuffle_server::spill::{DiskOp, DiskPiece, DiskTicket, Index, StoreNo};

use super::Sabotage;
use super::data::{Content, GARBAGE};
use super::flips::Way;
use super::schedule::{Event, MILLIS};
use super::world::World;

/// What lies where in one data file: the buffer that begins there, and its length, in bytes.
type File = BTreeMap<u64, (Content, u32)>;

#[derive(Debug, Default)]
pub(super) struct Disk {
    files: BTreeMap<StoreNo, File>,
    sealed: BTreeMap<StoreNo, Vec<u8>>,
}

impl Disk {
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.sealed.is_empty()
    }
}

impl World {
    /// A server wants something of its disk.
    pub(super) fn drain_disk(&mut self, host: usize) {
        let epoch = self.hosts[host].epoch;
        while let Some((ticket, op)) = self.hosts[host].node.as_mut().and_then(Node::poll_disk) {
            let before = op
                .pieces()
                .iter()
                .map(|piece| self.memory(host).read(piece.slot, piece.offset))
                .collect();
            let at = self.now + self.random.between(10, 20 * MILLIS);
            self.schedule.at(
                at,
                Event::Disk {
                    host,
                    epoch,
                    ticket,
                    op,
                    before,
                },
            );
        }
    }

    /// An operation is done, or fails.
    pub(super) fn handle_disk(&mut self, host: usize, epoch: u32, ticket: DiskTicket, op: DiskOp, before: &[Content]) {
        if self.hosts[host].epoch != epoch || self.hosts[host].node.is_none() {
            return;
        }
        // A file that cannot be removed is swept by the next start; nobody waits for it.
        let may_fail = self.plan.faults.disks && !matches!(op, DiskOp::Remove { .. });
        let fails = may_fail && !self.healed && self.random.chance(10);
        let outcome = if fails {
            Err(ShuffleError::new(ErrorKind::Io, "the simulated disk fails").by(Initiator::Disk))
        } else {
            self.perform(host, op, before);
            Ok(())
        };
        self.core(host, |node, now| node.handle_disk(now, ticket, outcome));
        self.after(host);
    }

    fn perform(&mut self, host: usize, op: DiskOp, before: &[Content]) {
        match op {
            DiskOp::Write { store, at, pieces, .. } => {
                for (at, piece, before) in places(at, &pieces, before) {
                    let content = self.memory(host).read(piece.slot, piece.offset);
                    if content != before {
                        self.accuse(|| format!("slot {} changed while it was written to disk", piece.slot));
                    }
                    let content = self.flips.pass(Way::Disk, content);
                    let file = self.hosts[host].disk.files.entry(store).or_default();
                    file.insert(at, (content, piece.length));
                }
            }
            DiskOp::Read { store, at, pieces } => {
                for (at, piece, _) in places(at, &pieces, before) {
                    let file = self.hosts[host].disk.files.get(&store);
                    let there = file.and_then(|file| file.get(&at)).copied();
                    match there.filter(|(_, length)| *length == piece.length) {
                        Some((content, _)) => {
                            let wrong = self.sabotage.take_if(|mistake| *mistake == Sabotage::WrongLoad);
                            let content = wrong.map_or(content, |_| GARBAGE);
                            let content = self.flips.pass(Way::Load, content);
                            self.memory(host).write(piece.slot, content);
                        }
                        None => self.accuse(|| format!("no buffer of {} bytes at {at} of {store}", piece.length)),
                    }
                }
            }
            DiskOp::Punch { store, at, bytes } => {
                if let Some(file) = self.hosts[host].disk.files.get_mut(&store) {
                    file.retain(|begin, _| *begin < at || *begin >= at + bytes);
                }
            }
            DiskOp::Seal { store, index, .. } => {
                self.hosts[host].disk.sealed.insert(store, index);
            }
            DiskOp::Remove { store } => {
                let disk = &mut self.hosts[host].disk;
                disk.files.remove(&store);
                disk.sealed.remove(&store);
            }
        }
    }

    /// A server that starts finds what an earlier start has sealed; the rest is swept.
    pub(super) fn recover_disk(&mut self, host: usize) {
        let disk = &mut self.hosts[host].disk;
        let sealed = disk.sealed.clone();
        disk.files.retain(|store, _| sealed.contains_key(store));
        for (store, index) in sealed {
            match Index::decode(&index) {
                Ok(index) => {
                    let adopted = self.core(host, |node, now| node.adopt(now, store, index));
                    if let Err(error) = adopted {
                        self.accuse(|| format!("server {host} could not adopt {store}: {error}"));
                    }
                }
                Err(error) => self.accuse(|| format!("the index of {store}: {error}")),
            }
        }
    }
}

/// Where each piece begins in the file, in bytes, and what was in it when it was asked for.
fn places<'a>(
    at: u64,
    pieces: &'a [DiskPiece],
    before: &'a [Content],
) -> impl Iterator<Item = (u64, DiskPiece, Content)> + 'a {
    let ends = pieces.iter().scan(at, |end, piece| {
        let begin = *end;
        *end += u64::from(piece.length);
        Some(begin)
    });
    ends.zip(pieces)
        .zip(before)
        .map(|((at, piece), before)| (at, *piece, *before))
}
