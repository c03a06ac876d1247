//! The requests of an executor, each answered once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use buffer_pool::{ArenaKind, Backing, JobKey, PoolError};
use shuffle_protocol::control::{self, control::Message, required};
use shuffle_protocol::error::{ErrorKind, Initiator};
use shuffle_protocol::partition::Lifetime;
use shuffle_protocol::{GateId, GroupRef, JobId, NodeAddress, PartitionId, ResultId, ShuffleError, StreamId, WriterId};

use super::finish::Answer;
use super::session::protocol;
use crate::node::{ChannelNo, Node, Pending, PendingKind, SessionId, Timer, pool_error};
use crate::partition::{PartitionNo, Tombstone};

/// What a creation asks for, where nothing but buffers can be in its way.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) job: JobId,
    pub(super) group: Option<GroupRef>,
    /// Buffers to be guaranteed; a product may be larger than any pool.
    pub(super) need: u64,
}

impl<B: Backing> Node<B> {
    pub(crate) fn handle_request(&mut self, now: Instant, id: SessionId, message: Message) -> Result<(), ShuffleError> {
        match message {
            Message::CreatePartition(request) => {
                let timeout = request.timeout_ms;
                let number = request.request;
                self.try_or_wait(now, id, number, timeout, PendingKind::Partition(Box::new(request)));
            }
            Message::OpenGate(request) => {
                let timeout = request.timeout_ms;
                let number = request.request;
                self.try_or_wait(now, id, number, timeout, PendingKind::Gate(Box::new(request)));
            }
            Message::FinishPartition(request) => match self.finish_partition(now, id, &request) {
                Ok(Answer::Later) => {}
                Ok(Answer::Now) => self.reply(id, request.request, Ok(())),
                Err(error) => self.reply(id, request.request, Err(error)),
            },
            Message::AbortPartition(request) => {
                let outcome = self.abort_partition(now, id, WriterId::new(request.writer), request.cause);
                self.reply(id, request.request, outcome);
            }
            Message::CloseGate(request) => {
                self.close_gate(now, id, GateId::new(request.gate));
                self.reply(id, request.request, Ok(()));
            }
            Message::CancelChannel(request) => {
                self.cancel_channel(now, id, StreamId::new(request.stream));
                self.reply(id, request.request, Ok(()));
            }
            Message::Fence(request) => {
                let outcome = self.request_fence(now, id, &request);
                self.reply(id, request.request, outcome);
            }
            Message::FailGroup(request) => {
                let outcome = self.request_group_failure(now, id, &request);
                self.reply(id, request.request, outcome);
            }
            Message::ReleasePartition(request) => {
                let outcome = self.request_release(now, id, request.partition);
                self.reply(id, request.request, outcome);
            }
            Message::ReleaseJob(request) => {
                let outcome = self.release_job(now, id);
                self.reply(id, request.request, outcome);
            }
            Message::ReleaseResult(request) => {
                let outcome = self.release_result(now, id, ResultId::new(request.result));
                self.reply(id, request.request, outcome);
            }
            Message::Subscribe(request) => {
                let outcome = self.subscribe(id, &request);
                self.reply(id, request.request, outcome);
            }
            Message::EventsSeen(seen) => self.handle_events_seen(id, seen.number)?,
            Message::ReportMismatch(report) => return self.report_mismatch(now, id, &report),
            Message::Status(request) => {
                let counters = self
                    .status()
                    .into_iter()
                    .map(|(name, value)| control::Counter { name, value })
                    .collect();
                let report = control::StatusReport { counters };
                let reply = control::Reply {
                    request: request.request,
                    error: None,
                    status: Some(report),
                };
                self.tell_session(id, Message::Reply(reply));
            }
            other => return Err(protocol(format!("an executor does not send {}", kind_of(&other)))),
        }
        Ok(())
    }

