//! `spill`: a partition that is far larger than the pool, written, kept, and read back, beside a plain file.

use std::path::Path;
use std::time::Duration;

use super::measure::{Performance, Spread, Stage, rounded, until_interrupted};
use super::run::ask;
use crate::cli::{SendStrategy, SpillArgs};
use crate::cluster::ServerOptions;
use crate::console::Console;
use crate::error::BenchError;
use crate::load::{Channel, ConsumeLoad, Desk, Done, FileLoad, Flush, Kind, ProduceLoad, Task};
use crate::report::{SpillDirection, SpillReport, publish};

/// Seconds of writing and of reading, and what was counted.
struct Round {
    write_seconds: f64,
    read_seconds: f64,
    bytes: u64,
    problem: Option<String>,
    disk_bytes: (u64, u64),
    caches_dropped: bool,
}

/// Runs it; whether both sides were verified in each round.
///
/// # Errors
/// It did not come to its end.
pub(crate) async fn spill(args: &SpillArgs, console: &mut Console) -> Result<bool, BenchError> {
    let (ours, plain) = until_interrupted(run_all(args, console)).await?;
    console.finish();
    for problem in ours.iter().chain(&plain).filter_map(|round| round.problem.as_ref()) {
        console.say(format!("not verified: {problem}"));
    }
    let report = report(args, &ours, &plain);
    publish(&report, &report.table(), args.output.json.as_ref())?;
    Ok(report.verified)
}

async fn run_all(args: &SpillArgs, console: &mut Console) -> Result<(Vec<Round>, Vec<Round>), BenchError> {
    console.start(Some(2 * u64::from(args.rounds)));
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for round in 0..u64::from(args.rounds) {
        console.step(2 * round, format!("round {}: through the service", round + 1));
        ours.push(through_the_service(args, console).await?);
        console.step(2 * round + 1, format!("round {}: a plain file", round + 1));
        plain.push(plain_file(args, console).await?);
    }
    Ok((ours, plain))
}

async fn through_the_service(args: &SpillArgs, console: &mut Console) -> Result<Round, BenchError> {
    let mut stage = open(args)?;
    let pool_buffers = u32::try_from(args.pool / u64::from(args.buffer_size)).unwrap_or(u32::MAX);
    let options = ServerOptions {
        pool_buffers: pool_buffers.next_multiple_of(8).max(64),
        buffer_bytes: args.buffer_size,
        verbose: args.output.verbose,
        send: SendStrategy::Auto,
        has_disk: true,
        more: Vec::new(),
    };
    stage.start_server(&options, console).await?;
    let (desk, node) = match stage.servers() {
        [server, ..] => (
            Desk {
                socket: server.socket.clone(),
                job: 1,
            },
            server.address.to_string(),
        ),
        [] => return Err(BenchError::Usage("no server".to_owned())),
    };
    let buffers = (options.pool_buffers / 2).min(1024);
    let produce = ProduceLoad {
        desk: desk.clone(),
        partition: 0,
        subpartitions: 1,
        active: 1,
        burst: 1,
        buffers,
        record_bytes: 0,
        pieces: args.bytes.div_ceil(args.buffer_size.into()),
        flush: Flush::WhenFull,
        checksums: true,
        turn: TURN,
        kind: Kind {
            persistent: true,
            blocking: true,
            spilling: true,
        },
        audience: None,
    };
    stage.start_worker("producer", Task::Produce(produce), console).await?;
    let written = stage.perform(console).await?;
    let caches_dropped = drop_caches();
    let consume = ConsumeLoad {
        desk,
        gates: 1,
        channels: vec![Channel {
            node,
            partition: 0,
            first: 0,
            count: 1,
            width: 1,
            told_of: None,
        }],
        exclusive: 2,
        floating: CREDITS,
        records: false,
        counts_only: false,
        turn: TURN,
    };
    stage.start_worker("consumer", Task::Consume(consume), console).await?;
    let read = stage.perform(console).await?;
    let mut disk_bytes = (0, 0);
    for server in stage.servers() {
        let counters = ask(server).await?;
        let counter = |name| counters.get(name).copied().unwrap_or(0);
        disk_bytes = (counter("disk_bytes_written"), counter("disk_bytes_read"));
    }
    stage.close().await?;
    Ok(Round {
        disk_bytes,
        ..judge(&written, &read, caches_dropped)
    })
}

async fn plain_file(args: &SpillArgs, console: &mut Console) -> Result<Round, BenchError> {
    let mut stage = open(args)?;
    let load = |dir: &Path, reads| FileLoad {
        path: dir.join("plain"),
        bytes: args.bytes.next_multiple_of(args.buffer_size.into()),
        piece: args.buffer_size,
        reads,
    };
    let task = Task::File(load(stage.dir(), false));
    stage.start_worker("writer", task, console).await?;
    let written = stage.perform(console).await?;
    let caches_dropped = drop_caches();
    let task = Task::File(load(stage.dir(), true));
    stage.start_worker("reader", task, console).await?;
    let read = stage.perform(console).await?;
    stage.close().await?;
    Ok(judge(&written, &read, caches_dropped))
}

fn open(args: &SpillArgs) -> Result<Stage, BenchError> {
    Stage::open(Duration::from_secs(args.output.stall_timeout), args.output.verbose)
}

/// The writer was done first, the reader last.
fn judge(written: &Performance, read: &Performance, caches_dropped: bool) -> Round {
    let totals = |done: Option<&Done>| done.map(|done| done.totals).unwrap_or_default();
    let (made, arrived) = (totals(written.done.first()), totals(read.done.last()));
    Round {
        write_seconds: written.seconds,
        read_seconds: read.seconds,
        bytes: made.bytes,
        problem: (made != arrived).then(|| format!("written {made:?}, read {arrived:?}")),
        disk_bytes: (0, 0),
        caches_dropped,
    }
}

/// Lets the kernel forget what it has of files; only root may ask for it.
fn drop_caches() -> bool {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3\n").is_ok()
}

fn report(args: &SpillArgs, ours: &[Round], plain: &[Round]) -> SpillReport {
    let direction = |seconds: fn(&Round) -> f64| {
        let speed = |round: &Round| round.bytes as f64 / 1e9 / seconds(round).max(1e-9);
        let speeds = |rounds: &[Round]| Spread::of(&rounds.iter().map(speed).collect::<Vec<_>>()).median;
        let ratios: Vec<f64> = ours.iter().zip(plain).map(|(a, b)| speed(a) / speed(b)).collect();
        let ratio = Spread::of(&ratios);
        SpillDirection {
            gb_per_s: rounded(speeds(ours)),
            baseline_gb_per_s: rounded(speeds(plain)),
            ratio: rounded(ratio.median),
            ratio_range: (rounded(ratio.min), rounded(ratio.max)),
        }
    };
    let rounds = || ours.iter().chain(plain);
    let disk_bytes = ours.first().map_or((0, 0), |round| round.disk_bytes);
    SpillReport {
        scenario: "spill",
        verified: rounds().all(|round| round.problem.is_none()) && disk_bytes.0 >= args.bytes,
        bytes: ours.first().map_or(0, |round| round.bytes),
        rounds: args.rounds,
        pool_bytes: args.pool,
        caches_dropped: rounds().all(|round| round.caches_dropped),
        write: direction(|round| round.write_seconds),
        read: direction(|round| round.read_seconds),
        disk_bytes_written: disk_bytes.0,
        disk_bytes_read: disk_bytes.1,
    }
}

const TURN: u32 = 32;
/// Floating credits of the reader: views that it may hold at one time, and so what is loaded ahead of it.
const CREDITS: u32 = 126;
