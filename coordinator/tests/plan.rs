//! What rebalance does to a plan, against known answers.

use coordinator::graph::{Distribution, GraphError, Parallelism};
use coordinator::plan::{Key, Pipeline, Plan, PlanError, PlannedEdge};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Vectors {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    pipeline: String,
    edge: Option<String>,
    distributed: Option<bool>,
    keyed: Option<Value>,
    fused: Option<bool>,
    #[serde(default)]
    edges: Vec<Edge>,
    stages: Option<usize>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Edge {
    edge: String,
    distributed: bool,
    keyed: Option<Value>,
    broadcast: Option<bool>,
}

/// The pipelines of the vectors, built by hand: the text is their name. Every transform has 4 tasks.
fn build(name: &str) -> Result<Plan, PlanError> {
    let mut p = Pipeline::new(4);
    match name {
        "merge(a, b.rebalance())" => {
            let (a, b) = (p.source("a"), p.source("b").rebalance());
            p.merge("merge", [a, b]);
        }
        "merge(a.rebalance(key), b)" => {
            let (a, b) = (p.source("a").rebalance_by("key"), p.source("b"));
            p.merge("merge", [a, b]);
        }
        "a.grouping_key(k).aggregate2(b.rebalance().grouping_key(k))" => {
            let (a, b) = (p.source("a"), p.source("b").rebalance());
            p.aggregate_by_key("aggregate", [a.grouping_key("k"), b.grouping_key("k")]);
        }
        "main.rebalance().hash_join(enriching)" => {
            let (main, enriching) = (p.source("main").rebalance(), p.source("enriching"));
            p.hash_join("join", main, [enriching]);
        }
        "main.hash_join(enriching.rebalance())" => {
            let (main, enriching) = (p.source("main"), p.source("enriching").rebalance());
            p.hash_join("join", main, [enriching]);
        }
        _ => {
            let source = p.source("source");
            match name {
                "source.rebalance().map" => p.map("map", source.rebalance()),
                "source.rebalance(key).map" => p.map("map", source.rebalance_by("key")),
                "source.map.rebalance().flat_map" => {
                    let map = p.map("map", source);
                    p.map("flat_map", map.rebalance())
                }
                "source.map.flat_map" => {
                    let map = p.map("map", source);
                    p.map("flat_map", map)
                }
                "source.rebalance().aggregate (global)" => p.aggregate("aggregate", [source.rebalance()]),
                "source.grouping_key(k).aggregate" => p.aggregate_by_key("aggregate", [source.grouping_key("k")]),
                "source.rebalance().grouping_key(k).aggregate" => {
                    p.aggregate_by_key("aggregate", [source.rebalance().grouping_key("k")])
                }
                "source.rebalance(other).grouping_key(k).aggregate" => {
                    p.aggregate_by_key("aggregate", [source.rebalance_by("other").grouping_key("k")])
                }
                "source.rebalance().grouping_key(k).stateful_map" => {
                    p.stateful_map_by_key("stateful_map", source.rebalance().grouping_key("k"))
                }
                "source.rebalance().rolling_aggregate" => p.rolling_aggregate("rolling", source.rebalance()),
                "source.rebalance().stateful_map" => p.stateful_map("stateful_map", source.rebalance()),
                unknown => panic!("no such pipeline: {unknown}"),
            };
        }
    }
    p.plan()
}

/// The edge "from->to", by the names of transforms; "accumulate" is the first stage of the aggregation.
fn edge<'a>(plan: &'a Plan, name: &str) -> &'a PlannedEdge {
    let (from, to) = name.split_once("->").expect("an edge");
    let stage = |name: &str| {
        let name = if name == "accumulate" { "aggregate" } else { name };
        plan.stage_of(name).unwrap_or_else(|| panic!("no stage {name}"))
    };
    let (from, to) = (stage(from), stage(to));
    let found = plan.edges.iter().find(|edge| (edge.from, edge.to) == (from, to));
    found.unwrap_or_else(|| panic!("no edge {name}"))
}

/// `true`, `false`, or the key.
fn check_key(edge: &PlannedEdge, keyed: &Value, name: &str) {
    match keyed {
        Value::Bool(keyed) => assert_eq!(edge.distribution == Distribution::Keyed, *keyed, "{name}"),
        Value::String(key) => {
            assert_eq!(edge.distribution, Distribution::Keyed, "{name}");
            assert_eq!(edge.key, Some(Key::from(key.as_str())), "{name}");
        }
        other => panic!("{name}: keyed is {other}"),
    }
}

