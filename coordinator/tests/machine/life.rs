//! A job from its start to its end, without and with a failing group; what is seen of it, and in which order.

use coordinator::{
    Action, Adaptive, Config, Distribution, EdgeSpec, Event, EventError, JobGraph, Notice, Outcome, PartitionChange,
    PartitionState, Rule, Stage, TaskId,
};
use shuffle_protocol::PartitionId;

use crate::support::{World, cause, node};

fn chain() -> JobGraph {
    JobGraph::builder()
        .stage(Stage::new("scan").fixed(4))
        .stage(Stage::new("count").adaptive(1, 8).keeps_state())
        .stage(Stage::new("sort").adaptive(1, 8))
        .edge(EdgeSpec::keyed("scan", "count"))
        .edge(EdgeSpec::keyed("count", "sort"))
        .build()
        .expect("a valid graph")
}

fn config(rule: Rule, bytes_per_task: u64) -> Config {
    Config {
        adaptive: Adaptive {
            rule,
            bytes_per_task,
            default_source: 2,
        },
        ..Config::default()
    }
}

#[test]
fn the_topology_grows_as_stages_become_decidable() {
    let by_volume = Rule::ByVolume { skew_factor: None };
    let mut world = World::new(chain(), config(by_volume, 100), &[4, 4]).expect("a job that can be taken");
    let tasks = |world: &World| -> Vec<u32> { world.coordinator.topology().map(|(_, tasks)| tasks).collect() };
    assert_eq!(tasks(&world), [4], "only the source is decidable");
    world.drain();
    world.finish("scan");
    // Four producers write 10 bytes into each of 8 subpartitions: 40 each, two for a task.
    assert_eq!(tasks(&world), [4, 4]);
    let shares: Vec<(u32, u32)> = world
        .deployments("count")
        .iter()
        .flat_map(|deployment| &deployment.shares)
        .map(|share| (share.subpartitions.first, share.subpartitions.count))
        .collect();
    assert_eq!(shares, [(0, 2), (2, 2), (4, 2), (6, 2)]);
    world.run();
    assert_eq!(tasks(&world), [4, 4, 4]);
    assert!(world.succeeded());
}

#[test]
fn the_rule_with_powers_of_two_cuts_evenly() {
    let rule = Rule::PowerOfTwo {
        max_broadcast_percent: 50,
    };
    let mut world = World::new(chain(), config(rule, 110), &[8]).expect("a job that can be taken");
    world.drain();
    world.finish("scan");
    // 320 bytes of 110 for a task: 3, which lies between 2 and 4 and goes up.
    assert_eq!(world.tasks_of("count").len(), 4);
}

#[test]
fn a_source_that_estimates_itself_is_waited_for() {
    let graph = JobGraph::builder()
        .stage(Stage::new("scan").adaptive(1, 6).self_estimating())
        .stage(Stage::new("other").adaptive(1, 6))
        .build()
        .expect("a valid graph");
    let mut world =
        World::new(graph, config(Rule::ByVolume { skew_factor: None }, 1), &[20]).expect("a job that can be taken");
    world.drain();
    assert_eq!(
        (world.tasks_of("scan").len(), world.tasks_of("other").len()),
        (0, 2),
        "two by default"
    );
    let (scan, other) = (world.stage("scan"), world.stage("other"));
    world.event(Event::SourceEstimated { stage: scan, tasks: 9 });
    world.drain();
    assert_eq!(world.tasks_of("scan").len(), 6, "nine, within its limits");
    for stage in [scan, other] {
        let error = world.try_event(Event::SourceEstimated { stage, tasks: 1 }).unwrap_err();
        assert_eq!(error, EventError::NotEstimating { stage });
    }
}

