//! How the loss of a server is noticed by the groups that it concerns; see `partition::group`.

use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::{GroupId, GroupRef, Incarnation, JobId, ShuffleError};

use super::Node;
use crate::partition::{MemberRef, judges};
use crate::peer::PathId;

/// Groups for which one peer is watched. It has a member of each, and those are limited where they are made.
const MAX_WATCHED: usize = 65_536;

impl<B: Backing> Node<B> {
    /// A member more. With the first of them the node joins the group.
    pub(crate) fn join_group(&mut self, now: Instant, job: JobId, group: &GroupRef, member: MemberRef) {
        let is_new = self.groups.get_mut(job, group.id).is_none();
        let state = self.groups.state(job, group);
        let is_first = state.members.is_empty();
        state.members.insert(member);
        if group.home == self.config.address {
            if is_new {
                self.ask_deputies(now, job, group);
            }
        } else if is_first {
            self.watch_home(now, job, group.id);
        }
    }

    fn watch_home(&mut self, now: Instant, job: JobId, group: GroupId) {
        let Some(state) = self.groups.get_mut(job, group) else {
            return;
        };
        let known = state.group.clone();
        if known.home == self.config.address {
            return;
        }
        let id = self.path_to(&known.home, 0);
        self.groups.state(job, &known).watched = Some(id);
        if let Some(path) = self.paths.get_mut(id) {
            path.watch(job, group);
        }
        self.tell_path_surely(id, join_message(job, &known));
        self.want_link(now, id);
    }

    /// This home server may have been restarted, and others may remember what it has forgotten.
    fn ask_deputies(&mut self, now: Instant, job: JobId, group: &GroupRef) {
        for deputy in judges(group).skip(1) {
            if *deputy != self.config.address && !self.is_given_up(now, deputy) {
                self.tell_node(now, deputy, join_message(job, group));
            }
        }
    }

    /// A member has ended. With the last of them the node leaves the group.
    pub(crate) fn leave_group(&mut self, now: Instant, job: JobId, group: &GroupRef, member: MemberRef) {
        let Some(state) = self.groups.get_mut(job, group.id) else {
            return;
        };
        if !state.members.remove(&member) {
            return;
        }
        if state.members.is_empty() {
            self.unwatch_home(now, job, group.id);
        }
        self.groups.forget_if_over(job, group.id);
    }

    /// Also where the home server is given up: it may have been told of the join, or be told yet.
    fn unwatch_home(&mut self, now: Instant, job: JobId, group: GroupId) {
        let watched = self.groups.get_mut(job, group).and_then(|state| state.watched.take());
        let Some(id) = watched else { return };
        if let Some(path) = self.paths.get_mut(id) {
            path.groups.remove(&(job, group));
        }
        let leave = control::GroupLeave {
            job: job.value(),
            group: group.value(),
        };
        self.tell_path_surely(id, Message::GroupLeave(leave));
        self.want_link(now, id);
    }

    /// Another node has members of a group. Without a verdict only its home server has to keep that in mind.
    pub(crate) fn handle_group_join(&mut self, now: Instant, from: PathId, job: JobId, group: &GroupRef) {
        if let Some(verdict) = self.groups.shared_verdict(job, group.id) {
            return self.tell_path_surely(from, super::groups::verdict_message(job, group, &verdict));
        }
        if group.home != self.config.address {
            return;
        }
        let known = self.groups.get_mut(job, group.id).map(|state| state.group.home.clone());
        let Some(path) = self.paths.get_mut(from) else { return };
        let is_elsewhere = known.as_ref().is_some_and(|home| *home != self.config.address);
        if is_elsewhere || path.groups.len() >= MAX_WATCHED {
            self.counters.refused += 1;
            return;
        }
        path.watch(job, group.id);
        self.groups.state(job, group).joined.insert(from);
        if known.is_none() {
            self.ask_deputies(now, job, group);
        }
    }

    /// Another node has no member of the group any more.
    pub(crate) fn handle_group_leave(&mut self, from: PathId, job: JobId, group: GroupId) {
        let Some(state) = self.groups.get_mut(job, group) else {
            return;
        };
        if !state.joined.remove(&from) {
            return;
        }
        if let Some(path) = self.paths.get_mut(from) {
            path.groups.remove(&(job, group));
        }
        self.groups.forget_if_over(job, group);
    }

    /// The group has failed: nobody has to be watched for it any more.
    pub(crate) fn end_watches(&mut self, now: Instant, job: JobId, group: &GroupRef) {
        let Some(state) = self.groups.get_mut(job, group.id) else {
            return;
        };
        for id in std::mem::take(&mut state.joined) {
            if let Some(path) = self.paths.get_mut(id) {
                path.groups.remove(&(job, group.id));
            }
        }
        self.unwatch_home(now, job, group.id);
    }

    /// A peer is lost, or was restarted: for the groups that it was watched for, and that are meant, that is the failure of a
    /// member.
    pub(crate) fn fail_groups_of(
        &mut self,
        now: Instant,
        id: PathId,
        error: &ShuffleError,
        is_meant: impl Fn(Option<Incarnation>) -> bool,
    ) {
        let Some(path) = self.paths.get_mut(id) else { return };
        let meant = path.groups.iter().filter(|(_, heard)| is_meant(**heard));
        let meant: Vec<_> = meant.map(|(group, _)| *group).collect();
        for (job, group) in meant {
            if let Some(path) = self.paths.get_mut(id) {
                path.groups.remove(&(job, group));
            }
            let Some(state) = self.groups.get_mut(job, group) else {
                continue;
            };
            state.joined.remove(&id);
            if state.watched == Some(id) {
                state.watched = None;
            }
            let group = state.group.clone();
            self.handle_member_failed(now, job, &group, error.clone().job(job));
        }
    }
}

fn join_message(job: JobId, group: &GroupRef) -> Message {
    Message::GroupJoin(control::GroupJoin {
        job: job.value(),
        group: Some(group.into()),
    })
}
