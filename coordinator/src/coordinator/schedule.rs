//! Slots for those who are ready, and the messages that start their tasks.

use std::collections::BTreeMap;

use shuffle_protocol::{GroupRef, ResultId};

use super::action::{Action, DeployedInput, DeployedOutput, Deployment, LocationRun};
use super::state::{Task, TaskState};
use super::{Coordinator, result_index};
use crate::admission::{Need, NodeIndex};
use crate::completion::Notice;
use crate::graph::Dependency;
use crate::ids::{StageId, TaskId, number};

/// Tasks to start, by node, in the order of their numbers.
type Placed = BTreeMap<NodeIndex, Vec<u32>>;

impl Coordinator {
    /// Starts what can be started, in the order of the queue: who does not fit stops those behind.
    pub(super) fn schedule(&mut self) {
        while let Some(&group) = self.queue.front() {
            let missing = self.waits_for[group as usize] > 0;
            if !missing && !self.start(group) {
                return;
            }
            self.queue.pop_front();
            self.queued[group as usize] = false;
        }
    }

    /// Tells consumers that were started where more of their inputs are.
    pub(super) fn update_consumers(&mut self) {
        for result in std::mem::take(&mut self.dirty) {
            self.settle(result);
            let behind = self.results[result_index(result)].locations.behind();
            for node in behind
                .into_iter()
                .filter(|&node| self.cluster.lives(node))
                .collect::<Vec<_>>()
            {
                let locations = self.tell(result, node);
                self.outbox.push_back(Action::Update {
                    node: self.cluster.address(node).clone(),
                    result,
                    locations,
                });
            }
        }
    }

    /// The group's identity on the wire: its nodes are those of its tasks, its home the first of them.
    pub(super) fn group_ref(&self, group: u32) -> GroupRef {
        let mut nodes: Vec<NodeIndex> = Vec::new();
        for &stage in self.groups.members_at(group) {
            nodes.extend(self.stages[stage.index()].tasks.iter().map(|task| task.node));
            nodes.sort_unstable();
            nodes.dedup();
        }
        let nodes: Vec<_> = nodes
            .into_iter()
            .map(|node| self.cluster.address(node).clone())
            .collect();
        GroupRef {
            id: self.groups.of(self.groups.members_at(group)[0]),
            home: nodes
                .first()
                .cloned()
                .expect("invariant: a group that was placed has nodes"),
            nodes,
        }
    }

    /// True if everything of the group that was to be started is.
    fn start(&mut self, group: u32) -> bool {
        match self.groups.members_at(group) {
            &[stage] => self.start_stage(group, stage),
            _ => self.start_group(group),
        }
    }

    fn start_group(&mut self, group: u32) -> bool {
        let members = self.groups.members_at(group).to_vec();
        let need = |stage: &StageId| Need {
            tasks: self.stages[stage.index()].parallelism(),
            slots_per_task: self.graph.stage(*stage).slots(),
        };
        let needs: Vec<Need> = members.iter().map(need).collect();
        let Some(placed) = self.cluster.place_all(&needs) else {
            if !std::mem::replace(&mut self.told_waiting[group as usize], true) {
                let notice = Notice::GroupWaits {
                    group: self.groups.of(members[0]),
                    needs: needs.iter().map(|need| need.slots()).sum(),
                    free: self.cluster.free(),
                };
                self.notify(notice);
            }
            return false;
        };
        self.submit(group);
        let mut by_stage = Vec::with_capacity(members.len());
        for (&stage, runs) in members.iter().zip(placed) {
            let mut on = Placed::new();
            let mut next = 0;
            for run in runs {
                on.entry(run.node).or_default().extend(next..next + run.tasks);
                next += run.tasks;
            }
            self.stages[stage.index()].next = next;
            self.run(stage, &on);
            by_stage.push((stage, on));
        }
        // Only now all nodes of the group are known.
        let group = self.group_ref(group);
        for (stage, on) in by_stage {
            self.deploy(stage, on, Some(&group));
        }
        true
    }

