//! `shuffle-bench compare`, as a user sees it.

use crate::run::measured;

#[test]
fn all_sides_do_the_same_work_and_every_name_is_there() {
    let report = measured(&["compare", "--bytes", "2m", "--rounds", "2", "--latency-seconds", "1"]);
    assert_eq!(report["scenario"], "compare");
    let mut names = vec!["local", "ring", "unix_stream", "remote", "tcp"];
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
        for name in ["local_vs_ring", "local_vs_unix_stream", "remote_vs_tcp"] {
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
    assert!(report.get("strategy").is_some(), "{report}");
    assert!(report["local_latency"]["relay_p50_us"].is_number(), "{report}");
}
