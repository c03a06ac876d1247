//! Tasks and partitions that come along, up to the end of the job.

use std::collections::BTreeSet;

use shuffle_protocol::{NodeAddress, PartitionId, ResultId, ShuffleError};

use super::action::Action;
use super::event::{EventError, MAX_SUBPARTITION_BYTES};
use super::locations::Locations;
use super::state::{Task, TaskState};
use super::{Coordinator, Outcome, result_index};
use super::{PartitionChange, PartitionState};
use crate::admission::NodeIndex;
use crate::completion::Notice;
use crate::graph::{Dependency, JobResult};
use crate::ids::{StageId, TaskId};

impl Coordinator {
    pub(super) fn handle_task_started(&mut self, task: TaskId) -> Result<(), EventError> {
        self.check_started(task)?;
        if self.is_current(task) {
            self.notify(Notice::TaskStarted { task });
        }
        Ok(())
    }

    pub(super) fn handle_task_finished(&mut self, task: TaskId) -> Result<(), EventError> {
        self.check_started(task)?;
        if self.is_current(task) {
            let state = self.task_mut(task.stage, task.index);
            if !std::mem::replace(&mut state.said_finished, true) {
                self.count_down(task);
            }
        }
        Ok(())
    }

    pub(super) fn handle_partitions(
        &mut self,
        node: &NodeAddress,
        changes: Vec<PartitionChange>,
    ) -> Result<(), EventError> {
        let Some(node) = self.cluster.find(node) else {
            return Err(EventError::UnknownNode { node: node.clone() });
        };
        for change in &changes {
            self.check_change(node, change)?;
        }
        for change in changes {
            if self.outcome.is_none() {
                self.apply(change);
            }
        }
        Ok(())
    }

    /// # Errors
    /// `UnknownTask` unless this attempt was started once.
    pub(super) fn check_started(&self, task: TaskId) -> Result<(), EventError> {
        match self.task(task) {
            Some(current) if was_started(current, task.attempt) => Ok(()),
            _ => Err(EventError::UnknownTask { task }),
        }
    }

    pub(super) fn task_mut(&mut self, stage: StageId, index: u32) -> &mut Task {
        &mut self.stages[stage.index()].tasks[index as usize]
    }

    fn check_change(&self, node: NodeIndex, change: &PartitionChange) -> Result<(), EventError> {
        let partition = change.partition;
        let unknown = EventError::UnknownPartition { partition };
        let Some(result) = self.graph.result(partition.result) else {
            return Err(unknown);
        };
        match self.stages[result.producer.index()].tasks.get(partition.index as usize) {
            Some(task) if was_started(task, partition.attempt) => {
                if task.attempt == partition.attempt && task.node != node {
                    return Err(unknown);
                }
            }
            _ => return Err(unknown),
        }
        match &change.state {
            PartitionState::Finished { bytes } => check_bytes(partition, result, bytes),
            _ => Ok(()),
        }
    }

    fn apply(&mut self, change: PartitionChange) {
        let partition = change.partition;
        let task = TaskId {
            stage: self.graph.results()[result_index(partition.result)].producer,
            index: partition.index,
            attempt: partition.attempt,
        };
        match change.state {
            PartitionState::Failed { cause } => self.lose_partition(task, partition.result, &cause),
            PartitionState::Released => self.handle_released(task, partition),
            _ if !self.is_current(task) => {}
            PartitionState::Registered | PartitionState::FirstBuffer => self.register(partition),
            PartitionState::Finished { bytes } => {
                self.register(partition);
                let result = &mut self.results[result_index(partition.result)];
                if result.finished.insert(partition.index) {
                    if let Some(sizes) = &mut result.sizes {
                        sizes.add(partition.index, &bytes);
                    }
                    self.count_down(task);
                }
            }
        }
    }

    /// Consumers of a pipelined result are told as soon as the partition is there.
    fn register(&mut self, partition: PartitionId) {
        let result = &mut self.results[result_index(partition.result)];
        let pipelined = self.graph.results()[result_index(partition.result)].dependency == Dependency::Pipelined;
        if result.registered.insert(partition.index) && pipelined && result.locations.push(partition.index) {
            self.dirty.push(partition.result);
        }
    }

    /// One of the things that a task has still to do is done.
    fn count_down(&mut self, task: TaskId) {
        let state = self.task_mut(task.stage, task.index);
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        state.state = TaskState::Done;
        let node = state.node;
        self.cluster.give_back(node, self.graph.stage(task.stage).slots());
        self.notify(Notice::TaskFinished { task });
        for result in self.graph.results_of(task.stage) {
            let result = result_index(result);
            if self.graph.results()[result].dependency == Dependency::Regular {
                self.results[result].locations.push(task.index);
            }
        }
        let stage = &mut self.stages[task.stage.index()];
        stage.done += 1;
        if stage.is_done() {
            self.handle_stage_done(task.stage);
        }
    }

