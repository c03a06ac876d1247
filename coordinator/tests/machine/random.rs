//! Random jobs, events in random order, and faults: what must hold always (`support`), and that every job comes to an end.
//! `SHUFFLE_TEST_PROFILE=full` runs 100 000 jobs; `SHUFFLE_TEST_SEED` draws the same ones again.

use std::hash::{BuildHasher as _, RandomState};

use crate::support::{Step, World, cause, node};
use coordinator::{
    Config, Distribution, EdgeSpec, Event, Indeterminate, JobGraph, Notice, PartitionChange, PartitionState, Stage,
    SubmitError,
};

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.next() % u64::from(end)).expect("a small number")
    }

    fn percent(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }

    fn index(&mut self, length: usize) -> usize {
        self.below(u32::try_from(length).expect("a small number")) as usize
    }
}

#[derive(Default, Debug)]
struct Seen {
    refused: u32,
    succeeded: u32,
    failed: u32,
    groups: u32,
    again: u32,
    lost_nodes: u32,
    fetch_failures: u32,
    rejected_events: u32,
}

fn graph(chance: &mut Chance) -> Option<JobGraph> {
    let stages = 1 + chance.below(6);
    let mut builder = JobGraph::builder();
    for at in 0..stages {
        let tasks = 1 + chance.below(4);
        let mut stage = Stage::new(format!("s{at}")).slots_per_task(1 + chance.below(8) / 7);
        stage = if chance.percent(30) {
            stage.adaptive(1, 4)
        } else {
            stage.fixed(tasks)
        };
        if chance.percent(20) {
            stage = stage.indeterminate();
        }
        if chance.percent(5) {
            stage = stage.open_result();
        }
        builder = builder.stage(stage);
    }
    for to in 1..stages {
        for from in 0..to {
            if chance.percent(35) {
                let distribution = [
                    Distribution::Keyed,
                    Distribution::Keyed,
                    Distribution::Local,
                    Distribution::Broadcast,
                    Distribution::Rebalance,
                ][chance.index(5)];
                let edge = EdgeSpec::new(format!("s{from}"), format!("s{to}"), distribution);
                builder = builder.edge(if chance.percent(40) { edge.pipelined() } else { edge });
            }
        }
    }
    builder.build().ok()
}

fn world(chance: &mut Chance, seen: &mut Seen) -> Option<World> {
    let graph = graph(chance)?;
    let config = Config {
        max_attempts: 1 + chance.below(6),
        indeterminate: if chance.percent(80) {
            Indeterminate::RunDescendantsAgain
        } else {
            Indeterminate::Abort
        },
        ..Config::default()
    };
    let slots: Vec<u32> = (0..1 + chance.below(4)).map(|_| 2 + chance.below(7)).collect();
    match World::new(graph, config, &slots) {
        Ok(world) => Some(world),
        Err(SubmitError::Groups(_) | SubmitError::NeverFits { .. }) => {
            seen.refused += 1;
            None
        }
        Err(other) => panic!("{other}"),
    }
}

fn fault(world: &mut World, chance: &mut Chance, seen: &mut Seen) {
    // So that it hits a task that the coordinator still counts on: of others it hears nothing.
    world.drain();
    let tasks: Vec<_> = world.running.keys().copied().collect();
    let Some(&task) = tasks.get(chance.index(tasks.len().max(1))) else {
        return;
    };
    match chance.below(4) {
        0 => world.fail(task, "a fault"),
        1 => {
            let inputs = world.running[&task].inputs.clone();
            if !inputs.is_empty() {
                let result = inputs[chance.index(inputs.len())];
                let written = world.written(result);
                let partition = if written.is_empty() || chance.percent(40) {
                    let (index, attempt) = (chance.below(4), chance.below(2));
                    shuffle_protocol::PartitionId { result, index, attempt }
                } else {
                    written[chance.index(written.len())]
                };
                let event = Event::FetchFailed {
                    task,
                    partition,
                    cause: cause("gone"),
                };
                let before = world.coordinator.outcome().cloned();
                if world.try_event(event).is_ok() {
                    seen.fetch_failures += 1;
                    world.forget(partition);
                    world.running.remove(&task);
                } else {
                    seen.rejected_events += 1;
                    assert_eq!(
                        before.as_ref(),
                        world.coordinator.outcome(),
                        "a rejected event changes nothing"
                    );
                }
                world.drain();
            }
        }
        2 if world.nodes.len() > 1 => {
            let nodes: Vec<_> = world.nodes.keys().cloned().collect();
            let node = nodes[chance.index(nodes.len())].clone();
            seen.lost_nodes += 1;
            world.event(Event::NodeLost {
                node,
                cause: cause("no power"),
            });
            world.drain();
        }
        _ => {
            // The server fails or drops a partition that the task may have.
            let results: Vec<_> = world.coordinator.graph().results_of(task.stage).collect();
            if let Some(&result) = results.first() {
                let state = match chance.below(2) {
                    0 => PartitionState::Failed { cause: cause("disk") },
                    _ => PartitionState::Released,
                };
                let changes = vec![PartitionChange {
                    partition: task.partition(result),
                    state,
                }];
                let node = world.running[&task].node.clone();
                world.event(Event::Partitions { node, changes });
                world.drain();
            }
        }
    }
}

