//! Doing what the coordinator says, and the book of what must be true of it.

use std::collections::BTreeMap;

use coordinator::{Action, Dependency, Deployment, LocationRun, Notice};
use shuffle_protocol::{NodeAddress, ResultId};

use super::{Running, Step, World};

impl World {
    pub(super) fn perform(&mut self, action: &Action) {
        match action {
            Action::Deploy(deployment) => self.deploy(deployment),
            Action::Update {
                node,
                result,
                locations,
            } => self.hear(node, *result, locations),
            Action::Cancel { node, tasks } => {
                for task in tasks {
                    let running = self.running.remove(task);
                    assert!(running.is_none_or(|running| running.node == *node));
                }
            }
            Action::FailGroup { node, group, cause } => {
                let members = self.coordinator.groups().members(group.id).to_vec();
                self.running
                    .retain(|task, running| running.node != *node || !members.contains(&task.stage));
                self.causes.push(cause.clone());
            }
            Action::Fence { partitions, .. } => {
                for partition in partitions {
                    self.written.remove(&(partition.result, partition.index));
                }
            }
            Action::Release { .. } => {}
            Action::ReleaseJob { node, .. } => self.running.retain(|_, running| running.node != *node),
            Action::Notify(notice) => self.notice(notice),
        }
    }

    fn deploy(&mut self, deployment: &Deployment) {
        assert!(
            self.nodes.contains_key(&deployment.node),
            "only living nodes are given work"
        );
        assert!(self.ended == 0, "nothing starts after the end");
        for input in &deployment.inputs {
            self.hear(&deployment.node, input.result, &input.locations);
            let of = self
                .coordinator
                .graph()
                .result(input.result)
                .expect("a result of the graph");
            if of.dependency == Dependency::Regular {
                for index in 0..input.partitions {
                    let truth = self.written.get(&(input.result, index));
                    let heard = self.heard.get(&(deployment.node.clone(), input.result, index));
                    assert!(
                        truth.is_some(),
                        "{} starts before {}/{index} is there",
                        deployment.stage,
                        input.result
                    );
                    assert_eq!(heard, truth, "a consumer knows where its whole input is");
                }
            }
        }
        for &task in &deployment.tasks {
            assert_eq!(task.stage, deployment.stage);
            let outputs = || deployment.outputs.iter();
            let mut steps = vec![Step::Started];
            steps.extend(outputs().map(|output| Step::Registered(output.result)));
            steps.extend(outputs().map(|output| Step::Finished(output.result, output.subpartitions)));
            steps.push(Step::TaskFinished);
            let running = Running {
                node: deployment.node.clone(),
                steps,
                inputs: deployment.inputs.iter().map(|input| input.result).collect(),
            };
            let before = self.running.insert(task, running);
            assert!(before.is_none(), "{task} is started once");
            self.deployed.entry(task.stage).or_default().insert(task.index);
            if let Some(finished) = self.finished.get_mut(&task.stage) {
                finished.remove(&task.index);
            }
        }
    }

    fn hear(&mut self, node: &NodeAddress, result: ResultId, locations: &[LocationRun]) {
        for run in locations {
            for index in run.first..run.first + run.count {
                let place = (run.attempt, run.node.clone());
                let before = self.heard.insert((node.clone(), result, index), place.clone());
                assert_ne!(before, Some(place), "{result}/{index} travels to {node} once");
            }
        }
    }

    fn notice(&mut self, notice: &Notice) {
        assert!(self.ended == 0, "nothing is seen after the end: {notice:?}");
        match notice {
            Notice::StageCompleted { stage } => {
                let groups = self.coordinator.groups();
                for member in groups.members(groups.of(*stage)) {
                    let (deployed, finished) = (self.deployed.get(member), self.finished.get(member));
                    assert_eq!(deployed, finished, "no success before the whole group has it");
                }
                assert!(self.completed.insert(*stage), "completed once");
                assert!(!self.failed.contains(stage));
            }
            Notice::StageFailed { stage, cause } => {
                assert!(self.failed.insert(*stage), "failed once");
                assert!(!self.completed.contains(stage), "a success is never taken back");
                self.causes.push(cause.clone());
            }
            Notice::JobSucceeded => {
                self.ended += 1;
                assert_eq!(self.completed.len(), self.coordinator.graph().stages().len());
                assert!(self.failed.is_empty());
            }
            Notice::JobFailed { cause } => {
                self.ended += 1;
                self.causes.push(cause.clone());
                let first = &self.causes[0];
                assert!(
                    self.causes.iter().all(|cause| cause == first),
                    "one cause for all: {:?}",
                    self.causes
                );
            }
            _ => {}
        }
    }

    pub(super) fn check_slots(&self) {
        let mut taken: BTreeMap<&NodeAddress, u32> = BTreeMap::new();
        for (task, running) in &self.running {
            *taken.entry(&running.node).or_default() += self.coordinator.graph().stage(task.stage).slots();
        }
        for (node, taken) in taken {
            assert!(
                taken <= self.nodes[node],
                "{node} has {} slots, {taken} are taken",
                self.nodes[node]
            );
        }
    }

    /// All tasks of all members were started, or none.
    pub(super) fn check_groups(&self) {
        let groups = self.coordinator.groups();
        for stage in self.deployed.keys().filter(|stage| groups.is_pipelined(**stage)) {
            for member in groups.members(groups.of(*stage)) {
                let tasks = self
                    .coordinator
                    .topology()
                    .find(|(one, _)| one == member)
                    .map(|(_, tasks)| tasks);
                let deployed = self
                    .deployed
                    .get(member)
                    .map(|tasks| u32::try_from(tasks.len()).expect("a small number"));
                assert_eq!(deployed, tasks, "a member is never admitted alone");
            }
        }
    }
}
