//! A stage as the engine describes it.

use super::idiom::{Idiom, Idioms};

/// How many tasks a stage has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Parallelism {
    /// So many.
    Fixed(u32),
    /// Decided when all inputs are there, from the bytes that they hold; for a source by configuration or by its own
    /// estimate.
    Adaptive {
        /// Not fewer.
        min: u32,
        /// Not more.
        max: u32,
    },
}

impl Parallelism {
    /// The fewest tasks that the stage can come out with.
    pub const fn min(self) -> u32 {
        match self {
            Self::Fixed(tasks) => tasks,
            Self::Adaptive { min, .. } => min,
        }
    }

    /// The most tasks that the stage can come out with.
    pub const fn max(self) -> u32 {
        match self {
            Self::Fixed(tasks) => tasks,
            Self::Adaptive { max, .. } => max,
        }
    }
}

/// One stage of a job: what it is called, how many tasks it has, and what the coordinator must know about them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stage {
    pub(super) name: String,
    pub(super) parallelism: Parallelism,
    pub(super) slots_per_task: u32,
    pub(super) subpartitions: Option<u32>,
    pub(super) determinate: bool,
    pub(super) keeps_state: bool,
    pub(super) self_estimating: bool,
    pub(super) open_result: bool,
    pub(super) idioms: Idioms,
}

impl Stage {
    /// A stage of one task, with one slot, determinate and without state.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            parallelism: Parallelism::Fixed(1),
            slots_per_task: 1,
            subpartitions: None,
            determinate: true,
            keeps_state: false,
            self_estimating: false,
            open_result: false,
            idioms: Idioms::default(),
        }
    }

    /// Has exactly `tasks` tasks.
    #[must_use]
    pub const fn fixed(mut self, tasks: u32) -> Self {
        self.parallelism = Parallelism::Fixed(tasks);
        self
    }

    /// Has between `min` and `max` tasks, decided while the job runs.
    #[must_use]
    pub const fn adaptive(mut self, min: u32, max: u32) -> Self {
        self.parallelism = Parallelism::Adaptive { min, max };
        self
    }

    /// Each task takes so many slots of its node.
    #[must_use]
    pub const fn slots_per_task(mut self, slots: u32) -> Self {
        self.slots_per_task = slots;
        self
    }

    /// Its keyed and rebalanced inputs are cut into so many subpartitions, instead of as many as it has tasks at most.
    /// More of them make ranges by volume more even.
    #[must_use]
    pub const fn subpartitions(mut self, subpartitions: u32) -> Self {
        self.subpartitions = Some(subpartitions);
        self
    }

    /// A second execution of a task may write other bytes, or the same ones to other subpartitions.
    #[must_use]
    pub const fn indeterminate(mut self) -> Self {
        self.determinate = false;
        self
    }

    /// It aggregates by key or keeps other state, so all records of one subpartition must meet in one task.
    #[must_use]
    pub const fn keeps_state(mut self) -> Self {
        self.keeps_state = true;
        self
    }

    /// An adaptive source that says itself how many tasks it wants: it waits for
    /// [`Event::SourceEstimated`](crate::Event::SourceEstimated).
    #[must_use]
    pub const fn self_estimating(mut self) -> Self {
        self.self_estimating = true;
        self
    }

    /// Its consumers were not known when it was planned: its result has a single queue, and each consumer that needs more
    /// gets a repartition stage before it.
    #[must_use]
    pub const fn open_result(mut self) -> Self {
        self.open_result = true;
        self
    }

    /// The engine does this with the stage. The coordinator only looks whether it can be done within a pipelined group.
    #[must_use]
    pub const fn uses(mut self, idiom: Idiom) -> Self {
        self.idioms = self.idioms.with(idiom);
        self
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many tasks it has.
    pub const fn parallelism(&self) -> Parallelism {
        self.parallelism
    }

    /// Slots that each task takes.
    pub const fn slots(&self) -> u32 {
        self.slots_per_task
    }

    /// Into how many subpartitions its keyed and rebalanced inputs are cut.
    pub const fn input_subpartitions(&self) -> u32 {
        match self.subpartitions {
            Some(subpartitions) => subpartitions,
            None => self.parallelism.max(),
        }
    }

    /// Whether a second execution of a task writes the same, as far as the stage itself says. Rebalanced edges make it
    /// indeterminate all the same: see [`JobGraph::is_determinate`](super::JobGraph::is_determinate).
    pub const fn declared_determinate(&self) -> bool {
        self.determinate
    }

    /// Whether all records of one subpartition must meet in one task.
    pub const fn has_state(&self) -> bool {
        self.keeps_state
    }

    /// Whether it is a source that says itself how many tasks it wants.
    pub const fn estimates_itself(&self) -> bool {
        self.self_estimating
    }

    /// Whether its consumers were not known when it was planned.
    pub const fn has_open_result(&self) -> bool {
        self.open_result
    }

    /// What the engine does with it.
    pub const fn idioms(&self) -> Idioms {
        self.idioms
    }
}
