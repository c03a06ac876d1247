use super::*;

fn errors(builder: GraphBuilder) -> Vec<String> {
    let errors = builder.build().expect_err("a defect");
    errors.iter().map(ToString::to_string).collect()
}

fn two() -> GraphBuilder {
    JobGraph::builder()
        .stage(Stage::new("a").fixed(4))
        .stage(Stage::new("b").fixed(4))
}

#[test]
fn all_defects_are_told_at_once_and_name_their_stage() {
    let found = errors(
        two()
            .stage(Stage::new("a"))
            .stage(Stage::new("none").fixed(0))
            .stage(Stage::new("turned").adaptive(8, 2))
            .stage(Stage::new("wide").slots_per_task(0))
            .stage(Stage::new("coarse").adaptive(1, 8).subpartitions(4))
            .stage(Stage::new("huge").fixed(70_000))
            .stage(Stage::new("fine").subpartitions(200_000))
            .stage(Stage::new("sure").fixed(2).self_estimating())
            .edge(EdgeSpec::keyed("a", "bb")),
    );
    let expected = [
        r#"there are two stages "a""#,
        r#"edge "a" -> "bb": there is no stage "bb": add it"#,
        r#"stage "none" may have 0 tasks: give it at least 1"#,
        r#"stage "turned" has a minimum of 8 tasks and a maximum of 2: lower"#,
        r#"a task of stage "wide" takes 0 slots"#,
        r#"stage "coarse" may have 8 tasks and its inputs are cut into 4 subpartitions: cut them into at least 8"#,
        r#"stage "huge" may have 70000 tasks: at most 65536"#,
        r#"the inputs of stage "fine" are cut into 200000 subpartitions: at most 131072"#,
        r#"stage "sure" estimates its own number of tasks, but its tasks are fixed"#,
    ];
    for text in expected {
        assert!(
            found.iter().any(|one| one.starts_with(text)),
            "{text} is not among {found:#?}"
        );
    }
}

#[test]
fn a_graph_without_stages_is_refused() {
    assert_eq!(errors(JobGraph::builder()), ["the graph has no stage: add one"]);
}

