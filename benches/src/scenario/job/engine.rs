//! One job from its first to its last task: events to the coordinator, and what it says to servers and processes.
//!
//! ```text
//!   servers ──JobDriver──▶┐                       ┌──▶ JobDriver ──▶ servers
//!                         ├─▶ Coordinator ─▶ act ─┤
//!   processes ──Children─▶┘                       └──▶ processes: started, told, killed
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coordinator::{Coordinator, Event, Outcome, StageId, TaskId};
use shuffle_client::{DriverEvent, JobDriver, JobDriverOptions};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::notify::PartitionState;
use shuffle_protocol::{NodeAddress, PartitionKey, ResultId, ShuffleError, SubpartitionRange};

use super::cluster::Cluster;
use super::crew::{Crew, End, Member};
use super::plan::Plan;
use super::view::{StageState, View};
use crate::clock::Moment;
use crate::cluster::{ChildEvent, ChildId, Order as ProcessOrder, node_name};
use crate::console::Console;
use crate::error::BenchError;
use crate::job::{Location, Report, TaskSpec};
use crate::report::LossReport;

/// One task to be killed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kill {
    /// So long after the start of the job.
    pub(super) after: Duration,
    /// Of those that run then, counted round.
    pub(super) which: usize,
}

/// One server to be killed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss {
    /// So long after a stage is complete.
    pub(super) after: Duration,
    /// Of those that have partitions of it, counted round.
    pub(super) which: usize,
}

/// What is done to a job.
#[derive(Debug, Default)]
pub(super) struct Disturbance {
    pub(super) kills: Vec<Kill>,
    /// The first with the first stage, and so on.
    pub(super) losses: VecDeque<Loss>,
}

impl Disturbance {
    /// One task is killed.
    pub(super) fn kill(kill: Kill) -> Self {
        Self {
            kills: vec![kill],
            ..Self::default()
        }
    }
}

/// A job that runs.
pub(super) struct Engine<'a> {
    pub(super) cluster: &'a mut Cluster,
    pub(super) plan: &'a Plan,
    console: &'a Console,
    pub(super) coordinator: Coordinator,
    pub(super) driver: JobDriver,
    pub(super) crew: Crew,
    pub(super) stages: Vec<StageState>,
    view: View,
    pub(super) heard: BTreeMap<(NodeAddress, ResultId), Vec<Location>>,
    pub(super) ranges: BTreeMap<StageId, BTreeMap<u32, SubpartitionRange>>,
    /// Of the newest attempt of each partition.
    pub(super) sizes: BTreeMap<PartitionKey, Arc<[u64]>>,
    pub(super) to_executors: BTreeMap<NodeAddress, u64>,
    pub(super) stage_causes: BTreeMap<StageId, ShuffleError>,
    /// Why partitions failed, as their servers said.
    pub(super) partition_causes: Vec<ShuffleError>,
    pub(super) problems: Vec<String>,
    pub(super) started: Moment,
    /// Tasks that heard of the failure from the engine alone.
    pub(super) cancelled: u32,
    pub(super) killed_at: Option<Moment>,
    kills: Vec<(Instant, usize)>,
    pub(super) losses: VecDeque<Loss>,
    /// Servers that are to be killed.
    pub(super) to_lose: Vec<(Instant, NodeAddress, StageId)>,
    /// Tasks that had read what may be written again otherwise.
    pub(super) had_read: Vec<TaskId>,
    pub(super) loss: LossReport,
    /// Tasks whose processes died, until a server says so or the time for that is over.
    pub(super) died: Vec<(Instant, TaskId, ShuffleError)>,
    moved: Instant,
    stall_timeout: Duration,
    over_since: Option<Instant>,
    verbose: bool,
}

impl<'a> Engine<'a> {
    pub(super) async fn start_job(
        cluster: &'a mut Cluster,
        plan: &'a Plan,
        slots: u32,
        silent: bool,
        disturbance: Disturbance,
        output: &crate::cli::OutputArgs,
        console: &'a Console,
    ) -> Result<Self, BenchError> {
        let nodes = cluster.servers.iter().map(|server| (server.address.clone(), slots));
        let coordinator = Coordinator::new(plan.job, plan.graph.clone(), plan.config, nodes)
            .map_err(|error| BenchError::Usage(error.to_string()))?;
        let options =
            JobDriverOptions::new(plan.job, cluster.attach_options(plan.job)).reconnect_within(super::RECONNECT_WITHIN);
        let driver = JobDriver::connect(options)
            .await
            .map_err(|source| BenchError::Session {
                what: "connecting the job's driver".to_owned(),
                source,
            })?;
        let state = |stage: &coordinator::Stage| StageState {
            name: stage.name().to_owned(),
            ..StageState::default()
        };
        let stages: Vec<StageState> = plan.graph.stages().iter().map(state).collect();
        let now = Instant::now();
        Ok(Self {
            view: View::open(&stages, silent && !output.verbose),
            cluster,
            plan,
            console,
            coordinator,
            driver,
            crew: Crew::default(),
            stages,
            heard: BTreeMap::new(),
            ranges: BTreeMap::new(),
            sizes: BTreeMap::new(),
            to_executors: BTreeMap::new(),
            stage_causes: BTreeMap::new(),
            partition_causes: Vec::new(),
            problems: Vec::new(),
            started: Moment::now(),
            cancelled: 0,
            killed_at: None,
            kills: disturbance
                .kills
                .iter()
                .map(|kill| (now + kill.after, kill.which))
                .collect(),
            losses: disturbance.losses,
            to_lose: Vec::new(),
            had_read: Vec::new(),
            loss: LossReport::default(),
            died: Vec::new(),
            moved: now,
            stall_timeout: Duration::from_secs(output.stall_timeout),
            over_since: None,
            verbose: output.verbose,
        })
    }

