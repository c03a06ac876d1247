//! `shuffle-bench job`, as a user sees it.

use serde_json::Value;

use crate::run::measured;

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a count")
}

fn names(list: &Value) -> Vec<&str> {
    let list = list.as_array().expect("a list");
    list.iter().map(|one| one["name"].as_str().expect("a name")).collect()
}

#[test]
fn a_batch_job_has_as_many_tasks_as_its_bytes_ask_for_and_comes_out_right() {
    let report = measured(&["job", "--scale", "0.01", "--bytes-per-task", "256k"]);
    let stages = report["stages"].as_array().expect("a list");
    assert_eq!(names(&report["stages"]), ["scan", "aggregate", "sort"]);
    for stage in &stages[1..] {
        let (tasks, bytes_in) = (number(&stage["parallelism"]), number(&stage["bytes_in"]));
        let ranges = stage["ranges"].as_array().expect("a list");
        assert_eq!(ranges.len() as u64, tasks, "{stage}");
        let (mut next, mut bytes) = (0, 0);
        for range in ranges {
            assert_eq!(number(&range["first"]), next, "ranges follow one another: {stage}");
            next += number(&range["count"]);
            bytes += number(&range["bytes"]);
        }
        assert_eq!((next, bytes), (64, bytes_in), "and leave nothing out: {stage}");
    }
    let aggregate = &stages[1];
    let (tasks, bytes_in) = (number(&aggregate["parallelism"]), number(&aggregate["bytes_in"]));
    assert!(
        tasks >= bytes_in.div_ceil(256 << 10),
        "at most 256 KiB a task, or nearly: {aggregate}"
    );
    assert!(
        tasks > number(&stages[2]["parallelism"]),
        "sums are fewer than rows: {report}"
    );
    let groups = report["groups"].as_array().expect("a list");
    assert!(
        groups.len() == 3 && groups.iter().all(|group| group["committed"] == true),
        "{report}"
    );
    for node in report["messages_per_node"].as_array().expect("a list") {
        assert!(
            number(&node["from_server"]) > 0 && number(&node["to_executors"]) > 0,
            "{node}"
        );
        assert!(number(&node["events"]) >= number(&node["from_server"]), "{node}");
    }
}

#[test]
fn killed_tasks_of_a_batch_job_run_again_and_change_nothing() {
    let report = measured(&[
        "job",
        "--scale",
        "0.02",
        "--bytes-per-task",
        "512k",
        "--kills",
        "3",
        "--seed",
        "5",
    ]);
    let stages = report["stages"].as_array().expect("a list");
    let count = |name: &str| stages.iter().map(|stage| number(&stage[name])).sum::<u64>();
    assert!(count("executions") > count("parallelism"), "{report}");
}

#[test]
fn what_killed_servers_had_is_made_again_and_changes_nothing() {
    let report = measured(&[
        "job",
        "--scale",
        "0.02",
        "--nodes",
        "3",
        "--bytes-per-task",
        "512k",
        "--lost-servers",
        "2",
        "--seed",
        "5",
    ]);
    let loss = &report["loss"];
    assert_eq!(
        (number(&loss["servers"]), number(&loss["nodes_lost"])),
        (2, 2),
        "{report}"
    );
    assert!(number(&loss["fetch_failures"]) > 0, "{report}");
    let stages = report["stages"].as_array().expect("a list");
    let again = |stage: &Value| number(&stage["executions"]) > number(&stage["parallelism"]);
    assert!(
        again(&stages[0]) && again(&stages[1]),
        "of both what was lost: {report}"
    );
}

#[test]
fn who_has_read_what_is_written_again_otherwise_runs_again_too() {
    let report = measured(&[
        "job",
        "--rebalanced",
        "--scale",
        "0.02",
        "--slots",
        "1",
        "--bytes-per-task",
        "512k",
        "--lost-servers",
        "1",
        "--seed",
        "2",
    ]);
    let loss = &report["loss"];
    assert!(number(&loss["fetch_failures"]) > 0, "{report}");
    assert!(number(&loss["had_read"]) > 0, "somebody was done: {report}");
    assert_eq!(number(&loss["had_read"]), number(&loss["read_again"]), "{report}");
}

#[test]
fn a_pipelined_job_gives_results_before_its_source_ends() {
    let report = measured(&["job", "--kind", "pipelined", "--scale", "0.02", "--tasks", "3"]);
    let [first, end] = ["first_result_ms", "source_end_ms"].map(|name| report[name].as_f64().expect("a time"));
    assert!(first < end, "{report}");
    assert_eq!(
        report["groups"][0]["stages"].as_array().map(Vec::len),
        Some(3),
        "{report}"
    );
    assert_eq!(report["groups"][0]["committed"], true, "{report}");
}

#[test]
fn a_killed_task_fails_its_group_as_one() {
    let report = measured(&[
        "job", "--kind", "kill", "--scale", "0.01", "--tasks", "2", "--rounds", "6", "--seed", "3",
    ]);
    let kill = &report["kill"];
    for (name, expected) in [
        ("rounds", 6),
        ("consistent", 6),
        ("back_to_baseline", 6),
        ("partial_successes", 0),
    ] {
        assert_eq!(number(&kill[name]), expected, "{name}: {kill}");
    }
    assert!(number(&kill["causes_heard"]) >= 6, "{kill}");
}
