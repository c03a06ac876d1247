//! Running tasks of regular stages again.
//!
//! ```text
//!   a partition is lost      A/3 --x           A/3 runs again; B waits for it
//!   A is indeterminate       A/3 --> B --> C   every task of B and C that was started runs again too, or the job aborts
//!   its input was released   S --x  A/3        S runs again first
//!   any of them pipelined                      the job aborts
//! ```

use std::collections::{BTreeMap, BTreeSet, HashSet};

use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{NodeAddress, PartitionId, ResultId, ShuffleError};

use super::action::Action;
use super::event::EventError;
use super::state::{Task, TaskState};
use super::{Coordinator, Indeterminate, result_index};
use crate::admission::NodeIndex;
use crate::completion::Notice;
use crate::graph::{Dependency, Distribution};
use crate::ids::{EdgeId, StageId, TaskId, number};

/// A task that is to run again.
#[derive(Clone, Copy, Debug)]
struct Again {
    stage: StageId,
    index: u32,
    /// Its input is not what it was: whoever has read its output has to run again as well.
    rewritten: bool,
    /// Its executor has said that it ended.
    ended: bool,
}

/// What goes out once all of them are known: one message of a kind to a node.
#[derive(Debug, Default)]
struct Orders {
    cancel: BTreeMap<NodeIndex, Vec<TaskId>>,
    fence: BTreeMap<NodeIndex, Vec<PartitionId>>,
    groups: BTreeSet<u32>,
}

impl Coordinator {
    pub(super) fn handle_node_joined(&mut self, node: NodeAddress, slots: u32) -> Result<(), EventError> {
        if self.cluster.find(&node).is_some() {
            return Err(EventError::NodeKnown { node });
        }
        self.cluster.join(node, slots);
        Ok(())
    }

    pub(super) fn handle_node_lost(&mut self, node: &NodeAddress, cause: &ShuffleError) -> Result<(), EventError> {
        let Some(node) = self.cluster.find(node) else {
            return Err(EventError::UnknownNode { node: node.clone() });
        };
        self.cluster.leave(node);
        let mut lost = Vec::new();
        for stage in self.live.sorted() {
            let group = self.groups.place(stage);
            let open = self.groups.is_pipelined(stage) && !self.completion.is_committed(group);
            let needed = open || self.stages[stage.index()].unread > 0;
            let tasks = self.stages[stage.index()].tasks.iter().enumerate();
            for (index, task) in tasks.filter(|(_, task)| task.node == node) {
                if task.state == TaskState::Running || (task.state == TaskState::Done && needed) {
                    lost.push(again(stage, number(index), true));
                }
            }
        }
        self.run_again(lost, cause);
        Ok(())
    }

    pub(super) fn handle_task_failed(&mut self, task: TaskId, cause: &ShuffleError) -> Result<(), EventError> {
        self.check_started(task)?;
        if self.is_current(task) {
            self.run_again(vec![again(task.stage, task.index, true)], cause);
        }
        Ok(())
    }

    pub(super) fn handle_fetch_failed(
        &mut self,
        task: TaskId,
        partition: PartitionId,
        cause: &ShuffleError,
    ) -> Result<(), EventError> {
        self.check_started(task)?;
        let of = |(edge, _): &(_, _)| self.graph.edge(*edge).result == partition.result;
        let producer = self.graph.inputs(task.stage).find(of).map(|(_, producer)| producer);
        let Some(producer) = producer else {
            return Err(EventError::NotAnInput { task, partition });
        };
        let lost = TaskId {
            stage: producer,
            index: partition.index,
            attempt: partition.attempt,
        };
        if self.check_started(lost).is_err() {
            return Err(EventError::UnknownPartition { partition });
        }
        if !self.is_current(task) {
            return Ok(());
        }
        let mut work = vec![again(task.stage, task.index, true)];
        // Also where its task has still to end: the attempt that cannot be read is the one that counts.
        let counts = |state| matches!(state, TaskState::Done | TaskState::Running);
        let is_current = |now: &Task| now.attempt == lost.attempt && counts(now.state);
        if self.task(lost).is_some_and(is_current) {
            work.push(again(producer, lost.index, false));
        }
        self.run_again(work, cause);
        Ok(())
    }

