//! Doing what the coordinator says.

use coordinator::{Action, Deployment, Distribution, LocationRun, Notice, StageId};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{NodeAddress, ResultId, ShuffleError};

use super::crew::Member;
use super::engine::Engine;
use crate::error::BenchError;
use crate::job::{Input, Location, Order, Output, TaskSpec};

impl Engine<'_> {
    /// Everything that is to be done now.
    pub(super) async fn act(&mut self) -> Result<(), BenchError> {
        while let Some(action) = self.coordinator.poll_action() {
            if let Some(node) = action.node() {
                let to_executors = matches!(
                    action,
                    Action::Deploy(_) | Action::Update { .. } | Action::Cancel { .. }
                );
                *self.to_executors.entry(node.clone()).or_default() += u64::from(to_executors);
            }
            match action {
                Action::Deploy(deployment) => self.deploy(&deployment)?,
                Action::Update {
                    node,
                    result,
                    locations,
                } => self.update(&node, result, &locations).await,
                Action::Cancel { node, tasks } => {
                    let cause = ShuffleError::new(ErrorKind::Cancelled, "the coordinator cancelled the task");
                    let is_meant = |member: &Member| member.node == node && tasks.contains(&member.task);
                    self.crew.tell(&Order::Cancel((&cause).into()), is_meant).await;
                }
                Action::Fence { node, partitions } => {
                    for partition in partitions {
                        let fenced = self.driver.fence(&node, partition).await;
                        self.note_refusal(&node, "a fence", fenced);
                    }
                }
                Action::FailGroup { node, group, cause } => {
                    let failed = self.driver.fail_group(&node, &group, cause.clone()).await;
                    self.note_refusal(&node, "the failure of a group", failed);
                    let members = self.coordinator.groups().members(group.id).to_vec();
                    let is_meant = |member: &Member| member.node == node && members.contains(&member.task.stage);
                    self.crew.tell(&Order::Cancel((&cause).into()), is_meant).await;
                }
                Action::Release { node, result } => {
                    let released = self.driver.release_result(&node, result).await;
                    self.note_refusal(&node, "the release of a result", released);
                }
                Action::ReleaseJob { node, .. } => {
                    let released = self.driver.release_job(&node).await;
                    self.note_refusal(&node, "the release of the job", released);
                }
                Action::Notify(notice) => self.handle_notice(notice),
            }
        }
        Ok(())
    }

    /// A server that was killed, and is not known to be lost yet, does nothing any more.
    fn note_refusal(&mut self, node: &NodeAddress, what: &str, outcome: Result<(), ShuffleError>) {
        if let Err(error) = outcome
            && !self.cluster.is_lost(node)
        {
            self.problems.push(format!("{what} was refused: {error}"));
        }
    }

    fn deploy(&mut self, deployment: &Deployment) -> Result<(), BenchError> {
        let node = &deployment.node;
        let socket = self.cluster.socket_of(node);
        let socket = socket.ok_or_else(|| BenchError::Usage(format!("{node} is not a node of this run")))?;
        for input in &deployment.inputs {
            self.hear(node, input.result, &input.locations);
        }
        let stage = self.plan.graph.stage(deployment.stage).name().to_owned();
        let letter = self.letter(node);
        for (at, &task) in deployment.tasks.iter().enumerate() {
            let share = deployment.shares.get(at);
            let input = deployment.inputs.first().zip(share).map(|(input, share)| Input {
                result: input.result.value(),
                partitions: input.partitions,
                first: share.subpartitions.first,
                count: share.subpartitions.count,
                locations: self
                    .heard
                    .get(&(node.clone(), input.result))
                    .cloned()
                    .unwrap_or_default(),
            });
            let output = deployment.outputs.first().map(|output| Output {
                result: output.result.value(),
                subpartitions: output.subpartitions,
                kind: output.kind.into(),
                determinate: output.determinate,
                in_turn: output.distribution == Distribution::Rebalance,
            });
            let spec = TaskSpec {
                parent: std::process::id(),
                socket: socket.clone(),
                job: self.plan.job.value(),
                index: task.index,
                attempt: task.attempt,
                parallelism: deployment.parallelism,
                work: self.plan.work(task, self.cluster.dir()),
                input,
                output,
                group: deployment.group.as_ref().map(Into::into),
            };
            if let Some(share) = share {
                let ranges = self.ranges.entry(deployment.stage).or_default();
                ranges.insert(task.index, share.subpartitions);
            }
            let role = format!("{stage}-{}@{letter}", task.index);
            self.start(role, task, node, &spec)?;
        }
        Ok(())
    }

    async fn update(&mut self, node: &NodeAddress, result: ResultId, runs: &[LocationRun]) {
        let locations = self.hear(node, result, runs);
        let readers: Vec<StageId> = self.readers_of(result);
        let is_meant = |member: &Member| member.node == *node && readers.contains(&member.task.stage);
        self.crew.tell(&Order::Locations(locations), is_meant).await;
    }

    /// A node is told each location once, so it remembers them for the tasks that are still to come.
    fn hear(&mut self, node: &NodeAddress, result: ResultId, runs: &[LocationRun]) -> Vec<Location> {
        let locations: Vec<Location> = runs.iter().map(located).collect();
        let heard = self.heard.entry((node.clone(), result)).or_default();
        heard.extend(locations.iter().cloned());
        locations
    }

    fn readers_of(&self, result: ResultId) -> Vec<StageId> {
        let edges = self.plan.graph.edges().iter();
        edges.filter(|edge| edge.result == result).map(|edge| edge.to).collect()
    }

    fn handle_notice(&mut self, notice: Notice) {
        let state = |stages: &mut [super::view::StageState], stage: StageId| {
            usize::try_from(stage.value()).ok().filter(|at| *at < stages.len())
        };
        match notice {
            Notice::StageSubmitted { stage, tasks } => {
                if let Some(at) = state(&mut self.stages, stage) {
                    self.stages[at].tasks = Some(tasks);
                }
            }
            Notice::TaskFinished { task } => {
                if let Some(at) = state(&mut self.stages, task.stage) {
                    self.stages[at].done += 1;
                }
                self.plan_loss_of_inputs(task.stage);
            }
            Notice::StageCompleted { stage } => {
                if let Some(at) = state(&mut self.stages, stage) {
                    self.stages[at].committed = true;
                }
                if self.plan.graph.is_determinate(stage) {
                    self.plan_loss(stage);
                }
            }
            Notice::StageFailed { stage, cause } => {
                if let Some(at) = state(&mut self.stages, stage) {
                    self.stages[at].failed = true;
                }
                self.stage_causes.insert(stage, cause);
            }
            Notice::TaskStarted { .. }
            | Notice::TaskFailed { .. }
            | Notice::GroupWaits { .. }
            | Notice::JobSucceeded
            | Notice::JobFailed { .. } => {}
        }
    }
}

fn located(run: &LocationRun) -> Location {
    Location {
        first: run.first,
        count: run.count,
        attempt: run.attempt,
        node: run.node.to_string(),
    }
}