    /// Does it now, or as soon as buffers have come home, or refuses it at the deadline. What nothing can come of is
    /// refused at once.
    fn try_or_wait(&mut self, now: Instant, id: SessionId, request: u64, timeout_ms: u32, kind: PendingKind) {
        let claim = match &kind {
            PendingKind::Partition(request) => self.check_partition(id, request),
            PendingKind::Gate(request) => self.check_gate(id, request),
        };
        let outcome = claim.and_then(|claim| Ok((self.check_need(&claim, kind.arena())?, claim)));
        let (need, claim) = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return self.reply(id, request, Err(error)),
        };
        let deadline = now + self.timeout(timeout_ms);
        let pending = Pending {
            session: id,
            request,
            job: claim.job,
            group: claim.group.map(|group| group.id),
            deadline,
            need,
            kind,
        };
        if !self.must_wait(&pending) {
            return self.attempt(now, pending);
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let limit = self.config.quotas.requests_per_session;
        if session.waiting_requests >= limit {
            let asked = session.waiting_requests.saturating_add(1);
            let what = "requests of one session that wait for buffers";
            return self.reply(
                id,
                request,
                Err(limit_exceeded(what, limit, asked, "limits.requests_per_session")),
            );
        }
        session.waiting_requests += 1;
        self.timers.set_no_later(deadline, Timer::Pending);
        self.pending.push(pending);
    }

    /// Buffers are missing, or others wait for the same kind.
    fn must_wait(&self, pending: &Pending) -> bool {
        let arena = pending.kind.arena();
        let available = || self.pool.available(JobKey(pending.job.value()), arena);
        pending.need > 0 && (!self.pending.is_clear(arena) || pending.need > available())
    }

    /// What is to be guaranteed, where that can be at all.
    fn check_need(&self, claim: &Claim, arena: ArenaKind) -> Result<u32, ShuffleError> {
        let most = self.pool.most(arena);
        if let Ok(need) = u32::try_from(claim.need)
            && need <= most
        {
            return Ok(need);
        }
        let refusal = PoolError::Insufficient {
            need: u32::try_from(claim.need).unwrap_or(u32::MAX),
            available: self.pool.available(JobKey(claim.job.value()), arena),
            total: most,
            holders: self.pool.holders(),
        };
        let error = ShuffleError::new(
            pool_error(&refusal).kind().clone(),
            "this server can never guarantee so many: ask for fewer buffers, or give the server a larger pool",
        );
        Err(error.by(Initiator::Caller).retryable(false).job(claim.job))
    }

    /// What a request may wait: what it says, but never longer than the server allows.
    pub(crate) fn timeout(&self, timeout_ms: u32) -> Duration {
        let asked = Duration::from_millis(u64::from(timeout_ms));
        if asked.is_zero() {
            self.config.request_timeout
        } else {
            asked.min(self.config.request_timeout)
        }
    }

    fn request_fence(&mut self, now: Instant, id: SessionId, request: &control::Fence) -> Result<(), ShuffleError> {
        let job = self.open_session(id)?.info.job;
        let partition = PartitionId::from(required(request.partition, "partition")?);
        let nodes = control::parse_nodes(&request.nodes)?;
        self.fence(now, job, partition);
        for node in nodes {
            if node != self.config.address {
                let notice = control::FenceNotice {
                    job: job.value(),
                    partition: Some(partition.into()),
                };
                self.tell_node(now, &node, Message::FenceNotice(notice));
            }
        }
        Ok(())
    }

    fn request_group_failure(
        &mut self,
        now: Instant,
        id: SessionId,
        request: &control::FailGroup,
    ) -> Result<(), ShuffleError> {
        let job = self.open_session(id)?.info.job;
        let group = GroupRef::try_from(required(request.group.clone(), "group")?)?;
        let cause = request.cause.clone().map_or_else(
            || ShuffleError::new(ErrorKind::Aborted, "the driver failed the group"),
            ShuffleError::from,
        );
        self.handle_member_failed(now, job, &group, cause);
        Ok(())
    }

    fn request_release(
        &mut self,
        now: Instant,
        id: SessionId,
        partition: Option<control::Partition>,
    ) -> Result<(), ShuffleError> {
        let job = self.open_session(id)?.info.job;
        let partition = PartitionId::from(required(partition, "partition")?);
        self.give_up_unread(now, job, partition)
    }

