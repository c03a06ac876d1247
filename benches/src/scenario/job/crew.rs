//! The tasks of a job as processes.

use std::collections::BTreeMap;

use coordinator::TaskId;
use shuffle_protocol::{NodeAddress, ShuffleError};
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::watch;

use crate::cluster::{ChildId, Order as ProcessOrder};
use crate::job::{Order, TaskResult};

/// How a task ended.
#[derive(Debug, Clone)]
pub(super) enum End {
    Finished(TaskResult),
    Failed(ShuffleError),
    /// It said nothing.
    Died(String),
}

/// One task that was started.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) task: TaskId,
    pub(super) role: String,
    pub(super) node: NodeAddress,
    pub(super) input: ChildStdin,
    pub(super) orders: watch::Sender<ProcessOrder>,
    pub(super) rows: u64,
    /// What it reported.
    pub(super) end: Option<End>,
    /// Its process has ended.
    pub(super) gone: bool,
    pub(super) killed: bool,
}

/// All of a job.
#[derive(Debug, Default)]
pub(super) struct Crew {
    pub(super) members: BTreeMap<ChildId, Member>,
}

impl Crew {
    /// Whether every process has ended.
    pub(super) fn is_gone(&self) -> bool {
        self.members.values().all(|member| member.gone)
    }

    /// Those that run, in the order in which they were started.
    pub(super) fn running(&self) -> impl Iterator<Item = (ChildId, &Member)> {
        let running = self
            .members
            .iter()
            .filter(|(_, member)| member.end.is_none() && !member.gone);
        running.map(|(id, member)| (*id, member))
    }

    /// Tells those that are meant and run. One that is gone reports itself.
    pub(super) async fn tell(&mut self, order: &Order, is_meant: impl Fn(&Member) -> bool) {
        let Ok(mut line) = serde_json::to_vec(order) else {
            return;
        };
        line.push(b'\n');
        let running = self
            .members
            .values_mut()
            .filter(|member| member.end.is_none() && !member.gone);
        for member in running.filter(|member| is_meant(member)) {
            let _ = tokio::time::timeout(super::WRITE_TIMEOUT, member.input.write_all(&line)).await;
        }
    }

    pub(super) fn kill_all(&self) {
        for member in self.members.values().filter(|member| !member.gone) {
            member.orders.send_replace(ProcessOrder::Kill);
        }
    }
}
