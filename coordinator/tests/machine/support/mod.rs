//! A driver for tests: executors and servers that do what they are told, one step at a time, in any order, and a book of what
//! must be true of it, kept without looking into the coordinator.

mod book;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coordinator::{
    Action, Config, Coordinator, Deployment, Event, EventError, JobGraph, Notice, Outcome, PartitionChange,
    PartitionState, StageId, SubmitError, TaskId,
};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{JobId, NodeAddress, PartitionId, ResultId, ShuffleError};

/// A word that a task or its server has still to say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Started,
    Registered(ResultId),
    Finished(ResultId, u32),
    TaskFinished,
}

pub(crate) struct Running {
    pub(crate) node: NodeAddress,
    pub(crate) steps: Vec<Step>,
    pub(crate) inputs: Vec<ResultId>,
}

/// The world around one coordinator.
pub(crate) struct World {
    pub(crate) coordinator: Coordinator,
    pub(crate) running: BTreeMap<TaskId, Running>,
    /// Slots of each living node.
    pub(crate) nodes: BTreeMap<NodeAddress, u32>,
    pub(crate) actions: Vec<Action>,
    /// Bytes that each subpartition of a result gets from each producer.
    pub(crate) bytes: Box<dyn Fn(ResultId, u32) -> u64>,
    /// Where each finished partition is, by its current attempt.
    written: BTreeMap<(ResultId, u32), (u32, NodeAddress)>,
    /// What each node was told.
    heard: BTreeMap<(NodeAddress, ResultId, u32), (u32, NodeAddress)>,
    deployed: BTreeMap<StageId, BTreeSet<u32>>,
    finished: BTreeMap<StageId, BTreeSet<u32>>,
    completed: BTreeSet<StageId>,
    failed: BTreeSet<StageId>,
    causes: Vec<ShuffleError>,
    ended: u32,
}

pub(crate) fn node(number: u32) -> NodeAddress {
    NodeAddress::parse(&format!("node-{number}:7337")).expect("an address")
}

pub(crate) fn cause(text: &str) -> ShuffleError {
    ShuffleError::new(ErrorKind::ExecutorDied, text)
}

impl World {
    pub(crate) fn new(graph: JobGraph, config: Config, slots: &[u32]) -> Result<Self, SubmitError> {
        let nodes: BTreeMap<NodeAddress, u32> = (0..).map(node).zip(slots.iter().copied()).collect();
        Ok(Self {
            coordinator: Coordinator::new(JobId::new(7), graph, config, nodes.clone())?,
            nodes,
            running: BTreeMap::new(),
            actions: Vec::new(),
            bytes: Box::new(|_, _| 10),
            written: BTreeMap::new(),
            heard: BTreeMap::new(),
            deployed: BTreeMap::new(),
            finished: BTreeMap::new(),
            completed: BTreeSet::new(),
            failed: BTreeSet::new(),
            causes: Vec::new(),
            ended: 0,
        })
    }

    /// Does what the coordinator says, and checks it.
    pub(crate) fn drain(&mut self) {
        while let Some(action) = self.coordinator.poll_action() {
            self.perform(&action);
            self.actions.push(action);
        }
        self.coordinator.check_invariants();
        self.check_slots();
        self.check_groups();
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.try_event(event).expect("an event that can be");
    }

    pub(crate) fn try_event(&mut self, event: Event) -> Result<(), EventError> {
        if let Event::NodeLost { node, .. } = &event {
            self.nodes.remove(node);
            self.running.retain(|_, task| task.node != *node);
            self.written.retain(|_, (_, at)| at != node);
        }
        if let Event::NodeJoined { node, slots } = &event {
            self.nodes.insert(node.clone(), *slots);
            self.heard.retain(|(of, _, _), _| of != node);
        }
        self.coordinator.handle_event(event)
    }

    /// The step `at` of a task happens.
    pub(crate) fn step(&mut self, task: TaskId, at: usize) {
        let event = self.take_step(task, at);
        self.event(event);
    }

