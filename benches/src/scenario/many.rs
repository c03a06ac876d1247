//! `many`: writers with very many subpartitions, in pools of few buffers.

use std::path::PathBuf;
use std::time::Duration;

use super::measure::{Performance, Stage, rounded, until_interrupted};
use super::plan::divide;
use super::run::{ask, ask_at};
use crate::cli::{ManyArgs, SendStrategy};
use crate::cluster::{Peaks, ServerOptions, private_bytes, sent_by};
use crate::console::Console;
use crate::error::{Attempt, BenchError};
use crate::load::{Desk, ManyLoad, ManySide, Task};
use crate::report::{ManyReport, publish};

/// Private memory and wire bytes, and what the workers said.
struct Delivered {
    performance: Performance,
    /// Growth of all servers' private memory by the partitions and gates, and most that the books of subpartitions took
    /// later, beyond what they took then, in bytes.
    books_bytes: u64,
    peak_bytes: u64,
    wire_bytes: u64,
    slices: u64,
}

/// Runs it; whether everything was verified.
///
/// # Errors
/// It did not come to its end, or a record was not what was written.
pub(crate) async fn many(args: &ManyArgs, console: &mut Console) -> Result<bool, BenchError> {
    let delivered = until_interrupted(deliver(args, console)).await?;
    console.finish();
    let report = report(args, &delivered);
    publish(&report, &report.table(), args.output.json.as_ref())?;
    Ok(report.verified)
}

async fn deliver(args: &ManyArgs, console: &mut Console) -> Result<Delivered, BenchError> {
    let mut stage = Stage::open(Duration::from_secs(args.output.stall_timeout), args.output.verbose)?;
    for _ in 0..args.nodes {
        stage.start_server(&options(args), console).await?;
    }
    let pids: Vec<u32> = stage.servers().iter().map(|server| server.pid).collect();
    let private = || -> Result<u64, BenchError> {
        let each = pids.iter().map(|pid| private_bytes(*pid));
        each.sum::<std::io::Result<u64>>()
            .attempt(|| "the memory of a server".to_owned())
    };
    let before = private()?;
    start_workers(args, &mut stage, console).await?;
    let grown = private()?.saturating_sub(before);
    let asked: Vec<_> = stage
        .servers()
        .iter()
        .map(|server| (server.name.clone(), server.socket.clone()))
        .collect();
    let opened = subpartition_bytes(&asked).await?;
    let sent = |pids: &[u32]| pids.iter().map(|pid| sent_by(*pid)).sum::<Result<u64, BenchError>>();
    let sent_before = sent(&pids)?;
    console.start(Some(bytes_of(args)));
    let watched: Vec<(u32, u16)> = stage.servers().iter().map(|server| (server.pid, server.port)).collect();
    let (mut peaks, mut used) = (Peaks::default(), opened);
    let performance = tokio::select! {
        performance = stage.perform(console) => performance?,
        () = watch(&mut peaks, &watched) => return Err(BenchError::Usage("the watch ended".to_owned())),
        error = watch_books(&mut used, &asked) => return Err(error),
    };
    peaks.sample(&watched);
    let wire_bytes = sent(&pids)? - sent_before;
    let mut slices = 0;
    for server in stage.servers() {
        slices += ask(server).await?.get("buffers_produced").copied().unwrap_or(0);
    }
    stage.close().await?;
    Ok(Delivered {
        performance,
        books_bytes: grown + (used - opened),
        peak_bytes: peaks.private_bytes,
        wire_bytes,
        slices,
    })
}