#[test]
fn a_skewed_subpartition_of_a_splittable_input_is_read_by_several_tasks() {
    let graph = JobGraph::builder()
        .stage(Stage::new("left").fixed(4))
        .stage(Stage::new("right").fixed(2))
        .stage(Stage::new("join").adaptive(1, 10))
        .edge(EdgeSpec::keyed("right", "join"))
        .edge(EdgeSpec::keyed("left", "join").splittable())
        .build()
        .expect("a valid graph");
    let mut world = World::new(graph, config(Rule::ByVolume { skew_factor: Some(5) }, 300), &[20])
        .expect("a job that can be taken");
    // Subpartition 3 of the left side holds 1000 from each of 4 producers.
    let left = world
        .coordinator
        .graph()
        .results_of(world.stage("left"))
        .next()
        .unwrap();
    world.bytes = Box::new(move |result, at| if result == left && at == 3 { 1000 } else { 10 });
    world.drain();
    world.finish("left");
    world.finish("right");
    let deployments = world.deployments("join");
    let pieces: Vec<_> = deployments
        .iter()
        .flat_map(|deployment| &deployment.shares)
        .filter_map(|share| Some((share.subpartitions.first, share.piece.clone()?)))
        .collect();
    assert_eq!(pieces.len(), 4);
    for (at, (subpartition, piece)) in (0..).zip(&pieces) {
        assert_eq!(
            (*subpartition, piece.input, piece.producers.clone()),
            (3, 1, at..at + 1)
        );
    }
    world.run();
    assert!(world.succeeded());
}

fn group() -> World {
    let graph = JobGraph::builder()
        .stage(Stage::new("scan").fixed(2))
        .stage(Stage::new("map").fixed(2))
        .stage(Stage::new("count").fixed(2))
        .stage(Stage::new("out").fixed(1))
        .edge(EdgeSpec::keyed("scan", "map").pipelined())
        .edge(EdgeSpec::keyed("map", "count").pipelined())
        .edge(EdgeSpec::keyed("count", "out"))
        .build()
        .expect("a valid graph");
    let mut world = World::new(graph, Config::default(), &[3, 3]).expect("a job that can be taken");
    world.drain();
    world
}

#[test]
fn completion_is_seen_when_the_whole_group_has_it() {
    let mut world = group();
    let submitted = |world: &World| {
        let submitted = |notice: &&Notice| matches!(notice, Notice::StageSubmitted { .. });
        world.notices().filter(submitted).count()
    };
    assert_eq!(submitted(&world), 3, "all members at admission");
    world.finish("scan");
    world.finish("count");
    let finished = |notice: &&Notice| matches!(notice, Notice::TaskFinished { .. });
    assert_eq!(world.notices().filter(finished).count(), 4, "task events at once");
    assert!(!world.completed("scan") && !world.completed("count"));
    assert_eq!(submitted(&world), 3);
    world.finish("map");
    assert!(world.completed("scan") && world.completed("map") && world.completed("count"));
    world.run();
    assert!(world.succeeded());
    let order: Vec<&Notice> = world
        .notices()
        .filter(|notice| matches!(notice, Notice::StageCompleted { .. } | Notice::JobSucceeded))
        .collect();
    let completed = |name: &str| Notice::StageCompleted {
        stage: world.stage(name),
    };
    let expected = [
        completed("scan"),
        completed("map"),
        completed("count"),
        completed("out"),
        Notice::JobSucceeded,
    ];
    assert_eq!(order, expected.iter().collect::<Vec<_>>());
}

#[test]
fn a_member_that_fails_takes_its_group_along_also_when_its_producer_had_finished() {
    let mut world = group();
    world.finish("scan");
    let count = world.tasks_of("count")[0];
    let before = world.actions.len();
    world.fail(count, "out of memory");
    let first = cause("out of memory");
    assert_eq!(world.coordinator.outcome(), Some(&Outcome::Failed(first.clone())));
    let mut torn_down = Vec::new();
    let mut failed = Vec::new();
    for action in &world.actions[before..] {
        match action {
            Action::FailGroup { node: on, group, cause } => {
                assert_eq!(cause, &first);
                assert_eq!(group.nodes, [node(0), node(1)]);
                torn_down.push(on.clone());
            }
            Action::Notify(Notice::StageFailed { stage, cause }) => {
                assert_eq!(cause, &first);
                failed.push(world.coordinator.graph().stage(*stage).name());
            }
            _ => {}
        }
    }
    assert_eq!(torn_down, [node(0), node(1)], "every node of the group");
    assert_eq!(
        failed,
        ["scan", "map", "count"],
        "every member, also the one that had finished"
    );
    assert!(world.running.is_empty());
    let cluster = world.coordinator.cluster();
    assert_eq!(cluster.free(), cluster.total());
}