    /// The server has lost a partition: of a task that runs, that fails it; of one that is done, only if somebody needs it.
    pub(super) fn lose_partition(&mut self, task: TaskId, result: ResultId, cause: &ShuffleError) {
        let now = self.task(task).map(|now| (now.attempt, now.state));
        let open = !self.completion.is_committed(self.groups.place(task.stage));
        let concerns = match now {
            Some((attempt, TaskState::Running)) => attempt == task.attempt,
            Some((attempt, TaskState::Done)) => attempt == task.attempt && (open || self.is_needed(result)),
            _ => false,
        };
        if concerns {
            self.run_again(vec![again(task.stage, task.index, false)], cause);
        }
    }

    /// Whether somebody has still to read it, or may come to.
    pub(super) fn is_needed(&self, result: ResultId) -> bool {
        let of = &self.graph.results()[result_index(result)];
        let read_later =
            self.results[result_index(result)].readers > 0 || self.graph.stage(of.producer).has_open_result();
        of.dependency == Dependency::Regular && read_later
    }

    fn run_again(&mut self, mut work: Vec<Again>, cause: &ShuffleError) {
        let mut orders = Orders::default();
        let (mut rewritten, mut spread) = (HashSet::new(), HashSet::new());
        while let Some(one) = work.pop() {
            let task = self.stages[one.stage.index()].tasks[one.index as usize];
            let known = one.rewritten && !rewritten.insert((one.stage, one.index));
            if task.state == TaskState::New || known {
                continue;
            }
            if self.groups.is_pipelined(one.stage) {
                return self.fail_job(cause);
            }
            if task.state != TaskState::Again && task.attempt + 1 >= self.config.max_attempts {
                return self.fail_job(&self.no_more_attempts(one, cause));
            }
            let indeterminate = task.state == TaskState::Done && !self.graph.is_determinate(one.stage);
            if one.rewritten || indeterminate {
                let readers = self.started_readers(one.stage, one.index, &mut spread);
                if !readers.is_empty() && self.config.indeterminate == Indeterminate::Abort {
                    return self.fail_job(cause);
                }
                work.extend(readers);
            }
            match task.state {
                TaskState::Running => self.stop(one, &mut orders, cause),
                TaskState::Done => self.reopen(one.stage, &mut work),
                TaskState::New | TaskState::Again => continue,
            }
            self.next_attempt(one, &mut orders);
        }
        self.send(orders);
    }

    /// Frees the slots of a task that runs.
    fn stop(&mut self, one: Again, orders: &mut Orders, cause: &ShuffleError) {
        let task = *self.task_mut(one.stage, one.index);
        let id = TaskId {
            stage: one.stage,
            index: one.index,
            attempt: task.attempt,
        };
        self.cluster.give_back(task.node, self.graph.stage(one.stage).slots());
        if !one.ended {
            orders.cancel.entry(task.node).or_default().push(id);
        }
        self.notify(Notice::TaskFailed {
            task: id,
            cause: cause.clone(),
        });
    }

