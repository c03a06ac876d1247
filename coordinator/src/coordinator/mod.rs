//! The whole machine: events in, actions out.
//!
//! ```text
//!   group    waiting ---all inputs complete---> ready ---all slots---> submitted ---all done---> committed
//!               |         parallelism and        (queue, in order)        |
//!               |         ranges are decided                              any member fails, or the job
//!               \---------------------------------------------------------\------------------> failed
//!
//!   task     new ---> running ---> done        of a regular stage only:
//!                        \  again <--/         the next attempt, if it failed or its output is lost
//! ```
//!
//! A driver gives events to [`Coordinator::handle_event`] and then does what [`Coordinator::poll_action`] says until that says
//! nothing more. The more events it gives before it polls, the more goes into one message.
//!
//! A stage without pipelined edges starts as many of its tasks as there are slots, and the others as slots become free. A
//! pipelined group starts whole. Who is ready first gets its slots first and is not overtaken, so a group that needs many slots
//! is not starved by stages that need few.

mod action;
mod event;
mod failure;
mod live;
mod locations;
mod progress;
mod ready;
mod recovery;
mod schedule;
mod state;

use std::collections::VecDeque;

use shuffle_protocol::{JobId, NodeAddress, ResultId, ShuffleError};
use thiserror::Error;

pub use action::{Action, DeployedInput, DeployedOutput, Deployment, LocationRun};
pub use event::{Event, EventError, MAX_SUBPARTITION_BYTES};
pub use shuffle_protocol::notify::{PartitionChange, PartitionState};

use crate::admission::{Cluster, Need, NeverFits};
use crate::completion::{Completion, Notice};
use crate::graph::{Dependency, Distribution, JobGraph};
use crate::groups::{GroupError, Groups};
use crate::ids::{StageId, TaskId, number};
use crate::parallelism::{Adaptive, ConfigError};
use live::Live;
use state::{ResultState, StageState};

/// What to do where an indeterminate task has to run again after somebody has read what it wrote.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Indeterminate {
    /// Run every consumer that may have read it again, and their descendants.
    #[default]
    RunDescendantsAgain,
    /// Give the job up.
    Abort,
}

/// Settings of a job.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// How adaptive stages come to their tasks.
    pub adaptive: Adaptive,
    /// How often a task of a regular stage may be started in all, whatever the reason; at least 1.
    pub max_attempts: u32,
    /// What to do where an indeterminate task has to run again.
    pub indeterminate: Indeterminate,
}

impl Default for Config {
    /// [`Adaptive::default`], four attempts, descendants run again.
    fn default() -> Self {
        Self {
            adaptive: Adaptive::default(),
            max_attempts: 4,
            indeterminate: Indeterminate::default(),
        }
    }
}

/// Why a job cannot be taken.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// A setting that makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Stages that cannot be grouped as their edges ask.
    #[error("{}", lines(.0))]
    Groups(Vec<GroupError>),
    /// Tasks that have to run at once and never could.
    #[error("stages {}: {}", stages.join(", "), too_large)]
    NeverFits {
        /// All members of the group.
        stages: Vec<String>,
        /// How much they need, and how much there is.
        too_large: NeverFits,
    },
    /// Two nodes of one address.
    #[error("node {node} is named twice: name it once, with all its slots")]
    NodeTwice {
        /// The address.
        node: NodeAddress,
    },
}

/// How a job ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All stages are complete.
    Succeeded,
    /// It failed, and this was first.
    Failed(ShuffleError),
}

/// The driver's half of one job's shuffles.
#[derive(Debug)]
pub struct Coordinator {
    graph: JobGraph,
    groups: Groups,
    config: Config,
    cluster: Cluster,
    completion: Completion,
    stages: Vec<StageState>,
    results: Vec<ResultState>,
    live: Live,
    /// For each group the results and estimates that it waits for.
    waits_for: Vec<u32>,
    /// Groups with tasks to start, in the order in which they are to get their slots.
    queue: VecDeque<u32>,
    queued: Vec<bool>,
    /// Groups of which it was said that they wait.
    told_waiting: Vec<bool>,
    /// Results with locations that consumers have not heard.
    dirty: Vec<ResultId>,
    /// Stages that are not done.
    not_done: u32,
    outbox: VecDeque<Action>,
    outcome: Option<Outcome>,
}

