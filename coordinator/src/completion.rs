//! When success may be seen: not before the whole group has it.
//!
//! ```text
//!   waiting --admitted--> submitted --last member done--> committed      seen: stages completed, in order
//!                             \------any member fails---> failed         seen: stages failed, one cause
//!
//!   tasks started, finished, failed            seen at once
//! ```
//!
//! What was seen as a success is never taken back: a committed group stays committed, also where some of its tasks run again.

use shuffle_protocol::{GroupId, ShuffleError};

use crate::graph::JobGraph;
use crate::groups::Groups;
use crate::ids::{StageId, TaskId, number};

/// What can be seen of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The tasks of the stage are being started: its whole group has its slots.
    StageSubmitted {
        /// The stage.
        stage: StageId,
        /// How many tasks it has.
        tasks: u32,
    },
    /// The task runs.
    TaskStarted {
        /// The task.
        task: TaskId,
    },
    /// The task, and all partitions that it writes, are finished.
    TaskFinished {
        /// The task.
        task: TaskId,
    },
    /// The task failed.
    TaskFailed {
        /// The task.
        task: TaskId,
        /// Why.
        cause: ShuffleError,
    },
    /// The stage and its whole group are complete.
    StageCompleted {
        /// The stage.
        stage: StageId,
    },
    /// The stage failed, with its whole group or with the job.
    StageFailed {
        /// The stage.
        stage: StageId,
        /// What was first: the same for all members.
        cause: ShuffleError,
    },
    /// A group is ready and waits until all its slots are free at once.
    GroupWaits {
        /// The group.
        group: GroupId,
        /// Slots of all its tasks.
        needs: u64,
        /// Slots that are free now.
        free: u64,
    },
    /// All stages are complete.
    JobSucceeded,
    /// The job failed.
    JobFailed {
        /// What was first.
        cause: ShuffleError,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    Submitted { left: u32 },
    Committed,
    Failed,
}

/// The state of each group, and of the job.
#[derive(Clone, Debug)]
pub(crate) struct Completion {
    groups: Vec<State>,
    over: bool,
}

impl Completion {
    pub(crate) fn new(groups: &Groups) -> Self {
        Self {
            groups: vec![State::Waiting; groups.len()],
            over: false,
        }
    }

    pub(crate) fn is_waiting(&self, group: u32) -> bool {
        self.groups[group as usize] == State::Waiting
    }

    pub(crate) fn is_committed(&self, group: u32) -> bool {
        self.groups[group as usize] == State::Committed
    }

    pub(crate) fn is_submitted(&self, group: u32) -> bool {
        matches!(self.groups[group as usize], State::Submitted { .. })
    }

    /// The group has its slots.
    pub(crate) fn submit(&mut self, group: u32, members: &[StageId]) {
        assert!(self.is_waiting(group), "invariant: a group is admitted once");
        self.groups[group as usize] = State::Submitted {
            left: number(members.len()),
        };
    }

    /// One more member has all its tasks; true if it was the last, so that the group is committed.
    pub(crate) fn handle_stage_done(&mut self, group: u32) -> bool {
        match &mut self.groups[group as usize] {
            State::Submitted { left } => {
                *left -= 1;
                let last = *left == 0;
                if last {
                    self.groups[group as usize] = State::Committed;
                }
                last
            }
            state => panic!("invariant: a stage is done only in a submitted group, not in one that is {state:?}"),
        }
    }

    /// All groups are committed.
    pub(crate) fn succeed(&mut self) -> Notice {
        let all = self.groups.iter().all(|state| *state == State::Committed);
        assert!(
            all && !self.over,
            "invariant: the job succeeds once, with all its groups"
        );
        self.over = true;
        Notice::JobSucceeded
    }

    /// The job fails: every stage that was submitted and is not committed fails with the one cause, and so does the job.
    pub(crate) fn fail(&mut self, graph: &JobGraph, groups: &Groups, cause: &ShuffleError) -> Vec<Notice> {
        assert!(!self.over, "invariant: the job ends once");
        self.over = true;
        let mut notices = Vec::new();
        for &stage in graph.topological_order() {
            let at = groups.place(stage) as usize;
            if matches!(self.groups[at], State::Submitted { .. }) {
                notices.push(Notice::StageFailed {
                    stage,
                    cause: cause.clone(),
                });
            }
        }
        for state in &mut self.groups {
            if *state != State::Committed {
                *state = State::Failed;
            }
        }
        notices.push(Notice::JobFailed { cause: cause.clone() });
        notices
    }
}
