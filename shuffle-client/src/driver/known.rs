//! What a driver was told of a node's partitions: so that what a snapshot tells again is not news, and what it does not tell
//! any more is.

use std::collections::{BTreeMap, BTreeSet};

use shuffle_protocol::ids::{PartitionId, PartitionKey};
use shuffle_protocol::notify::{PartitionChange, PartitionState};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Registered,
    Begun,
    Finished,
    Ended,
}

/// The newest attempt of each partition: 24 bytes each.
#[derive(Debug, Default)]
pub(super) struct Known {
    phases: BTreeMap<PartitionKey, (u32, Phase)>,
    /// Of those that were known before, the ones that the running snapshot has not told.
    untold: Option<BTreeSet<PartitionId>>,
}

impl Known {
    /// What comes next is a snapshot.
    pub(super) fn begin_snapshot(&mut self) {
        let live = self.phases.iter().filter(|(_, (_, phase))| *phase != Phase::Ended);
        let live = live.map(|(key, (attempt, _))| PartitionId {
            result: key.result,
            index: key.index,
            attempt: *attempt,
        });
        self.untold = Some(live.collect());
    }

    /// Whether it is news.
    pub(super) fn handle_change(&mut self, change: &PartitionChange) -> bool {
        let phase = match change.state {
            PartitionState::Registered => Phase::Registered,
            PartitionState::FirstBuffer => Phase::Begun,
            PartitionState::Finished { .. } => Phase::Finished,
            PartitionState::Failed { .. } | PartitionState::Released => Phase::Ended,
        };
        if let Some(untold) = &mut self.untold {
            untold.remove(&change.partition);
        }
        let now = (change.partition.attempt, phase);
        let known = self.phases.entry(change.partition.key());
        let mut news = false;
        known
            .and_modify(|known| {
                news = *known < now;
                *known = now.max(*known);
            })
            .or_insert_with(|| {
                news = true;
                now
            });
        news
    }

    /// The snapshot is complete. What it should have told, and did not, has gone.
    pub(super) fn finish_snapshot(&mut self) -> Vec<PartitionChange> {
        let gone = self.untold.take().unwrap_or_default();
        let gone = gone.into_iter().map(|partition| PartitionChange {
            partition,
            state: PartitionState::Released,
        });
        gone.filter(|change| self.handle_change(change)).collect()
    }
}

#[cfg(test)]
mod tests {
    use shuffle_protocol::ids::ResultId;

    use super::*;

    fn change(index: u32, attempt: u32, state: PartitionState) -> PartitionChange {
        let result = ResultId::new(1);
        PartitionChange {
            partition: PartitionId { result, index, attempt },
            state,
        }
    }

    fn finished() -> PartitionState {
        PartitionState::Finished { bytes: [1].into() }
    }

    #[test]
    fn a_snapshot_is_news_only_where_something_changed() {
        let mut known = Known::default();
        known.begin_snapshot();
        assert!(known.handle_change(&change(0, 0, PartitionState::Registered)));
        assert!(known.handle_change(&change(1, 0, finished())));
        assert!(known.handle_change(&change(2, 0, PartitionState::FirstBuffer)));
        assert!(known.finish_snapshot().is_empty());
        assert!(
            !known.handle_change(&change(1, 0, PartitionState::Registered)),
            "it was further"
        );
        known.begin_snapshot();
        assert!(known.handle_change(&change(0, 0, finished())));
        assert!(!known.handle_change(&change(1, 0, finished())));
        assert_eq!(
            known.finish_snapshot(),
            [change(2, 0, PartitionState::Released)],
            "not told any more"
        );
        known.begin_snapshot();
        assert!(
            known.handle_change(&change(0, 1, PartitionState::Registered)),
            "a new attempt"
        );
        assert!(
            !known.handle_change(&change(0, 0, PartitionState::Released)),
            "of an old one"
        );
        assert!(!known.handle_change(&change(2, 0, PartitionState::Released)));
        assert_eq!(known.finish_snapshot(), [change(1, 0, PartitionState::Released)]);
    }
}
