//! What is known of stages, tasks and results while the job runs. Nothing here is as large as producers times consumers.

use std::collections::VecDeque;
use std::sync::Arc;

use super::locations::Locations;
use crate::admission::NodeIndex;
use crate::bits::Bits;
use crate::graph::JobResult;
use crate::ranges::Assignment;

/// Where one task stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TaskState {
    /// Not started yet.
    New,
    /// Has its slots.
    Running,
    /// Finished, with all that it writes.
    Done,
    /// To be started again.
    Again,
}

/// One task, in 16 bytes: there may be ten million.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) attempt: u32,
    pub(super) node: NodeIndex,
    /// Its own end, if that was not said, and its partitions that are not finished.
    pub(super) left: u32,
    pub(super) state: TaskState,
    /// Whether the executor has said that it is finished.
    pub(super) said_finished: bool,
}

impl Task {
    pub(super) const NEW: Self = Self {
        attempt: 0,
        node: NodeIndex(u32::MAX),
        left: 0,
        state: TaskState::New,
        said_finished: false,
    };
}

/// One stage.
#[derive(Clone, Debug, Default)]
pub(super) struct StageState {
    /// What its tasks read, once that is decided.
    pub(super) assignment: Option<Assignment>,
    /// Of a source that estimates itself.
    pub(super) estimate: Option<u32>,
    /// One for each task, once the stage is decided.
    pub(super) tasks: Vec<Task>,
    /// The first that never ran.
    pub(super) next: u32,
    /// Those to be started again.
    pub(super) again: VecDeque<u32>,
    /// How many are done.
    pub(super) done: u32,
    /// Its regular results that somebody has still to read, or may come to.
    pub(super) unread: u32,
}

impl StageState {
    pub(super) fn is_decided(&self) -> bool {
        self.assignment.is_some()
    }

    pub(super) fn parallelism(&self) -> u32 {
        self.assignment.as_ref().map_or(0, Assignment::tasks)
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_decided() && self.done == self.parallelism()
    }

    /// Tasks that are to be started.
    pub(super) fn pending(&self) -> u32 {
        self.parallelism() - self.next + crate::ids::number(self.again.len())
    }
}

/// One result.
#[derive(Clone, Debug, Default)]
pub(super) struct ResultState {
    /// Its partitions that are registered and, if it is pipelined, can be told of.
    pub(super) registered: Bits,
    /// Its partitions that are finished.
    pub(super) finished: Bits,
    pub(super) locations: Locations,
    /// Until the tasks of its consumer are decided by them.
    pub(super) sizes: Option<Sizes>,
    /// Consumer stages that are not complete.
    pub(super) readers: u32,
    /// Gone, because all consumers were complete.
    pub(super) released: bool,
}

/// Bytes reported by finished partitions.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    /// Which producers were counted: a second attempt is not counted again.
    counted: Bits,
    pub(super) by_subpartition: Vec<u64>,
    /// Only of splittable inputs: for each producer the bytes that it reported.
    pub(super) by_producer: Option<Vec<Arc<[u64]>>>,
}

impl Sizes {
    pub(super) fn new(result: &JobResult, producers: u32, splittable: bool) -> Self {
        let none: Arc<[u64]> = Arc::from(Vec::new());
        Self {
            counted: Bits::none(producers),
            by_subpartition: vec![0; result.subpartitions as usize],
            by_producer: splittable.then(|| vec![none; producers as usize]),
        }
    }

    /// Counts what producer `index` wrote, once.
    pub(super) fn add(&mut self, index: u32, bytes: &Arc<[u64]>) {
        if !self.counted.insert(index) {
            return;
        }
        for (sum, bytes) in self.by_subpartition.iter_mut().zip(bytes.iter()) {
            *sum += bytes;
        }
        if let Some(by_producer) = &mut self.by_producer {
            by_producer[index as usize] = Arc::clone(bytes);
        }
    }

    pub(super) fn total(&self) -> u128 {
        self.by_subpartition.iter().map(|&bytes| u128::from(bytes)).sum()
    }
}
