//! A group whose inputs are complete: how many tasks, which ranges.

use shuffle_protocol::ResultId;

use super::state::{Sizes, StageState, Task};
use super::{Coordinator, EventError, result_index};
use crate::admission::Need;
use crate::bits::Bits;
use crate::graph::{Dependency, Distribution, Edge, Parallelism};
use crate::ids::{StageId, number};
use crate::parallelism::{InputVolume, Limits, Rule};
use crate::ranges::{Assignment, ByVolume, Ranges, SplitInput, by_volume, split_skew};

impl Coordinator {
    /// If nothing is missing any more, the group goes to the end of the queue; the first time its tasks are decided.
    pub(super) fn make_ready(&mut self, group: u32) {
        if self.waits_for[group as usize] > 0 {
            return;
        }
        if self.completion.is_waiting(group) {
            for at in 0..self.groups.members_at(group).len() {
                let stage = self.groups.members_at(group)[at];
                if !self.stages[stage.index()].is_decided() {
                    self.decide(stage);
                }
            }
        }
        let pending = |stage: &StageId| self.stages[stage.index()].pending() > 0;
        let has_tasks = self.groups.members_at(group).iter().any(pending);
        if has_tasks && !std::mem::replace(&mut self.queued[group as usize], true) {
            if self.completion.is_waiting(group) {
                self.queue.push_back(group);
            } else {
                // Others wait for what was lost: it is made again first.
                self.queue.push_front(group);
            }
        }
    }

    /// A result is complete, or complete again: those who wait for it have one less to wait for.
    pub(super) fn complete_input(&mut self, result: ResultId) {
        for at in 0..self.graph.results()[result_index(result)].edges.len() {
            let edge = self.graph.results()[result_index(result)].edges[at];
            let group = self.groups.place(self.graph.edge(edge).to);
            self.waits_for[group as usize] -= 1;
            self.make_ready(group);
        }
    }

    pub(super) fn handle_estimate(&mut self, stage: StageId, tasks: u32) -> Result<(), EventError> {
        let waits = self
            .stages
            .get(stage.index())
            .is_some_and(|state| state.estimate.is_none());
        if !waits || !self.graph.stage(stage).estimates_itself() {
            return Err(EventError::NotEstimating { stage });
        }
        self.stages[stage.index()].estimate = Some(tasks);
        let group = self.groups.place(stage);
        self.waits_for[group as usize] -= 1;
        self.make_ready(group);
        Ok(())
    }

    fn decide(&mut self, stage: StageId) {
        let assignment = self.assign(stage);
        let tasks = assignment.tasks();
        let state = &mut self.stages[stage.index()];
        *state = StageState {
            assignment: Some(assignment),
            tasks: vec![Task::NEW; tasks as usize],
            estimate: state.estimate,
            unread: state.unread,
            ..StageState::default()
        };
        for input in self.inputs(stage) {
            // What decided is decided: the sizes are of no more use.
            self.results[result_index(input.result)].sizes = None;
        }
        for result in self.graph.results_of(stage).collect::<Vec<_>>() {
            let sizes = self.sizes_for(result, tasks);
            let state = &mut self.results[result_index(result)];
            state.registered = Bits::none(tasks);
            state.finished = Bits::none(tasks);
            state.sizes = sizes;
        }
    }

    fn inputs(&self, stage: StageId) -> Vec<Edge> {
        self.graph
            .inputs(stage)
            .map(|(edge, _)| *self.graph.edge(edge))
            .collect()
    }

    /// Sizes are kept only where the tasks of the consumer are decided by them.
    fn sizes_for(&self, result: ResultId, producers: u32) -> Option<Sizes> {
        let result = &self.graph.results()[result_index(result)];
        let edge = match result.edges.as_slice() {
            [edge] => self.graph.edge(*edge),
            _ => return None,
        };
        let decides = edge.dependency == Dependency::Regular && self.is_decided_by_bytes(edge.to);
        decides.then(|| Sizes::new(result, producers, edge.splittable))
    }

    fn is_decided_by_bytes(&self, stage: StageId) -> bool {
        let stage = self.graph.stage(stage);
        let finer = stage.input_subpartitions() > stage.parallelism().max();
        finer || matches!(stage.parallelism(), Parallelism::Adaptive { .. })
    }

