//! The two ends of a latency measurement through servers: one record at a time, each flushed at once.

use serde::{Deserialize, Serialize};
use shuffle_client::{FlushInterval, GateSpec, PartitionSpec};
use shuffle_protocol::{NodeAddress, SubpartitionIndex, SubpartitionRange};

use super::message::{Desk, Done, Event, emit};
use super::produce::{attach, partition};
use super::ticks::{Ear, Rhythm, Ticks};
use super::worker::Stopwatch;
use crate::executor::{ExecutorError, Orders};

/// One end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LatencyLoad {
    pub(crate) desk: Desk,
    pub(crate) rhythm: Rhythm,
    /// The producing node, for the end that listens.
    pub(crate) listens_to: Option<String>,
}

/// Does the work of one end.
pub(super) async fn run(role: String, load: LatencyLoad) -> Result<Done, ExecutorError> {
    match &load.listens_to {
        None => send(role, load).await,
        Some(node) => {
            let node = NodeAddress::parse(node)?;
            listen(role, load, node).await
        }
    }
}

async fn send(role: String, load: LatencyLoad) -> Result<Done, ExecutorError> {
    let session = attach(role, &load.desk).await?;
    let spec = PartitionSpec::new(partition(0), 1)
        .buffers(BUFFERS, BUFFERS)
        .flush_interval(FlushInterval::AfterEachRecord);
    let mut writer = session.create_partition(spec).await?;
    let watch = start().await?;
    let mut ticks = Ticks::start(load.rhythm, false).map_err(timer)?;
    let readiness = ticks.readiness().map_err(timer)?;
    while !ticks.is_over() {
        ticks.wait_in_runtime(&readiness).await.map_err(timer)?;
        while let Some(record) = ticks.poll() {
            writer.write_to(SubpartitionIndex::new(0), record).await?;
        }
    }
    writer.finish().await?;
    let done = ticks.done(watch);
    session.detach().await?;
    Ok(done)
}

async fn listen(role: String, load: LatencyLoad, node: NodeAddress) -> Result<Done, ExecutorError> {
    let session = attach(role, &load.desk).await?;
    let range = SubpartitionRange::new(0, 1)?;
    let spec = GateSpec::new().channel(Some(node), partition(0), range);
    let mut gate = session.open_gate(spec).await?;
    let watch = start().await?;
    let mut ear = Ear::new(load.rhythm)?;
    while let Some(record) = gate.next_record().await? {
        ear.hear(&record.bytes)?;
    }
    let done = ear.done(watch);
    drop(gate);
    session.detach().await?;
    Ok(done)
}

async fn start() -> Result<Stopwatch, ExecutorError> {
    let mut orders = Orders::new();
    emit(&Event::Ready);
    orders.wait_for_go().await?;
    Ok(Stopwatch::start())
}

fn timer(error: std::io::Error) -> ExecutorError {
    ExecutorError::Other(format!("the timer: {error}"))
}

const BUFFERS: u32 = 16;