#[test]
fn rebalance_does_what_is_known() {
    let vectors: Vectors =
        serde_json::from_str(include_str!("vectors/rebalance.json")).expect("the vectors have this shape");
    assert_eq!(vectors.cases.len(), 16);
    for case in vectors.cases {
        let name = &case.pipeline;
        let plan = match (build(name), &case.error) {
            (Ok(plan), None) => plan,
            (Err(error), Some(expected)) => {
                assert!(error.to_string().contains(expected), "{name}: {error}");
                continue;
            }
            (result, expected) => panic!("{name}: {result:?}, expected error {expected:?}"),
        };
        let graph = plan.to_graph().unwrap();
        assert_eq!(graph.stages().len(), plan.stages.len(), "{name}");
        if let Some(fused) = case.fused {
            assert_eq!(plan.stage_of("map") == plan.stage_of("flat_map"), fused, "{name}");
        }
        if let Some(stages) = case.stages {
            let of_aggregation = plan.stages.iter().filter(|stage| stage.transforms == ["aggregate"]);
            assert_eq!(of_aggregation.count(), stages, "{name}");
        }
        if let Some(one) = &case.edge {
            let found = edge(&plan, one);
            assert_eq!(Some(found.is_distributed()), case.distributed, "{name}");
            check_key(found, case.keyed.as_ref().expect("keyed or not"), name);
        }
        for one in &case.edges {
            let found = edge(&plan, &one.edge);
            assert_eq!(found.is_distributed(), one.distributed, "{name}");
            if let Some(keyed) = &one.keyed {
                check_key(found, keyed, name);
            }
            if let Some(broadcast) = one.broadcast {
                assert_eq!(found.distribution == Distribution::Broadcast, broadcast, "{name}");
            }
        }
    }
}

#[test]
fn two_stages_accumulate_where_the_records_are_and_combine_by_key_or_in_one_task() {
    let plan = build("source.grouping_key(k).aggregate").unwrap();
    let tasks: Vec<(&str, u32)> = plan
        .stages
        .iter()
        .map(|stage| (stage.name.as_str(), stage.tasks))
        .collect();
    assert_eq!(
        tasks,
        [("source", 4), ("aggregate: accumulate", 4), ("aggregate: combine", 4)]
    );
    assert_eq!(edge(&plan, "source->accumulate").distribution, Distribution::Local);
    let combining = plan.edges.iter().find(|edge| edge.to == 2).unwrap();
    assert_eq!(
        (combining.distribution, &combining.key),
        (Distribution::Keyed, &Some(Key::from("k")))
    );

    let plan = build("source.rebalance().aggregate (global)").unwrap();
    let tasks: Vec<u32> = plan.stages.iter().map(|stage| stage.tasks).collect();
    assert_eq!(tasks, [4, 4, 1], "accumulation in parallel, combination in one task");
}

#[test]
fn chains_fuse_while_tasks_are_equal_and_there_is_one_downstream() {
    let mut p = Pipeline::new(4);
    let source = p.source("source");
    let a = p.map("a", source);
    let b = p.map("b", a);
    let c = p.map("c", b);
    p.set_tasks(&c, 2);
    let d = p.map("d", c);
    p.set_tasks(&d, 2);
    let (e, f) = (p.map("e", d.clone()), p.map("f", d));
    p.set_tasks(&e, 2);
    p.sink("out", e);
    p.sink("also out", f);
    let plan = p.plan().unwrap();
    let names: Vec<&str> = plan.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["source", "a + b", "c + d", "e", "f", "out", "also out"]);
    let of = |from: usize, to: usize| {
        let edge = plan.edges.iter().find(|edge| (edge.from, edge.to) == (from, to));
        edge.expect("an edge").distribution
    };
    assert_eq!(of(0, 1), Distribution::Local, "a source is not fused");
    assert_eq!(
        of(1, 2),
        Distribution::Rebalance,
        "4 tasks cannot be joined to 2 one by one"
    );
    assert_eq!(of(2, 3), Distribution::Local);
    assert!(plan.stages.iter().all(|stage| !stage.open_result));
}

#[test]
fn state_without_a_key_is_one_task_and_keeps_its_producer_determinate() {
    let mut p = Pipeline::new(4);
    let source = p.source("source");
    let counted = p.rolling_aggregate("count", source);
    p.sink("out", counted);
    let graph = p.plan().unwrap().to_graph().unwrap();
    let count = graph.find("count").unwrap();
    assert_eq!(graph.stage(count).parallelism(), Parallelism::Fixed(1));
    assert!(graph.stage(count).has_state());
    assert!(graph.is_determinate(graph.find("source").unwrap()));
}

#[test]
fn what_nobody_consumes_has_a_single_queue() {
    let mut p = Pipeline::new(4);
    let source = p.source("source");
    p.map("kept", source);
    let graph = p.plan().unwrap().to_graph().unwrap();
    let kept = graph.find("kept").unwrap();
    assert!(graph.stage(kept).has_open_result());
    let results: Vec<u32> = graph
        .results_of(kept)
        .map(|id| graph.result(id).unwrap().subpartitions)
        .collect();
    assert_eq!(results, [1]);
}

#[test]
fn names_given_twice_and_missing_inputs_are_refused() {
    let mut p = Pipeline::new(4);
    let source = p.source("source");
    p.sink("source", source);
    let errors = p.plan().unwrap().to_graph().unwrap_err();
    assert!(
        errors
            .iter()
            .any(|error| matches!(error, GraphError::DuplicateStage { stage } if stage == "source"))
    );

    let mut p = Pipeline::new(4);
    p.merge("merge", []);
    let error = p.plan().unwrap_err();
    assert_eq!(
        error,
        PlanError::NoInput {
            transform: "merge".to_owned()
        }
    );
}
