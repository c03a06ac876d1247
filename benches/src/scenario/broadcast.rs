//! `broadcast`: one partition to every consumer of every node, with one consumer on each node and with many, by turns.

use std::time::Duration;

use super::measure::{Spread, Stage, rounded, until_interrupted};
use super::run::ask;
use crate::cli::{BroadcastArgs, SendStrategy};
use crate::cluster::{Server, ServerOptions, sent_by};
use crate::console::Console;
use crate::error::BenchError;
use crate::load::{Audience, Channel, ConsumeLoad, Desk, Flush, Kind, ProduceLoad, Task, Totals};
use crate::report::{BroadcastReport, BroadcastSide, publish};

/// How a delivery is made.
#[derive(Debug, Clone, Copy)]
struct Manner {
    slots: u32,
    /// Every byte has a checksum and is read; else consumers only count.
    verifies: bool,
}

/// What one delivery was.
#[derive(Debug)]
struct Delivered {
    seconds: f64,
    problem: Option<String>,
    wire_bytes: u64,
    stored_bytes: u64,
    relays: u64,
    cpu_s_per_gb: f64,
}

/// One slot and all of them, by turns; counting first, then verifying.
#[derive(Debug, Default)]
struct Side {
    counted: Vec<Delivered>,
    verified: Vec<Delivered>,
}

/// Runs it; whether every consumer got every byte.
///
/// # Errors
/// It did not come to its end.
pub(crate) async fn broadcast(args: &BroadcastArgs, console: &mut Console) -> Result<bool, BenchError> {
    let sides = until_interrupted(run_all(args, console)).await?;
    console.finish();
    let all = sides.iter().flat_map(|side| side.counted.iter().chain(&side.verified));
    for problem in all.filter_map(|one| one.problem.as_ref()) {
        console.say(format!("not verified: {problem}"));
    }
    let report = report(args, &sides);
    publish(&report, &report.table(), args.output.json.as_ref())?;
    Ok(report.verified)
}

async fn run_all(args: &BroadcastArgs, console: &mut Console) -> Result<[Side; 2], BenchError> {
    console.start(Some(4 * u64::from(args.rounds)));
    let mut sides = [Side::default(), Side::default()];
    let mut step = 0;
    for round in 1..=args.rounds {
        for verifies in [false, true] {
            for (side, slots) in sides.iter_mut().zip([1, args.slots]) {
                console.step(step, format!("round {round}: {slots} on each node"));
                step += 1;
                let delivered = deliver(args, Manner { slots, verifies }, console).await?;
                let into = if verifies {
                    &mut side.verified
                } else {
                    &mut side.counted
                };
                into.push(delivered);
            }
        }
    }
    Ok(sides)
}

async fn deliver(args: &BroadcastArgs, manner: Manner, console: &mut Console) -> Result<Delivered, BenchError> {
    let mut stage = Stage::open(Duration::from_secs(args.output.stall_timeout), args.output.verbose)?;
    for _ in 0..args.nodes {
        stage.start_server(&options(args, manner), console).await?;
    }
    start_workers(args, manner, &mut stage, console).await?;
    let producing = stage.servers().first().map_or(0, |server| server.pid);
    let before = sent_by(producing)?;
    let performance = stage.perform(console).await?;
    let wire_bytes = sent_by(producing)? - before;
    let (mut stored_bytes, mut relays) = (0, 0);
    for (node, server) in stage.servers().iter().enumerate() {
        let counters = ask(server).await?;
        let counter = |name| counters.get(name).copied().unwrap_or(0);
        relays += counter("relays_opened");
        if node == 0 {
            let stored = if args.persistent {
                "bytes_spilled"
            } else {
                "bytes_produced"
            };
            stored_bytes = counter(stored);
        }
    }
    stage.close().await?;
    let (made, read) = performance.done.split_at(1);
    let made = made.first().map(|done| done.totals).unwrap_or_default();
    let expected = slots_of_executors(manner.slots, args.executors).map(|gates| made.times(gates));
    let is_right = |read: Totals, made: Totals| read.bytes == made.bytes && (read.sum == made.sum || !manner.verifies);
    let wrong = read
        .iter()
        .zip(expected.cycle())
        .position(|(done, made)| !is_right(done.totals, made));
    let arrived: u64 = read.iter().map(|done| done.totals.bytes).sum();
    Ok(Delivered {
        seconds: performance.seconds,
        problem: wrong.map(|index| format!("executor {index} of {}: not what was made, {made:?}", read.len())),
        wire_bytes,
        stored_bytes,
        relays,
        cpu_s_per_gb: performance.cpu_seconds() / (arrived as f64 / 1e9).max(1e-9),
    })
}

