//! What a large job costs its driver, at three sizes: 100, 1000 and 10 000 stages of 1000 tasks.
//!
//! - `plan`: graph, groups and the first deployments, with edges between any two stages. That grows with the job.
//! - `progress`: 300 words about partitions and tasks, in the middle of a job whose stages have two inputs and two readers each, and
//!   what is to be done then. This and what follows must not grow with the job.
//! - `fetch failed`: a consumer cannot read a partition. It, the producer, and what that had read and was released run again.
//! - `node lost`: one of ten nodes, with its part of everything that runs or is still needed, and another one joins.
//!   Of both the time is for each thousand tasks that run again.
//! - `star`: the whole life of a job in which one stage is read by 100, 1000 and 10 000 others: it must grow as they do, no faster.
//! - `whole job`: every event of the first job up to its end, once, with the most memory that the process ever had.
//!
//! Nothing but the handling is in the times: jobs and events are made before, and dropped after.
//!
//! `-- --handle progress 1000 200` handles 200 of these events once and prints nothing, for tools that count instructions in
//! `measured`.

mod jobs;

use std::hint::black_box;
use std::time::{Duration, Instant};

use coordinator::{Action, Coordinator, Event};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};

use jobs::{TASKS, World, anyhow_joined, coordinator, evenly_joined, handle, in_blocks, poll, star};

const SIZES: [u32; 3] = [100, 1000, 10_000];
/// Stages without input, of which the events are measured: so many are written and not yet read at any moment.
const SOURCES: u32 = 10;
/// Of a deployment of 100 tasks with two outputs.
const WORDS: u64 = 300;
/// What a loss costs is said for so many tasks that run again because of it.
const AGAIN: f64 = 1000.0;
/// Planning and running the largest job must not need more.
const MOST_MEMORY_KIB: u64 = 2 * 1024 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Progress,
    FetchFailed,
    NodeLost,
}

const KINDS: [Kind; 3] = [Kind::Progress, Kind::FetchFailed, Kind::NodeLost];

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Progress => "progress",
            Self::FetchFailed => "fetch failed",
            Self::NodeLost => "node lost",
        }
    }
}

/// What is measured, and nothing else.
#[inline(never)]
fn measured(coordinator: &mut Coordinator, events: Vec<Event>) -> Vec<Action> {
    black_box(handle(coordinator, events))
}

#[inline(never)]
fn measured_whole(mut world: World) -> World {
    black_box(world.finish_all());
    world
}

/// A job in its middle, made anew when it comes to its last stages.
struct Middle {
    stages: u32,
    world: World,
    /// Tasks that ran again.
    again: u64,
}

impl Middle {
    fn new(stages: u32, kind: Kind) -> Self {
        let graph = match kind {
            Kind::Progress => evenly_joined(stages, SOURCES),
            Kind::FetchFailed | Kind::NodeLost => in_blocks(stages),
        };
        Self {
            stages,
            world: World::half_done(graph),
            again: 0,
        }
    }

    /// How long one handling took; of a loss, for each thousand tasks that run again.
    fn one(&mut self, kind: Kind) -> Duration {
        if kind != Kind::Progress {
            self.world.next_block();
        }
        // The last stages have no readers, so they are not like the others.
        let last = self.world.running.iter().map(|one| one.stage.value()).max();
        if last.is_none_or(|stage| stage + 2 * SOURCES >= self.stages) {
            let again = self.again;
            *self = Self::new(self.stages, kind);
            self.again = again;
            return self.one(kind);
        }
        let events = match kind {
            Kind::Progress => {
                let deployment = self.world.running.pop_front().expect("something runs");
                let (events, words) = self.world.end_of(&deployment);
                assert_eq!(words, WORDS, "each time the same work, at each size");
                events
            }
            Kind::FetchFailed => vec![self.world.failed_fetch().expect("somebody reads")],
            Kind::NodeLost => self.world.lost_node(),
        };
        let start = Instant::now();
        let actions = measured(&mut self.world.coordinator, events);
        let took = start.elapsed();
        self.world.take_in(actions);
        if kind == Kind::Progress {
            return took;
        }
        let again = self.world.recover();
        self.again += again;
        took.mul_f64(AGAIN / again as f64)
    }
}

fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10);
    for stages in SIZES {
        group.bench_function(BenchmarkId::from_parameter(stages), |bencher| {
            let plan = |graph| {
                let mut coordinator = coordinator(graph);
                let actions = poll(&mut coordinator);
                (coordinator, actions)
            };
            bencher.iter_batched(|| anyhow_joined(stages), plan, BatchSize::PerIteration);
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("star");
    group.sample_size(10);
    for readers in SIZES {
        group.throughput(Throughput::Elements(readers.into()));
        group.bench_function(BenchmarkId::from_parameter(readers), |bencher| {
            bencher.iter_batched(|| World::new(star(readers)), measured_whole, BatchSize::PerIteration);
        });
    }
    group.finish();
    for kind in KINDS {
        let mut group = criterion.benchmark_group(kind.name());
        group.sample_size(20);
        if kind == Kind::Progress {
            group.throughput(Throughput::Elements(WORDS));
        } else {
            // What is between two of them takes much longer.
            group.measurement_time(Duration::from_millis(200));
        }
        for stages in SIZES {
            let mut middle = None;
            group.bench_function(BenchmarkId::from_parameter(stages), |bencher| {
                let middle = middle.get_or_insert_with(|| Middle::new(stages, kind));
                bencher.iter_custom(|rounds| (0..rounds).map(|_| middle.one(kind)).sum());
            });
        }
        group.finish();
    }
}

fn whole_job(stages: u32) {
    let graph = anyhow_joined(stages);
    let start = Instant::now();
    let mut world = World::new(graph);
    let planned = start.elapsed();
    let planned_kib = most_memory_kib();
    let words = world.finish_all();
    let took = start.elapsed();
    let each = took.as_nanos() / u128::from(words);
    let most_kib = most_memory_kib();
    println!(
        "whole job/{stages} x {TASKS}: planned {planned:?}, VmHWM {planned_kib} KiB; run {took:?}, {words} words at {each} ns, VmHWM {most_kib} KiB"
    );
    assert!(most_kib <= MOST_MEMORY_KIB, "{most_kib} KiB are too much");
}

fn most_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let digits = line.and_then(|line| line.split_whitespace().next());
    digits.and_then(|digits| digits.parse().ok()).expect("a number")
}

/// `--handle KIND STAGES TIMES`, or `--handle star STAGES`.
fn handle_only(arguments: &[String]) -> Option<()> {
    let at = arguments.iter().position(|one| one == "--handle")?;
    if arguments.get(at + 1)? == "star" {
        let world = World::new(star(arguments.get(at + 2)?.parse().ok()?));
        drop(measured_whole(world));
        return Some(());
    }
    let kind = KINDS
        .into_iter()
        .find(|kind| arguments.get(at + 1) == Some(&kind.name().replace(' ', "-")))?;
    let mut middle = Middle::new(arguments.get(at + 2)?.parse().ok()?, kind);
    for _ in 0..arguments.get(at + 3)?.parse().ok()? {
        middle.one(kind);
    }
    println!("{} tasks ran again", middle.again);
    Some(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let is_given = |name: &str| arguments.iter().any(|one| one == name);
    if is_given("--handle") {
        return handle_only(&arguments).expect("--handle KIND STAGES TIMES");
    }
    // Only for `cargo bench`: `cargo test` runs every benchmark once, quickly.
    if is_given("--whole-job") {
        return SIZES.into_iter().for_each(whole_job);
    }
    let mut criterion = Criterion::default().configure_from_args();
    bench(&mut criterion);
    criterion.final_summary();
}
