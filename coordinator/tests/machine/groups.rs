//! Groups: who is in them, what is refused, when they are admitted; against known answers.

use std::collections::{BTreeMap, BTreeSet};

use coordinator::{
    Config, EdgeSpec, GraphBuilder, Groups, Idiom, JobGraph, Notice, Stage, SubmitError, TaskId, Unsupported,
};
use serde::Deserialize;
use shuffle_protocol::JobId;

use crate::support::World;

#[derive(Deserialize)]
struct Vectors {
    cases: Vec<Case>,
    unsupported: Vec<String>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    stages: BTreeMap<String, u32>,
    pipelined: Vec<[String; 2]>,
    regular: Vec<[String; 2]>,
    groups: Option<BTreeSet<BTreeSet<String>>>,
    error: Option<String>,
    slots: Option<u32>,
    busy: Option<u32>,
    admitted: Option<bool>,
    admissible_at_start: Option<BTreeSet<BTreeSet<String>>>,
    #[serde(rename = "after_completion_of_S")]
    after_completion_of_s: Option<BTreeSet<BTreeSet<String>>>,
    note: Option<String>,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../vectors/pipelined_groups.json")).expect("the vectors have this shape")
}

fn builder(case: &Case) -> GraphBuilder {
    let stages = case.stages.iter();
    let graph = stages.fold(JobGraph::builder(), |graph, (name, tasks)| {
        graph.stage(Stage::new(name).fixed(*tasks))
    });
    let pipelined = case
        .pipelined
        .iter()
        .map(|[from, to]| EdgeSpec::keyed(from, to).pipelined());
    let regular = case.regular.iter().map(|[from, to]| EdgeSpec::keyed(from, to));
    pipelined.chain(regular).fold(graph, GraphBuilder::edge)
}

fn names(graph: &JobGraph, groups: &Groups) -> BTreeSet<BTreeSet<String>> {
    let stages =
        (0..graph.stages().len()).map(|at| coordinator::StageId::new(u32::try_from(at).expect("a small number")));
    let members = |stage| groups.members(groups.of(stage)).iter();
    let name = |&stage: &_| graph.stage(stage).name().to_owned();
    stages.map(|stage| members(stage).map(name).collect()).collect()
}

/// The groups of which something runs.
fn running(world: &World) -> BTreeSet<BTreeSet<String>> {
    let groups = world.coordinator.groups();
    let name = |&stage: &_| world.coordinator.graph().stage(stage).name().to_owned();
    let of = |task: &TaskId| groups.members(groups.of(task.stage)).iter().map(name).collect();
    world.running.keys().map(of).collect()
}

#[test]
fn groups_are_the_known_ones_and_wait_as_is_known() {
    let vectors = vectors();
    assert_eq!(vectors.cases.len(), 9);
    for case in vectors.cases {
        let graph = builder(&case).build().expect("a valid graph");
        let slots = case.slots.unwrap_or(100);
        // What is busy elsewhere is not among the slots for this job; what this job keeps busy is a stage of its own.
        let submitted = World::new(graph.clone(), Config::default(), &[slots]);
        let mut world = match (submitted, &case.error) {
            (Err(error), Some(expected)) => {
                assert!(error.to_string().contains(expected), "{}: {error}", case.name);
                assert!(
                    case.stages
                        .keys()
                        .filter(|name| error.to_string().contains(*name))
                        .count()
                        > 1
                );
                continue;
            }
            (Ok(world), None) => world,
            (other, expected) => panic!("{}: {:?}, expected {expected:?}", case.name, other.err()),
        };
        if let Some(expected) = &case.groups {
            assert_eq!(&names(&graph, world.coordinator.groups()), expected, "{}", case.name);
        }
        if let Some(busy) = case.busy {
            waits_while_slots_are_busy(&case, slots, busy);
            continue;
        }
        world.drain();
        if let Some(expected) = &case.admissible_at_start {
            assert_eq!(&running(&world), expected, "{}", case.name);
            world.finish("S");
            assert_eq!(Some(running(&world)), case.after_completion_of_s, "{}", case.name);
        }
        if case.note.is_some() {
            world.finish("A");
            assert!(world.tasks_of("T").is_empty(), "T may not start when A alone is done");
            assert!(!world.completed("A"));
            world.finish("B");
            assert_eq!(world.tasks_of("T").len(), 2);
        }
        world.run();
        assert!(world.succeeded(), "{}", case.name);
    }
}