#[test]
fn a_cycle_is_refused_and_named() {
    let found = errors(two().edge(EdgeSpec::keyed("a", "b")).edge(EdgeSpec::keyed("b", "a")));
    assert_eq!(found.len(), 1);
    assert!(
        found[0].contains(r#""a" -> "b" -> "a""#) || found[0].contains(r#""b" -> "a" -> "b""#),
        "{found:?}"
    );
    assert!(errors(two().edge(EdgeSpec::keyed("a", "a")))[0].contains(r#""a" -> "a" form a cycle"#));
}

#[test]
fn the_ends_of_a_local_edge_have_equally_many_tasks() {
    let stages = |to| JobGraph::builder().stage(Stage::new("a").adaptive(2, 4)).stage(to);
    let local = || EdgeSpec::local("a", "b");
    assert!(stages(Stage::new("b").adaptive(1, 8)).edge(local()).build().is_ok());
    for narrow in [
        Stage::new("b").adaptive(3, 8),
        Stage::new("b").fixed(4),
        Stage::new("b").adaptive(1, 3),
    ] {
        let found = errors(stages(narrow).edge(local()));
        assert!(found[0].contains(r#"but "a" has 2 to 4 tasks and "b""#), "{found:?}");
    }
    let two = stages(Stage::new("b").adaptive(1, 8)).stage(Stage::new("c").adaptive(2, 4));
    let found = errors(two.edge(local()).edge(EdgeSpec::local("c", "b")));
    assert!(
        found[0].contains(r#"stage "b" has local inputs from "a" and "c""#),
        "{found:?}"
    );
}

#[test]
fn splitting_is_refused_where_records_must_meet_or_nothing_is_split() {
    let refused = |to: Stage, edge: EdgeSpec, text: &str| {
        let builder = JobGraph::builder().stage(Stage::new("a").fixed(4)).stage(to);
        let found = errors(builder.edge(edge.splittable()));
        assert!(found[0].contains(text), "{found:?}");
    };
    let keyed = || EdgeSpec::keyed("a", "b");
    refused(
        Stage::new("b").adaptive(1, 4).keeps_state(),
        keyed(),
        "aggregates by key or keeps state",
    );
    refused(Stage::new("b").fixed(4), keyed(), "fixed number of tasks");
    refused(Stage::new("b").adaptive(1, 4), keyed().pipelined(), "it is pipelined");
    refused(
        Stage::new("b").adaptive(1, 4),
        EdgeSpec::broadcast("a", "b"),
        "neither keyed nor a rebalance",
    );
}

#[test]
fn a_source_alone_can_estimate_itself() {
    let builder = two().stage(Stage::new("c").adaptive(1, 4).self_estimating());
    assert!(builder.clone().build().is_ok());
    assert!(errors(builder.edge(EdgeSpec::keyed("a", "c")))[0].contains("it has inputs"));
}

#[test]
fn an_open_result_is_one_queue_behind_which_repartition_stages_are_put() {
    let builder = || {
        JobGraph::builder()
            .stage(Stage::new("scan").fixed(3).open_result())
            .stage(Stage::new("count").fixed(5))
            .stage(Stage::new("join").fixed(2))
    };
    let alone = builder().build().unwrap();
    assert_eq!(alone.results().len(), 1);
    assert_eq!(
        (alone.results()[0].subpartitions, alone.results()[0].edges.len()),
        (1, 0)
    );

    let graph = builder()
        .edge(EdgeSpec::keyed("scan", "count"))
        .edge(EdgeSpec::broadcast("scan", "join"))
        .build()
        .unwrap();
    let inserted = graph.find("scan repartitioned for count").expect("a stage between");
    assert_eq!(graph.stage(inserted).parallelism(), Parallelism::Fixed(3));
    let scan = graph.find("scan").unwrap();
    let open: Vec<ResultId> = graph.results_of(scan).collect();
    assert_eq!(open.len(), 1, "all consumers read one result");
    let readers: Vec<(StageId, Distribution)> = graph
        .outputs(scan)
        .map(|(edge, to)| (to, graph.edge(edge).distribution))
        .collect();
    assert!(readers.contains(&(inserted, Distribution::Local)));
    assert!(readers.contains(&(graph.find("join").unwrap(), Distribution::Broadcast)));
    let keyed = graph
        .outputs(inserted)
        .next()
        .map(|(edge, _)| graph.edge(edge))
        .unwrap();
    assert_eq!(keyed.distribution, Distribution::Keyed);
    assert_eq!(graph.result(keyed.result).unwrap().subpartitions, 5);

    let found = errors(builder().edge(EdgeSpec::keyed("scan", "count").pipelined()));
    assert!(found[0].contains(r#"stage "scan" has an open result"#), "{found:?}");
}

#[test]
fn rebalanced_outputs_make_a_stage_indeterminate() {
    let graph = two()
        .stage(Stage::new("c").fixed(2))
        .stage(Stage::new("d").indeterminate())
        .edge(EdgeSpec::rebalance("a", "b"))
        .edge(EdgeSpec::keyed("b", "c"))
        .build()
        .unwrap();
    let determinate = ["a", "b", "c", "d"].map(|name| graph.is_determinate(graph.find(name).unwrap()));
    assert_eq!(determinate, [false, true, true, false]);
}

#[test]
fn it_is_drawn_for_graphviz() {
    let graph = JobGraph::builder()
        .stage(Stage::new("a \"quoted\"").fixed(2).slots_per_task(3))
        .stage(Stage::new("b"))
        .stage(Stage::new("c"))
        .edge(EdgeSpec::keyed("a \"quoted\"", "b").pipelined())
        .edge(EdgeSpec::broadcast("b", "c"))
        .build()
        .unwrap();
    let expected = "digraph job {\n  rankdir=LR;\n  node [shape=box];\n  \
        s0 [label=\"a \\\"quoted\\\"\\n2 tasks, 3 slots each\"];\n  s1 [label=\"b\\n1 task\"];\n  \
        s2 [label=\"c\\n1 task\"];\n  s0 -> s1 [style=bold, label=\"keyed, pipelined\"];\n  \
        s1 -> s2 [style=dashed, label=\"broadcast, regular\"];\n}\n";
    assert_eq!(graph.to_dot(), expected);
}
