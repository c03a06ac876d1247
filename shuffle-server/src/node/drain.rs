//! Stopping: no new partitions, readers finish, and at the end everybody is told.

use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::{ShuffleError, error::ErrorKind};

use super::{Node, PendingKind, Wake};
use crate::partition::Partition;
use crate::peer::Path;

impl<B: Backing> Node<B> {
    /// From now on new partitions are refused. Readers and writers that are there go on, and gates may still be opened: what
    /// is here is to be read.
    pub fn start_drain(&mut self, now: Instant) {
        if self.draining {
            return;
        }
        self.draining = true;
        let draining = ShuffleError::new(
            ErrorKind::Draining,
            "this server is being stopped and takes no new partitions",
        );
        self.refuse_pending(&draining, |pending| matches!(pending.kind, PendingKind::Partition(_)));
        self.settle(now);
    }

    /// Nothing is left that a stop would break.
    pub fn is_drained(&self) -> bool {
        self.draining
            && self.partitions.values().all(Partition::outlives_server)
            && self.disks.is_idle()
            && self.gates.is_empty()
            && self.pending.is_empty()
            && !self.groups.are_joined()
            && !self.paths.values().any(Path::has_messages)
    }

    /// Ends every partition and channel with this error, and every session.
    pub fn fail_everything(&mut self, now: Instant, error: ShuffleError) {
        let ending = self
            .partitions
            .iter()
            .filter(|(_, partition)| !partition.outlives_server());
        let partitions: Vec<_> = ending.map(|(no, _)| no).collect();
        for no in partitions {
            self.fail_partition_now(now, no, error.clone());
        }
        let gates: Vec<_> = self.gates.keys().collect();
        for no in gates {
            self.fail_gate(now, no, &error);
        }
        let sessions: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.is_open())
            .map(|(id, _)| id)
            .collect();
        for id in sessions {
            self.wakes.push_back(Wake::CloseSession(id, error.clone()));
        }
        let links: Vec<_> = self.links.keys().collect();
        for id in links {
            self.wakes.push_back(Wake::CloseLink(id, error.clone()));
        }
        self.settle(now);
    }

    /// Ends one job's sessions with this error: its executors took what they were not given.
    pub fn fail_job(&mut self, job: shuffle_protocol::JobId, error: &ShuffleError) {
        let sessions: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.is_open() && session.info.job == job)
            .map(|(id, _)| id)
            .collect();
        for id in sessions {
            self.wakes.push_back(Wake::CloseSession(id, error.clone()));
        }
    }
}
