//! How a partition is finished: what its producer says is compared with what came.

use std::collections::HashSet;
use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::control;
use shuffle_protocol::partition::{Readiness, Totals};
use shuffle_protocol::{ShuffleError, SubpartitionIndex, WriterId, error::ErrorKind};

use super::session::protocol;
use crate::node::{Node, SessionId, Timer};
use crate::partition::{PartitionNo, PartitionState};

/// When a request to finish is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Now,
    /// When it is sealed, or its group's verdict is there.
    Later,
}

impl<B: Backing> Node<B> {
    /// The producer says that it is done, and what it wrote.
    pub(super) fn finish_partition(
        &mut self,
        now: Instant,
        id: SessionId,
        request: &control::FinishPartition,
    ) -> Result<Answer, ShuffleError> {
        let writer = WriterId::new(request.writer);
        let no = self.writer_of(id, writer)?;
        if let Some(partition) = self.partitions.get_mut(no).filter(|partition| partition.is_failing) {
            if partition.finishing.is_some() {
                let message = format!("writer {writer} is being finished already");
                return Err(ShuffleError::new(ErrorKind::InvalidRequest, message));
            }
            // What it has handed over since was not taken any more: no counts to compare.
            partition.finishing = Some((id, request.request));
            return Ok(Answer::Later);
        }
        if let Err(error) = self.compare_totals(no, request) {
            self.fail_partition(now, no, error.clone());
            return Err(error);
        }
        self.forget_writer(id, writer);
        let Some(partition) = self.partitions.get_mut(no) else {
            return Ok(Answer::Now);
        };
        if partition.kept.is_some() {
            partition.state = PartitionState::Sealing;
            partition.finishing = Some((id, request.request));
            self.free_writer_pool(no);
            self.spoolers.add(no);
            return Ok(Answer::Later);
        }
        self.free_writer_pool(no);
        self.complete_partition(now, no);
        Ok(Answer::Now)
    }

    /// Everything of a partition is where its kind wants it: it is finished.
    pub(crate) fn complete_partition(&mut self, now: Instant, no: PartitionNo) {
        let Some(partition) = self.partitions.get_mut(no) else {
            return;
        };
        partition.state = PartitionState::Finished;
        let (readers, time_to_live) = (partition.readers(), partition.time_to_live);
        let waiting = partition.kind.readiness == Readiness::Blocking && !readers.is_empty();
        if waiting {
            let written: Vec<u32> = partition.queues().map(|(index, _)| index).collect();
            for index in written {
                self.list_subpartition(no, index);
            }
        }
        self.counters.partitions_finished += 1;
        self.note_partition(no);
        for reader in readers {
            self.list_outlet(reader);
        }
        self.timers.set(now + time_to_live, Timer::Unread(no));
        if let Some((session, request)) = self.partitions.get_mut(no).and_then(|of| of.finishing.take()) {
            self.reply(session, request, Ok(()));
        }
        self.release_if_consumed(now, no);
    }

    fn compare_totals(&self, no: PartitionNo, request: &control::FinishPartition) -> Result<(), ShuffleError> {
        let Some(partition) = self.partitions.get(no) else {
            return Ok(());
        };
        let located = |error: ShuffleError, index: SubpartitionIndex| {
            error
                .job(partition.job)
                .partition(partition.id)
                .subpartition(index)
                .node(&self.config.address)
        };
        let mut named = 0;
        for totals in &request.totals {
            let (index, said) = totals.parts();
            let came = partition
                .queue(index.value())
                .map(|queue| queue.totals())
                .unwrap_or_default();
            said.verify(&came).map_err(|error| located(error, index))?;
            named += usize::from(came.buffers > 0);
        }
        if partition.queues().count() != named {
            let said: HashSet<u32> = request.totals.iter().map(|totals| totals.subpartition).collect();
            let (index, totals) = partition
                .queues()
                .find(|(index, _)| !said.contains(index))
                .map(|(index, queue)| (SubpartitionIndex::new(index), queue.totals()))
                .unwrap_or_default();
            return Err(located(
                Totals::default()
                    .verify(&totals)
                    .err()
                    .unwrap_or_else(|| protocol("totals name a subpartition twice")),
                index,
            ));
        }
        Ok(())
    }
}
