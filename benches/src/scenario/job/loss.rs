//! Partitions and servers that are lost while a job runs.
//!
//! ```text
//!   stage complete, or read by one if it does not write the same again
//!                    ──▶ kill -9 of a server that has some of it
//!                        ├─ a task elsewhere cannot read ──▶ FetchFailed, with the partition that its error names
//!                        ├─ its own tasks have no server ──▶ wait for the driver's verdict about the node
//!                        └─ the driver's connection ──────▶ NodeLost
//! ```

use std::time::{Duration, Instant};

use coordinator::{Event, StageId, TaskId};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{NodeAddress, PartitionId, ShuffleError};

use super::crew::End;
use super::engine::Engine;
use crate::cluster::Order as ProcessOrder;
use crate::error::BenchError;

impl Engine<'_> {
    /// Of a stage that is complete and is read by others one server may be lost.
    pub(super) fn plan_loss(&mut self, stage: StageId) {
        if self.plan.graph.outputs(stage).len() == 0 {
            return;
        }
        let members = self.crew.members.values().filter(|of| of.task.stage == stage);
        let mut nodes: Vec<&NodeAddress> = members.map(|of| &of.node).collect();
        nodes.retain(|node| !self.cluster.is_lost(node));
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() {
            return;
        }
        if let Some(loss) = self.losses.pop_front() {
            let node = nodes[loss.which % nodes.len()].clone();
            self.to_lose.push((Instant::now() + loss.after, node, stage));
        }
    }

    /// One that does not write the same again may be lost when somebody has read it.
    pub(super) fn plan_loss_of_inputs(&mut self, stage: StageId) {
        let graph = &self.plan.graph;
        let inputs = graph.inputs(stage).map(|(_, from)| from);
        let other: Vec<StageId> = inputs.filter(|from| !graph.is_determinate(*from)).collect();
        for from in other {
            self.plan_loss(from);
        }
    }

    pub(super) fn kill_servers(&mut self, now: Instant) {
        for (_, node, stage) in self.to_lose.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>() {
            self.cluster.kill_server(&node);
            self.loss.servers += 1;
            let graph = &self.plan.graph;
            if !graph.is_determinate(stage) {
                let reads = |task: &TaskId| graph.inputs(task.stage).any(|(_, from)| from == stage);
                let done = self.crew.members.values();
                let done = done.filter(|of| matches!(of.end, Some(End::Finished(_))));
                self.had_read.extend(done.map(|of| of.task).filter(reads));
            }
        }
    }

    /// The driver's connection says so. What runs there can be of no use.
    pub(super) fn handle_node_lost(&mut self, node: NodeAddress, cause: ShuffleError) -> Result<(), BenchError> {
        if !self.cluster.is_lost(&node) {
            return Err(BenchError::Session {
                what: "a server of the run was lost".to_owned(),
                source: cause,
            });
        }
        self.loss.nodes_lost += 1;
        for member in self.crew.members.values_mut().filter(|of| of.node == node && !of.gone) {
            member.killed = true;
            member.orders.send_replace(ProcessOrder::Kill);
        }
        self.tell(Event::NodeLost { node, cause });
        Ok(())
    }

    /// A task says why it failed.
    pub(super) fn handle_failure(&mut self, task: TaskId, cause: ShuffleError) {
        if let Some(partition) = self.unreadable(task, &cause) {
            self.loss.fetch_failures += 1;
            self.tell(Event::FetchFailed { task, partition, cause });
        } else if has_no_server(&cause) {
            self.died.push((Instant::now() + TIME_TO_LOSE, task, cause));
        } else {
            self.tell(Event::TaskFailed { task, cause });
        }
    }

    /// The partition of an input that the error names.
    fn unreadable(&self, task: TaskId, cause: &ShuffleError) -> Option<PartitionId> {
        let partition = cause.location().partition?;
        let graph = &self.plan.graph;
        let mut inputs = graph.inputs(task.stage).map(|(edge, _)| graph.edge(edge).result);
        inputs.any(|result| result == partition.result).then_some(partition)
    }
}

/// Whether the task lost its own node's server, or never found it. If the node is lost that is the cause, and to start the task
/// there again would be of no use.
fn has_no_server(cause: &ShuffleError) -> bool {
    let kinds = |kind: &ErrorKind| {
        matches!(
            kind,
            ErrorKind::NodeUnreachable | ErrorKind::ConnectionLost | ErrorKind::SessionClosed
        )
    };
    cause.location().partition.is_none() && kinds(cause.kind())
}

/// In which the driver has noticed that a node is lost ([`super::RECONNECT_WITHIN`]), and some more.
const TIME_TO_LOSE: Duration = super::RECONNECT_WITHIN.saturating_add(Duration::from_secs(1));
