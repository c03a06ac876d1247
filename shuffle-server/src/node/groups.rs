//! How groups fail as one; the states are in `partition::group`.

use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::{GroupId, GroupRef, JobId, ShuffleError, error::ErrorKind};

use super::{Node, Timer};
use crate::partition::MemberRef;

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
        if group.home == self.config.address {
            self.decide(now, job, group, cause);
        } else {
            let report = control::GroupReport {
                job: job.value(),
                group: Some(group.into()),
                cause: Some((&cause).into()),
            };
            self.tell_node(now, &group.home, Message::GroupReport(report));
            self.timers
                .set(now + self.config.group_verdict_after, Timer::Verdict(job, group.id));
        }
    }

    /// Whether a member that fails with this error is to wait for the verdict on its group: it may not have been the first.
    pub(crate) fn waits_for_verdict(&self, job: JobId, group: &GroupRef, error: &ShuffleError) -> bool {
        !matches!(error.kind(), ErrorKind::GroupFailed) && self.groups.verdict(job, group.id).is_none()
    }

    /// Another node reports a failure to this one as the group's home.
    pub(crate) fn handle_group_report(&mut self, now: Instant, job: JobId, group: &GroupRef, cause: ShuffleError) {
        match self.groups.verdict(job, group.id).cloned() {
            Some(verdict) => self.announce(now, job, group, &verdict),
            None => self.decide(now, job, group, cause),
        }
    }

    /// The home server has decided.
    pub(crate) fn handle_group_verdict(&mut self, now: Instant, job: JobId, group: &GroupRef, verdict: ShuffleError) {
        self.apply(now, job, group, verdict);
    }

    /// The home server has not answered in time: this node acts on the cause it knows.
    pub(crate) fn decide_without_home(&mut self, now: Instant, job: JobId, group: GroupId) {
        let Some(state) = self.groups.get_mut(job, group) else {
            return;
        };
        if state.verdict.is_some() {
            return;
        }
        let Some(cause) = state.reported.clone() else { return };
        let group = state.group.clone();
        self.apply(now, job, &group, group_failed(&group, cause).job(job));
    }

    fn decide(&mut self, now: Instant, job: JobId, group: &GroupRef, cause: ShuffleError) {
        let verdict = group_failed(group, cause).job(job);
        self.announce(now, job, group, &verdict);
        self.apply(now, job, group, verdict);
    }

    fn announce(&mut self, now: Instant, job: JobId, group: &GroupRef, verdict: &ShuffleError) {
        for node in &group.nodes {
            if *node != self.config.address {
                let message = control::GroupVerdict {
                    job: job.value(),
                    group: Some(group.into()),
                    cause: Some(verdict.into()),
                };
                self.tell_node(now, node, Message::GroupVerdict(message));
            }
        }
    }

    fn apply(&mut self, now: Instant, job: JobId, group: &GroupRef, verdict: ShuffleError) {
        let state = self.groups.state(job, group);
        if state.verdict.is_some() {
            return;
        }
        state.verdict = Some(verdict.clone());
        state.decided = Some(now);
        let members = std::mem::take(&mut state.members);
        self.counters.groups_failed += 1;
        tracing::warn!(%job, group = %group.id, members = members.len(), "group failed: {verdict}");
        for member in members {
            match member {
                MemberRef::Partition(no) => self.fail_partition(now, no, verdict.clone()),
                MemberRef::Gate(no) => self.fail_gate(now, no, &verdict),
            }
        }
        self.plan_sweep(now);
    }
}

fn group_failed(group: &GroupRef, cause: ShuffleError) -> ShuffleError {
    ShuffleError::new(ErrorKind::GroupFailed, format!("group {} failed as one", group.id)).because(cause)
}