    /// One of the stage's tasks is no longer done. If all were, its consumers have to wait again, and it needs its inputs again:
    /// those that were released are made again as well.
    fn reopen(&mut self, stage: StageId, work: &mut Vec<Again>) {
        let was_done = self.stages[stage.index()].is_done();
        self.stages[stage.index()].done -= 1;
        self.live.insert(stage);
        if !was_done {
            return;
        }
        self.not_done += 1;
        for result in self.graph.results_of(stage) {
            let of = &self.graph.results()[result_index(result)];
            for edge in of.edges.iter().filter(|_| of.dependency == Dependency::Regular) {
                self.waits_for[self.groups.place(self.graph.edge(*edge).to) as usize] += 1;
            }
        }
        for (edge, from) in self.graph.inputs(stage) {
            let result = self.graph.edge(edge).result;
            let was_needed = self.is_needed(result);
            self.results[result_index(result)].readers += 1;
            self.stages[from.index()].unread += u32::from(!was_needed && self.is_needed(result));
            self.live.insert(from);
            if std::mem::replace(&mut self.results[result_index(result)].released, false) {
                let producers = 0..self.stages[from.index()].parallelism();
                work.extend(producers.map(|index| again(from, index, false)));
            } else if self.groups.is_pipelined(from) && self.graph.edge(edge).dependency == Dependency::Regular {
                // It was kept, but a node that was lost while nobody needed it takes its part along.
                let tasks = self.stages[from.index()].tasks.iter().enumerate();
                let gone = tasks.filter(|(_, task)| !self.cluster.lives(task.node));
                work.extend(gone.map(|(index, _)| again(from, number(index), false)));
            }
        }
    }

    fn next_attempt(&mut self, one: Again, orders: &mut Orders) {
        let task = self.task_mut(one.stage, one.index);
        let node = task.node;
        task.attempt += 1;
        task.state = TaskState::Again;
        let id = TaskId {
            stage: one.stage,
            index: one.index,
            attempt: task.attempt,
        };
        self.stages[one.stage.index()].again.push_back(one.index);
        for result in self.graph.results_of(one.stage) {
            let state = &mut self.results[result_index(result)];
            state.registered.remove(one.index);
            state.finished.remove(one.index);
            orders.fence.entry(node).or_default().push(id.partition(result));
        }
        orders.groups.insert(self.groups.place(one.stage));
    }

    /// Tasks of consumers that were started and may so have read what the task wrote. Where that is all of them, they are given
    /// once: `spread` has the edges that were looked at.
    fn started_readers(&self, stage: StageId, index: u32, spread: &mut HashSet<EdgeId>) -> Vec<Again> {
        let mut readers = Vec::new();
        for (edge, to) in self.graph.outputs(stage) {
            let local = self.graph.edge(edge).distribution == Distribution::Local;
            if !local && !spread.insert(edge) {
                continue;
            }
            for (reader, task) in self.stages[to.index()].tasks.iter().enumerate() {
                let reader = number(reader);
                if task.state != TaskState::New && (!local || reader == index) {
                    readers.push(Again {
                        rewritten: true,
                        ..again(to, reader, false)
                    });
                }
            }
        }
        readers
    }

    fn send(&mut self, orders: Orders) {
        let living = |node: &NodeIndex| self.cluster.lives(*node);
        let cancel = orders.cancel.into_iter().filter(|(node, _)| living(node));
        let cancel = cancel.map(|(node, tasks)| Action::Cancel {
            node: self.cluster.address(node).clone(),
            tasks,
        });
        let fence = orders.fence.into_iter().filter(|(node, _)| living(node));
        let fence = fence.map(|(node, partitions)| Action::Fence {
            node: self.cluster.address(node).clone(),
            partitions,
        });
        let actions: Vec<Action> = cancel.chain(fence).collect();
        self.outbox.extend(actions);
        for group in orders.groups {
            self.make_ready(group);
        }
    }

    fn no_more_attempts(&self, one: Again, cause: &ShuffleError) -> ShuffleError {
        let name = self.graph.stage(one.stage).name();
        let kind = ErrorKind::LimitExceeded {
            what: format!("attempts of task {} of stage {name:?}", one.index),
            limit: u64::from(self.config.max_attempts),
            asked: u64::from(self.config.max_attempts) + 1,
        };
        ShuffleError::new(kind, "it failed, or its output was lost, each time").because(cause.clone())
    }
}

fn again(stage: StageId, index: u32, ended: bool) -> Again {
    Again {
        stage,
        index,
        rewritten: false,
        ended,
    }
}
