//! `shuffle-bench scale`, as a user sees it.

use std::fs;

use crate::run::{command, measured};

#[test]
fn every_sweep_is_measured_and_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("curves");
    let report = measured(&[
        "scale",
        "--output",
        output.to_str().expect("a path"),
        "--bytes",
        "2m",
        "--rounds",
        "1",
        "--most-channels",
        "64",
        "--most-producers",
        "2",
    ]);
    assert_eq!(report["scenario"], "scale");
    let points = report["points"].as_array().expect("points");
    for (sweep, count) in [("channels", 8), ("producers", 2), ("buffers", 7), ("flush", 4)] {
        let own: Vec<_> = points.iter().filter(|point| point["sweep"] == sweep).collect();
        assert_eq!(own.len(), count, "{sweep}: {report}");
        assert!(
            own.iter().all(|point| point["gb_per_s_median"].as_f64() > Some(0.0)),
            "{report}"
        );
        let curve = fs::read_to_string(output.join(format!("{sweep}.svg"))).expect("drawn");
        assert!(curve.starts_with("<svg") && curve.contains("polyline"), "{curve}");
    }
    assert!(report["flush_1ms_vs_100ms"].as_f64() > Some(0.0), "{report}");
    assert!(report["channels_10000_vs_16"].is_null(), "{report}");
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "in the way").expect("written");
    let output = command(&["scale", "--output"], folder.path())
        .arg(file.join("curves"))
        .output()
        .expect("run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("curves"), "{errors}");
}