fn waits_while_slots_are_busy(case: &Case, slots: u32, busy: u32) {
    assert_eq!(case.admitted, Some(false));
    // The other stage comes first, and has its slots when the group is looked at.
    let graph = case.stages.iter().fold(
        JobGraph::builder().stage(Stage::new("busy").fixed(busy)),
        |graph, (name, tasks)| graph.stage(Stage::new(name).fixed(*tasks)),
    );
    let graph = case.pipelined.iter().fold(graph, |graph, [from, to]| {
        graph.edge(EdgeSpec::keyed(from, to).pipelined())
    });
    let mut world = World::new(graph.build().expect("a valid graph"), Config::default(), &[slots])
        .expect("a job that can be taken");
    world.drain();
    assert_eq!(running(&world), BTreeSet::from([BTreeSet::from(["busy".to_owned()])]));
    let waits = |notice: &Notice| matches!(notice, Notice::GroupWaits { needs: 6, free: 4, .. });
    assert_eq!(world.notices().filter(|notice| waits(notice)).count(), 1);
    // Two of four busy slots come back: six are free, and the whole group starts.
    for task in world.tasks_of("busy").into_iter().take(1) {
        while world.running.contains_key(&task) {
            world.step(task, 0);
        }
    }
    world.drain();
    assert!(
        world.tasks_of("A").is_empty() && world.tasks_of("B").is_empty(),
        "5 are free, it needs 6"
    );
    world.finish("busy");
    assert_eq!((world.tasks_of("A").len(), world.tasks_of("B").len()), (3, 3));
}

fn two() -> GraphBuilder {
    JobGraph::builder()
        .stage(Stage::new("before").fixed(2))
        .stage(Stage::new("after").fixed(2))
        .edge(EdgeSpec::keyed("before", "after").pipelined())
}

