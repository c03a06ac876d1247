//! What is found of a job that has ended.

use std::collections::BTreeMap;

use coordinator::Outcome;

use super::crew::End;
use super::engine::Engine;
use crate::clock::Moment;
use crate::job::TaskResult;
use crate::report::{GroupReport, LossReport, MessagesReport, RangeReport, StageReport};

/// A job that has ended.
#[derive(Debug)]
pub(super) struct Findings {
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
    pub(super) started: Moment,
    /// By stage, of each task that finished.
    pub(super) results: Vec<Vec<TaskResult>>,
    /// Index and attempt of the tasks of the last stage.
    pub(super) last_tasks: Vec<(u32, u32)>,
    pub(super) stages: Vec<StageReport>,
    pub(super) groups: Vec<GroupReport>,
    pub(super) messages: Vec<MessagesReport>,
    /// Success was seen of so many stages.
    pub(super) committed: usize,
    /// The first cause as each task that failed, and each partition's server, named it.
    pub(super) causes: Vec<String>,
    /// Tasks that died though nobody killed them.
    pub(super) mute: Vec<String>,
    /// Tasks that heard of the failure from the engine alone: they were no members at the servers yet.
    pub(super) cancelled: u32,
    pub(super) killed_at: Option<Moment>,
    pub(super) loss: LossReport,
    pub(super) ended_at: Moment,
    /// It was a server that noticed first.
    pub(super) noticed_by_server: bool,
    pub(super) problems: Vec<String>,
}

