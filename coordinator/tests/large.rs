//! A job of 10 000 stages of 1000 tasks is planned in little memory. A file of its own: the most memory that a process ever had is
//! all that it ever had.

use coordinator::{Action, Config, Coordinator, EdgeSpec, JobGraph, Stage};
use shuffle_protocol::{JobId, NodeAddress};

const STAGES: u32 = 10_000;
const TASKS: u32 = 1000;
const MOST_KIB: u64 = 2 * 1024 * 1024;

/// Each stage but the first reads two earlier ones, any of them.
fn graph() -> JobGraph {
    let mut chance = 7_u64;
    let mut below = |end: u32| {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((chance >> 33) % u64::from(end)).expect("below 32 bits")
    };
    let mut builder = JobGraph::builder().stage(Stage::new("s0").fixed(TASKS));
    for to in 1..STAGES {
        let name = format!("s{to}");
        builder = builder.stage(Stage::new(&name).fixed(TASKS));
        for _ in 0..2 {
            builder = builder.edge(EdgeSpec::keyed(format!("s{}", below(to)), &name));
        }
    }
    builder.build().expect("a valid graph")
}

fn most_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let digits = line.and_then(|line| line.split_whitespace().next());
    digits.and_then(|digits| digits.parse().ok()).expect("a number")
}

#[test]
fn ten_million_tasks_are_planned_in_2_gib() {
    let before = most_memory_kib();
    let node = |number| NodeAddress::parse(&format!("node-{number}:7337")).expect("an address");
    let nodes = (0..10).map(|number| (node(number), 200));
    let mut coordinator = Coordinator::new(JobId::new(1), graph(), Config::default(), nodes).expect("a job");
    let actions: Vec<Action> = std::iter::from_fn(|| coordinator.poll_action()).collect();
    let started = actions.iter().map(|action| match action {
        Action::Deploy(deployment) => deployment.tasks.len(),
        _ => 0,
    });
    assert_eq!(
        started.sum::<usize>(),
        1000,
        "the first stage, which all others wait for"
    );
    assert_eq!(coordinator.graph().edges().len(), 2 * (STAGES as usize - 1));
    let most = most_memory_kib();
    println!("{before} KiB before, at most {most} KiB");
    assert!(most > before && most <= MOST_KIB, "{most} KiB");
}