#[test]
fn whatever_hits_a_group_fails_the_job() {
    let hits: [fn(&mut World); 4] = [
        |world| world.lose(1),
        |world| {
            world.event(Event::Aborted {
                cause: cause("no longer wanted"),
            });
            world.drain();
        },
        |world| {
            let task = world.tasks_of("scan")[0];
            let result = world
                .coordinator
                .graph()
                .results_of(task.stage)
                .next()
                .expect("a result");
            let node = world.running[&task].node.clone();
            let state = PartitionState::Failed { cause: cause("disk") };
            let changes = vec![PartitionChange {
                partition: task.partition(result),
                state,
            }];
            world.event(Event::Partitions { node, changes });
            world.drain();
        },
        |world| {
            let reader = world.tasks_of("map")[0];
            let result = world.running[&reader].inputs[0];
            world.fetch_fails(
                reader,
                PartitionId {
                    result,
                    index: 1,
                    attempt: 0,
                },
            );
        },
    ];
    for hit in hits {
        let mut world = group();
        hit(&mut world);
        assert!(matches!(world.coordinator.outcome(), Some(Outcome::Failed(_))));
        assert!(world.running.is_empty());
    }
}

#[test]
fn events_that_cannot_be_are_refused_and_change_nothing() {
    let mut world = group();
    let task = world.tasks_of("scan")[0];
    let result = world
        .coordinator
        .graph()
        .results_of(task.stage)
        .next()
        .expect("a result");
    let on = world.running[&task].node.clone();
    let never = TaskId { attempt: 1, ..task };
    assert_eq!(
        world.try_event(Event::TaskFinished { task: never }),
        Err(EventError::UnknownTask { task: never })
    );
    let partition = task.partition(result);
    let mut finished = |partition, node, bytes: &[u64]| {
        let state = PartitionState::Finished { bytes: bytes.into() };
        world.coordinator.handle_event(Event::Partitions {
            node,
            changes: vec![PartitionChange { partition, state }],
        })
    };
    let wrong = finished(partition, on.clone(), &[1, 2, 3]);
    assert_eq!(
        wrong,
        Err(EventError::WrongSizes {
            partition,
            expected: 2,
            got: 3
        })
    );
    let much = finished(partition, on.clone(), &[1, u64::MAX]);
    assert_eq!(
        much,
        Err(EventError::TooManyBytes {
            partition,
            bytes: u64::MAX
        })
    );
    let other = PartitionId { index: 99, ..partition };
    assert_eq!(
        finished(other, on.clone(), &[1, 1]),
        Err(EventError::UnknownPartition { partition: other })
    );
    let elsewhere = if on == node(0) { node(1) } else { node(0) };
    assert_eq!(
        finished(partition, elsewhere, &[1, 1]),
        Err(EventError::UnknownPartition { partition })
    );
    assert_eq!(
        finished(partition, node(9), &[1, 1]),
        Err(EventError::UnknownNode { node: node(9) })
    );
    let again = world.coordinator.handle_event(Event::NodeJoined {
        node: node(0),
        slots: 1,
    });
    assert_eq!(again, Err(EventError::NodeKnown { node: node(0) }));
    world.run();
    assert!(world.succeeded(), "nothing was changed");
}

#[test]
fn a_local_consumer_runs_where_its_producer_did() {
    let graph = JobGraph::builder()
        .stage(Stage::new("scan").fixed(6))
        .stage(Stage::new("map").adaptive(1, 8))
        .edge(EdgeSpec::local("scan", "map"))
        .build()
        .expect("a valid graph");
    let mut world = World::new(graph, Config::default(), &[2, 4]).expect("a job that can be taken");
    world.drain();
    let place = |world: &World, name: &str| -> Vec<_> {
        let tasks = world.tasks_of(name).into_iter();
        tasks
            .map(|task| (task.index, world.running[&task].node.clone()))
            .collect()
    };
    let scanned = place(&world, "scan");
    world.finish("scan");
    assert_eq!(place(&world, "map"), scanned);
    let inputs: Vec<_> = world
        .deployments("map")
        .iter()
        .map(|one| one.inputs[0].distribution)
        .collect();
    assert!(inputs.iter().all(|one| *one == Distribution::Local));
}
