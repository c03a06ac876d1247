//! `shuffle-bench demo`, as a user sees it.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::run::{Run, assert_empty, command};

/// Large enough never to end by itself within a test.
const ENDLESS: &[&str] = &["demo", "--scale", "50"];

#[test]
fn a_demo_is_verified_and_standard_output_is_one_object() {
    let temporary = tempfile::tempdir().expect("a folder");
    let arguments = ["demo", "--scale", "0.01", "--json", "-"];
    let output = command(&arguments, temporary.path()).output().expect("run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one object and nothing else");
    let number = |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("no {name} in {report}"));
    assert_eq!(
        (&report["scenario"], &report["verified"]),
        (&"demo".into(), &true.into())
    );
    assert!(number("rows") > 59_000.0 && number("rows") < 61_000.0, "{report}");
    let (local, remote) = (number("local_bytes"), number("remote_bytes"));
    assert!(
        local > 0.0 && remote > 0.0 && local + remote == number("bytes"),
        "{report}"
    );
    assert!(
        number("first_row_ms") > 0.0 && number("seconds") > 0.0 && number("gb_per_s") > 0.0,
        "{report}"
    );
    assert!(number("first_row_ms") < number("last_producer_finished_ms"), "{report}");
    assert!(number("server_peak_private_bytes") > 0.0, "{report}");
    assert!(number("server_peak_private_bytes") <= f64::from(32 << 20), "{report}");
    assert!(number("server_peak_arena_bytes") <= number("pool_bytes"), "{report}");
    assert!((number("pool_bytes") - f64::from(64 << 20)).abs() < 1.0, "{report}");
    for name in ["payload_bytes_copied_by_servers", "payload_bytes_read_by_servers"] {
        assert_eq!(report[name], 0, "{report}");
    }
    assert_eq!(report["tcp_connections_between_nodes"], 1, "{report}");
    assert!(
        errors.contains("first row arrived"),
        "the table is on standard error: {errors}"
    );
    assert_empty(temporary.path());
}

#[test]
fn the_table_is_on_standard_output_if_the_object_goes_to_a_file() {
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let arguments = ["demo", "--scale", "0.001", "--producers", "1", "--consumers", "3"];
    let output = command(&arguments, temporary.path())
        .arg("--json")
        .arg(&file)
        .output()
        .expect("run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(
        table.starts_with("shuffle-bench demo") && table.contains("verified"),
        "{table}"
    );
    let report = std::fs::read_to_string(&file).expect("written");
    assert!(report.contains("\"verified\": true"), "{report}");
}

#[test]
fn a_killed_producer_ends_the_demo_with_one_first_cause() {
    let mut run = Run::start(ENDLESS);
    run.until(|line| line.contains(" rows, ") && !line.contains(" 0 rows"));
    kill_process(run.process("producer-1@b"), Signal::KILL).expect("it runs");
    let killed = Instant::now();
    let status = run.wait();
    assert!(killed.elapsed() < Duration::from_secs(5), "took {:?}", killed.elapsed());
    assert_eq!(status.code(), Some(1));
    let all = run.said.join("\n");
    let causes: Vec<&str> = all
        .lines()
        .filter_map(|line| line.trim().strip_prefix("first cause: "))
        .collect();
    assert!(
        causes.len() >= 4 && causes.iter().all(|cause| *cause == causes[0]),
        "{all}"
    );
    assert!(causes[0].contains("producer-1@b"), "{all}");
    for consumer in ["consumer-0@a", "consumer-1@b", "consumer-2@a", "consumer-3@b"] {
        assert!(
            all.lines().any(|line| line.starts_with(&format!("  {consumer} (pid"))),
            "{consumer} is not in {all}"
        );
    }
    assert!(all.contains("name the same first cause"), "{all}");
    run.assert_clean(true);
}

#[test]
fn a_killed_server_ends_the_demo() {
    let mut run = Run::start(ENDLESS);
    run.until(|line| line.contains(" rows, ") && !line.contains(" 0 rows"));
    kill_process(run.process("server@b"), Signal::KILL).expect("it runs");
    assert_eq!(run.wait().code(), Some(1));
    assert!(
        run.said.iter().any(|line| line.starts_with("  server@b (pid")),
        "{:#?}",
        run.said
    );
    run.assert_clean(true);
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let mut run = Run::start(ENDLESS);
    run.until(|line| line.starts_with("producer-3@b"));
    run.signal(Signal::INT);
    assert_eq!(run.wait().code(), Some(130));
    run.assert_clean(true);
}

#[test]
fn children_end_with_a_killed_parent() {
    let mut run = Run::start(ENDLESS);
    run.until(|line| line.contains(" rows, "));
    run.signal(Signal::KILL);
    run.wait();
    run.assert_clean(false);
}

#[test]
fn a_failure_is_an_object_too() {
    let temporary = tempfile::tempdir().expect("a folder");
    let arguments = ["demo", "--pool-buffers", "16", "--json", "-"];
    let output = command(&arguments, temporary.path())
        .stderr(Stdio::null())
        .output()
        .expect("run");
    assert_eq!(output.status.code(), Some(2));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(
        (&report["scenario"], &report["verified"]),
        (&"demo".into(), &false.into())
    );
    assert!(
        report["error"]
            .as_str()
            .is_some_and(|error| error.contains("16 buffers")),
        "{report}"
    );
}