impl Coordinator {
    /// Takes a job, with the nodes that there are and their slots for it.
    ///
    /// # Errors
    /// What no group goes together with, and groups that the nodes could never hold.
    pub fn new(
        job: JobId,
        graph: JobGraph,
        config: Config,
        nodes: impl IntoIterator<Item = (NodeAddress, u32)>,
    ) -> Result<Self, SubmitError> {
        config.adaptive.validate()?;
        if config.max_attempts == 0 {
            return Err(SubmitError::Config(ConfigError {
                setting: "max_attempts",
                value: 0,
                allowed: "at least 1",
            }));
        }
        let groups = Groups::form(job, &graph).map_err(SubmitError::Groups)?;
        let mut cluster = Cluster::default();
        for (node, slots) in nodes {
            if cluster.find(&node).is_some() {
                return Err(SubmitError::NodeTwice { node });
            }
            cluster.join(node, slots);
        }
        let mut coordinator = Self {
            completion: Completion::new(&groups),
            stages: vec![StageState::default(); graph.stages().len()],
            results: vec![ResultState::default(); graph.results().len()],
            live: Live::none(graph.stages().len()),
            waits_for: vec![0; groups.len()],
            queue: VecDeque::new(),
            queued: vec![false; groups.len()],
            told_waiting: vec![false; groups.len()],
            dirty: Vec::new(),
            not_done: number(graph.stages().len()),
            outbox: VecDeque::new(),
            outcome: None,
            graph,
            groups,
            config,
            cluster,
        };
        coordinator.check_fits()?;
        coordinator.count_waits();
        for group in 0..number(coordinator.groups.len()) {
            coordinator.make_ready(group);
        }
        Ok(coordinator)
    }

    /// Takes in what happened. Words about attempts that are over, and anything after the end of the job, change nothing.
    ///
    /// # Errors
    /// An event that cannot be, because it names what is not there. It changes nothing.
    pub fn handle_event(&mut self, event: Event) -> Result<(), EventError> {
        if self.outcome.is_some() {
            return Ok(());
        }
        match event {
            Event::NodeJoined { node, slots } => self.handle_node_joined(node, slots),
            Event::NodeLost { node, cause } => self.handle_node_lost(&node, &cause),
            Event::Partitions { node, changes } => self.handle_partitions(&node, changes),
            Event::TaskStarted { task } => self.handle_task_started(task),
            Event::TaskFinished { task } => self.handle_task_finished(task),
            Event::TaskFailed { task, cause } => self.handle_task_failed(task, &cause),
            Event::FetchFailed { task, partition, cause } => self.handle_fetch_failed(task, partition, &cause),
            Event::SourceEstimated { stage, tasks } => self.handle_estimate(stage, tasks),
            Event::Aborted { cause } => {
                self.fail_job(&cause);
                Ok(())
            }
        }?;
        if cfg!(debug_assertions) {
            self.cluster.check_invariants();
        }
        Ok(())
    }

