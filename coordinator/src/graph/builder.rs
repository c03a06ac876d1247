//! From names to a graph.

use std::collections::HashMap;

use shuffle_protocol::ResultId;

use super::edge::{Dependency, Distribution, Edge, EdgeSpec};
use super::error::{GraphError, GraphErrors};
use super::idiom::{Idiom, Idioms};
use super::stage::Stage;
use super::{JobGraph, validate};
use crate::ids::StageId;

/// Collects stages and edges in any order; [`GraphBuilder::build`] looks at them as a whole.
#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    stages: Vec<Stage>,
    edges: Vec<EdgeSpec>,
    idioms: Idioms,
}

impl GraphBuilder {
    /// Adds a stage.
    #[must_use]
    pub fn stage(mut self, stage: Stage) -> Self {
        self.stages.push(stage);
        self
    }

    /// Adds an edge between two stages, which may be added later.
    #[must_use]
    pub fn edge(mut self, edge: EdgeSpec) -> Self {
        self.edges.push(edge);
        self
    }

    /// The engine does this with every stage.
    #[must_use]
    pub const fn uses(mut self, idiom: Idiom) -> Self {
        self.idioms = self.idioms.with(idiom);
        self
    }

    /// The graph.
    ///
    /// # Errors
    /// Every defect there is: stages that are unknown, named twice or contradict themselves, edges that contradict the stages
    /// they join, and, if nothing else is wrong, the first cycle.
    pub fn build(self) -> Result<JobGraph, GraphErrors> {
        let mut errors = Vec::new();
        let mut by_name = HashMap::with_capacity(self.stages.len());
        for (at, stage) in self.stages.iter().enumerate() {
            if by_name.insert(stage.name.clone(), StageId::from_index(at)).is_some() {
                errors.push(GraphError::DuplicateStage {
                    stage: stage.name.clone(),
                });
            }
        }
        let mut edges = Vec::with_capacity(self.edges.len());
        for spec in &self.edges {
            match resolve(spec, &by_name) {
                Ok(edge) => edges.push(edge),
                Err(error) => errors.push(error),
            }
        }
        validate::stages(&self.stages, &mut errors);
        validate::edges(&self.stages, &edges, &mut errors);
        if !errors.is_empty() {
            return Err(GraphErrors(errors));
        }
        let mut stages = self.stages;
        insert_repartitions(&mut stages, &mut edges, &by_name);
        let names: Vec<String> = stages.iter().map(|stage| stage.name.clone()).collect();
        JobGraph::new(stages, edges, self.idioms).map_err(|cycle| {
            let stages = cycle.iter().map(|stage| names[stage.index()].clone()).collect();
            GraphErrors(vec![GraphError::Cycle { stages }])
        })
    }
}

fn resolve(spec: &EdgeSpec, by_name: &HashMap<String, StageId>) -> Result<Edge, GraphError> {
    let find = |name: &String| {
        by_name.get(name).copied().ok_or_else(|| GraphError::UnknownStage {
            from: spec.from.clone(),
            to: spec.to.clone(),
            missing: name.clone(),
        })
    };
    Ok(Edge {
        from: find(&spec.from)?,
        to: find(&spec.to)?,
        distribution: spec.distribution,
        dependency: spec.dependency,
        splittable: spec.splittable,
        result: ResultId::default(),
        idioms: spec.idioms,
    })
}

/// A single queue can be read task by task or by everybody. Who wants a part of it by key or in turn gets a stage before it
/// that reads queue k with task k and spreads the records as asked.
fn insert_repartitions(stages: &mut Vec<Stage>, edges: &mut Vec<Edge>, by_name: &HashMap<String, StageId>) {
    for at in 0..edges.len() {
        let edge = edges[at];
        let producer = &stages[edge.from.index()];
        if !producer.open_result || !edge.distribution.is_all_to_all() {
            continue;
        }
        let consumer = &stages[edge.to.index()].name;
        let mut name = format!("{} repartitioned for {consumer}", producer.name);
        while by_name.contains_key(&name) || stages.iter().skip(by_name.len()).any(|stage| stage.name == name) {
            name.push('\'');
        }
        let mut repartition = Stage::new(name).slots_per_task(producer.slots_per_task);
        repartition.parallelism = producer.parallelism;
        let inserted = StageId::from_index(stages.len());
        stages.push(repartition);
        edges.push(Edge {
            to: inserted,
            distribution: Distribution::Local,
            dependency: Dependency::Regular,
            splittable: false,
            idioms: Idioms::default(),
            ..edge
        });
        edges[at].from = inserted;
    }
}