/// Looks at the servers' memory until it is dropped.
async fn watch(peaks: &mut Peaks, servers: &[(u32, u16)]) {
    loop {
        peaks.sample(servers);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Asks the servers what the books of subpartitions take, until it is dropped or cannot.
async fn watch_books(most: &mut u64, servers: &[(String, PathBuf)]) -> BenchError {
    loop {
        match subpartition_bytes(servers).await {
            Ok(bytes) => *most = (*most).max(bytes),
            Err(error) => return error,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What the books of all subpartitions take, in bytes, as their servers count.
async fn subpartition_bytes(servers: &[(String, PathBuf)]) -> Result<u64, BenchError> {
    let mut bytes = 0;
    for (name, socket) in servers {
        bytes += ask_at(name, socket)
            .await?
            .get("subpartition_bytes")
            .copied()
            .unwrap_or(0);
    }
    Ok(bytes)
}

async fn start_workers(args: &ManyArgs, stage: &mut Stage, console: &Console) -> Result<(), BenchError> {
    let homes: Vec<_> = stage
        .servers()
        .iter()
        .map(|server| (server.socket.clone(), server.address.to_string()))
        .collect();
    let on_node = |producer: u32| usize::try_from(producer).unwrap_or(usize::MAX) % homes.len();
    let load = |socket: &std::path::Path, side| ManyLoad {
        desk: Desk {
            socket: socket.to_owned(),
            job: 1,
        },
        subpartitions: args.subpartitions,
        records: args.records,
        record_bytes: args.record_size,
        side,
    };
    for (node, (socket, _)) in homes.iter().enumerate() {
        let partitions: Vec<u32> = (0..args.producers).filter(|index| on_node(*index) == node).collect();
        if partitions.is_empty() {
            continue;
        }
        let side = ManySide::Produce {
            partitions,
            buffers: args.buffers,
        };
        let task = Task::Many(load(socket, side));
        stage.start_worker(&format!("producers-{node}"), task, console).await?;
    }
    let nodes: Vec<String> = (0..args.producers)
        .map(|index| homes[on_node(index)].1.clone())
        .collect();
    for (index, (first, count)) in divide(args.subpartitions, args.consumers).into_iter().enumerate() {
        if count == 0 {
            continue;
        }
        let (socket, _) = &homes[index % homes.len()];
        let side = ManySide::Consume {
            nodes: nodes.clone(),
            first,
            count,
            floating: args.floating,
        };
        let task = Task::Many(load(socket, side));
        stage.start_worker(&format!("consumer-{index}"), task, console).await?;
    }
    Ok(())
}

fn options(args: &ManyArgs) -> ServerOptions {
    let buffers = u32::try_from(args.pool / u64::from(args.buffer_size)).unwrap_or(u32::MAX);
    ServerOptions {
        pool_buffers: buffers.next_multiple_of(8).max(64),
        buffer_bytes: args.buffer_size,
        verbose: args.output.verbose,
        send: SendStrategy::Auto,
        has_disk: false,
        more: Vec::new(),
    }
}

fn bytes_of(args: &ManyArgs) -> u64 {
    let records = u64::from(args.producers) * u64::from(args.subpartitions) * u64::from(args.records);
    records * u64::from(args.record_size)
}

fn report(args: &ManyArgs, delivered: &Delivered) -> ManyReport {
    let Performance { seconds, done, .. } = &delivered.performance;
    let producers = usize::from(args.nodes).min(args.producers.try_into().unwrap_or(usize::MAX));
    let (made, read) = done.split_at(producers.min(done.len()));
    let sum = |done: &[crate::load::Done]| {
        done.iter().fold(crate::load::Totals::default(), |mut sum, one| {
            sum.merge(one.totals);
            sum
        })
    };
    let (made, read) = (sum(made), sum(read));
    let gigabytes = (read.bytes as f64 / 1e9).max(1e-9);
    let all = u64::from(args.producers) * u64::from(args.subpartitions);
    let on_one = u64::from(args.producers.div_ceil(args.nodes.into())) * u64::from(args.subpartitions);
    let allowed = (32 << 20) + delivered.books_bytes * on_one / all;
    ManyReport {
        scenario: "many",
        verified: made == read && read.bytes == bytes_of(args),
        producers: args.producers,
        subpartitions: args.subpartitions,
        consumers: args.consumers,
        nodes: args.nodes,
        records: read.bytes / u64::from(args.record_size),
        bytes: read.bytes,
        seconds: rounded(*seconds),
        gb_per_s: rounded(gigabytes / seconds.max(1e-9)),
        cpu_s_per_gb: rounded(delivered.performance.cpu_seconds() / gigabytes),
        wire_bytes: delivered.wire_bytes,
        slices: delivered.slices,
        pool_bytes: args.pool,
        metadata_bytes_per_subpartition: rounded(delivered.books_bytes as f64 / all as f64),
        server_private_bytes: delivered.peak_bytes,
        server_private_bytes_allowed: allowed,
    }
}
