//! The stages of which something runs or is still needed: all that the loss of a node, or the end of the job, can touch.
//!
//! ```text
//!   stages [ 4 | 9 | 2 ]         in any order
//!   at     [ - | - | 2 | - | 0 | - | - | - | - | 1 ]         by stage, where it stands
//! ```

use crate::ids::{StageId, number};

/// Not there.
const NOWHERE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Live {
    stages: Vec<StageId>,
    at: Vec<u32>,
}

impl Live {
    /// None of so many stages.
    pub(super) fn none(stages: usize) -> Self {
        Self {
            stages: Vec::new(),
            at: vec![NOWHERE; stages],
        }
    }

    pub(super) fn contains(&self, stage: StageId) -> bool {
        self.at[stage.index()] != NOWHERE
    }

    pub(super) fn insert(&mut self, stage: StageId) {
        if !self.contains(stage) {
            self.at[stage.index()] = number(self.stages.len());
            self.stages.push(stage);
        }
    }

    pub(super) fn remove(&mut self, stage: StageId) {
        if self.contains(stage) {
            let at = std::mem::replace(&mut self.at[stage.index()], NOWHERE);
            self.stages.swap_remove(at as usize);
            if let Some(moved) = self.stages.get(at as usize) {
                self.at[moved.index()] = at;
            }
        }
    }

    /// By number, so that what is done to them has an order.
    pub(super) fn sorted(&self) -> Vec<StageId> {
        let mut stages = self.stages.clone();
        stages.sort_unstable();
        stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_can_go_and_come_back() {
        let stages = [3, 0, 4, 1].map(StageId::new);
        let mut live = Live::none(5);
        for stage in stages.into_iter().chain(stages) {
            live.insert(stage);
        }
        assert_eq!(live.sorted(), [0, 1, 3, 4].map(StageId::new));
        for stage in [3, 2, 1, 3].map(StageId::new) {
            live.remove(stage);
            assert!(!live.contains(stage));
        }
        assert_eq!(live.sorted(), [0, 4].map(StageId::new));
        live.insert(StageId::new(3));
        live.remove(StageId::new(4));
        assert_eq!(live.sorted(), [0, 3].map(StageId::new));
    }
}
