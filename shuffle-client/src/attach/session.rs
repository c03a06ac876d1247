//! The session of an executor with its node's server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shuffle_protocol::control;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::ids::{Incarnation, JobId, NodeAddress, PartitionId};
use shuffle_protocol::partition::GroupRef;

use super::driver::Driver;
use super::handshake::establish;
use super::memory::Memory;
use super::options::AttachOptions;
use super::request::{millis, notify, request};
use super::shared::{Lifeline, SessionShared};
use crate::consumer::{self, Gate, GateSpec};
use crate::producer::{self, PartitionSpec, Writer};

/// A session of one executor, bound to one job, with one shuffle server. Clones are handles to the same session.
///
/// It needs a tokio runtime, of either kind: a task that it starts when it attaches owns the connection. The connection
/// stays until every handle, writer, gate and received buffer is dropped, or until it breaks: then everything that is
/// open fails with the same error.
#[derive(Clone)]
pub struct Session {
    lifeline: Arc<Lifeline>,
}

impl Session {
    /// Attaches to a server.
    ///
    /// # Errors
    /// `NodeUnreachable` if nobody listens; `Denied`, `VersionMismatch`, `Draining` or whatever else the server refuses
    /// with; `TimedOut`; `Protocol` if something else listens there; `Io` if the arenas cannot be mapped.
    pub async fn attach(options: AttachOptions) -> Result<Self> {
        let mut established = establish(&options).await?;
        let placeholder = Memory::Heap {
            buffer_bytes: established.facts.buffer_bytes,
        };
        let memory = std::mem::replace(&mut established.memory, placeholder);
        let lifeline = Lifeline::new(Arc::new(SessionShared::new(established.facts.clone(), memory)));
        tokio::spawn(Driver::new(established, &lifeline).run());
        Ok(Self { lifeline })
    }

    /// The address under which the server serves other nodes: what consumers elsewhere give as the node of this
    /// executor's partitions.
    pub fn node(&self) -> NodeAddress {
        self.lifeline.facts().node.clone()
    }

    /// The job the session is bound to.
    pub fn job(&self) -> JobId {
        self.lifeline.facts().job
    }

    /// Size of a buffer, in bytes.
    pub fn buffer_bytes(&self) -> u32 {
        self.lifeline.facts().buffer_bytes
    }

    /// Largest record or event that can be written, in bytes.
    pub fn max_record_bytes(&self) -> u64 {
        self.lifeline.facts().max_record_bytes
    }

    /// Creates a result partition and gives its writer. It waits for the buffers that the partition is guaranteed; an
    /// older attempt of the partition is fenced.
    ///
    /// # Errors
    /// `InsufficientBuffers` with who holds them; `Superseded` if a newer attempt is known; `AlreadyExists`, `Draining`,
    /// `GroupFailed`, `Unsupported`, `LimitExceeded`, `InvalidRequest`; `TimedOut` and whatever ends the session.
    pub async fn create_partition(&self, spec: PartitionSpec) -> Result<Writer> {
        producer::create(self.lifeline.clone(), spec).await
    }

    /// Opens a gate. It waits for the buffers behind its credits, not for the partitions it reads: one that cannot be read
    /// fails the gate later.
    ///
    /// # Errors
    /// `InsufficientBuffers` with who holds them; `GroupFailed`, `LimitExceeded`, `InvalidRequest`; `TimedOut`
    /// and whatever ends the session.
    pub async fn open_gate(&self, spec: GateSpec) -> Result<Gate> {
        let job = self.job();
        consumer::open(self.lifeline.clone(), spec)
            .await
            .map_err(|error| error.job(job))
    }

    /// Refuses every attempt of a partition below `partition.attempt` from now on, at this session's node and at
    /// `nodes`.
    ///
    /// # Errors
    /// Whatever the server refuses with; `TimedOut` and whatever ends the session.
    pub async fn fence(&self, partition: PartitionId, nodes: &[NodeAddress]) -> Result<()> {
        let nodes = nodes.iter().map(ToString::to_string).collect();
        self.request("fencing", |request| {
            Message::Fence(control::Fence {
                request,
                partition: Some(partition.into()),
                nodes,
            })
        })
        .await
        .map(|_| ())
        .map_err(|error| error.partition(partition))
    }

