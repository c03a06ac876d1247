//! A pipeline as its author writes it.

use std::fmt;
use std::sync::Arc;

use super::{Plan, PlanError, edges, fusion};
use crate::ids::number;

/// What records are grouped by: the name of a function of the engine.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(Arc<str>);

impl From<&str> for Key {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How an author asks for records to be spread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Rebalance {
    InTurn,
    ByKey(Key),
}

/// The output of a transform, on its way to the next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flow {
    pub(super) node: u32,
    pub(super) rebalance: Option<Rebalance>,
}

impl Flow {
    /// The next transform gets the records in turn, on all nodes.
    #[must_use]
    pub fn rebalance(mut self) -> Self {
        self.rebalance = Some(Rebalance::InTurn);
        self
    }

    /// The next transform gets the records by key, on all nodes.
    #[must_use]
    pub fn rebalance_by(mut self, key: impl Into<Key>) -> Self {
        self.rebalance = Some(Rebalance::ByKey(key.into()));
        self
    }

    /// The next transform works on each group of equal keys.
    #[must_use]
    pub fn grouping_key(self, key: impl Into<Key>) -> KeyedFlow {
        KeyedFlow {
            flow: self,
            key: key.into(),
        }
    }
}

/// The output of a transform, grouped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyedFlow {
    pub(super) flow: Flow,
    pub(super) key: Key,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transform {
    Source,
    Stateless,
    Merge,
    HashJoin,
    Aggregate,
    Stateful,
    Rolling,
    Sink,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Input {
    pub(super) flow: Flow,
    pub(super) key: Option<Key>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) transform: Transform,
    pub(super) inputs: Vec<Input>,
    pub(super) tasks: u32,
}

impl Node {
    /// State that cannot be divided: no key says which records belong together.
    pub(super) fn is_one_task(&self) -> bool {
        let stateful = matches!(self.transform, Transform::Stateful | Transform::Rolling);
        stateful && self.inputs.iter().any(|input| input.key.is_none())
    }
}

/// Transforms, each behind its inputs. Names are those of the stages, so no two are equal.
///
/// # Panics
/// Each method that takes a [`Flow`] panics if that is of another pipeline and this one has no such transform.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pipeline {
    pub(super) nodes: Vec<Node>,
    tasks: u32,
}

impl Pipeline {
    /// A pipeline whose transforms have so many tasks, unless [`Pipeline::set_tasks`] says otherwise.
    pub const fn new(tasks: u32) -> Self {
        Self {
            nodes: Vec::new(),
            tasks,
        }
    }

    /// Records from outside.
    pub fn source(&mut self, name: &str) -> Flow {
        self.push(name, Transform::Source, Vec::new())
    }

    /// A stateless transform: map, filter, flat map.
    pub fn map(&mut self, name: &str, input: Flow) -> Flow {
        self.push(name, Transform::Stateless, vec![plain(input)])
    }

    /// Several inputs as one.
    pub fn merge(&mut self, name: &str, inputs: impl IntoIterator<Item = Flow>) -> Flow {
        self.push(name, Transform::Merge, inputs.into_iter().map(plain).collect())
    }

    /// The main input, with what the enriching inputs know of each record.
    pub fn hash_join(&mut self, name: &str, main: Flow, enriching: impl IntoIterator<Item = Flow>) -> Flow {
        let inputs = std::iter::once(main).chain(enriching).map(plain).collect();
        self.push(name, Transform::HashJoin, inputs)
    }

    /// One value over all records.
    pub fn aggregate(&mut self, name: &str, inputs: impl IntoIterator<Item = Flow>) -> Flow {
        self.push(name, Transform::Aggregate, inputs.into_iter().map(plain).collect())
    }

    /// One value for each group.
    pub fn aggregate_by_key(&mut self, name: &str, inputs: impl IntoIterator<Item = KeyedFlow>) -> Flow {
        self.push(name, Transform::Aggregate, inputs.into_iter().map(keyed).collect())
    }

    /// A transform with one state for all records.
    pub fn stateful_map(&mut self, name: &str, input: Flow) -> Flow {
        self.push(name, Transform::Stateful, vec![plain(input)])
    }

    /// A transform with a state for each group.
    pub fn stateful_map_by_key(&mut self, name: &str, input: KeyedFlow) -> Flow {
        self.push(name, Transform::Stateful, vec![keyed(input)])
    }

    /// The value so far, after each record.
    pub fn rolling_aggregate(&mut self, name: &str, input: Flow) -> Flow {
        self.push(name, Transform::Rolling, vec![plain(input)])
    }

    /// The value of its group so far, after each record.
    pub fn rolling_aggregate_by_key(&mut self, name: &str, input: KeyedFlow) -> Flow {
        self.push(name, Transform::Rolling, vec![keyed(input)])
    }

    /// Records leave the job.
    pub fn sink(&mut self, name: &str, input: Flow) {
        self.push(name, Transform::Sink, vec![plain(input)]);
    }

    /// The transform that made this flow has so many tasks.
    pub fn set_tasks(&mut self, flow: &Flow, tasks: u32) {
        self.nodes[flow.node as usize].tasks = tasks;
    }

    /// Stages and edges.
    ///
    /// # Errors
    /// What would have to be in one task and in many at once.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        self.check()?;
        Ok(edges::plan(&self.nodes, &fusion::chains(&self.nodes)))
    }

    fn check(&self) -> Result<(), PlanError> {
        for node in &self.nodes {
            let transform = || node.name.clone();
            if node.transform != Transform::Source && node.inputs.is_empty() {
                return Err(PlanError::NoInput { transform: transform() });
            }
            let rebalanced = node.inputs.iter().any(|input| input.flow.rebalance.is_some());
            if node.is_one_task() && rebalanced {
                return Err(match node.transform {
                    Transform::Rolling => PlanError::RollingRebalanced { transform: transform() },
                    _ => PlanError::StatefulRebalanced { transform: transform() },
                });
            }
        }
        Ok(())
    }

    fn push(&mut self, name: &str, transform: Transform, inputs: Vec<Input>) -> Flow {
        let node = number(self.nodes.len());
        assert!(
            inputs.iter().all(|input| input.flow.node < node),
            "an input of {name:?} is a flow of another pipeline"
        );
        self.nodes.push(Node {
            name: name.to_owned(),
            transform,
            inputs,
            tasks: self.tasks,
        });
        Flow { node, rebalance: None }
    }
}

fn plain(flow: Flow) -> Input {
    Input { flow, key: None }
}

fn keyed(flow: KeyedFlow) -> Input {
    Input {
        flow: flow.flow,
        key: Some(flow.key),
    }
}
