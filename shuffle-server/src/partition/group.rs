//! Pipelined groups: admitted elsewhere, failed here, as one.
//!
//! ```text
//!   a member fails on a node ── GroupReport ──▶ home server: the first report decides
//!                                                   │ GroupVerdict to every declared node
//!   every node: fail all members with that one cause ◀┘
//! ```
//!
//! A node whose home server does not answer in time acts on the cause it knows itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use shuffle_protocol::{GroupId, GroupRef, JobId, ShuffleError};

use super::PartitionNo;
use crate::executor::GateNo;

/// A thing on this node that fails with its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MemberRef {
    Partition(PartitionNo),
    Gate(GateNo),
}

/// What this node knows of one group.
#[derive(Debug)]
pub(crate) struct GroupState {
    pub(crate) group: GroupRef,
    pub(crate) members: BTreeSet<MemberRef>,
    /// The first failure of a member on this node, on its way to the home server.
    pub(crate) reported: Option<ShuffleError>,
    /// The decision, once it is known. It never changes.
    pub(crate) verdict: Option<ShuffleError>,
    /// When it was known.
    pub(crate) decided: Option<Instant>,
}

/// The groups of a node.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    states: BTreeMap<(JobId, GroupId), GroupState>,
}

impl Groups {
    pub(crate) fn state(&mut self, job: JobId, group: &GroupRef) -> &mut GroupState {
        self.states.entry((job, group.id)).or_insert_with(|| GroupState {
            group: group.clone(),
            members: BTreeSet::new(),
            reported: None,
            verdict: None,
            decided: None,
        })
    }

    pub(crate) fn get_mut(&mut self, job: JobId, group: GroupId) -> Option<&mut GroupState> {
        self.states.get_mut(&(job, group))
    }

    /// Why a member may not join, if its group has failed.
    pub(crate) fn verdict(&self, job: JobId, group: GroupId) -> Option<&ShuffleError> {
        self.states.get(&(job, group))?.verdict.as_ref()
    }

    /// A member that ended well. A group without members and without a verdict is forgotten.
    pub(crate) fn leave(&mut self, job: JobId, group: GroupId, member: MemberRef) {
        let key = (job, group);
        if let Some(state) = self.states.get_mut(&key) {
            state.members.remove(&member);
            if state.members.is_empty() && state.verdict.is_none() && state.reported.is_none() {
                self.states.remove(&key);
            }
        }
    }

    /// Forgets groups without members that were decided longer ago than `keep`. True: others are still remembered.
    pub(crate) fn sweep(&mut self, now: Instant, keep: Duration) -> bool {
        self.states.retain(|_, state| {
            !state.members.is_empty() || state.decided.is_none_or(|at| now.saturating_duration_since(at) < keep)
        });
        self.states.values().any(|state| state.decided.is_some())
    }
}
