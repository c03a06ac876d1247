//! Stages for the chains, and what each edge between them does.

use super::aggregation::{self, Aggregation};
use super::pipeline::{Input, Key, Node, Rebalance, Transform};
use super::{Plan, PlannedEdge, PlannedStage};
use crate::graph::Distribution;

/// `heads`: for each transform the first of its chain.
pub(super) fn plan(nodes: &[Node], heads: &[u32]) -> Plan {
    let mut plan = Plan::default();
    // The stage in which the output of each transform is made.
    let mut made_in: Vec<usize> = Vec::with_capacity(nodes.len());
    for (at, node) in nodes.iter().enumerate() {
        let head = heads[at] as usize;
        if head == at {
            let stage = push_stages(&mut plan, node, &made_in);
            made_in.push(stage);
        } else {
            let stage = &mut plan.stages[made_in[head]];
            stage.name = format!("{} + {}", stage.name, node.name);
            stage.transforms.push(node.name.clone());
            made_in.push(made_in[head]);
        }
    }
    let mut consumed = vec![false; plan.stages.len()];
    for edge in &plan.edges {
        consumed[edge.from] = true;
    }
    for (at, node) in nodes.iter().enumerate() {
        let stage = made_in[at];
        plan.stages[stage].open_result = !consumed[stage] && node.transform != Transform::Sink;
    }
    plan
}

/// The stage, or the two of an aggregation, with the edges that lead to them. Returns the last.
fn push_stages(plan: &mut Plan, node: &Node, made_in: &[usize]) -> usize {
    let two_stages = match node.transform {
        Transform::Aggregate => match aggregation::of(node) {
            Aggregation::SingleStage => None,
            Aggregation::TwoStages { key } => Some(key),
        },
        _ => None,
    };
    let stage = |name: String, tasks, keeps_state| PlannedStage {
        name,
        transforms: vec![node.name.clone()],
        tasks,
        keeps_state,
        open_result: false,
    };
    let first = plan.stages.len();
    match two_stages {
        None => {
            let tasks = if node.is_one_task() { 1 } else { node.tasks };
            let stateful = matches!(
                node.transform,
                Transform::Aggregate | Transform::Stateful | Transform::Rolling
            );
            plan.stages.push(stage(node.name.clone(), tasks, stateful));
        }
        Some(key) => {
            let combining = if key.is_some() { node.tasks } else { 1 };
            plan.stages
                .push(stage(format!("{}: accumulate", node.name), node.tasks, false));
            plan.stages
                .push(stage(format!("{}: combine", node.name), combining, true));
            plan.edges.push(PlannedEdge {
                from: first,
                to: first + 1,
                distribution: Distribution::Keyed,
                key,
            });
        }
    }
    for (place, input) in node.inputs.iter().enumerate() {
        let from = made_in[input.flow.node as usize];
        let tasks = (plan.stages[from].tasks, plan.stages[first].tasks);
        let (distribution, key) = distribution(node, place, input, tasks);
        plan.edges.push(PlannedEdge {
            from,
            to: first,
            distribution,
            key,
        });
    }
    plan.stages.len() - 1
}

fn distribution(node: &Node, place: usize, input: &Input, tasks: (u32, u32)) -> (Distribution, Option<Key>) {
    let by_grouping_key = match node.transform {
        Transform::HashJoin if place > 0 => return (Distribution::Broadcast, None),
        Transform::Aggregate => aggregation::of(node) == Aggregation::SingleStage,
        Transform::Stateful | Transform::Rolling => !node.is_one_task(),
        _ => false,
    };
    if by_grouping_key {
        return (Distribution::Keyed, input.key.clone());
    }
    match &input.flow.rebalance {
        Some(Rebalance::InTurn) => (Distribution::Rebalance, None),
        Some(Rebalance::ByKey(key)) => (Distribution::Keyed, Some(key.clone())),
        None if tasks.0 == tasks.1 => (Distribution::Local, None),
        None if tasks.1 == 1 => (Distribution::Keyed, None),
        None => (Distribution::Rebalance, None),
    }
}