    /// The job is over: nobody new may read anything of it here.
    fn release_job(&mut self, now: Instant, id: SessionId) -> Result<(), ShuffleError> {
        let job = self.open_session(id)?.info.job;
        let of_job = self.partitions.iter().filter(|(_, partition)| partition.job == job);
        let partitions: Vec<PartitionNo> = of_job.map(|(no, _)| no).collect();
        for no in partitions {
            self.discard_unread(now, no, Tombstone::Released);
        }
        Ok(())
    }

    /// Who reads a broadcast partition, by node; `None` where the request is for one that is not.
    ///
    /// # Errors
    /// `InvalidRequest`: it contradicts itself, or nobody could say when a buffer of it is needed no more.
    pub(super) fn consumers_of(
        &self,
        request: &control::CreatePartition,
    ) -> Result<Option<Vec<(NodeAddress, u32)>>, ShuffleError> {
        let invalid = |message: &str| Err(ShuffleError::new(ErrorKind::InvalidRequest, message));
        if !request.broadcast {
            if !request.consumers.is_empty() {
                return invalid("only a broadcast partition has declared consumers");
            }
            return Ok(None);
        }
        if request.subpartitions != 1 {
            return invalid("a broadcast partition has one queue: ask for one subpartition");
        }
        if request.consumers.is_empty() && request.kind()?.lifetime == Lifetime::Ephemeral {
            return invalid(
                "an ephemeral broadcast partition keeps each buffer until all consumers have read it: declare how many there are on each node, or make it persistent",
            );
        }
        let mut consumers = BTreeMap::new();
        for of in &request.consumers {
            let node = if self.is_own(&of.node) {
                self.config.address.clone()
            } else {
                Self::parse_node(&of.node)?
            };
            if of.count == 0 || consumers.insert(node, of.count).is_some() {
                return invalid(
                    "each node with consumers of a broadcast partition is declared once, with at least one",
                );
            }
        }
        Ok(Some(consumers.into_iter().collect()))
    }

    pub(crate) fn channel_of(&self, id: SessionId, stream: StreamId) -> Option<ChannelNo> {
        self.sessions.get(id)?.channels.get(&stream).copied()
    }

    /// Whether this address is this node, in the words of its executors.
    pub(crate) fn is_own(&self, node: &str) -> bool {
        node.is_empty() || node == self.config.address.as_str()
    }

    pub(crate) fn parse_node(node: &str) -> Result<NodeAddress, ShuffleError> {
        NodeAddress::parse(node)
    }
}

/// A limit of the server's configuration, by its key.
pub(crate) fn limit_exceeded(what: &str, limit: u32, asked: u32, key: &str) -> ShuffleError {
    ShuffleError::new(
        ErrorKind::LimitExceeded {
            what: what.to_owned(),
            limit: u64::from(limit),
            asked: u64::from(asked),
        },
        format!("the server's configuration sets this limit: {key}"),
    )
}

/// A limit of the protocol, the same on every server.
pub(crate) fn beyond_protocol(what: &str, limit: u64, asked: u64) -> ShuffleError {
    let what = what.to_owned();
    ShuffleError::new(
        ErrorKind::LimitExceeded { what, limit, asked },
        "the protocol sets this limit, no configuration raises it",
    )
}

fn kind_of(message: &Message) -> &'static str {
    match message {
        Message::Hello(_) | Message::Welcome(_) | Message::Reject(_) => "a handshake message in an open session",
        Message::Reply(_) | Message::WriterFailed(_) | Message::ChannelFailed(_) | Message::PartitionEvents(_) => {
            "a server's answer"
        }
        Message::OpenChannel(_)
        | Message::CloseChannel(_)
        | Message::TraceBuffer(_)
        | Message::FenceNotice(_)
        | Message::GroupReport(_)
        | Message::GroupVerdict(_)
        | Message::GroupJoin(_)
        | Message::GroupLeave(_)
        | Message::AudienceClosed(_)
        | Message::Refetchable(_) => "what only servers say to each other",
        _ => "this message here",
    }
}