async fn start_workers(
    args: &BroadcastArgs,
    manner: Manner,
    stage: &mut Stage,
    console: &Console,
) -> Result<(), BenchError> {
    let home = |server: &Server| (server.socket.clone(), server.address.to_string());
    let homes: Vec<_> = stage.servers().iter().map(home).collect();
    let desk = |socket: &std::path::Path| Desk {
        socket: socket.to_owned(),
        job: 1,
    };
    let Some((socket, producing)) = homes.first() else {
        return Ok(());
    };
    let declared = homes.iter().map(|(_, node)| (node.clone(), manner.slots));
    let produce = ProduceLoad {
        desk: desk(socket),
        partition: 0,
        subpartitions: 1,
        active: 1,
        burst: 1,
        buffers: args.buffers,
        record_bytes: 0,
        pieces: args.bytes.div_ceil(args.buffer_size.into()),
        flush: Flush::WhenFull,
        checksums: manner.verifies,
        turn: TURN,
        kind: kind(args),
        audience: Some(Audience {
            consumers: if args.persistent {
                Vec::new()
            } else {
                declared.collect()
            },
        }),
    };
    stage.start_worker("producer", Task::Produce(produce), console).await?;
    for (node, (socket, _)) in homes.iter().enumerate() {
        for (executor, gates) in slots_of_executors(manner.slots, args.executors).enumerate() {
            let consume = ConsumeLoad {
                desk: desk(socket),
                gates,
                channels: vec![Channel {
                    node: producing.clone(),
                    partition: 0,
                    first: 0,
                    count: 1,
                    width: 1,
                    told_of: Some(if args.persistent { 0 } else { manner.slots }),
                }],
                exclusive: 2,
                floating: args.buffers,
                records: false,
                counts_only: !manner.verifies,
                turn: TURN,
            };
            let role = format!("consumer-{node}-{executor}");
            stage.start_worker(&role, Task::Consume(consume), console).await?;
        }
    }
    Ok(())
}

/// How many slots each executor of a node has.
fn slots_of_executors(slots: u32, executors: u32) -> impl Iterator<Item = u32> + Clone {
    let executors = executors.min(slots);
    (0..executors).map(move |executor| (slots + executor) / executors)
}

fn kind(args: &BroadcastArgs) -> Kind {
    Kind {
        persistent: args.persistent,
        blocking: false,
        spilling: args.persistent,
    }
}

fn options(args: &BroadcastArgs, manner: Manner) -> ServerOptions {
    // Relays have 32 buffers; readers of a file up to 128 each.
    let readers = if args.persistent { 128 * (manner.slots + 1) } else { 0 };
    ServerOptions {
        pool_buffers: (2 * args.buffers + 256 + 2 * readers).next_multiple_of(8),
        buffer_bytes: args.buffer_size,
        verbose: args.output.verbose,
        send: SendStrategy::Auto,
        has_disk: args.persistent,
        more: Vec::new(),
    }
}

fn report(args: &BroadcastArgs, sides: &[Side; 2]) -> BroadcastReport {
    let median = |all: &[Delivered], value: fn(&Delivered) -> f64| {
        rounded(Spread::of(&all.iter().map(value).collect::<Vec<_>>()).median)
    };
    let most = |all: &[Delivered], value: fn(&Delivered) -> u64| all.iter().map(value).max().unwrap_or(0);
    let side = |slots, side: &Side| BroadcastSide {
        slots,
        seconds: median(&side.counted, |one| one.seconds),
        seconds_verified: median(&side.verified, |one| one.seconds),
        wire_bytes: most(&side.counted, |one| one.wire_bytes),
        stored_bytes: most(&side.counted, |one| one.stored_bytes),
        relays: most(&side.counted, |one| one.relays),
        cpu_s_per_gb: median(&side.counted, |one| one.cpu_s_per_gb),
    };
    let [one, all] = sides;
    let rounds = one.counted.iter().zip(&all.counted);
    let ratios = Spread::of(&rounds.map(|(one, all)| all.seconds / one.seconds).collect::<Vec<_>>());
    let (one, all) = (side(1, one), side(args.slots, all));
    let everything = || sides.iter().flat_map(|side| side.counted.iter().chain(&side.verified));
    BroadcastReport {
        scenario: "broadcast",
        verified: everything().all(|one| one.problem.is_none()),
        nodes: args.nodes,
        executors: args.executors.min(args.slots),
        bytes: args.bytes.next_multiple_of(args.buffer_size.into()),
        rounds: args.rounds,
        wire_bytes: all.wire_bytes,
        stored_bytes: all.stored_bytes,
        wire_ratio: rounded(all.wire_bytes as f64 / (one.wire_bytes as f64).max(1.0)),
        ratio: rounded(ratios.median),
        ratio_range: (rounded(ratios.min), rounded(ratios.max)),
        sides: vec![one, all],
    }
}

const TURN: u32 = 32;

#[cfg(test)]
mod tests {
    use super::slots_of_executors;

    #[test]
    fn executors_have_the_slots_between_them() {
        let split = |slots, executors| slots_of_executors(slots, executors).collect::<Vec<_>>();
        assert_eq!(split(16, 1), [16]);
        assert_eq!(split(16, 3), [5, 5, 6]);
        assert_eq!(split(16, 16), [1; 16]);
        assert_eq!(split(1, 4), [1], "no executor is without a slot");
    }
}
