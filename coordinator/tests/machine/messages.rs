//! Messages and bytes: what 1000 producers and 1000 consumers on 10 nodes cost.

use std::collections::BTreeMap;

use coordinator::{Action, Config, EdgeSpec, Event, JobGraph, PartitionChange, PartitionState, Stage};
use shuffle_protocol::NodeAddress;

use crate::support::{Step, World};

const NODES: usize = 10;
const TASKS: u32 = 1000;

fn world(edge: EdgeSpec, slots: u32) -> World {
    let graph = JobGraph::builder()
        .stage(Stage::new("produce").fixed(TASKS))
        .stage(Stage::new("consume").fixed(TASKS))
        .edge(edge)
        .build()
        .expect("a valid graph");
    let mut world = World::new(graph, Config::default(), &[slots; NODES]).expect("a job that can be taken");
    world.drain();
    world
}

/// The producers' words, as each node's server tells them: everything of the node in one message. Returns how many.
fn tell_by_node(world: &mut World, state: impl Fn(u32) -> PartitionState) -> usize {
    let result = world
        .coordinator
        .graph()
        .results_of(world.stage("produce"))
        .next()
        .expect("a result");
    let mut batches: BTreeMap<NodeAddress, Vec<PartitionChange>> = BTreeMap::new();
    for task in world.tasks_of("produce") {
        let changes = batches.entry(world.running[&task].node.clone()).or_default();
        changes.push(PartitionChange {
            partition: task.partition(result),
            state: state(TASKS),
        });
    }
    let messages = batches.len();
    for (node, changes) in batches {
        world.event(Event::Partitions { node, changes });
    }
    messages
}

/// Messages with locations, and all bytes of messages, from the action of that number on.
fn count(world: &World, from: usize) -> (usize, usize) {
    let with_locations = |action: &&Action| match action {
        Action::Deploy(deployment) => deployment.inputs.iter().any(|input| !input.locations.is_empty()),
        Action::Update { .. } => true,
        _ => false,
    };
    let actions = &world.actions[from..];
    let messages = actions.iter().filter(with_locations).count();
    (messages, actions.iter().map(Action::payload_bytes).sum())
}

#[test]
fn a_blocking_result_costs_two_messages_for_each_node() {
    let mut world = world(EdgeSpec::keyed("produce", "consume"), 100);
    let from = world.actions.len();
    let finished = |subpartitions: u32| PartitionState::Finished {
        bytes: vec![1; subpartitions as usize].into(),
    };
    let came = tell_by_node(&mut world, finished);
    for task in world.tasks_of("produce") {
        // What the servers have said is said.
        world
            .running
            .get_mut(&task)
            .unwrap()
            .steps
            .retain(|step| matches!(step, Step::Finished(..) | Step::TaskFinished));
    }
    world.finish("produce");
    let (went, bytes) = count(&world, from);
    println!("blocking, {TASKS} x {TASKS} on {NODES} nodes: {came} messages came, {went} went, {bytes} bytes");
    assert!(came + went <= 2 * NODES, "{came} + {went}");
    let shares: usize = world.deployments("consume").iter().map(|one| one.shares.len()).sum();
    assert_eq!(shares, TASKS as usize, "every consumer is started with its range");
    // Each consumer's identity and range, and ten runs of producers to each of ten nodes; a location for each pair of tasks
    // would be a hundred times that.
    assert!(bytes < 30_000, "{bytes}");
    world.run();
    assert!(world.succeeded());
}

#[test]
fn a_pipelined_result_costs_messages_by_node_and_not_by_pair() {
    let mut world = world(EdgeSpec::keyed("produce", "consume").pipelined(), 200);
    let deployed = world
        .actions
        .iter()
        .filter(|action| matches!(action, Action::Deploy(_)))
        .count();
    assert_eq!(deployed, 2 * NODES, "both stages at once");
    let from = world.actions.len();
    let came = tell_by_node(&mut world, |_| PartitionState::Registered);
    world.drain();
    let (went, bytes) = count(&world, from);
    println!("pipelined, {TASKS} x {TASKS} on {NODES} nodes: {came} messages came, {went} went, {bytes} bytes");
    assert_eq!(
        (came, went),
        (NODES, NODES),
        "what came before the poll goes out together"
    );
    assert!(bytes < 10_000, "{bytes}");
    world.run();
    assert!(world.succeeded());
}

#[test]
fn told_one_node_at_a_time_a_pipelined_result_costs_the_square_of_the_nodes() {
    let mut world = world(EdgeSpec::keyed("produce", "consume").pipelined(), 200);
    let from = world.actions.len();
    let result = world
        .coordinator
        .graph()
        .results_of(world.stage("produce"))
        .next()
        .expect("a result");
    let nodes: Vec<NodeAddress> = world.nodes.keys().cloned().collect();
    for node in nodes {
        let on_node = world
            .tasks_of("produce")
            .into_iter()
            .filter(|task| world.running[task].node == node);
        let changes = on_node.map(|task| PartitionChange {
            partition: task.partition(result),
            state: PartitionState::Registered,
        });
        let changes = changes.collect();
        world.event(Event::Partitions { node, changes });
        world.drain();
    }
    let (went, _) = count(&world, from);
    assert_eq!(went, NODES * NODES);
}