    /// Runs the job until its outcome is known and all its processes have ended.
    pub(super) async fn run(&mut self) -> Result<(), BenchError> {
        self.act().await?;
        while self.coordinator.outcome().is_none() || !self.crew.is_gone() {
            let moment = self.next_moment();
            tokio::select! {
                (id, event) = self.cluster.children.next_event() => self.handle_child(id, event)?,
                event = self.driver.next_event(self.stall_timeout) => {
                    let event = event.ok_or_else(|| self.stalled("any word of a server"))?;
                    self.handle_server(event)?;
                }
                () = tokio::time::sleep_until(moment.into()) => self.handle_moment()?,
            }
            // What is there already comes along, so that less is to be said.
            while let Some(event) = self.driver.try_next_event() {
                self.handle_server(event)?;
            }
            self.act().await?;
            self.show(false);
        }
        self.show(true);
        Ok(())
    }

    pub(super) fn close_view(self) {
        self.view.close();
    }

    pub(super) fn start(
        &mut self,
        role: String,
        task: TaskId,
        node: &NodeAddress,
        spec: &TaskSpec,
    ) -> Result<(), BenchError> {
        let spec = serde_json::to_string(spec)
            .map_err(|error| BenchError::Usage(format!("a task cannot be written: {error}")))?;
        let spawned = self.cluster.children.spawn(["job-task", &role, &spec])?;
        if self.verbose {
            self.console.say(format!("{role} pid {}", spawned.pid));
        }
        let member = Member {
            task,
            role,
            node: node.clone(),
            input: spawned.input,
            orders: spawned.orders,
            rows: 0,
            end: None,
            gone: false,
            killed: false,
        };
        self.crew.members.insert(spawned.id, member);
        Ok(())
    }

    pub(super) fn letter(&self, node: &NodeAddress) -> String {
        let at = self.cluster.servers.iter().position(|server| server.address == *node);
        node_name(at.unwrap_or_default())
    }

    fn handle_server(&mut self, event: DriverEvent) -> Result<(), BenchError> {
        self.moved = Instant::now();
        match event {
            DriverEvent::Partitions { node, changes } => {
                for change in &changes {
                    match &change.state {
                        PartitionState::Finished { bytes } => {
                            self.sizes.insert(change.partition.key(), Arc::clone(bytes));
                        }
                        PartitionState::Failed { cause } => self.partition_causes.push(cause.clone()),
                        _ => {}
                    }
                }
                self.tell(Event::Partitions { node, changes });
                Ok(())
            }
            DriverEvent::NodeLost { node, cause } => self.handle_node_lost(node, cause),
        }
    }

    fn handle_child(&mut self, id: ChildId, event: ChildEvent) -> Result<(), BenchError> {
        self.moved = Instant::now();
        let Some(member) = self.crew.members.get_mut(&id) else {
            return self.handle_other(id, event);
        };
        let (task, role) = (member.task, member.role.clone());
        match event {
            ChildEvent::Message(text) => self.console.say(format!("[{role}] {text}")),
            ChildEvent::Line(line) => match serde_json::from_str(&line) {
                Ok(Report::Attached) => self.tell(Event::TaskStarted { task }),
                Ok(Report::Progress(rows)) => member.rows = rows,
                Ok(Report::Finished(result)) => {
                    member.rows = result.rows_in.max(result.rows_out);
                    member.end = Some(End::Finished(result));
                    self.tell(Event::TaskFinished { task });
                }
                Ok(Report::Failed { error, cancelled }) => {
                    let cause = ShuffleError::from(&error);
                    member.end = Some(End::Failed(cause.clone()));
                    self.cancelled += u32::from(cancelled);
                    self.handle_failure(task, cause);
                }
                Err(_) => self.console.say(format!("[{role}] {line}")),
            },
            ChildEvent::Ended(status) => {
                member.gone = true;
                if member.end.is_none() {
                    let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                    member.end = Some(End::Died(how.clone()));
                    let message = format!("the process of {role} ended before its task did ({how})");
                    let cause = ShuffleError::new(ErrorKind::ExecutorDied, message).job(self.plan.job);
                    self.died.push((Instant::now() + TIME_TO_NOTICE, task, cause));
                }
            }
        }
        Ok(())
    }

