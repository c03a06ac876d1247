//! `kinds`: all eight kinds of partition, from eight producers to eight consumers on two nodes.

use std::time::Duration;

use shuffle_client::{AttachOptions, PartitionSpec, Session};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::partition::{Lifetime, PartitionKind};
use shuffle_protocol::{JobId, PartitionId, ResultId};

use super::measure::{Delivery, Load, Stage, until_interrupted};
use crate::cli::{KindsArgs, MeasureArgs, NodePath, SendStrategy};
use crate::console::Console;
use crate::error::BenchError;
use crate::report::{KindOutcome, KindsReport, publish};

/// Runs all of them; whether each was verified.
///
/// # Errors
/// It did not come to its end.
pub(crate) async fn kinds(args: &KindsArgs, console: &mut Console) -> Result<bool, BenchError> {
    let outcomes = until_interrupted(run_all(args, console)).await?;
    console.finish();
    let sum = |value: fn(&KindOutcome) -> u64| outcomes.iter().map(value).sum();
    let report = KindsReport {
        scenario: "kinds",
        verified: outcomes.iter().all(|outcome| outcome.verified),
        producers: args.producers,
        consumers: args.consumers,
        disk_bytes_written: sum(|outcome| outcome.disk_bytes_written),
        disk_bytes_read: sum(|outcome| outcome.disk_bytes_read),
        kinds: outcomes,
    };
    publish(&report, &report.table(), args.output.json.as_ref())?;
    Ok(report.verified)
}

async fn run_all(args: &KindsArgs, console: &mut Console) -> Result<Vec<KindOutcome>, BenchError> {
    console.start(Some(8));
    let mut outcomes = Vec::new();
    for (done, kind) in (0..).zip(PartitionKind::all()) {
        console.step(done, kind.to_string());
        let outcome = if kind.validate().is_ok() {
            serve(args, kind, console).await?
        } else {
            refuse(args, kind, console).await?
        };
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

fn load(args: &KindsArgs, kind: PartitionKind) -> Load {
    let measure = MeasureArgs {
        bytes: args.bytes,
        rounds: 1,
        buffer_size: args.buffer_size,
        buffers: args.buffers,
        send: SendStrategy::Auto,
        server_options: Vec::new(),
        turn: None,
        output: args.output.clone(),
    };
    Load {
        producers: args.producers,
        consumers: args.consumers,
        subpartitions: args.consumers,
        active: args.consumers,
        kind: kind.into(),
        mixed: true,
        readings: if kind.lifetime == Lifetime::Persistent {
            args.readings
        } else {
            1
        },
        ..Load::new(NodePath::Remote, &measure)
    }
}

async fn serve(args: &KindsArgs, kind: PartitionKind, console: &mut Console) -> Result<KindOutcome, BenchError> {
    let load = load(args, kind);
    let delivery: Delivery = load.deliver(console).await?;
    for problem in &delivery.problems {
        console.say(format!("{kind}: not verified: {problem}"));
    }
    Ok(KindOutcome {
        kind: kind.to_string(),
        refusal: None,
        verified: delivery.problems.is_empty() && delivery.bytes > 0,
        readings: load.readings,
        bytes: delivery.bytes,
        gb_per_s: delivery.gb_per_s(),
        disk_bytes_written: delivery.counter("disk_bytes_written"),
        disk_bytes_read: delivery.counter("disk_bytes_read"),
    })
}

/// Asks a server for it, which is to say why it does not make one.
async fn refuse(args: &KindsArgs, kind: PartitionKind, console: &Console) -> Result<KindOutcome, BenchError> {
    let load = load(args, kind);
    let mut stage = Stage::open(load.stall_timeout, load.verbose)?;
    stage.start_server(&load.server_options(), console).await?;
    let failed = |source| BenchError::Session {
        what: "asking for a partition".to_owned(),
        source,
    };
    let mut answer = None;
    for server in stage.servers() {
        let options = AttachOptions::new(JobId::new(1))
            .socket(&server.socket)
            .timeout(Duration::from_secs(10));
        let session = Session::attach(options).await.map_err(failed)?;
        let id = PartitionId {
            result: ResultId::new(1),
            index: 0,
            attempt: 0,
        };
        answer = session
            .create_partition(PartitionSpec::new(id, 1).kind(kind))
            .await
            .err();
        session.detach().await.map_err(failed)?;
    }
    stage.close().await?;
    Ok(KindOutcome {
        kind: kind.to_string(),
        verified: answer
            .as_ref()
            .is_some_and(|error| matches!(error.kind(), ErrorKind::InvalidRequest)),
        refusal: Some(answer.map_or("it was created".to_owned(), |error| error.message().to_owned())),
        readings: 0,
        bytes: 0,
        gb_per_s: 0.0,
        disk_bytes_written: 0,
        disk_bytes_read: 0,
    })
}
