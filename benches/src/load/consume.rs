//! A consumer of a measurement: one gate, every byte read where it lies.

use shuffle_client::{BufferOrEvent, Gate, GateSpec};
use shuffle_protocol::{NodeAddress, SubpartitionRange};

use super::message::{ConsumeLoad, Done, Event, emit};
use super::pattern::Reader;
use super::produce::{attach, partition};
use super::worker::Stopwatch;
use crate::executor::{ExecutorError, Orders};

/// Reads one gate to its end.
pub(super) async fn run(role: String, load: ConsumeLoad) -> Result<Done, ExecutorError> {
    let session = attach(role, &load.desk).await?;
    let mut spec = GateSpec::new().credits(load.exclusive, load.floating);
    for channel in &load.channels {
        let node = NodeAddress::parse(&channel.node)?;
        if let Some(told_of) = channel.told_of {
            spec = spec.broadcast(Some(node), partition(channel.partition), told_of);
            continue;
        }
        let width = usize::try_from(channel.width).expect("invariant: a count fits an address");
        for first in (channel.first..channel.first + channel.count).step_by(width) {
            let count = channel.width.min(channel.first + channel.count - first);
            let range = SubpartitionRange::new(first, count)?;
            spec = spec.channel(Some(node.clone()), partition(channel.partition), range);
        }
    }
    let mut gate = session.open_gate(spec).await?;
    let mut orders = Orders::new();
    emit(&Event::Ready);
    orders.wait_for_go().await?;
    let watch = Stopwatch::start();
    let mut reader = Reader::new();
    if load.records {
        read_records(&mut gate, &mut reader).await?;
    } else {
        read_buffers(&mut gate, &load, &mut reader).await?;
    }
    let mut done = watch.stop(reader.totals());
    let stats = gate.stats();
    (done.local_bytes, done.remote_bytes) = (stats.local_bytes, stats.remote_bytes);
    drop(gate);
    session.detach().await?;
    Ok(done)
}

async fn read_buffers(gate: &mut Gate, load: &ConsumeLoad, reader: &mut Reader) -> Result<(), ExecutorError> {
    let mut left = load.turn;
    while let Some(item) = gate.next_buffer().await? {
        let BufferOrEvent::Buffer(buffer) = item else {
            continue;
        };
        if load.counts_only {
            reader.count(&buffer.bytes);
        } else {
            reader.read(&buffer.bytes);
        }
        drop(buffer);
        left -= 1;
        if left == 0 {
            left = load.turn;
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

async fn read_records(gate: &mut Gate, reader: &mut Reader) -> Result<(), ExecutorError> {
    let mut left = RECORDS_BETWEEN_TURNS;
    while let Some(record) = gate.next_record().await? {
        reader.read(&record.bytes);
        drop(record);
        left -= 1;
        if left == 0 {
            left = RECORDS_BETWEEN_TURNS;
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

const RECORDS_BETWEEN_TURNS: u32 = 256;