impl Engine<'_> {
    /// To be called when all processes have ended.
    pub(super) fn findings(&self) -> Findings {
        let ended_at = Moment::now();
        let graph = &self.plan.graph;
        let count = graph.stages().len();
        // Of each task the newest execution that finished.
        let mut finished: BTreeMap<_, (u32, TaskResult)> = BTreeMap::new();
        let (mut causes, mut mute) = (Vec::new(), Vec::new());
        for member in self.crew.members.values() {
            match &member.end {
                Some(End::Finished(result)) => {
                    let (task, new) = (member.task, (member.task.attempt, *result));
                    let known = finished.entry((task.stage, task.index)).or_insert(new);
                    if known.0 < task.attempt {
                        *known = new;
                    }
                }
                Some(End::Failed(cause)) => causes.push(cause.first_cause().to_string()),
                Some(End::Died(how)) if !member.killed => mute.push(format!("{} died: {how}", member.role)),
                Some(End::Died(_)) | None => {}
            }
        }
        causes.extend(
            self.partition_causes
                .iter()
                .map(|cause| cause.first_cause().to_string()),
        );
        causes.extend(self.stage_causes.values().map(|cause| cause.first_cause().to_string()));
        let outcome = self.coordinator.outcome().cloned().unwrap_or(Outcome::Succeeded);
        let noticed_by_server = match &outcome {
            Outcome::Failed(cause) => cause.first_cause().location().node.is_some(),
            Outcome::Succeeded => false,
        };
        let of_stage = |at: usize| {
            let all = finished
                .iter()
                .filter(move |((stage, _), _)| usize::try_from(stage.value()).ok() == Some(at));
            all.map(|((_, index), (attempt, result))| (*index, *attempt, *result))
        };
        let again = |task: &&coordinator::TaskId| {
            let newest = finished.get(&(task.stage, task.index));
            newest.is_some_and(|(attempt, _)| *attempt > task.attempt)
        };
        let so_many = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let loss = LossReport {
            had_read: so_many(self.had_read.len()),
            read_again: so_many(self.had_read.iter().filter(again).count()),
            ..self.loss.clone()
        };
        let results: Vec<Vec<TaskResult>> = (0..count)
            .map(|at| of_stage(at).map(|(.., result)| result).collect())
            .collect();
        Findings {
            last_tasks: of_stage(count - 1)
                .map(|(index, attempt, _)| (index, attempt))
                .collect(),
            outcome,
            seconds: ended_at.seconds_since(self.started),
            started: self.started,
            stages: (0..count).map(|at| self.stage_report(at, &results[at])).collect(),
            results,
            groups: self.group_reports(),
            messages: self.message_reports(),
            committed: self.stages.iter().filter(|stage| stage.committed).count(),
            causes,
            mute,
            cancelled: self.cancelled,
            killed_at: self.killed_at,
            loss,
            ended_at,
            noticed_by_server,
            problems: self.problems.clone(),
        }
    }

    fn stage_report(&self, at: usize, results: &[TaskResult]) -> StageReport {
        let graph = &self.plan.graph;
        let of = |stage: coordinator::StageId| usize::try_from(stage.value()).ok() == Some(at);
        let input = graph.edges().iter().find(|edge| of(edge.to)).map(|edge| edge.result);
        let ranges = self
            .ranges
            .iter()
            .filter(|(stage, _)| of(**stage))
            .flat_map(|(_, ranges)| ranges.values());
        let bytes = |first: u32, count: u32| -> u64 {
            let partitions = self
                .sizes
                .iter()
                .filter(|(partition, _)| Some(partition.result) == input);
            let range = |sizes: &[u64]| -> u64 {
                let skip = usize::try_from(first).unwrap_or(usize::MAX);
                let take = usize::try_from(count).unwrap_or(usize::MAX);
                sizes.iter().skip(skip).take(take).sum()
            };
            partitions.map(|(_, sizes)| range(sizes)).sum()
        };
        let executions = self.crew.members.values().filter(|member| of(member.task.stage));
        StageReport {
            name: self.stages[at].name.clone(),
            parallelism: self.stages[at].tasks.unwrap_or(0),
            executions: executions.count().try_into().unwrap_or(u32::MAX),
            bytes_in: input.map_or(0, |result| self.bytes_of(result)),
            ranges: ranges
                .map(|range| RangeReport {
                    first: range.first,
                    count: range.count,
                    bytes: bytes(range.first, range.count),
                })
                .collect(),
            rows_in: results.iter().map(|result| result.rows_in).sum(),
            rows_out: results.iter().map(|result| result.rows_out).sum(),
        }
    }

    fn group_reports(&self) -> Vec<GroupReport> {
        let (graph, groups) = (&self.plan.graph, self.coordinator.groups());
        let mut ids: Vec<_> = graph
            .edges()
            .iter()
            .flat_map(|edge| [edge.from, edge.to])
            .map(|stage| groups.of(stage))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        let report = |id| {
            let members = groups.members(id);
            let cause = members.iter().find_map(|stage| self.stage_causes.get(stage));
            let committed = |stage: &coordinator::StageId| {
                let at = usize::try_from(stage.value()).ok();
                at.and_then(|at| self.stages.get(at))
                    .is_some_and(|stage| stage.committed)
            };
            GroupReport {
                id: shuffle_protocol::GroupId::value(id),
                stages: members
                    .iter()
                    .map(|stage| graph.stage(*stage).name().to_owned())
                    .collect(),
                committed: members.iter().all(committed),
                cause: cause.map(|cause| cause.first_cause().to_string()),
            }
        };
        ids.into_iter().map(report).collect()
    }

    fn message_reports(&self) -> Vec<MessagesReport> {
        let report = |node: &shuffle_protocol::NodeAddress| {
            let traffic = self.driver.traffic(node);
            MessagesReport {
                node: format!("server@{}", self.letter(node)),
                from_server: traffic.messages_in,
                bytes_from_server: traffic.bytes_in,
                events: traffic.events,
                acknowledgements: traffic.acknowledgements,
                to_server: traffic.requests,
                to_executors: self.to_executors.get(node).copied().unwrap_or(0),
            }
        };
        let servers = self.cluster.servers.iter();
        servers.map(|server| report(&server.address)).collect()
    }
}
