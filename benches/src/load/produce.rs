//! A producer of a measurement: fills buffers in place, or records, by turns of its subpartitions.

use std::time::Duration;

use shuffle_client::{AttachOptions, FlushInterval, PartitionSpec, Session, Writer};
use shuffle_protocol::{JobId, NodeAddress, PartitionId, ResultId, ShuffleError, SubpartitionIndex};

use super::message::{Desk, Done, Event, Flush, ProduceLoad, emit};
use super::pattern::Filler;
use super::worker::Stopwatch;
use crate::executor::{ExecutorError, Orders};

/// Writes one partition to its end.
pub(super) async fn run(role: String, load: ProduceLoad) -> Result<Done, ExecutorError> {
    let session = attach(role, &load.desk).await?;
    let spec = match &load.audience {
        None => PartitionSpec::new(partition(load.partition), load.subpartitions),
        Some(audience) => audience.consumers.iter().try_fold(
            PartitionSpec::broadcast(partition(load.partition)),
            |spec, (node, count)| Ok::<_, ShuffleError>(spec.consumers(Some(NodeAddress::parse(node)?), *count)),
        )?,
    };
    let spec = spec
        .buffers(load.buffers, load.buffers)
        .max_queued(load.buffers)
        .checksums(load.checksums)
        .kind(load.kind.into())
        .flush_interval(match load.flush {
            Flush::WhenFull => FlushInterval::WhenFull,
            Flush::AfterEachRecord => FlushInterval::AfterEachRecord,
            Flush::Every { milliseconds } => FlushInterval::Every(Duration::from_millis(milliseconds)),
        });
    let mut writer = session.create_partition(spec).await?;
    let mut orders = Orders::new();
    emit(&Event::Ready);
    orders.wait_for_go().await?;
    let watch = Stopwatch::start();
    let mut filler = Filler::new(load.partition);
    if load.record_bytes == 0 {
        write_buffers(&mut writer, &load, &mut filler).await?;
    } else {
        let piece = usize::try_from(load.record_bytes).expect("invariant: a length fits an address");
        write_records(&mut writer, &load, &mut filler, vec![0; piece], session.buffer_bytes()).await?;
    }
    writer.finish().await?;
    let done = watch.stop(filler.totals());
    session.detach().await?;
    Ok(done)
}

/// Attaches to the node's server.
pub(super) async fn attach(role: String, desk: &Desk) -> Result<Session, ExecutorError> {
    let options = AttachOptions::new(JobId::new(desk.job))
        .socket(&desk.socket)
        .name(role)
        .timeout(Duration::from_secs(ATTACH_SECONDS));
    Ok(Session::attach(options).await?)
}

/// The name of a partition of the measurement.
pub(super) fn partition(index: u32) -> PartitionId {
    PartitionId {
        result: ResultId::new(RESULT),
        index,
        attempt: 0,
    }
}

async fn write_buffers(writer: &mut Writer, load: &ProduceLoad, filler: &mut Filler) -> Result<(), ExecutorError> {
    for piece in 0..load.pieces {
        let mut buffer = writer.reserve(target(load, piece)).await?;
        let length = buffer.len();
        filler.fill(&mut buffer);
        writer.commit(buffer, length, 1).await.map_err(|(error, _)| error)?;
        if piece % u64::from(load.turn) == u64::from(load.turn) - 1 {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

async fn write_records(
    writer: &mut Writer,
    load: &ProduceLoad,
    filler: &mut Filler,
    mut record: Vec<u8>,
    buffer_bytes: u32,
) -> Result<(), ExecutorError> {
    let turn = (u64::from(load.turn) * u64::from(buffer_bytes) / u64::from(load.record_bytes)).max(1);
    for piece in 0..load.pieces {
        filler.fill(&mut record);
        writer.write_to(target(load, piece), &record).await?;
        if piece % turn == turn - 1 {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Which subpartition a piece goes to: `burst` rounds over `active` of them, then over the next ones.
fn target(load: &ProduceLoad, piece: u64) -> SubpartitionIndex {
    let (all, active) = (u64::from(load.subpartitions), u64::from(load.active));
    let group = piece / (active * load.burst) % all.div_ceil(active);
    let index = (group * active + piece % active) % all;
    SubpartitionIndex::new(u32::try_from(index).expect("invariant: an index of a subpartition"))
}

/// The one intermediate result of a measurement.
const RESULT: u64 = 1;
const ATTACH_SECONDS: u64 = 20;

#[cfg(test)]
mod tests {
    use super::{ProduceLoad, target};
    use crate::load::message::{Desk, Flush, Kind};

    fn targets(subpartitions: u32, active: u32, burst: u64, pieces: u64) -> Vec<u32> {
        let load = ProduceLoad {
            desk: Desk {
                socket: "x".into(),
                job: 1,
            },
            partition: 0,
            subpartitions,
            active,
            burst,
            buffers: 1,
            record_bytes: 0,
            pieces,
            flush: Flush::WhenFull,
            checksums: true,
            turn: 1,
            kind: Kind::default(),
            audience: None,
        };
        (0..pieces).map(|piece| target(&load, piece).value()).collect()
    }

    #[test]
    fn subpartitions_take_turns() {
        assert_eq!(targets(1, 1, 1, 3), [0, 0, 0]);
        assert_eq!(targets(3, 3, 1, 7), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(targets(4, 2, 2, 10), [0, 1, 0, 1, 2, 3, 2, 3, 0, 1]);
        assert_eq!(targets(3, 2, 1, 6), [0, 1, 2, 0, 0, 1]);
    }
}