    /// A server, or a process of a job before.
    fn handle_other(&self, id: ChildId, event: ChildEvent) -> Result<(), BenchError> {
        let server = self.cluster.servers.iter().find(|server| server.id == id);
        let name = server.map_or("a task of a job before", |server| &server.name);
        match event {
            ChildEvent::Line(text) | ChildEvent::Message(text) => self.console.say(format!("[{name}] {text}")),
            ChildEvent::Ended(status) if server.is_some_and(|server| !self.cluster.is_lost(&server.address)) => {
                return Err(BenchError::Usage(format!("{name} ended within the run: {status:?}")));
            }
            ChildEvent::Ended(_) => {}
        }
        Ok(())
    }

    pub(super) fn tell(&mut self, event: Event) {
        if let Err(error) = self.coordinator.handle_event(event) {
            self.problems.push(format!("the coordinator refused an event: {error}"));
        }
    }

    fn next_moment(&self) -> Instant {
        let kills = self.kills.iter().map(|(at, _)| *at);
        let died = self.died.iter().map(|(at, ..)| *at);
        let over = self.over_since.map(|since| since + TIME_TO_END);
        let to_lose = self.to_lose.iter().map(|(at, ..)| *at);
        let moments = kills.chain(died).chain(to_lose).chain(over);
        moments.fold(Instant::now() + LOOK_EVERY, Instant::min)
    }

    fn handle_moment(&mut self) -> Result<(), BenchError> {
        let now = Instant::now();
        for (_, which) in self.kills.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
            self.kill(which);
        }
        self.kill_servers(now);
        for (_, task, cause) in self.died.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>() {
            self.tell(Event::TaskFailed { task, cause });
        }
        if self.coordinator.outcome().is_some() {
            let since = *self.over_since.get_or_insert(now);
            if now >= since + TIME_TO_END {
                let left: Vec<&str> = self
                    .crew
                    .members
                    .values()
                    .filter(|of| !of.gone)
                    .map(|of| of.role.as_str())
                    .collect();
                self.problems
                    .push(format!("{} still ran {TIME_TO_END:?} after the job", left.join(", ")));
                self.crew.kill_all();
            }
        } else if self.moved.elapsed() >= self.stall_timeout {
            return Err(self.stalled("any progress of the job"));
        }
        Ok(())
    }

    fn kill(&mut self, which: usize) {
        let running: Vec<ChildId> = self.crew.running().map(|(id, _)| id).collect();
        if running.is_empty() || self.coordinator.outcome().is_some() {
            return;
        }
        if let Some(member) = self.crew.members.get_mut(&running[which % running.len()]) {
            member.killed = true;
            member.orders.send_replace(ProcessOrder::Kill);
            self.killed_at = Some(Moment::now());
        }
    }

    fn show(&mut self, now: bool) {
        for (at, stage) in (0..).zip(&mut self.stages) {
            let members = || self.crew.members.values().filter(|of| of.task.stage.value() == at);
            stage.running = u32::try_from(members().filter(|of| of.end.is_none()).count()).unwrap_or(u32::MAX);
            stage.rows = members().map(|member| member.rows).sum();
        }
        let graph = &self.plan.graph;
        for edge in graph.edges() {
            let bytes = self.bytes_of(edge.result);
            if let Some(stage) = usize::try_from(edge.to.value())
                .ok()
                .and_then(|at| self.stages.get_mut(at))
            {
                stage.bytes_in = bytes;
            }
        }
        if let Some(Outcome::Failed(_)) = self.coordinator.outcome() {
            self.stages
                .iter_mut()
                .for_each(|stage| stage.failed |= !stage.committed);
        }
        self.view.show(&self.stages, now, self.console);
    }

    /// Bytes of a result so far.
    pub(super) fn bytes_of(&self, result: ResultId) -> u64 {
        let partitions = self.sizes.iter().filter(|(partition, _)| partition.result == result);
        partitions.map(|(_, sizes)| sizes.iter().sum::<u64>()).sum()
    }

    fn stalled(&self, what: &str) -> BenchError {
        BenchError::TimedOut {
            what: what.to_owned(),
            after: self.stall_timeout,
        }
    }
}

/// A server notices at once that an executor died; the driver waits so long for its word, so that all name one cause.
const TIME_TO_NOTICE: Duration = Duration::from_millis(500);
/// How long tasks may take to end after the job.
const TIME_TO_END: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(200);