    fn start_stage(&mut self, group: u32, stage: StageId) -> bool {
        let slots = self.graph.stage(stage).slots();
        let mut on = Placed::new();
        let local = self.local_input(stage);
        let fresh = self.stages[stage.index()].parallelism() - self.stages[stage.index()].next;
        if local.is_none() && self.stages[stage.index()].again.is_empty() {
            let room = u32::try_from(self.cluster.room(slots)).unwrap_or(u32::MAX);
            let need = Need {
                tasks: fresh.min(room),
                slots_per_task: slots,
            };
            for run in self.cluster.place(need).unwrap_or_default() {
                let next = &mut self.stages[stage.index()].next;
                on.entry(run.node).or_default().extend(*next..*next + run.tasks);
                *next += run.tasks;
            }
        } else {
            while let Some(index) = self.next_pending(stage) {
                let preferred = local.map(|from| self.stages[from.index()].tasks[index as usize].node);
                let Some(node) = self.cluster.take_one(slots, preferred) else {
                    break;
                };
                on.entry(node).or_default().push(index);
                let state = &mut self.stages[stage.index()];
                if state.again.pop_front().is_none() {
                    state.next += 1;
                }
            }
        }
        if !on.is_empty() {
            if self.completion.is_waiting(group) {
                self.submit(group);
            }
            self.run(stage, &on);
            self.deploy(stage, on, None);
        }
        self.stages[stage.index()].pending() == 0
    }

    fn next_pending(&self, stage: StageId) -> Option<u32> {
        let state = &self.stages[stage.index()];
        let fresh = (state.next < state.parallelism()).then_some(state.next);
        state.again.front().copied().or(fresh)
    }

    fn submit(&mut self, group: u32) {
        let members = self.groups.members_at(group).to_vec();
        self.completion.submit(group, &members);
        for stage in members {
            let tasks = self.stages[stage.index()].parallelism();
            self.notify(Notice::StageSubmitted { stage, tasks });
        }
    }

    fn run(&mut self, stage: StageId, on: &Placed) {
        self.live.insert(stage);
        let left = 1 + number(self.graph.results_of(stage).len());
        for (&node, indices) in on {
            for &index in indices {
                let task = &mut self.stages[stage.index()].tasks[index as usize];
                *task = Task {
                    attempt: task.attempt,
                    node,
                    left,
                    state: TaskState::Running,
                    said_finished: false,
                };
            }
        }
    }

    fn deploy(&mut self, stage: StageId, on: Placed, group: Option<&GroupRef>) {
        for (edge, _) in self.graph.inputs(stage).collect::<Vec<_>>() {
            self.settle(self.graph.edge(edge).result);
        }
        for (node, indices) in on {
            let deployment = self.deployment(stage, node, &indices, group);
            self.outbox.push_back(Action::Deploy(deployment));
        }
    }

    fn deployment(&mut self, stage: StageId, node: NodeIndex, indices: &[u32], group: Option<&GroupRef>) -> Deployment {
        let edges: Vec<_> = self
            .graph
            .inputs(stage)
            .map(|(edge, _)| *self.graph.edge(edge))
            .collect();
        let inputs = edges.iter().map(|edge| DeployedInput {
            result: edge.result,
            partitions: self.stages[edge.from.index()].parallelism(),
            distribution: edge.distribution,
            locations: self.tell(edge.result, node),
        });
        let inputs = inputs.collect();
        let determinate = self.graph.is_determinate(stage);
        let output = |result: ResultId| {
            let of = &self.graph.results()[result_index(result)];
            DeployedOutput {
                result,
                subpartitions: of.subpartitions,
                distribution: of.distribution,
                kind: of.dependency.partition_kind(),
                determinate,
            }
        };
        let state = &self.stages[stage.index()];
        let assignment = state
            .assignment
            .as_ref()
            .expect("invariant: what is deployed is decided");
        let task = |&index: &u32| TaskId {
            stage,
            index,
            attempt: state.tasks[index as usize].attempt,
        };
        let divides = edges.iter().any(|edge| edge.distribution.is_all_to_all());
        let shares = indices.iter().filter(|_| divides).map(|&index| assignment.share(index));
        Deployment {
            node: self.cluster.address(node).clone(),
            stage,
            parallelism: state.parallelism(),
            tasks: indices.iter().map(task).collect(),
            shares: shares.collect(),
            inputs,
            outputs: self.graph.results_of(stage).map(output).collect(),
            group: group.cloned(),
        }
    }

    /// Puts the new places of a result into its log.
    fn settle(&mut self, result: ResultId) {
        let of = &self.graph.results()[result_index(result)];
        let pipelined = of.dependency == Dependency::Pipelined;
        let tasks = &self.stages[of.producer.index()].tasks;
        let place = |index: u32| {
            let task = &tasks[index as usize];
            let is_there = task.state == TaskState::Done || (pipelined && task.state == TaskState::Running);
            is_there.then_some((task.attempt, task.node))
        };
        self.results[result_index(result)].locations.settle(place);
    }

    fn tell(&mut self, result: ResultId, node: NodeIndex) -> Vec<LocationRun> {
        let runs = self.results[result_index(result)].locations.tell(node);
        let spelled = runs.iter().map(|run| LocationRun {
            first: run.first,
            count: run.count,
            attempt: run.attempt,
            node: self.cluster.address(run.node).clone(),
        });
        spelled.collect()
    }
}