fn refusal(builder: GraphBuilder) -> String {
    match World::new(builder.build().expect("a valid graph"), Config::default(), &[8]) {
        Err(error @ SubmitError::Groups(_)) => error.to_string(),
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn every_unsupported_idiom_is_refused_with_its_reason() {
    let stage = |idiom| {
        JobGraph::builder()
            .stage(Stage::new("before").fixed(2).uses(idiom))
            .stage(Stage::new("after").fixed(2))
            .edge(EdgeSpec::keyed("before", "after").pipelined())
    };
    let adaptive = JobGraph::builder()
        .stage(Stage::new("before").fixed(2))
        .stage(Stage::new("after").adaptive(1, 2))
        .edge(EdgeSpec::keyed("before", "after").pipelined());
    let indeterminate = JobGraph::builder()
        .stage(Stage::new("before").fixed(2).indeterminate())
        .stage(Stage::new("after").fixed(2))
        .edge(EdgeSpec::keyed("before", "after").pipelined());
    for name in vectors().unsupported {
        let (builder, what) = match name.as_str() {
            "barrier execution" => (stage(Idiom::Barrier), Unsupported::Idiom(Idiom::Barrier)),
            "dynamic allocation" => (
                two().uses(Idiom::DynamicAllocation),
                Unsupported::Idiom(Idiom::DynamicAllocation),
            ),
            "speculative execution" => (stage(Idiom::Speculation), Unsupported::Idiom(Idiom::Speculation)),
            "push-based merge" => {
                let edge = EdgeSpec::keyed("before", "after").pipelined().uses(Idiom::PushMerge);
                (two().edge(edge), Unsupported::Idiom(Idiom::PushMerge))
            }
            "indeterminate producer" => (indeterminate.clone(), Unsupported::IndeterminateProducer),
            "checksum-mismatch retry" => (stage(Idiom::ChecksumRetry), Unsupported::Idiom(Idiom::ChecksumRetry)),
            "cached data in a member" => (stage(Idiom::CachedData), Unsupported::Idiom(Idiom::CachedData)),
            "producer shared across jobs" => (stage(Idiom::SharedProducer), Unsupported::Idiom(Idiom::SharedProducer)),
            "regular shuffle inside a group" => {
                let regular = two().edge(EdgeSpec::keyed("before", "after"));
                (regular, Unsupported::RegularInside)
            }
            "adaptive replanning over a pipelined exchange" => (adaptive.clone(), Unsupported::AdaptiveReplanning),
            unknown => panic!("no way to build {unknown}"),
        };
        let text = refusal(builder);
        assert!(text.contains(&name) && text.contains(what.reason()), "{name}: {text}");
        assert!(
            text.contains("\"before\"") && text.contains("\"after\""),
            "{name}: {text}"
        );
    }
}

#[test]
fn idioms_outside_of_groups_are_the_engines_business() {
    let builder = Idiom::ALL.into_iter().fold(JobGraph::builder(), GraphBuilder::uses);
    let graph = builder
        .stage(Stage::new("a").indeterminate())
        .stage(Stage::new("b"))
        .edge(EdgeSpec::rebalance("a", "b"));
    assert!(World::new(graph.build().expect("a valid graph"), Config::default(), &[8]).is_ok());
}

#[test]
fn a_rebalanced_pipelined_edge_has_an_indeterminate_producer() {
    let text = refusal(
        JobGraph::builder()
            .stage(Stage::new("a"))
            .stage(Stage::new("b"))
            .edge(EdgeSpec::rebalance("a", "b").pipelined()),
    );
    assert!(text.contains("indeterminate producer"), "{text}");
}

#[test]
fn a_cycle_between_groups_names_its_stages() {
    let graph = JobGraph::builder()
        .stage(Stage::new("A"))
        .stage(Stage::new("B"))
        .stage(Stage::new("T"))
        .edge(EdgeSpec::keyed("A", "B").pipelined())
        .edge(EdgeSpec::keyed("A", "T"))
        .edge(EdgeSpec::keyed("T", "B"))
        .build()
        .expect("a valid graph");
    let errors = Groups::form(JobId::new(1), &graph).unwrap_err();
    let text = errors[0].to_string();
    let ways = [r#""A" -> "T" -> "B" -> "A""#, r#""T" -> "B" -> "A" -> "T""#];
    assert!(ways.iter().any(|way| text.contains(way)), "{text}");
}

#[test]
fn an_adaptive_entry_of_a_group_never_grows_beyond_the_cluster() {
    let graph = JobGraph::builder()
        .stage(Stage::new("scan"))
        .stage(Stage::new("entry").adaptive(1, 64))
        .stage(Stage::new("exit").fixed(3))
        .edge(EdgeSpec::keyed("scan", "entry"))
        .edge(EdgeSpec::keyed("entry", "exit").pipelined())
        .build()
        .expect("a valid graph");
    let mut world = World::new(graph, Config::default(), &[4, 4]).expect("a job that can be taken");
    world.bytes = Box::new(|_, _| 1 << 40);
    world.drain();
    world.finish("scan");
    assert_eq!((world.tasks_of("entry").len(), world.tasks_of("exit").len()), (5, 3));
    world.run();
    assert!(world.succeeded());
}

#[test]
fn a_member_with_a_local_input_needs_slots_for_all_that_this_may_have() {
    let graph = |scan: Stage| {
        JobGraph::builder()
            .stage(scan)
            .stage(Stage::new("entry").adaptive(1, 4).slots_per_task(2))
            .stage(Stage::new("exit").fixed(4))
            .edge(EdgeSpec::local("scan", "entry"))
            .edge(EdgeSpec::keyed("entry", "exit").pipelined())
            .build()
            .expect("a valid graph")
    };
    for scan in [Stage::new("scan").fixed(4), Stage::new("scan").adaptive(1, 4)] {
        let error = World::new(graph(scan), Config::default(), &[7])
            .err()
            .expect("4 tasks of 2 slots, and 4 of 1");
        assert!(
            error.to_string().contains("needs 12 slots, the cluster has 7"),
            "{error}"
        );
    }
    let mut world = World::new(graph(Stage::new("scan").fixed(4)), Config::default(), &[12]).expect("it fits");
    world.run();
    assert!(world.succeeded());
}
