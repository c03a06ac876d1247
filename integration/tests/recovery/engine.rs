//! A small engine over real servers: the coordinator, the driver's connections, and tasks that run one after the other, each in a
//! session with its node's server. Every step is taken by the test, so that a loss comes exactly where it is wanted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use coordinator::{
    Action, Config, Coordinator, DeployedOutput, Deployment, Distribution, Event, JobGraph, LocationRun, Outcome,
    StageId, TaskId, TaskShare,
};
use integration::cluster::Cluster;
use integration::wait::within;
use shuffle_client::{
    DriverEvent, GateSpec, JobDriver, JobDriverOptions, PartitionSpec, Selector, Session, Writer, subpartition_of,
};
use shuffle_protocol::error::{ErrorKind, ShuffleError};
use shuffle_protocol::{JobId, NodeAddress, PartitionId, ResultId};

pub(crate) const JOB: JobId = JobId::new(43);
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Records of each task of the first stage, and their length: more than the pools hold.
const RECORDS: u64 = 1500;
const RECORD_BYTES: usize = 400;

/// A task that is to be run.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) task: TaskId,
    pub(crate) node: NodeAddress,
    share: Option<TaskShare>,
    input: Option<ResultId>,
    output: Option<DeployedOutput>,
}

pub(crate) struct Engine {
    pub(crate) cluster: Cluster,
    pub(crate) coordinator: Coordinator,
    driver: JobDriver,
    /// Of the nodes whose servers live.
    sessions: BTreeMap<NodeAddress, Session>,
    heard: BTreeMap<(NodeAddress, ResultId), Vec<LocationRun>>,
    pub(crate) orders: VecDeque<Order>,
    /// Every execution that came to its end.
    pub(crate) finished: Vec<(TaskId, NodeAddress)>,
    /// What the newest execution of each task has read.
    pub(crate) read: BTreeMap<(StageId, u32), Vec<u64>>,
    /// Partitions that a consumer could not read, and why.
    pub(crate) fetch_failures: Vec<(PartitionId, ShuffleError)>,
    pub(crate) nodes_lost: Vec<NodeAddress>,
}

impl Engine {
    /// `slots` of each node.
    pub(crate) async fn start(cluster: Cluster, graph: JobGraph, config: Config, slots: &[u32]) -> Self {
        let mut sessions = BTreeMap::new();
        let mut nodes = Vec::new();
        for (at, &slots) in slots.iter().enumerate() {
            let address = cluster.node(at).address();
            sessions.insert(address.clone(), cluster.attach(at, JOB.value()).await);
            nodes.push((address, slots));
        }
        let reached = (0..slots.len()).map(|at| cluster.node(at).attach_options(JOB.value()));
        // Long enough that a consumer notices a loss first.
        let options = JobDriverOptions::new(JOB, reached).reconnect_within(Duration::from_secs(8));
        let driver = within(LIMIT, "connecting", JobDriver::connect(options)).await;
        Self {
            coordinator: Coordinator::new(JOB, graph, config, nodes).expect("a job that fits"),
            cluster,
            driver: driver.expect("servers that take drivers"),
            sessions,
            heard: BTreeMap::new(),
            orders: VecDeque::new(),
            finished: Vec::new(),
            read: BTreeMap::new(),
            fetch_failures: Vec::new(),
            nodes_lost: Vec::new(),
        }
    }

