//! What runs again, and what does not.

use coordinator::{Action, Config, EdgeSpec, Indeterminate, JobGraph, Outcome, Stage, TaskId};
use shuffle_protocol::PartitionId;
use shuffle_protocol::error::ErrorKind;

use crate::support::{World, cause, node};

/// source -> scan -> count -> out, two tasks each.
fn chain(scan: Stage, count_is_rebalanced: bool, config: Config) -> World {
    let to_count = match count_is_rebalanced {
        true => EdgeSpec::rebalance("scan", "count"),
        false => EdgeSpec::keyed("scan", "count"),
    };
    let graph = JobGraph::builder()
        .stage(Stage::new("source").fixed(2))
        .stage(scan.fixed(2))
        .stage(Stage::new("count").fixed(2))
        .stage(Stage::new("out").fixed(2))
        .edge(EdgeSpec::keyed("source", "scan"))
        .edge(to_count)
        .edge(EdgeSpec::keyed("count", "out"))
        .build()
        .expect("a valid graph");
    let mut world = World::new(graph, config, &[2, 2]).expect("a job that can be taken");
    world.drain();
    world
}

fn attempts(world: &World, name: &str) -> Vec<(u32, u32)> {
    world
        .tasks_of(name)
        .iter()
        .map(|task| (task.index, task.attempt))
        .collect()
}

/// A task of `reader` cannot read partition `index` of its input, attempt 0.
fn fetch_fails(world: &mut World, reader: &str, index: u32) {
    let task = world.tasks_of(reader)[0];
    let result = world.running[&task].inputs[0];
    world.fetch_fails(
        task,
        PartitionId {
            result,
            index,
            attempt: 0,
        },
    );
}

#[test]
fn a_task_that_fails_runs_again_up_to_its_attempts() {
    let mut world = chain(
        Stage::new("scan"),
        false,
        Config {
            max_attempts: 3,
            ..Config::default()
        },
    );
    for attempt in 0..3 {
        let task = world.tasks_of("source")[0];
        assert_eq!(task.attempt, attempt);
        world.fail(task, "again");
    }
    let Some(Outcome::Failed(error)) = world.coordinator.outcome() else {
        panic!("three attempts are all");
    };
    assert!(
        matches!(error.kind(), ErrorKind::LimitExceeded { limit: 3, .. }),
        "{error}"
    );
    assert_eq!(error.first_cause(), &cause("again"));
}

#[test]
fn a_lost_partition_is_made_again_by_its_producer_alone() {
    let mut world = chain(Stage::new("scan"), false, Config::default());
    world.finish("source");
    world.finish("scan");
    assert_eq!(attempts(&world, "count"), [(0, 0), (1, 0)]);
    fetch_fails(&mut world, "count", 1);
    // The other reader goes on; the one that failed waits for the producer. What the producer reads was released when it was
    // complete, so that is made again before.
    assert_eq!(attempts(&world, "source"), [(0, 1), (1, 1)]);
    assert_eq!(attempts(&world, "count"), [(1, 0)]);
    world.finish("source");
    assert_eq!(attempts(&world, "scan"), [(1, 1)]);
    world.finish("scan");
    assert_eq!(attempts(&world, "count"), [(0, 1), (1, 0)]);
    let fenced = world.actions.iter().any(|action| match action {
        Action::Fence { partitions, .. } => partitions.iter().any(|one| (one.index, one.attempt) == (1, 1)),
        _ => false,
    });
    assert!(fenced, "older attempts are refused");
    let updated = world.actions.iter().any(|action| match action {
        Action::Update { locations, .. } => locations.iter().any(|run| (run.first, run.attempt) == (1, 1)),
        _ => false,
    });
    assert!(updated, "the reader that goes on learns where the new attempt is");
    world.run();
    assert!(world.succeeded());
}

#[test]
fn an_indeterminate_producer_takes_its_readers_and_their_descendants_along() {
    for (scan, rebalanced) in [(Stage::new("scan").indeterminate(), false), (Stage::new("scan"), true)] {
        let mut world = chain(scan, rebalanced, Config::default());
        world.finish("source");
        world.finish("scan");
        // One reader has finished with what it has read.
        let done = world.tasks_of("count")[1];
        while world.running.contains_key(&done) {
            world.step(done, 0);
        }
        world.drain();
        fetch_fails(&mut world, "count", 0);
        assert!(world.tasks_of("count").is_empty(), "also the reader that had finished");
        world.finish("source");
        assert_eq!(attempts(&world, "scan"), [(0, 1)]);
        world.finish("scan");
        assert_eq!(attempts(&world, "count"), [(0, 1), (1, 1)]);
        world.run();
        assert!(world.succeeded());
    }
}