    /// The event of a step, which is given to nobody yet.
    pub(crate) fn take_step(&mut self, task: TaskId, at: usize) -> Event {
        let running = self.running.get_mut(&task).expect("it runs");
        let step = running.steps.remove(at);
        let node = running.node.clone();
        // That it was started may be heard late, or never.
        let over = running.steps.iter().all(|step| *step == Step::Started);
        let change = |result, state| Event::Partitions {
            node: node.clone(),
            changes: vec![PartitionChange {
                partition: task.partition(result),
                state,
            }],
        };
        let event = match step {
            Step::Started => Event::TaskStarted { task },
            Step::TaskFinished => Event::TaskFinished { task },
            Step::Registered(result) => change(result, PartitionState::Registered),
            Step::Finished(result, subpartitions) => {
                self.written.insert((result, task.index), (task.attempt, node.clone()));
                let bytes: Arc<[u64]> = (0..subpartitions).map(|at| (self.bytes)(result, at)).collect();
                change(result, PartitionState::Finished { bytes })
            }
        };
        if over {
            self.running.remove(&task);
            self.finished.entry(task.stage).or_default().insert(task.index);
        }
        event
    }

    /// Everything that runs comes to its end, and what that starts, and so on.
    pub(crate) fn run(&mut self) {
        self.drain();
        while let Some(&task) = self.running.keys().next() {
            while self.running.contains_key(&task) {
                self.step(task, 0);
            }
            self.drain();
        }
    }

    /// All tasks of a stage that run come to their end.
    pub(crate) fn finish(&mut self, name: &str) {
        let stage = self.stage(name);
        for task in self.tasks_of(name) {
            assert_eq!(task.stage, stage);
            while self.running.contains_key(&task) {
                self.step(task, 0);
            }
        }
        self.drain();
    }

    pub(crate) fn fail(&mut self, task: TaskId, text: &str) {
        self.running.remove(&task).expect("it runs");
        self.event(Event::TaskFailed {
            task,
            cause: cause(text),
        });
        self.drain();
    }

    pub(crate) fn fetch_fails(&mut self, task: TaskId, partition: PartitionId) {
        self.running.remove(&task).expect("it runs");
        self.forget(partition);
        self.event(Event::FetchFailed {
            task,
            partition,
            cause: cause("gone"),
        });
        self.drain();
    }

    pub(crate) fn lose(&mut self, number: u32) {
        self.event(Event::NodeLost {
            node: node(number),
            cause: cause("no power"),
        });
        self.drain();
    }

    pub(crate) fn stage(&self, name: &str) -> StageId {
        self.coordinator.graph().find(name).expect("a stage of the graph")
    }

    pub(crate) fn tasks_of(&self, name: &str) -> Vec<TaskId> {
        let stage = self.stage(name);
        self.running
            .keys()
            .copied()
            .filter(|task| task.stage == stage)
            .collect()
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.coordinator.outcome() == Some(&Outcome::Succeeded)
    }

    pub(crate) fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.actions.iter().filter_map(|action| match action {
            Action::Notify(notice) => Some(notice),
            _ => None,
        })
    }

    pub(crate) fn deployments(&self, name: &str) -> Vec<&Deployment> {
        let stage = self.stage(name);
        let mut deployments = Vec::new();
        for action in &self.actions {
            if let Action::Deploy(deployment) = action
                && deployment.stage == stage
            {
                deployments.push(deployment);
            }
        }
        deployments
    }

    /// Partitions of a result that are there, with their attempts.
    pub(crate) fn written(&self, result: ResultId) -> Vec<PartitionId> {
        let of_result = self.written.range((result, 0)..=(result, u32::MAX));
        let partition = |(&(result, index), &(attempt, _)): (&(ResultId, u32), &(u32, NodeAddress))| PartitionId {
            result,
            index,
            attempt,
        };
        of_result.map(partition).collect()
    }

    /// The partition is gone, if it is the one that is there.
    pub(crate) fn forget(&mut self, partition: PartitionId) {
        let key = (partition.result, partition.index);
        if self
            .written
            .get(&key)
            .is_some_and(|(attempt, _)| *attempt == partition.attempt)
        {
            self.written.remove(&key);
        }
    }

    pub(crate) fn completed(&self, name: &str) -> bool {
        self.completed.contains(&self.stage(name))
    }
}
