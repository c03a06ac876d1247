//! Consumers of a measurement: a gate each, every byte read where it lies.

use shuffle_client::{BufferOrEvent, Gate, GateSpec};
use shuffle_protocol::{NodeAddress, SubpartitionRange};
use tokio::task::JoinSet;

use super::message::{ConsumeLoad, Done, Event, emit};
use super::pattern::{Reader, Totals};
use super::produce::{attach, partition};
use super::worker::Stopwatch;
use crate::executor::{ExecutorError, Orders};

/// Reads gates to their ends, all at once.
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
    let mut gates = Vec::new();
    for _ in 0..load.gates {
        gates.push(session.open_gate(spec.clone()).await?);
    }
    let mut orders = Orders::new();
    emit(&Event::Ready);
    orders.wait_for_go().await?;
    let watch = Stopwatch::start();
    let mut reading = JoinSet::new();
    for gate in gates {
        reading.spawn(read(gate, load.clone()));
    }
    let (mut totals, mut local_bytes, mut remote_bytes) = (Totals::default(), 0, 0);
    while let Some(read) = reading.join_next().await {
        let (gate, read) = read.map_err(|error| ExecutorError::Other(format!("a consumer's task {error}")))??;
        totals.bytes += read.bytes;
        totals.sum = totals.sum.wrapping_add(read.sum);
        let stats = gate.stats();
        local_bytes += stats.local_bytes;
        remote_bytes += stats.remote_bytes;
    }
    let mut done = watch.stop(totals);
    (done.local_bytes, done.remote_bytes) = (local_bytes, remote_bytes);
    session.detach().await?;
    Ok(done)
}

async fn read(mut gate: Gate, load: ConsumeLoad) -> Result<(Gate, Totals), ExecutorError> {
    let mut reader = Reader::new();
    if load.records {
        read_records(&mut gate, &mut reader).await?;
    } else {
        read_buffers(&mut gate, &load, &mut reader).await?;
    }
    Ok((gate, reader.totals()))
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