#[test]
fn descendants_of_an_indeterminate_producer_run_again_two_stages_down() {
    let graph = JobGraph::builder()
        .stage(Stage::new("scan").fixed(2).indeterminate())
        .stage(Stage::new("count").fixed(2))
        .stage(Stage::new("side").fixed(1))
        .stage(Stage::new("out").fixed(2))
        .edge(EdgeSpec::keyed("scan", "count"))
        .edge(EdgeSpec::keyed("scan", "side"))
        .edge(EdgeSpec::keyed("count", "out"))
        .build()
        .expect("a valid graph");
    let mut world = World::new(graph, Config::default(), &[8]).expect("a job that can be taken");
    world.drain();
    world.finish("scan");
    world.finish("count");
    assert_eq!((attempts(&world, "out").len(), attempts(&world, "side").len()), (2, 1));
    fetch_fails(&mut world, "side", 0);
    assert!(
        world.tasks_of("out").is_empty(),
        "they have read what count made of the first attempt"
    );
    world.finish("scan");
    assert_eq!(attempts(&world, "count"), [(0, 1), (1, 1)]);
    world.run();
    assert!(world.succeeded());
}

#[test]
fn or_the_job_is_given_up() {
    let config = Config {
        indeterminate: Indeterminate::Abort,
        ..Config::default()
    };
    let mut world = chain(Stage::new("scan").indeterminate(), false, config);
    world.finish("source");
    world.finish("scan");
    fetch_fails(&mut world, "count", 0);
    assert_eq!(world.coordinator.outcome(), Some(&Outcome::Failed(cause("gone"))));
    assert!(world.running.is_empty());
}

#[test]
fn a_lost_node_costs_what_ran_there_and_what_is_still_needed() {
    let mut world = chain(Stage::new("scan"), false, Config::default());
    world.finish("source");
    world.finish("scan");
    let on_node = |world: &World, number| -> Vec<TaskId> {
        let running = world.running.iter().filter(|(_, task)| task.node == node(number));
        running.map(|(task, _)| *task).collect()
    };
    let kept = on_node(&world, 0);
    assert_eq!((kept.len(), on_node(&world, 1).len()), (1, 1));
    world.lose(1);
    // One task of scan lay there and is needed; one of source lay there too, and is needed for it.
    assert_eq!(
        attempts(&world, "source").len() + attempts(&world, "scan").len(),
        1,
        "one slot is left beside {kept:?}"
    );
    world.run();
    assert!(world.succeeded());
    let out = world.deployments("out");
    assert!(out.iter().all(|deployment| deployment.node == node(0)));
}

#[test]
fn a_late_word_of_an_older_attempt_changes_nothing() {
    let mut world = chain(Stage::new("scan"), false, Config::default());
    let old = world.tasks_of("source")[0];
    world.fail(old, "once");
    let before = world.actions.len();
    world.event(coordinator::Event::TaskFinished { task: old });
    world.event(coordinator::Event::TaskFailed {
        task: old,
        cause: cause("again"),
    });
    world.drain();
    assert_eq!(world.actions.len(), before);
    world.run();
    assert!(world.succeeded());
}

#[test]
fn what_a_group_wrote_is_kept_and_its_loss_ends_the_job() {
    let graph = || {
        JobGraph::builder()
            .stage(Stage::new("scan").fixed(2))
            .stage(Stage::new("map").fixed(2))
            .stage(Stage::new("out").fixed(2))
            .edge(EdgeSpec::keyed("scan", "map").pipelined())
            .edge(EdgeSpec::keyed("map", "out"))
            .build()
            .expect("a valid graph")
    };
    let mut world = World::new(graph(), Config::default(), &[4]).expect("a job that can be taken");
    world.drain();
    world.finish("scan");
    world.finish("map");
    fetch_fails(&mut world, "out", 0);
    assert_eq!(world.coordinator.outcome(), Some(&Outcome::Failed(cause("gone"))));

    let mut world = World::new(graph(), Config::default(), &[4]).expect("a job that can be taken");
    world.run();
    assert!(world.succeeded());
    assert!(
        !world
            .actions
            .iter()
            .any(|action| matches!(action, Action::Release { .. }))
    );
}
