//! Pipelined groups: admitted elsewhere, failed here, as one.
//!
//! ```text
//!   a member fails on a node ── GroupReport ──▶ home server: the first report decides
//!                                                   │ GroupVerdict to every declared node
//!   every node: fail all members with that one cause ◀┘
//! ```
//!
//! A node with members has joined at the home server (`GroupJoin`), and while it has any the two keep a connection: each takes
//! the loss or the restart of the other for the failure of a member. The home server, and who decides in its place, answers
//! who joins late with the verdict, so that a server that was restarted learns of it.
//!
//! Where the home server is lost, or does not answer in time, the next judge is asked in its place: the first two of the
//! other declared nodes, in their order, and then the node that noticed decides itself. Whoever decides tells all nodes, and
//! on each the first verdict stays. So all members see one first cause, but where
//!
//! - the network is torn: two judges cannot hear of each other, and both decide;
//! - a judge dies when it has told some and not all: who was told keeps that cause, another judge decides for the others;
//! - the home server comes back, and has forgotten, while another judge decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shuffle_protocol::{GroupId, GroupRef, JobId, NodeAddress, ShuffleError};

use super::PartitionNo;
use crate::executor::GateNo;
use crate::peer::PathId;

/// Nodes that may decide in the home server's place.
const DEPUTIES: usize = 2;

/// Who decides, in the order in which they are asked.
pub(crate) fn judges(group: &GroupRef) -> impl Iterator<Item = &NodeAddress> {
    let others = group.nodes.iter().filter(|node| **node != group.home);
    std::iter::once(&group.home).chain(others.take(DEPUTIES))
}

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
    /// The way to the home server, watched while there are members here.
    pub(crate) watched: Option<PathId>,
    /// At the home server: the nodes that have members.
    pub(crate) joined: BTreeSet<PathId>,
    /// The first failure of a member on this node, on its way to who decides.
    pub(crate) reported: Option<ShuffleError>,
    /// Judges that were asked, or passed over.
    pub(crate) asked: usize,
    /// The decision, once it is known. It never changes.
    pub(crate) verdict: Option<Arc<ShuffleError>>,
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
            watched: None,
            joined: BTreeSet::new(),
            reported: None,
            asked: 0,
            verdict: None,
            decided: None,
        })
    }

    pub(crate) fn get_mut(&mut self, job: JobId, group: GroupId) -> Option<&mut GroupState> {
        self.states.get_mut(&(job, group))
    }

    /// Why a member may not join, if its group has failed.
    pub(crate) fn verdict(&self, job: JobId, group: GroupId) -> Option<&ShuffleError> {
        self.states.get(&(job, group))?.verdict.as_deref()
    }

    /// As [`Groups::verdict`], for who keeps it.
    pub(crate) fn shared_verdict(&self, job: JobId, group: GroupId) -> Option<Arc<ShuffleError>> {
        self.states.get(&(job, group))?.verdict.clone()
    }

    /// A group without members anywhere, and nothing to be remembered of it, is forgotten.
    pub(crate) fn forget_if_over(&mut self, job: JobId, group: GroupId) {
        let key = (job, group);
        let is_over = |state: &GroupState| {
            state.members.is_empty() && state.joined.is_empty() && state.verdict.is_none() && state.reported.is_none()
        };
        if self.states.get(&key).is_some_and(is_over) {
            self.states.remove(&key);
        }
    }

    /// Whether other nodes rely on this one to fail their members as one.
    pub(crate) fn are_joined(&self) -> bool {
        self.states.values().any(|state| !state.joined.is_empty())
    }

    /// All that are known, and which paths matter to each.
    pub(crate) fn watches(&self) -> impl Iterator<Item = (JobId, GroupId, PathId)> {
        self.states.iter().flat_map(|((job, group), state)| {
            let paths = state.joined.iter().copied().chain(state.watched);
            paths.map(|path| (*job, *group, path))
        })
    }

    /// Forgets groups without members that were decided longer ago than `keep`. True: others are still remembered.
    pub(crate) fn sweep(&mut self, now: Instant, keep: Duration) -> bool {
        self.states.retain(|_, state| {
            !state.members.is_empty() || state.decided.is_none_or(|at| now.saturating_duration_since(at) < keep)
        });
        self.states.values().any(|state| state.decided.is_some())
    }
}