    /// The next thing to do, or `None` until something happens.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.outbox.is_empty() && self.outcome.is_none() {
            self.schedule();
            self.update_consumers();
        }
        self.outbox.pop_front()
    }

    /// How the job ended, once it has.
    pub const fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// The graph of the job.
    pub const fn graph(&self) -> &JobGraph {
        &self.graph
    }

    /// The groups of the job.
    pub const fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The slots of the nodes.
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The topology so far: stages whose tasks are decided, with how many there are. It grows while the job runs.
    pub fn topology(&self) -> impl Iterator<Item = (StageId, u32)> + '_ {
        let decided = self.stages.iter().enumerate().filter(|(_, stage)| stage.is_decided());
        decided.map(|(at, stage)| (StageId::from_index(at), stage.parallelism()))
    }

    /// Slots that this job has taken, counted by its tasks; looks at all of them. For tests.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let mut taken = 0;
        for (at, stage) in self.stages.iter().enumerate() {
            let slots = u64::from(self.graph.stages()[at].slots());
            let running =
                |task: &&state::Task| task.state == state::TaskState::Running && self.cluster.lives(task.node);
            let done = stage
                .tasks
                .iter()
                .filter(|task| task.state == state::TaskState::Done)
                .count();
            assert_eq!(number(done), stage.done, "invariant: done tasks are counted");
            let started = stage.tasks.iter().any(|task| task.state != state::TaskState::New);
            let id = StageId::from_index(at);
            let unread = self.graph.results_of(id).filter(|&result| self.is_needed(result));
            assert_eq!(
                number(unread.count()),
                stage.unread,
                "invariant: unread results are counted"
            );
            let alive = self.outcome.is_some() || self.live.contains(id) == (started && !self.is_over(id));
            assert!(alive, "invariant: stage {id} is alive while it is started and not over");
            taken += slots * stage.tasks.iter().filter(running).count() as u64;
        }
        assert_eq!(taken, self.cluster.taken(), "invariant: slots belong to running tasks");
    }

    fn notify(&mut self, notice: Notice) {
        self.outbox.push_back(Action::Notify(notice));
    }

    /// A group with all its members at the fewest tasks they are sure to come out with must fit into the empty cluster, and so
    /// must one task of a stage that runs alone.
    fn check_fits(&self) -> Result<(), SubmitError> {
        for group in 0..number(self.groups.len()) {
            let members = self.groups.members_at(group);
            let need = |&stage: &StageId| Need {
                tasks: if members.len() > 1 {
                    self.tasks_to_hold(stage)
                } else {
                    1
                },
                slots_per_task: self.graph.stage(stage).slots(),
            };
            let needs: Vec<Need> = members.iter().map(need).collect();
            self.cluster
                .check_fits(&needs)
                .map_err(|too_large| SubmitError::NeverFits {
                    stages: members
                        .iter()
                        .map(|&stage| self.graph.stage(stage).name().to_owned())
                        .collect(),
                    too_large,
                })?;
        }
        Ok(())
    }

    /// The fewest tasks for which a member of a group needs slots. One with a local input takes what that has, however much.
    fn tasks_to_hold(&self, stage: StageId) -> u32 {
        let mut source = stage;
        while let Some(from) = self.local_input(source) {
            source = from;
        }
        let parallelism = self.graph.stage(source).parallelism();
        if source == stage {
            parallelism.min()
        } else {
            parallelism.max()
        }
    }

    fn local_input(&self, stage: StageId) -> Option<StageId> {
        let mut inputs = self.graph.inputs(stage);
        inputs
            .find(|(edge, _)| self.graph.edge(*edge).distribution == Distribution::Local)
            .map(|(_, from)| from)
    }

    fn count_waits(&mut self) {
        for edge in self.graph.edges() {
            self.results[result_index(edge.result)].readers += 1;
            if edge.dependency == Dependency::Regular {
                self.waits_for[self.groups.place(edge.to) as usize] += 1;
            }
        }
        for (at, result) in self.graph.results().iter().enumerate() {
            let needed = self.is_needed(result_id(at));
            self.stages[result.producer.index()].unread += u32::from(needed);
        }
        for (at, stage) in self.graph.stages().iter().enumerate() {
            self.waits_for[self.groups.place(StageId::from_index(at)) as usize] += u32::from(stage.estimates_itself());
        }
    }

    fn task(&self, task: TaskId) -> Option<&state::Task> {
        self.stages.get(task.stage.index())?.tasks.get(task.index as usize)
    }

    fn is_current(&self, task: TaskId) -> bool {
        let current = self.task(task);
        current.is_some_and(|one| one.attempt == task.attempt && one.state == state::TaskState::Running)
    }
}

fn result_index(result: ResultId) -> usize {
    usize::try_from(result.value()).expect("invariant: results of a graph are counted in 32 bits")
}

fn result_id(index: usize) -> ResultId {
    ResultId::new(u64::from(number(index)))
}

fn lines(errors: &[GroupError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