    fn assign(&self, stage: StageId) -> Assignment {
        let inputs = self.inputs(stage);
        let limits = self.limits(stage, &inputs);
        let divided: Vec<&Edge> = inputs.iter().filter(|edge| edge.distribution.is_all_to_all()).collect();
        let subpartitions = self.graph.stage(stage).input_subpartitions();
        let even = |parts| {
            Assignment::Ranges(Ranges::Even {
                whole: subpartitions,
                parts,
            })
        };
        if inputs.is_empty() {
            return even(self.config.adaptive.source(limits, self.stages[stage.index()].estimate));
        }
        let sizes = |edge: &Edge| self.results[result_index(edge.result)].sizes.as_ref();
        // Over a pipelined edge nothing has come yet, and then the tasks are fixed.
        let known = divided.iter().all(|edge| sizes(edge).is_some());
        if divided.is_empty() || !known || subpartitions == limits.min {
            return even(self.by_total(&inputs, limits));
        }
        match self.config.adaptive.rule {
            Rule::PowerOfTwo { max_broadcast_percent } => {
                let volumes = self.volumes(&inputs);
                even(
                    self.config
                        .adaptive
                        .power_of_two(&volumes, limits, max_broadcast_percent),
                )
            }
            Rule::ByVolume { skew_factor } => {
                let mut sums = vec![0_u64; subpartitions as usize];
                for sizes in divided.iter().filter_map(|edge| sizes(edge)) {
                    for (sum, bytes) in sums.iter_mut().zip(&sizes.by_subpartition) {
                        *sum = sum.saturating_add(*bytes);
                    }
                }
                let found = by_volume(&sums, self.config.adaptive.bytes_per_task, limits);
                match skew_factor {
                    Some(factor) if inputs.iter().any(|edge| edge.splittable) && limits.min < limits.max => {
                        self.split(&inputs, found, factor, limits.max)
                    }
                    _ => Assignment::Ranges(found.ranges),
                }
            }
        }
    }

    fn split(&self, inputs: &[Edge], found: ByVolume, factor: u32, most: u32) -> Assignment {
        let mut split_inputs = Vec::new();
        for (at, edge) in inputs.iter().enumerate().filter(|(_, edge)| edge.splittable) {
            if let Some(sizes) = &self.results[result_index(edge.result)].sizes
                && let Some(by_producer) = &sizes.by_producer
            {
                split_inputs.push(SplitInput {
                    input: number(at),
                    bytes: &sizes.by_subpartition,
                    by_producer,
                });
            }
        }
        let shares = split_skew(&found, &split_inputs, factor, most);
        if shares.iter().all(|share| share.piece.is_none()) {
            Assignment::Ranges(found.ranges)
        } else {
            Assignment::Shares(shares.into())
        }
    }

    fn volumes(&self, inputs: &[Edge]) -> Vec<InputVolume> {
        let volume = |edge: &Edge| InputVolume {
            broadcast: edge.distribution == Distribution::Broadcast,
            bytes: self.results[result_index(edge.result)]
                .sizes
                .as_ref()
                .map_or(0, Sizes::total),
        };
        inputs.iter().map(volume).collect()
    }

    fn by_total(&self, inputs: &[Edge], limits: Limits) -> u32 {
        self.config.adaptive.by_total(&self.volumes(inputs), limits)
    }

    /// What the stage may come out with: exactly what a local input has; in a group no more than leaves room for the other
    /// members.
    fn limits(&self, stage: StageId, inputs: &[Edge]) -> Limits {
        let parallelism = self.graph.stage(stage).parallelism();
        if let Some(edge) = inputs.iter().find(|edge| edge.distribution == Distribution::Local) {
            return Limits::exactly(self.stages[edge.from.index()].parallelism());
        }
        let (min, max) = (parallelism.min(), parallelism.max());
        if min == max || !self.groups.is_pipelined(stage) {
            return Limits { min, max };
        }
        Limits {
            min,
            max: self.most_that_fit(stage, min, max),
        }
    }

    /// By bisection: the largest number between `min` and `max` with which the whole group fits into the cluster.
    fn most_that_fit(&self, stage: StageId, min: u32, max: u32) -> u32 {
        let fits = |tasks: u32| {
            let members = self.groups.members(self.groups.of(stage)).iter();
            let needs: Vec<Need> = members
                .map(|&member| Need {
                    tasks: match self.stages[member.index()].parallelism() {
                        _ if member == stage => tasks,
                        0 => self.tasks_to_hold(member),
                        decided => decided,
                    },
                    slots_per_task: self.graph.stage(member).slots(),
                })
                .collect();
            self.cluster.check_fits(&needs).is_ok()
        };
        let (mut low, mut high) = (min, max);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }
}