    /// Takes steps until it is so, or the job is over.
    pub(crate) async fn run_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        self.act().await;
        while !is_so(self) && self.coordinator.outcome().is_none() {
            match self.orders.pop_front() {
                Some(order) => self.run(order).await,
                None => self.hear_servers().await,
            }
            self.act().await;
        }
    }

    /// The server of a node dies without a word, and with it all that ran there.
    pub(crate) async fn kill(&mut self, node: usize) {
        let address = self.cluster.node(node).address();
        self.cluster.node_mut(node).process_mut().kill().await;
        self.sessions.remove(&address);
        self.orders.retain(|order| order.node != address);
    }

    /// The first attempt's partition of a task whose consumers are to begin.
    pub(crate) fn input_of_the_next(&self, index: u32) -> PartitionId {
        let result = self.orders.front().and_then(|order| order.input);
        PartitionId {
            result: result.expect("a consumer"),
            index,
            attempt: 0,
        }
    }

    pub(crate) fn session(&self, node: &NodeAddress) -> &Session {
        &self.sessions[node]
    }

    /// Attempts of the tasks of a stage that came to their end, by task.
    pub(crate) fn attempts(&self, stage: u32) -> BTreeMap<u32, Vec<u32>> {
        let mut attempts: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (task, _) in self.finished.iter().filter(|(task, _)| task.stage.value() == stage) {
            attempts.entry(task.index).or_default().push(task.attempt);
        }
        attempts
    }

    /// The last stage has read every record of the first exactly once.
    pub(crate) fn assert_complete(&self, sources: u32, last: u32) {
        assert_eq!(self.coordinator.outcome(), Some(&Outcome::Succeeded));
        let read = self.read.iter().filter(|((stage, _), _)| stage.value() == last);
        let mut came: Vec<u64> = read.flat_map(|(_, records)| records.iter().copied()).collect();
        came.sort_unstable();
        let all: Vec<u64> = (0..u64::from(sources) * RECORDS).collect();
        assert!(
            came == all,
            "{} of {} records came, {} of them different",
            came.len(),
            all.len(),
            came.iter().collect::<BTreeSet<_>>().len()
        );
    }

    pub(crate) async fn end(self) {
        drop((self.driver, self.sessions));
        self.cluster.shut_down().await;
    }

    fn tell(&mut self, event: Event) {
        self.coordinator.handle_event(event).expect("an event that can be");
    }

    async fn hear_servers(&mut self) {
        match self.driver.next_event(LIMIT).await.expect("a word of a server") {
            DriverEvent::Partitions { node, changes } => self.tell(Event::Partitions { node, changes }),
            DriverEvent::NodeLost { node, cause } => {
                self.nodes_lost.push(node.clone());
                self.tell(Event::NodeLost { node, cause });
            }
        }
    }

    async fn act(&mut self) {
        while let Some(action) = self.coordinator.poll_action() {
            if action.node().is_some_and(|node| !self.sessions.contains_key(node)) {
                // Nobody is there to do it.
                continue;
            }
            match action {
                Action::Deploy(deployment) => self.deploy(deployment),
                Action::Update { .. } => panic!("a regular result is told of with its consumers"),
                Action::Cancel { tasks, .. } => self.orders.retain(|order| !tasks.contains(&order.task)),
                Action::Fence { node, partitions } => {
                    for partition in partitions {
                        self.driver.fence(&node, partition).await.expect("fenced");
                    }
                }
                Action::FailGroup { .. } => panic!("nothing is pipelined"),
                Action::Release { node, result } => {
                    self.driver.release_result(&node, result).await.expect("released");
                }
                Action::ReleaseJob { node, .. } => self.driver.release_job(&node).await.expect("released"),
                Action::Notify(_) => {}
            }
        }
    }

    fn deploy(&mut self, deployment: Deployment) {
        for input in &deployment.inputs {
            let heard = self.heard.entry((deployment.node.clone(), input.result)).or_default();
            heard.extend(input.locations.iter().cloned());
        }
        for (at, &task) in deployment.tasks.iter().enumerate() {
            self.orders.push_back(Order {
                task,
                node: deployment.node.clone(),
                share: deployment.shares.get(at).cloned(),
                input: deployment.inputs.first().map(|input| input.result),
                output: deployment.outputs.first().cloned(),
            });
        }
    }

    async fn run(&mut self, order: Order) {
        let task = order.task;
        let event = match within(LIMIT, "a task", self.work(&order)).await {
            Ok(read) => {
                self.read.insert((task.stage, task.index), read);
                self.finished.push((task, order.node));
                Event::TaskFinished { task }
            }
            Err(cause) => match cause.location().partition {
                Some(partition) if Some(partition.result) == order.input => {
                    self.fetch_failures.push((partition, cause.clone()));
                    Event::FetchFailed { task, partition, cause }
                }
                _ => Event::TaskFailed { task, cause },
            },
        };
        self.tell(event);
    }

    /// Reads what it is to read, or makes records, and writes them on.
    async fn work(&self, order: &Order) -> Result<Vec<u64>, ShuffleError> {
        let records = match order.input {
            Some(result) => self.read(order, result).await?,
            None => {
                let first = u64::from(order.task.index) * RECORDS;
                let mut records: Vec<u64> = (first..first + RECORDS).collect();
                // Where the order of records is not fixed, a second execution may find another one.
                let turn = u64::from(order.task.attempt) * 7 % RECORDS;
                if order.output.as_ref().is_some_and(|output| !output.determinate) {
                    records.rotate_left(usize::try_from(turn).expect("few"));
                }
                records
            }
        };
        if let Some(output) = &order.output {
            let mut writer = self.writer(order, output).await?;
            for record in &records {
                let mut bytes = record.to_le_bytes().to_vec();
                bytes.resize(RECORD_BYTES, 0);
                if output.distribution == Distribution::Rebalance {
                    writer.write(&[], &bytes).await?;
                } else {
                    let to = subpartition_of(&record.to_le_bytes(), output.subpartitions);
                    writer.write_to(to, &bytes).await?;
                }
            }
            writer.finish().await?;
        }
        Ok(records)
    }

    async fn writer(&self, order: &Order, output: &DeployedOutput) -> Result<Writer, ShuffleError> {
        let id = order.task.partition(output.result);
        let mut spec = PartitionSpec::new(id, output.subpartitions)
            .kind(output.kind)
            .determinate(output.determinate);
        if output.distribution == Distribution::Rebalance {
            spec = spec.selector(Selector::RoundRobin);
        }
        self.session(&order.node).create_partition(spec).await
    }

    async fn read(&self, order: &Order, result: ResultId) -> Result<Vec<u64>, ShuffleError> {
        let range = order.share.as_ref().expect("a share of a divided input").subpartitions;
        // Of each partition the latest place.
        let mut places = BTreeMap::new();
        for run in &self.heard[&(order.node.clone(), result)] {
            places.extend((run.first..run.first + run.count).map(|index| (index, (run.attempt, run.node.clone()))));
        }
        let mut gate = GateSpec::new();
        for (index, (attempt, node)) in places {
            gate = gate.channel(Some(node), PartitionId { result, index, attempt }, range);
        }
        let mut gate = self.session(&order.node).open_gate(gate).await?;
        let mut records = Vec::new();
        while let Some(record) = gate.next_record().await? {
            let number = record.bytes.get(..8).and_then(|bytes| bytes.try_into().ok());
            let number = number.ok_or_else(|| ShuffleError::new(ErrorKind::Protocol, "a record that is too short"))?;
            records.push(u64::from_le_bytes(number));
        }
        Ok(records)
    }
}
