//! Workers of `many`: partitions of very many subpartitions, each with a few records that are checked one by one.
//!
//! A record says who wrote it, for which subpartition, and its number there; the rest is a running number that follows from
//! these. So a consumer knows of each record whether it is the next one of its subpartition, whole, and meant for it.

use serde::{Deserialize, Serialize};
use shuffle_client::{GateSpec, PartitionSpec, Session, Writer};
use shuffle_protocol::{NodeAddress, SubpartitionIndex, SubpartitionRange};
use tokio::task::JoinSet;

use super::message::{Desk, Done, Event, emit};
use super::pattern::Totals;
use super::produce::{attach, partition};
use super::worker::Stopwatch;
use crate::executor::{ExecutorError, Orders};

/// Bytes of a record that say what it is.
const HEAD_BYTES: usize = 12;

/// Records between two turns of the runtime.
const TURN: u32 = 64;

/// What the workers of a run have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManyLoad {
    pub(crate) desk: Desk,
    pub(crate) subpartitions: u32,
    /// Records of each subpartition of each partition, and bytes of a record, a multiple of 4 from 12 on.
    pub(crate) records: u32,
    pub(crate) record_bytes: u32,
    pub(crate) side: ManySide,
}

/// What one of them does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ManySide {
    /// Writes these partitions at one time.
    Produce { partitions: Vec<u32>, buffers: Option<u32> },
    /// Reads a range of subpartitions of all partitions; the node of each, by index.
    Consume {
        nodes: Vec<String>,
        first: u32,
        count: u32,
        floating: u32,
    },
}

/// Does its part.
pub(super) async fn run(role: String, load: ManyLoad) -> Result<Done, ExecutorError> {
    let session = attach(role, &load.desk).await?;
    let done = match load.side.clone() {
        ManySide::Produce { partitions, buffers } => produce(&session, &load, &partitions, buffers).await?,
        ManySide::Consume {
            nodes,
            first,
            count,
            floating,
        } => {
            let range = SubpartitionRange::new(first, count)?;
            consume(&session, &load, &nodes, range, floating).await?
        }
    };
    session.detach().await?;
    Ok(done)
}

async fn ready() -> Result<Stopwatch, ExecutorError> {
    let mut orders = Orders::new();
    emit(&Event::Ready);
    orders.wait_for_go().await?;
    Ok(Stopwatch::start())
}

async fn produce(
    session: &Session,
    load: &ManyLoad,
    partitions: &[u32],
    buffers: Option<u32>,
) -> Result<Done, ExecutorError> {
    let mut writers = Vec::new();
    for index in partitions {
        let spec = PartitionSpec::new(partition(*index), load.subpartitions)
            .sorted(true)
            .buffers(2, buffers);
        writers.push((*index, session.create_partition(spec).await?));
    }
    let watch = ready().await?;
    let mut tasks = JoinSet::new();
    for (index, writer) in writers {
        tasks.spawn(write(load.clone(), index, writer));
    }
    let mut totals = Totals::default();
    while let Some(ended) = tasks.join_next().await {
        let written = ended.map_err(|error| ExecutorError::Other(format!("a writer's task {error}")))?;
        totals.merge(written?);
    }
    Ok(watch.stop(totals))
}

async fn write(load: ManyLoad, index: u32, mut writer: Writer) -> Result<Totals, ExecutorError> {
    let mut record = vec![0; address(load.record_bytes)];
    let (mut totals, mut left) = (Totals::default(), TURN);
    for number in 0..load.records {
        for turn in 0..load.subpartitions {
            let subpartition = scattered(turn, load.subpartitions);
            fill(&mut record, [index, subpartition, number]);
            totals.add(&record);
            writer.write_to(SubpartitionIndex::new(subpartition), &record).await?;
            left -= 1;
            if left == 0 {
                left = TURN;
                tokio::task::yield_now().await;
            }
        }
    }
    let report = writer.finish().await?;
    let short = report
        .subpartitions
        .iter()
        .any(|one| one.records != u64::from(load.records));
    if short {
        return Err(ExecutorError::Other(
            "a finish report counts other records than were written".to_owned(),
        ));
    }
    Ok(totals)
}