fn one_job(seed: u64, seen: &mut Seen) {
    let mut chance = Chance(seed);
    let Some(mut world) = world(&mut chance, seen) else {
        return;
    };
    let faults = if chance.percent(75) { chance.below(8) } else { 0 };
    let polls = 1 + chance.below(100);
    let mut joined = 100;
    let mut steps = 0;
    world.drain();
    while world.coordinator.outcome().is_none() {
        steps += 1;
        assert!(steps < 20_000, "the job comes to an end");
        let tasks: Vec<_> = world.running.keys().copied().collect();
        if tasks.is_empty() {
            world.drain();
            if world.running.is_empty() && world.coordinator.outcome().is_none() {
                // Nothing runs: only slots can be missing.
                assert!(
                    faults > 0 && joined < 110,
                    "it waits for nothing:\n{}",
                    world.coordinator.graph()
                );
                joined += 1;
                world.event(Event::NodeJoined {
                    node: node(joined),
                    slots: 50,
                });
                world.drain();
            }
            continue;
        }
        if chance.percent(faults * 2) {
            fault(&mut world, &mut chance, seen);
            continue;
        }
        let task = tasks[chance.index(tasks.len())];
        // A partition is registered before it is finished; everything else comes in any order.
        let steps = &world.running[&task].steps;
        let mut at = chance.index(steps.len());
        if let Step::Finished(result, _) = steps[at] {
            let registered = steps.iter().position(|step| *step == Step::Registered(result));
            at = registered.unwrap_or(at);
        }
        let event = world.take_step(task, at);
        world.event(event.clone());
        if chance.percent(5) {
            world.event(event);
        }
        if chance.percent(polls) {
            world.drain();
        }
    }
    world.drain();
    assert!(world.running.is_empty(), "everything was stopped");
    let pipelined = |stage| world.coordinator.groups().is_pipelined(stage);
    seen.groups += u32::from(world.coordinator.topology().any(|(stage, _)| pipelined(stage)));
    seen.again += u32::from(world.notices().any(|notice| match notice {
        Notice::TaskFinished { task } => task.attempt > 0,
        _ => false,
    }));
    if world.succeeded() {
        seen.succeeded += 1;
    } else {
        assert!(faults > 0, "without a fault every job succeeds");
        seen.failed += 1;
    }
}

#[test]
fn random_jobs_keep_every_promise_and_come_to_an_end() {
    let jobs = match std::env::var("SHUFFLE_TEST_PROFILE").as_deref() {
        Ok("full") => 100_000,
        _ => 2_000,
    };
    let seed = match std::env::var("SHUFFLE_TEST_SEED") {
        Ok(text) => text.parse().expect("SHUFFLE_TEST_SEED is a number"),
        Err(_) => RandomState::new().hash_one(std::process::id()),
    };
    println!("SHUFFLE_TEST_SEED={seed}");
    let mut seen = Seen::default();
    for job in 0..jobs {
        let one = seed.wrapping_add(job);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one_job(one, &mut seen)));
        assert!(
            result.is_ok(),
            "job {job}: to have it alone and first, SHUFFLE_TEST_SEED={one}"
        );
    }
    println!("{seen:?}");
    // Everything that the test is about has happened.
    let fired = [
        seen.refused,
        seen.succeeded,
        seen.failed,
        seen.groups,
        seen.again,
        seen.lost_nodes,
        seen.fetch_failures,
        seen.rejected_events,
    ];
    assert!(fired.iter().all(|&times| times > 0), "{seen:?}");
}
