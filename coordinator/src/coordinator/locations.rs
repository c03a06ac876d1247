//! Where the partitions of a result are, and who has heard it.
//!
//! ```text
//!   log      [ 0..4 on a | 4..8 on b | 8..9 on a | 5..6 on c, attempt 1 ]
//!   told       node x: 4 of them        node y: 3 of them
//! ```
//!
//! The log only grows, and for each node with consumers there is a mark behind what it was told: so each location goes to a node
//! once. What is new waits in `fresh` until the next message, to go out in as few runs as can be.

use crate::admission::NodeIndex;

/// One run of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) attempt: u32,
    pub(super) node: NodeIndex,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Locations {
    fresh: Vec<u32>,
    log: Vec<Run>,
    told: Vec<(NodeIndex, usize)>,
}

impl Locations {
    /// The partition of that index has a place; true if it is the first since [`Locations::settle`].
    pub(super) fn push(&mut self, index: u32) -> bool {
        self.fresh.push(index);
        self.fresh.len() == 1
    }

    /// Puts what is fresh into the log. `of` gives attempt and node, or `None` if the partition was lost again meanwhile.
    pub(super) fn settle(&mut self, of: impl Fn(u32) -> Option<(u32, NodeIndex)>) {
        // A run that somebody has heard of must not grow.
        let heard = self.told.iter().map(|(_, mark)| *mark).max().unwrap_or(0);
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.sort_unstable();
        fresh.dedup();
        for index in fresh {
            let Some((attempt, node)) = of(index) else {
                continue;
            };
            let open = self.log.len() > heard;
            match self.log.last_mut() {
                Some(run) if open && run.first + run.count == index && (run.attempt, run.node) == (attempt, node) => {
                    run.count += 1;
                }
                _ => self.log.push(Run {
                    first: index,
                    count: 1,
                    attempt,
                    node,
                }),
            }
        }
    }

    /// What the node has not heard; it has now.
    pub(super) fn tell(&mut self, node: NodeIndex) -> &[Run] {
        let end = self.log.len();
        let at = match self.told.iter().position(|(one, _)| *one == node) {
            Some(at) => at,
            None => {
                self.told.push((node, 0));
                self.told.len() - 1
            }
        };
        let heard = std::mem::replace(&mut self.told[at].1, end);
        &self.log[heard..]
    }

    /// The nodes with consumers that have not heard everything.
    pub(super) fn behind(&self) -> Vec<NodeIndex> {
        let behind = self.told.iter().filter(|(_, mark)| *mark < self.log.len());
        behind.map(|(node, _)| *node).collect()
    }
}
