//! A job's driver and the servers of its nodes.
//!
//! ```text
//!   server A ──PartitionEvents──▶ task A ─┐
//!   server B ──PartitionEvents──▶ task B ─┼─▶ bounded channel ─▶ next_event ─▶ the engine's driver
//!   server C ──    lost      ───▶ task C ─┘
//!       ▲                            fence, fail_group, release: one request to one node, each with a deadline
//!       └────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A driver that does not ask for events holds the servers back, not memory: a server says more only after what it said was
//! taken.

mod known;
mod node;
mod options;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shuffle_protocol::control;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::ids::{JobId, NodeAddress, PartitionId, ResultId};
use shuffle_protocol::notify::PartitionChange;
use shuffle_protocol::partition::GroupRef;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use self::node::{Link, NodeTask};
pub use self::options::JobDriverOptions;
use crate::attach::Session;

/// Messages that wait for the driver, of all nodes together.
const WAITING_EVENTS: usize = 16;

/// What a node has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverEvent {
    /// What happened to partitions there, in this order: as much as there was, in one message.
    Partitions {
        /// The node.
        node: NodeAddress,
        /// Each state of a partition once, whatever happened to the connection.
        changes: Vec<PartitionChange>,
    },
    /// The node does not answer any more, or its server was restarted. Nothing else comes from it.
    NodeLost {
        /// The node.
        node: NodeAddress,
        /// Why.
        cause: ShuffleError,
    },
}

/// What went to and came from one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeTraffic {
    /// Messages with events that came, and their bytes with the heads of their frames.
    pub messages_in: u64,
    /// See `messages_in`.
    pub bytes_in: u64,
    /// Events of partitions in them.
    pub events: u64,
    /// Requests that were made.
    pub requests: u64,
    /// Acknowledgements of messages.
    pub acknowledgements: u64,
    /// Connections that were made.
    pub connections: u64,
}

#[derive(Debug, Default)]
struct Counters {
    messages_in: AtomicU64,
    bytes_in: AtomicU64,
    events: AtomicU64,
    requests: AtomicU64,
    acknowledgements: AtomicU64,
    connections: AtomicU64,
}

/// A job's driver, connected to the servers of its nodes. It goes with its last event or when it is dropped.
#[derive(Debug)]
pub struct JobDriver {
    job: JobId,
    nodes: BTreeMap<NodeAddress, (watch::Receiver<Link>, Arc<Counters>)>,
    events: mpsc::Receiver<DriverEvent>,
    /// Aborted when the driver is dropped.
    _tasks: JoinSet<()>,
}

impl JobDriver {
    /// Connects to all nodes and subscribes to the job's partitions. What there is already comes first.
    ///
    /// # Errors
    /// What the first node that cannot be reached, or refuses, says; `InvalidRequest` if two are one.
    pub async fn connect(options: JobDriverOptions) -> Result<Self> {
        let (sender, events) = mpsc::channel(WAITING_EVENTS);
        let (mut nodes, mut tasks) = (BTreeMap::new(), JoinSet::new());
        let job = options.nodes.first().map_or(JobId::new(0), |node| node.job);
        // All at once: one that does not answer costs its own time and not the sum of all.
        let mut connecting = JoinSet::new();
        for node in options.nodes.clone() {
            let linger = options.linger;
            connecting.spawn(async move { (node::subscribe(&node, linger).await, node) });
        }
        while let Some(connected) = connecting.join_next().await {
            let (session, attach) = connected.map_err(|error| ended(&error.to_string()))?;
            let session = session?;
            let address = session.node();
            let counters = Arc::new(Counters::default());
            let (link, up) = watch::channel(Link::Up(session.clone()));
            let task = NodeTask {
                attach,
                options: options.clone(),
                address: address.clone(),
                incarnation: session.incarnation(),
                link,
                events: sender.clone(),
                counters: Arc::clone(&counters),
            };
            if nodes.insert(address.clone(), (up, counters)).is_some() {
                let message = format!("{address} is named twice among the nodes of a driver");
                return Err(ShuffleError::new(ErrorKind::InvalidRequest, message).job(job));
            }
            tasks.spawn(task.run(session));
        }
        Ok(Self {
            job,
            nodes,
            events,
            _tasks: tasks,
        })
    }

