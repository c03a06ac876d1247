//! The sizes of finished partitions that are gone: for a driver that was away when they went.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use shuffle_protocol::{JobId, PartitionId};

/// Numbers that are kept on one node, 8 bytes each; an entry counts as [`ENTRY_NUMBERS`] more.
const MAX_NUMBERS: usize = 1 << 18;
const ENTRY_NUMBERS: usize = 16;

/// Of too many the oldest go.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    order: VecDeque<(JobId, PartitionId)>,
    sizes: BTreeMap<(JobId, PartitionId), Arc<[u64]>>,
    numbers: usize,
}

impl Sizes {
    pub(super) fn keep(&mut self, job: JobId, id: PartitionId, sizes: Arc<[u64]>) {
        let key = (job, id);
        let cost = ENTRY_NUMBERS + sizes.len();
        if cost > MAX_NUMBERS || self.sizes.contains_key(&key) {
            return;
        }
        self.numbers += cost;
        self.sizes.insert(key, sizes);
        self.order.push_back(key);
        while self.numbers > MAX_NUMBERS {
            let Some(oldest) = self.order.pop_front() else { return };
            self.remove(&oldest);
        }
    }

    pub(super) fn get(&self, job: JobId, id: PartitionId) -> Option<Arc<[u64]>> {
        self.sizes.get(&(job, id)).cloned()
    }

    pub(super) fn forget(&mut self, job: JobId) {
        let mut order = std::mem::take(&mut self.order);
        order.retain(|key| key.0 != job || !self.remove(key));
        self.order = order;
    }

    fn remove(&mut self, key: &(JobId, PartitionId)) -> bool {
        let sizes = self.sizes.remove(key);
        self.numbers -= sizes.as_ref().map_or(0, |sizes| ENTRY_NUMBERS + sizes.len());
        sizes.is_some()
    }
}

#[cfg(test)]
mod tests {
    use shuffle_protocol::ResultId;

    use super::*;

    #[test]
    fn of_too_many_the_oldest_go_and_a_job_goes_whole() {
        let mut sizes = Sizes::default();
        let id = |index| PartitionId {
            result: ResultId::new(1),
            index,
            attempt: 0,
        };
        let (job, other) = (JobId::new(1), JobId::new(2));
        let each: Arc<[u64]> = vec![7; 1 << 16].into();
        for index in 0..4 {
            sizes.keep(job, id(index), each.clone());
        }
        assert!(sizes.get(job, id(0)).is_none(), "four of them are more than are kept");
        assert!(sizes.get(job, id(1)).is_some() && sizes.get(job, id(3)).is_some());
        sizes.keep(other, id(0), vec![1; 3].into());
        sizes.forget(job);
        assert!(sizes.get(job, id(3)).is_none());
        assert_eq!(sizes.get(other, id(0)).as_deref(), Some(&[1, 1, 1][..]));
        sizes.forget(other);
        assert_eq!((sizes.numbers, sizes.order.len()), (0, 0));
    }
}
