//! What a large job costs its driver, at three sizes: 100, 1000 and 10 000 stages of 1000 tasks, with random edges.
//!
//! `plan` is the graph, its groups and the first deployments. `events` is the words about the 1000 tasks of the first stage, and
//! what they start: that must not grow with the job. `whole job` is every event of the job up to its end, once, with the most
//! memory that the process ever had.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use coordinator::{
    Action, Config, Coordinator, Deployment, EdgeSpec, Event, GraphBuilder, JobGraph, PartitionChange, PartitionState,
    Stage,
};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use shuffle_protocol::{JobId, NodeAddress};

const TASKS: u32 = 1000;
const NODES: u32 = 10;
const SLOTS: u32 = 200;
const SIZES: [u32; 3] = [100, 1000, 10_000];

/// Each stage but the first reads two earlier ones; every tenth pair of neighbours is pipelined and has nothing else in common.
fn graph(stages: u32) -> GraphBuilder {
    let mut chance = 7_u64;
    let mut below = |end: u32| {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((chance >> 33) % u64::from(end)).expect("below 32 bits")
    };
    let mut builder = JobGraph::builder();
    for stage in 0..stages {
        builder = builder.stage(Stage::new(format!("s{stage}")).fixed(TASKS));
    }
    for to in 1..stages {
        let name = format!("s{to}");
        if to % 10 == 0 {
            builder = builder.edge(EdgeSpec::keyed(format!("s{}", to - 1), name).pipelined());
            continue;
        }
        for _ in 0..2 {
            builder = builder.edge(EdgeSpec::keyed(format!("s{}", below(to)), &name));
        }
    }
    builder
}

fn coordinator(stages: u32) -> Coordinator {
    let node = |number| NodeAddress::parse(&format!("node-{number}:7337")).expect("an address");
    let nodes = (0..NODES).map(|number| (node(number), SLOTS));
    let graph = graph(stages).build().expect("a valid graph");
    Coordinator::new(JobId::new(1), graph, Config::default(), nodes).expect("a job that can be taken")
}

fn deployments(coordinator: &mut Coordinator) -> Vec<Deployment> {
    let mut deployments = Vec::new();
    while let Some(action) = coordinator.poll_action() {
        if let Action::Deploy(deployment) = action {
            deployments.push(deployment);
        }
    }
    deployments
}

/// The words about all tasks of a deployment: one message of the node for its partitions, and the end of each task.
fn finish(coordinator: &mut Coordinator, deployment: &Deployment, bytes: &Arc<[u64]>) -> u64 {
    let mut changes = Vec::with_capacity(deployment.tasks.len() * deployment.outputs.len());
    for output in &deployment.outputs {
        changes.extend(deployment.tasks.iter().map(|task| PartitionChange {
            partition: task.partition(output.result),
            state: PartitionState::Finished {
                bytes: Arc::clone(bytes),
            },
        }));
    }
    let words = changes.len() + deployment.tasks.len();
    let node = deployment.node.clone();
    coordinator
        .handle_event(Event::Partitions { node, changes })
        .expect("an event that can be");
    for &task in &deployment.tasks {
        coordinator
            .handle_event(Event::TaskFinished { task })
            .expect("an event that can be");
    }
    u64::try_from(words).expect("64 bits")
}

fn sizes_of_a_partition() -> Arc<[u64]> {
    vec![1000; TASKS as usize].into()
}

fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10);
    for stages in SIZES {
        group.bench_function(BenchmarkId::from_parameter(stages), |bencher| {
            bencher.iter(|| {
                let mut coordinator = coordinator(stages);
                black_box(deployments(&mut coordinator));
                coordinator
            });
        });
    }
    group.finish();

    let bytes = sizes_of_a_partition();
    let mut group = criterion.benchmark_group("events");
    group.sample_size(10);
    for stages in SIZES {
        let setup = || {
            let mut coordinator = coordinator(stages);
            let mut first = deployments(&mut coordinator);
            first.retain(|deployment| deployment.stage.value() == 0);
            (coordinator, first)
        };
        let (mut once, first) = setup();
        let words = first
            .iter()
            .map(|deployment| finish(&mut once, deployment, &bytes))
            .sum();
        group.throughput(Throughput::Elements(words));
        group.bench_function(BenchmarkId::from_parameter(stages), |bencher| {
            let work = |(mut coordinator, first): (Coordinator, Vec<Deployment>)| {
                for deployment in &first {
                    finish(&mut coordinator, deployment, &bytes);
                    black_box(deployments(&mut coordinator));
                }
                coordinator
            };
            bencher.iter_batched(setup, work, BatchSize::PerIteration);
        });
    }
    group.finish();
}

fn whole_job(stages: u32) {
    let bytes = sizes_of_a_partition();
    let start = Instant::now();
    let mut coordinator = coordinator(stages);
    let planned = start.elapsed();
    let (mut words, mut messages) = (0, 0_u64);
    let mut running = deployments(&mut coordinator);
    while !running.is_empty() {
        for deployment in std::mem::take(&mut running) {
            messages += 1;
            words += finish(&mut coordinator, &deployment, &bytes);
            running.extend(deployments(&mut coordinator));
        }
    }
    assert!(coordinator.outcome().is_some(), "the job came to its end");
    let took = start.elapsed();
    let each = took.as_nanos() / u128::from(words.max(1));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let most = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or("VmHWM: unknown");
    println!(
        "whole job/{stages}: planned {planned:?}, run {took:?}, {words} words at {each} ns, {messages} deployments, {most}"
    );
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    bench(&mut criterion);
    criterion.final_summary();
    // Only for `cargo bench`: `cargo test` runs every benchmark once, quickly.
    if std::env::args().any(|argument| argument == "--bench") {
        SIZES.into_iter().for_each(whole_job);
    }
}
