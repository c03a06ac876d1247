//! Contradictions, each found on its own, so that all of them can be told at once.

use shuffle_protocol::limits::{MAX_CHANNELS_PER_GATE, MAX_SUBPARTITIONS};

use super::edge::{Dependency, Distribution, Edge};
use super::error::GraphError;
use super::stage::{Parallelism, Stage};

pub(super) fn stages(stages: &[Stage], errors: &mut Vec<GraphError>) {
    if stages.is_empty() {
        errors.push(GraphError::Empty);
    }
    for stage in stages {
        let name = || stage.name.clone();
        let (min, max) = (stage.parallelism.min(), stage.parallelism.max());
        let subpartitions = stage.input_subpartitions();
        if min == 0 || max == 0 {
            errors.push(GraphError::NoTasks { stage: name() });
        } else if min > max {
            errors.push(GraphError::MinAboveMax {
                stage: name(),
                min,
                max,
            });
        } else if max > MAX_CHANNELS_PER_GATE {
            errors.push(GraphError::TooManyTasks {
                stage: name(),
                tasks: max,
            });
        } else if subpartitions < max {
            errors.push(GraphError::TooFewSubpartitions {
                stage: name(),
                subpartitions,
                tasks: max,
            });
        }
        if subpartitions > MAX_SUBPARTITIONS {
            errors.push(GraphError::TooManySubpartitions {
                stage: name(),
                subpartitions,
            });
        }
        if stage.slots_per_task == 0 {
            errors.push(GraphError::NoSlots { stage: name() });
        }
        if stage.self_estimating && matches!(stage.parallelism, Parallelism::Fixed(_)) {
            errors.push(GraphError::EstimatesWithoutEffect {
                stage: name(),
                reason: "its tasks are fixed: make it adaptive",
            });
        }
    }
}

pub(super) fn edges(stages: &[Stage], edges: &[Edge], errors: &mut Vec<GraphError>) {
    let mut local_input = vec![None; stages.len()];
    let mut has_input = vec![false; stages.len()];
    for edge in edges {
        let (from, to) = (&stages[edge.from.index()], &stages[edge.to.index()]);
        has_input[edge.to.index()] = true;
        if edge.distribution == Distribution::Local {
            local(from, to, errors);
            if let Some(first) = local_input[edge.to.index()].replace(edge.from) {
                two_local_inputs(&stages[first.index()], from, to, errors);
            }
        }
        if edge.splittable {
            splittable(edge, from, to, errors);
        }
        if from.open_result && edge.dependency == Dependency::Pipelined {
            errors.push(GraphError::OpenPipelined {
                from: from.name.clone(),
                to: to.name.clone(),
            });
        }
    }
    for (stage, _) in stages
        .iter()
        .zip(has_input)
        .filter(|(stage, has)| stage.self_estimating && *has)
    {
        errors.push(GraphError::EstimatesWithoutEffect {
            stage: stage.name.clone(),
            reason: "it has inputs, whose bytes decide: only a source can estimate itself",
        });
    }
}

/// Equal if both are fixed; an adaptive consumer takes what its producer has, so it must allow all of that.
fn local(from: &Stage, to: &Stage, errors: &mut Vec<GraphError>) {
    let (producer, consumer) = (from.parallelism, to.parallelism);
    let fits = consumer.min() <= producer.min() && producer.max() <= consumer.max();
    if !fits {
        errors.push(GraphError::LocalTasksDiffer {
            from: from.name.clone(),
            to: to.name.clone(),
            from_tasks: in_words(producer),
            to_tasks: in_words(consumer),
        });
    }
}

fn two_local_inputs(first: &Stage, second: &Stage, to: &Stage, errors: &mut Vec<GraphError>) {
    let number = |stage: &Stage| match stage.parallelism {
        Parallelism::Fixed(tasks) => Some(tasks),
        Parallelism::Adaptive { .. } => None,
    };
    let same = number(first).is_some() && number(first) == number(second);
    if !same && first.name != second.name {
        errors.push(GraphError::TwoLocalInputs {
            stage: to.name.clone(),
            first: first.name.clone(),
            second: second.name.clone(),
        });
    }
}

fn splittable(edge: &Edge, from: &Stage, to: &Stage, errors: &mut Vec<GraphError>) {
    if to.keeps_state {
        errors.push(GraphError::SplitIntoState {
            from: from.name.clone(),
            to: to.name.clone(),
        });
    }
    let without_effect = if !edge.distribution.is_all_to_all() {
        Some("it is neither keyed nor a rebalance: only those have subpartitions to split")
    } else if edge.dependency == Dependency::Pipelined {
        Some("it is pipelined, so nobody knows its bytes when tasks are assigned: make it regular")
    } else if matches!(to.parallelism, Parallelism::Fixed(_)) {
        Some("its consumer has a fixed number of tasks: make that adaptive")
    } else {
        None
    };
    if let Some(reason) = without_effect {
        errors.push(GraphError::SplitWithoutEffect {
            from: from.name.clone(),
            to: to.name.clone(),
            reason,
        });
    }
}

pub(super) fn in_words(parallelism: Parallelism) -> String {
    match parallelism {
        Parallelism::Fixed(tasks) => tasks.to_string(),
        Parallelism::Adaptive { min, max } => format!("{min} to {max}"),
    }
}
