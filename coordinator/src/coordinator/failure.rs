//! The end of a job that failed: everything stops, with one cause.

use std::collections::BTreeMap;

use shuffle_protocol::ShuffleError;

use super::action::Action;
use super::state::TaskState;
use super::{Coordinator, Outcome};
use crate::admission::NodeIndex;
use crate::ids::{StageId, TaskId, number};

impl Coordinator {
    /// Tears down every group that was admitted and stops every task that runs, on all nodes.
    pub(super) fn fail_job(&mut self, cause: &ShuffleError) {
        self.outcome = Some(Outcome::Failed(cause.clone()));
        let mut actions = Vec::new();
        for group in 0..number(self.groups.len()) {
            let stage = self.groups.members_at(group)[0];
            if !self.groups.is_pipelined(stage) {
                if self.live.contains(stage) {
                    self.cancel_stage(stage, &mut actions);
                }
            } else if self.completion.is_submitted(group) {
                let group_ref = self.group_ref(group);
                for node in &group_ref.nodes {
                    if self.cluster.find(node).is_some() {
                        actions.push(Action::FailGroup {
                            node: node.clone(),
                            group: group_ref.clone(),
                            cause: cause.clone(),
                        });
                    }
                }
            }
        }
        self.free_all();
        self.outbox.extend(actions);
        for notice in self.completion.fail(&self.graph, &self.groups, cause) {
            self.notify(notice);
        }
        self.release_job();
    }

    pub(super) fn release_job(&mut self) {
        let job = self.groups.job();
        let nodes: Vec<_> = self
            .cluster
            .living()
            .map(|node| self.cluster.address(node).clone())
            .collect();
        self.outbox
            .extend(nodes.into_iter().map(|node| Action::ReleaseJob { node, job }));
    }

    fn cancel_stage(&self, stage: StageId, actions: &mut Vec<Action>) {
        let mut on: BTreeMap<NodeIndex, Vec<TaskId>> = BTreeMap::new();
        for (index, task) in self.stages[stage.index()].tasks.iter().enumerate() {
            if task.state == TaskState::Running && self.cluster.lives(task.node) {
                on.entry(task.node).or_default().push(TaskId {
                    stage,
                    index: number(index),
                    attempt: task.attempt,
                });
            }
        }
        actions.extend(on.into_iter().map(|(node, tasks)| Action::Cancel {
            node: self.cluster.address(node).clone(),
            tasks,
        }));
    }

    fn free_all(&mut self) {
        for stage in self.live.sorted() {
            let slots = self.graph.stage(stage).slots();
            for task in self.stages[stage.index()]
                .tasks
                .iter_mut()
                .filter(|task| task.state == TaskState::Running)
            {
                self.cluster.give_back(task.node, slots);
                task.state = TaskState::Again;
            }
        }
    }
}
