//! The readers of a persistent partition: any number, of any ranges, each from the beginning.

use std::collections::BTreeMap;

use shuffle_protocol::{SubpartitionIndex, SubpartitionRange};

use super::{OutletNo, Tombstone};

/// Who reads what is kept, and whether anybody new may.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    readers: BTreeMap<OutletNo, SubpartitionRange>,
    /// It was released or has expired: readers that are there go on, and with the last one it goes.
    pub(crate) ended: Option<Tombstone>,
}

impl Kept {
    pub(crate) fn attach(&mut self, reader: OutletNo, range: SubpartitionRange) {
        let before = self.readers.insert(reader, range);
        assert!(before.is_none(), "a reader came twice");
    }

    pub(crate) fn detach(&mut self, reader: OutletNo) {
        let range = self.readers.remove(&reader);
        assert!(range.is_some(), "a reader left that was not there");
    }

    pub(crate) fn readers(&self) -> impl Iterator<Item = OutletNo> {
        self.readers.keys().copied()
    }

    /// Those who read this subpartition.
    pub(crate) fn readers_of(&self, subpartition: u32) -> impl Iterator<Item = OutletNo> {
        self.readers
            .iter()
            .filter(move |(_, range)| range.contains(SubpartitionIndex::new(subpartition)))
            .map(|(no, _)| *no)
    }

    pub(crate) fn is_read(&self) -> bool {
        !self.readers.is_empty()
    }
}
