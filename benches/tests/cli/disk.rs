//! `shuffle-bench kinds` and `spill`, as a user sees them.

use crate::run::measured;

#[test]
fn six_kinds_are_served_and_two_are_refused_with_the_reason() {
    let report = measured(&[
        "kinds",
        "--bytes",
        "4m",
        "--producers",
        "3",
        "--consumers",
        "2",
        "--buffer-size",
        "4096",
        "--buffers",
        "4",
    ]);
    let kinds = report["kinds"].as_array().expect("a list");
    assert_eq!(kinds.len(), 8);
    for kind in kinds {
        let name = kind["kind"].as_str().expect("a name");
        let written = kind["disk_bytes_written"].as_u64().expect("a count");
        let bytes = kind["bytes"].as_u64().expect("a count");
        assert_eq!(kind["verified"], true, "{kind}");
        if name.contains("blocking and bounded") {
            assert!(
                kind["refusal"].as_str().expect("a reason").contains("choose spilling"),
                "{kind}"
            );
            assert_eq!(bytes, 0, "{kind}");
            continue;
        }
        assert_eq!(kind["refusal"], serde_json::Value::Null, "{kind}");
        let readings = if name.starts_with("persistent") { 2 } else { 1 };
        assert!(bytes >= readings * (4 << 20), "{kind}");
        if name.starts_with("persistent") {
            assert!(written >= 4 << 20, "what is kept has a copy on disk: {kind}");
        } else if name.contains("bounded") {
            assert_eq!(written, 0, "{kind}");
        }
    }
}

#[test]
fn what_spills_is_read_back_beside_a_plain_file() {
    let report = measured(&["spill", "--bytes", "24m", "--pool", "4m", "--rounds", "2"]);
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    for direction in ["write", "read"] {
        let of = &report[direction];
        assert!(
            number(&of["gb_per_s"]) > 0.0 && number(&of["baseline_gb_per_s"]) > 0.0,
            "{report}"
        );
        assert!(number(&of["ratio_range"][0]) <= number(&of["ratio"]), "{report}");
    }
    assert!(number(&report["disk_bytes_written"]) >= f64::from(24 << 20), "{report}");
    assert!(number(&report["disk_bytes_read"]) >= f64::from(24 << 20), "{report}");
}