async fn consume(
    session: &Session,
    load: &ManyLoad,
    nodes: &[String],
    range: SubpartitionRange,
    floating: u32,
) -> Result<Done, ExecutorError> {
    let mut spec = GateSpec::new().credits(0, floating);
    for (index, node) in (0..).zip(nodes) {
        spec = spec.channel(Some(NodeAddress::parse(node)?), partition(index), range);
    }
    let mut gate = session.open_gate(spec).await?;
    let watch = ready().await?;
    let width = address(range.count);
    // The number of the next record, by partition and subpartition.
    let mut next = vec![0u32; nodes.len() * width];
    let mut expected = vec![0; address(load.record_bytes)];
    let (mut totals, mut left) = (Totals::default(), TURN);
    while let Some(record) = gate.next_record().await? {
        let (index, subpartition) = (record.channel, record.subpartition.value());
        let number = &mut next[address(index) * width + address(subpartition - range.first)];
        fill(&mut expected, [index, subpartition, *number]);
        if record.bytes != expected {
            return Err(ExecutorError::Other(format!(
                "record {number} of partition {index}, subpartition {subpartition} is not what was written"
            )));
        }
        *number += 1;
        totals.add(&record.bytes);
        drop(record);
        left -= 1;
        if left == 0 {
            left = TURN;
            emit_progress(&totals);
            tokio::task::yield_now().await;
        }
    }
    if let Some(place) = next.iter().position(|number| *number != load.records) {
        let (index, subpartition) = (place / width, place % width + address(range.first));
        return Err(ExecutorError::Other(format!(
            "partition {index}, subpartition {subpartition}: {} records came of {}",
            next[place], load.records
        )));
    }
    let mut done = watch.stop(totals);
    let stats = gate.stats();
    (done.local_bytes, done.remote_bytes) = (stats.local_bytes, stats.remote_bytes);
    Ok(done)
}

/// Tells the parent now and then how far it is.
fn emit_progress(totals: &Totals) {
    const EACH: u64 = 4 << 20;
    // Once each time such a step is passed: a turn is far shorter.
    if totals.bytes % EACH < 64 * u64::from(TURN) {
        emit(&Event::Progress(totals.bytes));
    }
}

/// All subpartitions, each once, neighbours far apart.
fn scattered(turn: u32, subpartitions: u32) -> u32 {
    // Prime and larger than any number of subpartitions: coprime to each.
    const STEP: u64 = 2_147_483_647;
    let index = u64::from(turn) * STEP % u64::from(subpartitions);
    u32::try_from(index).expect("invariant: below a number of 32 bits")
}

fn fill(record: &mut [u8], head: [u32; 3]) {
    let [index, subpartition, number] = head;
    let mut word = index.wrapping_mul(0x9E37_79B1) ^ subpartition.wrapping_mul(0x85EB_CA77) ^ number;
    let (start, body) = record.split_at_mut(HEAD_BYTES);
    for (place, value) in start.chunks_exact_mut(4).zip(head) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    for place in body.chunks_exact_mut(4) {
        place.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(1);
    }
}

fn address(value: u32) -> usize {
    usize::try_from(value).expect("invariant: an index fits an address")
}

#[cfg(test)]
mod tests {
    use super::{fill, scattered};

    #[test]
    fn every_subpartition_has_its_turn_once() {
        for subpartitions in [1, 2, 1000, 100_000] {
            let mut seen: Vec<u32> = (0..subpartitions).map(|turn| scattered(turn, subpartitions)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..subpartitions));
        }
    }

    #[test]
    fn no_two_records_are_the_same() {
        let record = |head| {
            let mut bytes = vec![0; 32];
            fill(&mut bytes, head);
            bytes
        };
        let all = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]].map(record);
        assert!((0..4).all(|one| (0..one).all(|other| all[one] != all[other])));
    }
}
