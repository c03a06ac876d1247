//! The report of `job`.

use serde::Serialize;

use super::table::{Table, bytes, grouped};

/// What a task reads of a stage's keyed input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RangeReport {
    /// The first subpartition.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// Bytes in them, as servers reported them.
    pub bytes: u64,
}

/// One stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// Tasks.
    pub parallelism: u32,
    /// Executions of them: more where some were killed and ran again.
    pub executions: u32,
    /// Bytes of its inputs, as servers reported them.
    pub bytes_in: u64,
    /// What each task reads, in order; empty for a source.
    pub ranges: Vec<RangeReport>,
    /// Rows that its tasks took in and gave out.
    pub rows_in: u64,
    /// See `rows_in`.
    pub rows_out: u64,
}

/// One group of stages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupReport {
    /// Its number.
    pub id: u64,
    /// Its members.
    pub stages: Vec<String>,
    /// Whether success was seen of it, which it is of all members or of none.
    pub committed: bool,
    /// Why it failed, as all members were told.
    pub cause: Option<String>,
}

/// What one node's server and its tasks were told, and what the server told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MessagesReport {
    /// Its server.
    pub node: String,
    /// Messages with events of partitions, and their bytes.
    pub from_server: u64,
    /// See `from_server`.
    pub bytes_from_server: u64,
    /// Events in them.
    pub events: u64,
    /// Acknowledgements of them.
    pub acknowledgements: u64,
    /// Fences, failures and releases.
    pub to_server: u64,
    /// Deployments, updates and cancels: one for all tasks that it concerns.
    pub to_executors: u64,
}

/// The rounds of `kill`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KillReport {
    /// Jobs of which a task was killed while it ran.
    pub rounds: u32,
    /// Jobs that were done before their moment came, and were not counted.
    pub too_late: u32,
    /// Rounds in which the job failed with the same first cause for every task that could still say one.
    pub consistent: u32,
    /// Rounds in which success was seen of a stage of a failed group.
    pub partial_successes: u32,
    /// Rounds after which all nodes held no buffer, partition, gate and session of it.
    pub back_to_baseline: u32,
    /// How often a cause was named, in all rounds: by tasks, by servers for partitions, by the coordinator for stages.
    pub causes_heard: u64,
    /// Tasks among them that heard it from the driver alone, because they were no members at a server yet.
    pub told_by_driver_alone: u64,
    /// Rounds in which a server noticed first; in the others the driver did, because the task was no member yet.
    pub noticed_by_servers: u32,
    /// Milliseconds from the kill to the end of the last task.
    pub teardown_ms_median: f64,
    /// See `teardown_ms_median`.
    pub teardown_ms_max: f64,
}

/// Servers that were killed under a batch job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LossReport {
    /// Killed, each when a stage was complete.
    pub servers: u32,
    /// Of which the driver's connections said that they are lost.
    pub nodes_lost: u32,
    /// Tasks whose error named a partition that they could not read.
    pub fetch_failures: u32,
    /// Tasks that were done when the server was killed, and had read a stage that does not write the same again.
    pub had_read: u32,
    /// Those among them that ran again.
    pub read_again: u32,
}

/// What `job` found. Names and units are stable; more may be added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobReport {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Which job.
    pub kind: &'static str,
    /// Whether everything was as it should be.
    pub verified: bool,
    /// TPC-H scale factor.
    pub scale: f64,
    /// Nodes.
    pub nodes: u16,
    /// From the first task to the end of the last, of the (last) job.
    pub seconds: f64,
    /// Of the (last) job.
    pub stages: Vec<StageReport>,
    /// Of the (last) job.
    pub groups: Vec<GroupReport>,
    /// Of the (last) job.
    pub messages_per_node: Vec<MessagesReport>,
    /// pipelined: from the start of the job to the first row of the last stage, and to the last row of the source.
    pub first_result_ms: Option<f64>,
    /// See `first_result_ms`.
    pub source_end_ms: Option<f64>,
    /// Only with servers that were killed.
    pub loss: Option<LossReport>,
    /// Only of `kill`.
    pub kill: Option<KillReport>,
}

impl JobReport {
    /// The table that ends a run.
    pub fn table(&self) -> Table {
        let title = format!(
            "shuffle-bench job, {}: TPC-H lineitem at scale {}, {} nodes",
            self.kind, self.scale, self.nodes
        );
        let mut table = Table::new(title)
            .row("verified", if self.verified { "yes" } else { "NO" })
            .row("seconds", format!("{:.3}", self.seconds));
        for stage in &self.stages {
            let widest = stage.ranges.iter().map(|range| range.bytes).max().unwrap_or(0);
            let again = match stage.executions.saturating_sub(stage.parallelism) {
                0 => String::new(),
                again => format!(" ({again} again)"),
            };
            table = table.row(
                format!("stage {}", stage.name),
                format!(
                    "{} tasks{again}, {} in (at most {} a task), {} rows in, {} out",
                    stage.parallelism,
                    bytes(stage.bytes_in),
                    bytes(widest),
                    grouped(stage.rows_in),
                    grouped(stage.rows_out)
                ),
            );
        }
        for group in &self.groups {
            let state = match (&group.cause, group.committed) {
                (Some(cause), _) => format!("failed: {cause}"),
                (None, true) => "committed".to_owned(),
                (None, false) => "not committed".to_owned(),
            };
            table = table.row(format!("group {}", group.stages.join(", ")), state);
        }
        for node in &self.messages_per_node {
            let text = format!(
                "{} from its server ({}, {} events), {} to it, {} to its executors",
                node.from_server,
                bytes(node.bytes_from_server),
                node.events,
                node.to_server,
                node.to_executors
            );
            table = table.row(format!("messages of {}", node.node), text);
        }
        if let (Some(first), Some(end)) = (self.first_result_ms, self.source_end_ms) {
            table = table.row("first result", format!("{first:.0} ms, the source ends at {end:.0} ms"));
        }
        if let Some(loss) = &self.loss {
            let text = format!(
                "{} servers, {} fetches failed and named what they could not read",
                loss.servers, loss.fetch_failures
            );
            table = table.row("lost", text);
        }
        if let Some(kill) = &self.kill {
            table = table
                .row(
                    "killed",
                    format!("{} jobs, {} were done before", kill.rounds, kill.too_late),
                )
                .row(
                    "one cause",
                    format!("{} jobs, named {} times", kill.consistent, kill.causes_heard),
                )
                .row("partial successes", kill.partial_successes.to_string())
                .row("back to baseline", kill.back_to_baseline.to_string())
                .row(
                    "torn down",
                    format!(
                        "{:.0} ms, at most {:.0} ms",
                        kill.teardown_ms_median, kill.teardown_ms_max
                    ),
                );
        }
        table
    }
}
