//! A consumer: one gate over all partitions, every row accounted for and passed on.

use shuffle_client::{GateSpec, Session};
use shuffle_protocol::{NodeAddress, PartitionId, ResultId, SubpartitionRange};

use super::message::{ConsumeSpec, ConsumerResult, Event};
use super::progress::Progress;
use super::sink::Outputs;
use super::{ExecutorError, RESULT};
use crate::clock::Moment;
use crate::rows::RowDigest;

/// Reads a range of subpartitions of all partitions to the end.
pub(super) async fn run(session: &Session, task: ConsumeSpec) -> Result<Event, ExecutorError> {
    let mut outputs = Outputs::open(task.sink)?;
    let range = SubpartitionRange::new(task.first, task.count)?;
    let mut spec = GateSpec::new()
        .credits(task.exclusive, task.floating)
        .group(task.group.parse()?);
    // Whether the producer of each channel is on this node.
    let mut local = Vec::with_capacity(task.producers.len());
    for (index, producer) in (0..).zip(&task.producers) {
        let node = NodeAddress::parse(producer)?;
        let partition = PartitionId {
            result: ResultId::new(RESULT),
            index,
            attempt: 0,
        };
        local.push(node == session.node());
        spec = spec.channel(Some(node), partition, range);
    }
    let mut gate = session.open_gate(spec).await?;
    let mut digests = vec![RowDigest::default(); index_of(task.count)];
    let (mut local_rows, mut local_bytes, mut remote_bytes) = (0, 0, 0);
    let mut first_row = None;
    let mut progress = Progress::new();
    while let Some(record) = gate.next_record().await? {
        if first_row.is_none() {
            first_row = Some(Moment::now());
        }
        let index = index_of(record.subpartition.value() - task.first);
        let row = &record.bytes[..];
        digests[index].add(row);
        let length = u64::try_from(row.len()).expect("invariant: a length fits 64 bits");
        if local[index_of(record.channel)] {
            local_rows += 1;
            local_bytes += length;
        } else {
            remote_bytes += length;
        }
        outputs.write(index, row)?;
        progress.add(row).await;
    }
    outputs.finish()?;
    let stats = gate.stats();
    Ok(Event::Consumed(ConsumerResult {
        digests,
        first_row,
        finished: Moment::now(),
        local_rows,
        local_bytes,
        remote_bytes,
        write_arena_bytes: stats.local_bytes,
        read_arena_bytes: stats.remote_bytes,
    }))
}

fn index_of(number: u32) -> usize {
    usize::try_from(number).expect("invariant: an index fits an address")
}