    fn handle_stage_done(&mut self, stage: StageId) {
        self.not_done -= 1;
        let group = self.groups.place(stage);
        if self.completion.is_committed(group) {
            // It was complete before, and some of its tasks ran again.
            self.complete(stage);
        } else if self.completion.handle_stage_done(group) {
            let members = self.groups.members_at(group).to_vec();
            for &stage in &members {
                self.notify(Notice::StageCompleted { stage });
            }
            for stage in members {
                self.complete(stage);
            }
        }
        if self.not_done == 0 {
            self.succeed();
        }
    }

    /// Its results can be read, and it needs its inputs no more.
    fn complete(&mut self, stage: StageId) {
        for result in self.graph.results_of(stage).collect::<Vec<_>>() {
            if self.graph.results()[result_index(result)].dependency == Dependency::Regular {
                self.dirty.push(result);
                self.complete_input(result);
            }
        }
        for (edge, from) in self.graph.inputs(stage).collect::<Vec<_>>() {
            let result = self.graph.edge(edge).result;
            let state = &mut self.results[result_index(result)];
            state.readers -= 1;
            if state.readers == 0 && !self.graph.stage(from).has_open_result() {
                self.stages[from.index()].unread -= u32::from(self.is_regular(result));
                self.release(result, from);
                self.retire(from);
            }
        }
        self.retire(stage);
    }

    fn retire(&mut self, stage: StageId) {
        if self.is_over(stage) {
            self.live.remove(stage);
        }
    }

    /// Nothing of it runs, and nobody needs what it wrote: it does not matter what becomes of that.
    pub(super) fn is_over(&self, stage: StageId) -> bool {
        let open = self.groups.is_pipelined(stage) && !self.completion.is_committed(self.groups.place(stage));
        let state = &self.stages[stage.index()];
        state.is_done() && !open && state.unread == 0
    }

    pub(super) fn is_regular(&self, result: ResultId) -> bool {
        self.graph.results()[result_index(result)].dependency == Dependency::Regular
    }

    /// What came over a pipelined edge is gone anyway. The regular output of a pipelined group is kept to the end of the job:
    /// it could not be made again for a task that runs again.
    fn release(&mut self, result: ResultId, producer: StageId) {
        let pipelined = self.graph.results()[result_index(result)].dependency == Dependency::Pipelined;
        if pipelined || self.groups.is_pipelined(producer) {
            return;
        }
        let state = &mut self.results[result_index(result)];
        state.released = true;
        state.locations = Locations::default();
        let nodes: BTreeSet<NodeIndex> = self.stages[producer.index()]
            .tasks
            .iter()
            .map(|task| task.node)
            .collect();
        for node in nodes.into_iter().filter(|&node| self.cluster.lives(node)) {
            self.outbox.push_back(Action::Release {
                node: self.cluster.address(node).clone(),
                result,
            });
        }
    }

    fn succeed(&mut self) {
        self.outcome = Some(Outcome::Succeeded);
        let notice = self.completion.succeed();
        self.notify(notice);
        if !self.graph.stages().iter().any(crate::Stage::has_open_result) {
            self.release_job();
        }
    }

    /// The server has let go of it, and not because we said so.
    fn handle_released(&mut self, task: TaskId, partition: PartitionId) {
        let result = result_index(partition.result);
        let regular = self.graph.results()[result].dependency == Dependency::Regular;
        if regular && !self.results[result].released {
            let cause = ShuffleError::new(
                shuffle_protocol::error::ErrorKind::Released,
                "the partition went away while consumers still need it",
            );
            self.lose_partition(task, partition.result, &cause.partition(partition));
        }
    }
}

/// Whether the attempt was started: it is an earlier one, or the current one and no longer new.
fn was_started(task: &Task, attempt: u32) -> bool {
    match task.state {
        TaskState::New => false,
        TaskState::Again => attempt < task.attempt,
        TaskState::Running | TaskState::Done => attempt <= task.attempt,
    }
}

fn check_bytes(partition: PartitionId, result: &JobResult, bytes: &[u64]) -> Result<(), EventError> {
    if bytes.len() != result.subpartitions as usize {
        return Err(EventError::WrongSizes {
            partition,
            expected: result.subpartitions,
            got: bytes.len(),
        });
    }
    // None is more than all of them together, bit by bit. Several at a time, and most of what a word about a partition costs.
    if bytes.iter().fold(0, |all, bytes| all | bytes) <= MAX_SUBPARTITION_BYTES {
        return Ok(());
    }
    match bytes.iter().find(|&&bytes| bytes > MAX_SUBPARTITION_BYTES) {
        Some(&bytes) => Err(EventError::TooManyBytes { partition, bytes }),
        None => Ok(()),
    }
}
