//! `shuffle-bench latency`, as a user sees it.

use crate::run::measured;

#[test]
fn every_record_is_heard_on_both_paths_and_beside_both_relays() {
    for path in ["local", "remote"] {
        let report = measured(&[
            "latency",
            "--path",
            path,
            "--rate",
            "500",
            "--seconds",
            "1",
            "--rounds",
            "1",
            "--idle",
            "1",
        ]);
        assert_eq!(
            (&report["scenario"], &report["path"]),
            (&"latency".into(), &path.into())
        );
        assert_eq!(report["records"], 450, "{report}");
        let number = |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("no {name} in {report}"));
        for who in ["", "relay_"] {
            let of = |name: &str| number(&format!("{who}{name}"));
            assert!(
                of("p50_us") > 1.0 && of("p50_us") < 1e6 && of("p50_us") <= of("p99_us"),
                "{report}"
            );
            assert!(of("p99_us") <= of("p999_us"), "{report}");
        }
        assert!(number("idle_percent") >= 0.0, "{report}");
        assert_eq!(report["relays"].as_array().map(Vec::len), Some(2), "{report}");
    }
}