    /// The nodes, by the addresses under which they serve each other.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeAddress> {
        self.nodes.keys()
    }

    /// What went to and came from a node so far.
    pub fn traffic(&self, node: &NodeAddress) -> NodeTraffic {
        let Some((_, counters)) = self.nodes.get(node) else {
            return NodeTraffic::default();
        };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NodeTraffic {
            messages_in: read(&counters.messages_in),
            bytes_in: read(&counters.bytes_in),
            events: read(&counters.events),
            requests: read(&counters.requests),
            acknowledgements: read(&counters.acknowledgements),
            connections: read(&counters.connections),
        }
    }

    /// The next event of any node. `None`: none came in that time, or every node is lost and has said so. Dropping the
    /// future loses nothing.
    pub async fn next_event(&mut self, within: Duration) -> Option<DriverEvent> {
        tokio::time::timeout(within, self.events.recv()).await.ok().flatten()
    }

    /// An event that is there already.
    pub fn try_next_event(&mut self) -> Option<DriverEvent> {
        self.events.try_recv().ok()
    }

    /// Refuses every attempt of a partition below `partition.attempt` on that node.
    ///
    /// # Errors
    /// What the server refuses with, why the node is lost, `TimedOut`.
    pub async fn fence(&self, node: &NodeAddress, partition: PartitionId) -> Result<()> {
        let session = self.session(node).await?;
        session.fence(partition, &[]).await
    }

    /// Fails a group: every member on every node of it sees `cause` as the first, unless the group failed before.
    ///
    /// # Errors
    /// See [`JobDriver::fence`].
    pub async fn fail_group(&self, node: &NodeAddress, group: &GroupRef, cause: ShuffleError) -> Result<()> {
        self.session(node).await?.fail_group(group, cause).await
    }

    /// Gives every partition of a result on that node up: readers that are there finish.
    ///
    /// # Errors
    /// See [`JobDriver::fence`].
    pub async fn release_result(&self, node: &NodeAddress, result: ResultId) -> Result<()> {
        let release = |request| {
            Message::ReleaseResult(control::ReleaseResult {
                request,
                result: result.value(),
            })
        };
        let session = self.session(node).await?;
        session.request("releasing a result", release).await.map(|_| ())
    }

    /// The job is over: everything that the node has of it is given up.
    ///
    /// # Errors
    /// See [`JobDriver::fence`].
    pub async fn release_job(&self, node: &NodeAddress) -> Result<()> {
        self.session(node).await?.release_job().await
    }

    /// Every counter and gauge of a node's server.
    ///
    /// # Errors
    /// See [`JobDriver::fence`].
    pub async fn status(&self, node: &NodeAddress) -> Result<BTreeMap<String, u64>> {
        self.session(node).await?.status().await
    }

    /// The connection to a node, waited for while it is made again.
    async fn session(&self, node: &NodeAddress) -> Result<Session> {
        let Some((link, counters)) = self.nodes.get(node) else {
            let message = format!("{node} is not a node of this driver");
            return Err(ShuffleError::new(ErrorKind::InvalidRequest, message).job(self.job));
        };
        counters.requests.fetch_add(1, Ordering::Relaxed);
        let mut link = link.clone();
        let settled = link.wait_for(|link| !matches!(link, Link::Broken)).await;
        match settled.as_deref() {
            Ok(Link::Up(session)) => Ok(session.clone()),
            Ok(Link::Lost(cause)) => Err(cause.clone()),
            Ok(Link::Broken) | Err(_) => Err(ended("the task of the node has ended").job(self.job).node(node)),
        }
    }
}

fn ended(message: &str) -> ShuffleError {
    ShuffleError::new(ErrorKind::SessionClosed, message)
}
