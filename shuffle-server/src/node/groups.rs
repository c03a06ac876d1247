//! How groups fail as one; the states are in `partition::group`.

use std::sync::Arc;
use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::{GroupId, GroupRef, JobId, ShuffleError, error::ErrorKind};

use super::{Node, Timer};
use crate::executor::protocol;
use crate::partition::{MemberRef, judges};
use crate::peer::PathId;

impl<B: Backing> Node<B> {
    /// A member of the group failed on this node. The home server decides whether it was the first.
    pub(crate) fn handle_member_failed(&mut self, now: Instant, job: JobId, group: &GroupRef, cause: ShuffleError) {
        let state = self.groups.state(job, group);
        if state.verdict.is_some() || state.reported.is_some() {
            return;
        }
        // The first cause is what everyone is to see, not the chain through which this node learned of it.
        let cause = cause.first_cause().clone();
        state.reported = Some(cause.clone());
        self.ask_judge(now, job, group, cause);
    }

    /// Asks who decides, of those that may live the next that was not asked; after the last this node decides itself.
    fn ask_judge(&mut self, now: Instant, job: JobId, group: &GroupRef, cause: ShuffleError) {
        let asked = self.groups.state(job, group).asked;
        let next = judges(group)
            .enumerate()
            .skip(asked)
            .find(|(_, node)| !self.is_given_up(now, node));
        let Some((at, judge)) = next.filter(|(_, node)| **node != self.config.address) else {
            return self.decide(now, job, group, cause);
        };
        self.groups.state(job, group).asked = at + 1;
        let report = control::GroupReport {
            job: job.value(),
            group: Some(group.into()),
            cause: Some((&cause).into()),
        };
        self.tell_node(now, judge, Message::GroupReport(report));
        self.timers
            .set(now + self.config.group_verdict_after, Timer::Verdict(job, group.id));
    }

    /// Whether a member that fails with this error is to wait for the verdict on its group: it may not have been the first.
    pub(crate) fn waits_for_verdict(&self, job: JobId, group: &GroupRef, error: &ShuffleError) -> bool {
        !matches!(error.kind(), ErrorKind::GroupFailed) && self.groups.verdict(job, group.id).is_none()
    }

    /// What servers say to each other of groups.
    ///
    /// # Errors
    /// Something is missing in the message, or it is of something else.
    pub(crate) fn handle_group_message(
        &mut self,
        now: Instant,
        from: PathId,
        message: Message,
    ) -> Result<(), ShuffleError> {
        let named = |group| GroupRef::try_from(control::required(group, "group")?);
        match message {
            Message::GroupReport(report) => {
                let cause = control::required(report.cause, "cause")?.into();
                self.handle_group_report(now, from, JobId::new(report.job), &named(report.group)?, cause);
            }
            Message::GroupVerdict(verdict) => {
                let cause = control::required(verdict.cause, "cause")?.into();
                self.handle_group_verdict(now, JobId::new(verdict.job), &named(verdict.group)?, cause);
            }
            Message::GroupJoin(join) => self.handle_group_join(now, from, JobId::new(join.job), &named(join.group)?),
            Message::GroupLeave(leave) => {
                self.handle_group_leave(from, JobId::new(leave.job), GroupId::new(leave.group));
            }
            _ => return Err(protocol("this message is not of groups")),
        }
        Ok(())
    }

    /// Another node reports a failure to this one, the group's home or who decides in its place.
    fn handle_group_report(&mut self, now: Instant, from: PathId, job: JobId, group: &GroupRef, cause: ShuffleError) {
        match self.groups.shared_verdict(job, group.id) {
            Some(verdict) => self.tell_path_surely(from, verdict_message(job, group, &verdict)),
            None => {
                self.groups.state(job, group).reported = Some(cause.clone());
                self.decide(now, job, group, cause);
            }
        }
    }

    /// Another node has decided.
    fn handle_group_verdict(&mut self, now: Instant, job: JobId, group: &GroupRef, verdict: ShuffleError) {
        self.apply(now, job, group, verdict);
    }

    /// Who was asked has not answered in time.
    pub(crate) fn handle_no_verdict(&mut self, now: Instant, job: JobId, group: GroupId) {
        let Some(state) = self.groups.get_mut(job, group) else {
            return;
        };
        if state.verdict.is_some() {
            return;
        }
        let Some(cause) = state.reported.clone() else { return };
        let group = state.group.clone();
        self.ask_judge(now, job, &group, cause);
    }

    fn decide(&mut self, now: Instant, job: JobId, group: &GroupRef, cause: ShuffleError) {
        let verdict = group_failed(group, cause).job(job);
        self.announce(now, job, group, &verdict);
        self.apply(now, job, group, verdict);
    }

    fn announce(&mut self, now: Instant, job: JobId, group: &GroupRef, verdict: &ShuffleError) {
        let home = Some(&group.home).filter(|home| !group.nodes.contains(home));
        for node in group.nodes.iter().chain(home) {
            if *node != self.config.address {
                self.tell_node(now, node, verdict_message(job, group, verdict));
            }
        }
    }

    fn apply(&mut self, now: Instant, job: JobId, group: &GroupRef, verdict: ShuffleError) {
        let state = self.groups.state(job, group);
        if state.verdict.is_some() {
            return;
        }
        let verdict = Arc::new(verdict);
        state.verdict = Some(Arc::clone(&verdict));
        state.decided = Some(now);
        let members = std::mem::take(&mut state.members);
        self.end_watches(now, job, group);
        self.counters.groups_failed += 1;
        self.timers.cancel(Timer::Verdict(job, group.id));
        tracing::warn!(%job, group = %group.id, members = members.len(), "group failed: {verdict}");
        for member in members {
            match member {
                MemberRef::Partition(no) => self.fail_partition(now, no, verdict.as_ref().clone()),
                MemberRef::Gate(no) => self.fail_gate(now, no, &verdict),
            }
        }
        self.fail_pending(job, group.id, &verdict);
        self.plan_sweep(now);
    }
}

pub(super) fn verdict_message(job: JobId, group: &GroupRef, verdict: &ShuffleError) -> Message {
    Message::GroupVerdict(control::GroupVerdict {
        job: job.value(),
        group: Some(group.into()),
        cause: Some(verdict.into()),
    })
}

fn group_failed(group: &GroupRef, cause: ShuffleError) -> ShuffleError {
    ShuffleError::new(ErrorKind::GroupFailed, format!("group {} failed as one", group.id)).because(cause)
}
