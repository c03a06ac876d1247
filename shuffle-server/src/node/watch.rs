//! How the loss of a server is noticed by the groups that it concerns; see `partition::group`.

use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::{GroupId, GroupRef, JobId, ShuffleError};

use super::Node;
use crate::partition::{MemberRef, judges};
use crate::peer::PathId;

/// Groups for which one peer is watched. It has a member of each, and those are limited where they are made.
const MAX_WATCHED: usize = 65_536;

impl<B: Backing> Node<B> {
    /// A member more. With the first of them the node joins the group.
    pub(crate) fn join_group(&mut self, now: Instant, job: JobId, group: &GroupRef, member: MemberRef) {
        let state = self.groups.state(job, group);
        let is_first = state.members.is_empty();
        state.members.insert(member);
        if !is_first {
            return;
        }
        if group.home != self.config.address {
            return self.watch_home(now, job, group);
        }
        if state.joined.is_empty() {
            self.ask_deputies(now, job, group);
        }
    }

    fn watch_home(&mut self, now: Instant, job: JobId, group: &GroupRef) {
        let id = self.path_to(&group.home, 0);
        self.groups.state(job, group).watched = Some(id);
        if let Some(path) = self.paths.get_mut(id) {
            path.groups.insert((job, group.id));
        }
        self.tell_node(now, &group.home, join_message(job, group));
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
            self.unwatch_home(now, job, group);
        }
        self.groups.forget_if_over(job, group.id);
    }

    fn unwatch_home(&mut self, now: Instant, job: JobId, group: &GroupRef) {
        let watched = self
            .groups
            .get_mut(job, group.id)
            .and_then(|state| state.watched.take());
        let Some(id) = watched else { return };
        if let Some(path) = self.paths.get_mut(id) {
            path.groups.remove(&(job, group.id));
        }
        if !self.is_given_up(now, &group.home) {
            let leave = control::GroupLeave {
                job: job.value(),
                group: group.id.value(),
            };
            self.tell_node(now, &group.home, Message::GroupLeave(leave));
        }
    }

    /// Another node has members of a group. Without a verdict only its home server has to keep that in mind.
    pub(crate) fn handle_group_join(&mut self, from: PathId, job: JobId, group: &GroupRef) {
        if let Some(verdict) = self.groups.shared_verdict(job, group.id) {
            return self.tell_path_surely(from, super::groups::verdict_message(job, group, &verdict));
        }
        if group.home != self.config.address {
            return;
        }
        let Some(path) = self.paths.get_mut(from) else { return };
        if path.groups.len() == MAX_WATCHED {
            self.counters.refused += 1;
            return;
        }
        path.groups.insert((job, group.id));
        self.groups.state(job, group).joined.insert(from);
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
        self.unwatch_home(now, job, group);
    }

    /// A peer is lost, or forgets what it was: for the groups that it was watched for that is the failure of a member.
    pub(crate) fn fail_groups_of(&mut self, now: Instant, id: PathId, error: &ShuffleError) {
        let Some(path) = self.paths.get_mut(id) else { return };
        for (job, group) in std::mem::take(&mut path.groups) {
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