    /// Fails a group on all its nodes: every member sees `cause` as the first cause, unless the group failed before.
    ///
    /// # Errors
    /// Whatever the server refuses with; `TimedOut` and whatever ends the session.
    pub async fn fail_group(&self, group: &GroupRef, cause: ShuffleError) -> Result<()> {
        self.request("failing a group", |request| {
            Message::FailGroup(control::FailGroup {
                request,
                group: Some(group.into()),
                cause: Some((&cause).into()),
            })
        })
        .await
        .map(|_| ())
    }

    /// Gives a finished partition of this node up: readers that have it open finish, new ones are told that it was
    /// released.
    ///
    /// # Errors
    /// Whatever the server refuses with; `TimedOut` and whatever ends the session.
    pub async fn release_partition(&self, partition: PartitionId) -> Result<()> {
        self.request("releasing a partition", |request| {
            Message::ReleasePartition(control::ReleasePartition {
                request,
                partition: Some(partition.into()),
            })
        })
        .await
        .map(|_| ())
        .map_err(|error| error.partition(partition))
    }

    /// The job is over: everything that this node keeps of it is released, as by [`Session::release_partition`].
    ///
    /// # Errors
    /// Whatever the server refuses with; `TimedOut` and whatever ends the session.
    pub async fn release_job(&self) -> Result<()> {
        self.request("releasing a job", |request| {
            Message::ReleaseJob(control::ReleaseJob { request })
        })
        .await
        .map(|_| ())
    }

    /// Every counter and gauge of the server by its metric name, and the books of its pool ("buffers_free", ...).
    ///
    /// # Errors
    /// `TimedOut` and whatever ends the session.
    pub async fn status(&self) -> Result<BTreeMap<String, u64>> {
        let reply = self
            .request("reading the status", |request| {
                Message::Status(control::Status { request })
            })
            .await?;
        let counters = reply.status.unwrap_or_default().counters;
        Ok(counters
            .into_iter()
            .map(|counter| (counter.name, counter.value))
            .collect())
    }

    /// Ends the session in order: waits until every other handle, writer, gate and received buffer is dropped and
    /// everything that was to be said is sent.
    ///
    /// # Errors
    /// `TimedOut` after the request timeout if something is still held: the connection then stays until it is dropped.
    pub async fn detach(self) -> Result<()> {
        let shared = self.lifeline.shared().clone();
        drop(self);
        let after = shared.facts.request_timeout;
        tokio::time::timeout(after, shared.done.cancelled()).await.map_err(|_| {
            let what = "giving back every writer, gate and buffer".to_owned();
            ShuffleError::new(
                ErrorKind::TimedOut { what, after },
                "the session stays open until they are dropped",
            )
            .job(shared.facts.job)
            .node(&shared.facts.node)
        })
    }

    /// Which start of the server this is.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.lifeline.facts().incarnation
    }

    /// Wants to hear of the job's partitions on this node.
    pub(crate) async fn subscribe(&self, linger: Duration) -> Result<()> {
        let linger_ms = if linger.is_zero() { 0 } else { millis(Some(linger)) };
        self.request("subscribing to partitions", |request| {
            Message::Subscribe(control::Subscribe { request, linger_ms })
        })
        .await
        .map(|_| ())
    }

    /// The next message with events, or why the session ended.
    pub(crate) async fn next_events(&self) -> Result<control::PartitionEvents> {
        self.lifeline.shared().events.next().await
    }

    /// That message, and what came before it, was taken in.
    pub(crate) fn say_seen(&self, number: u64) {
        notify(&self.lifeline, |_| Message::EventsSeen(control::EventsSeen { number }));
    }

    pub(crate) async fn request(
        &self,
        what: &'static str,
        message: impl FnOnce(u64) -> Message,
    ) -> Result<control::Reply> {
        request(&self.lifeline, what, None, |request| message(request.value())).await
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("facts", self.lifeline.facts())
            .finish_non_exhaustive()
    }
}
