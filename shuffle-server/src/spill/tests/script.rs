//! What a server does until it is killed, and what must be there afterwards.

use std::collections::BTreeSet;

use super::harness::{Disks, index, payload};
use crate::spill::FileSystem;

/// What the core was told, in the order in which it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A producer hears that its partition is finished.
    Finished(u64),
    /// Somebody wants it gone.
    Removing(u64),
    /// It is gone.
    Removed(u64),
}

/// Finishes partitions, spills one that is never finished, removes one; ends where something fails.
pub(super) fn serve<F: FileSystem>(disks: &mut Disks<F>, mut tell: impl FnMut(Event)) -> Option<()> {
    disks.finish(11).ok()?;
    tell(Event::Finished(11));
    disks.write(12, 0, &payload(12)).ok()?;
    disks.finish(13).ok()?;
    tell(Event::Finished(13));
    tell(Event::Removing(11));
    disks.remove(11).ok()?;
    tell(Event::Removed(11));
    // Without a byte of data.
    disks.seal(14, 0).ok()?;
    tell(Event::Finished(14));
    disks.remove(12).ok()?;
    disks.finish(15).ok()?;
    tell(Event::Finished(15));
    Some(())
}

/// Every partition whose producer has heard that it is finished is there, with its bytes; nothing that was removed is; what
/// else is there is whole.
pub(super) fn verify<F: FileSystem>(disks: &mut Disks<F>, told: &[Event], when: &str) {
    let recovered = std::mem::take(&mut disks.recovery.recovered);
    let mut there = BTreeSet::new();
    for one in recovered {
        let partition = one.index.partition.result.value();
        assert!(there.insert(partition), "{when}: {partition} once");
        let bytes = if partition == 14 {
            Vec::new()
        } else {
            payload(partition)
        };
        assert_eq!(one.index, index(partition, bytes.len() as u64), "{when}");
        let read = disks
            .read(one.store.0, 0, bytes.len())
            .expect("what was recovered can be read");
        assert_eq!(read, bytes, "{when}: {partition}");
    }
    assert!(!there.contains(&12), "{when}: what was never finished");
    for event in told {
        match event {
            Event::Finished(partition) if !told.contains(&Event::Removing(*partition)) => {
                assert!(
                    there.contains(partition),
                    "{when}: {partition} is lost; {:?}",
                    disks.recovery.lost
                );
            }
            Event::Removed(partition) => assert!(!there.contains(partition), "{when}: {partition} has come back"),
            _ => {}
        }
    }
}
