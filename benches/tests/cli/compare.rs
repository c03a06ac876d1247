//! `shuffle-bench compare`, as a user sees it.

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::run::{assert_empty, command, measured};

#[test]
fn all_sides_do_the_same_work_and_every_name_is_there() {
    let report = measured(&["compare", "--bytes", "2m", "--rounds", "2", "--latency-seconds", "1"]);
    assert_eq!(report["scenario"], "compare");
    let mut names = vec!["local", "ring", "relay", "unix_stream", "remote", "remote_relay", "tcp"];
    if cfg!(feature = "peers") {
        names.push("flight");
    }
    let sides = report["sides"].as_array().expect("sides");
    for checksums in [false, true] {
        let own: Vec<_> = sides.iter().filter(|side| side["checksums"] == checksums).collect();
        let found: Vec<_> = own.iter().filter_map(|side| side["name"].as_str()).collect();
        assert_eq!(found, names);
        for side in own {
            let number = |name: &str| side[name].as_f64().unwrap_or_else(|| panic!("no {name} in {side}"));
            let (low, middle, high) = (
                number("gb_per_s_min"),
                number("gb_per_s_median"),
                number("gb_per_s_max"),
            );
            assert!(0.0 < low && low <= middle && middle <= high, "{side}");
            assert!(number("cpu_s_per_gb") > 0.0, "{side}");
            assert!(side["variant"].is_string(), "{side}");
        }
    }
    for ratios in ["ratios", "ratios_with_checksums"] {
        let of = |name: &str| report[ratios][name].as_f64();
        for name in [
            "local_vs_ring",
            "local_vs_relay",
            "local_vs_unix_stream",
            "remote_vs_tcp",
            "remote_vs_relay",
        ] {
            assert!(of(name).is_some_and(|ratio| ratio > 0.0), "{name}: {report}");
        }
        assert_eq!(of("remote_vs_flight").is_some(), cfg!(feature = "peers"), "{report}");
    }
    for name in [
        "copied_ratio",
        "p50_us",
        "p99_us",
        "relay_p50_us",
        "relay_p99_us",
        "noise",
    ] {
        assert!(report[name].is_number(), "no {name} in {report}");
    }
    assert!(
        report.get("strategy").is_some() && report["cores"].is_null(),
        "{report}"
    );
    assert!(report["local_latency"]["relay_p50_us"].is_number(), "{report}");
}

#[test]
fn relays_verify_on_one_core_and_every_variant_is_named() {
    let allowed = sched_getaffinity(None).expect("cores");
    let core = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).expect("a core");
    let report = measured(&[
        "compare",
        "--bytes",
        "32m",
        "--rounds",
        "1",
        "--streams",
        "2",
        "--no-latency",
        "--cores",
        &core.to_string(),
    ]);
    assert_eq!(report["cores"], serde_json::json!([core]), "{report}");
    let sides = report["sides"].as_array().expect("sides");
    for (name, variants) in [
        ("local", &["32 KiB", "turns of 8", "turns of 32"][..]),
        ("relay", &["8 a message", "16 a message", "32 a message"]),
        ("remote", &["32 KiB", "turns of 8", "turns of 32"]),
        (
            "remote_relay",
            &["gathers of 256 KiB", "gathers of 512 KiB", "gathers of 1024 KiB"],
        ),
    ] {
        let side = sides.iter().find(|side| side["name"] == name).expect("takes part");
        let found = side["variants"].as_array().expect("several");
        assert_eq!(found.len(), variants.len(), "{side}");
        for (variant, part) in found.iter().zip(variants) {
            assert!(
                variant["variant"].as_str().is_some_and(|text| text.contains(part)),
                "{side}"
            );
        }
    }
}

#[test]
fn a_core_that_is_not_there_is_refused_before_anything_starts() {
    let temporary = tempfile::tempdir().expect("a folder");
    let output = command(&["compare", "--cores", "0,99999"], temporary.path())
        .output()
        .expect("run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("is not one of those that this process may use"),
        "{errors}"
    );
    assert_empty(temporary.path());
}
