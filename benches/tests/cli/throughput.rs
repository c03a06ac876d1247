//! `shuffle-bench throughput`, as a user sees it.

use crate::run::{assert_empty, command, measured};

#[test]
fn bytes_are_counted_and_verified_on_both_paths_and_in_both_layers() {
    for arguments in [
        &["--path", "local", "--no-checksums"][..],
        &["--path", "local", "--record-size", "104", "--producers", "2"],
        &[
            "--path",
            "remote",
            "--consumers",
            "2",
            "--subpartitions",
            "3",
            "--buffers",
            "9",
        ],
        &["--path", "remote", "--record-size", "100000", "--buffer-size", "4096"],
        &["--path", "remote", "--send", "copy"],
        &["--path", "remote", "--send", "sendfile"],
    ] {
        let report = measured(&[&["throughput", "--bytes", "4m", "--rounds", "2"], arguments].concat());
        assert_eq!(report["scenario"], "throughput");
        assert_eq!(report["path"], arguments[1], "{report}");
        let number = |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("no {name} in {report}"));
        assert!(number("bytes") >= f64::from(4 << 20), "{report}");
        assert!(number("gb_per_s_min") > 0.0, "{report}");
        assert!(number("gb_per_s_min") <= number("gb_per_s_median"), "{report}");
        assert!(number("gb_per_s_median") <= number("gb_per_s_max"), "{report}");
        let parts: f64 = ["producers", "consumers", "servers"]
            .iter()
            .map(|who| number(&format!("{who}_cpu_s_per_gb")))
            .sum();
        assert!(number("cpu_s_per_gb") > 0.0 && parts > 0.0, "{report}");
        assert!(number("servers_cpu_s_per_gb") > 0.0, "{report}");
        if arguments.contains(&"--send") {
            assert_eq!(report["strategy"], arguments[3], "{report}");
        }
        assert_eq!(report["checksums"], !arguments.contains(&"--no-checksums"), "{report}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_starts() {
    let temporary = tempfile::tempdir().expect("a folder");
    for (arguments, why) in [
        (
            &["--consumers", "3", "--subpartitions", "2"][..],
            "too few for 3 consumers",
        ),
        (&["--record-size", "100"], "a multiple of 8"),
        (&["--buffer-size", "1000"], "a multiple of 4096"),
        (&["--bytes", "1.5g"], "a whole number of bytes"),
        (&["--json", "missing/out.json"], "there is no folder missing"),
    ] {
        let output = command(&["throughput"], temporary.path())
            .args(arguments)
            .output()
            .expect("run");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(why), "{errors}");
    }
    assert_empty(temporary.path());
}

#[test]
fn a_server_that_does_not_start_says_why() {
    let temporary = tempfile::tempdir().expect("a folder");
    let arguments = ["throughput", "--bytes", "1m", "--server-option", "stripes=many"];
    let output = command(&arguments, temporary.path()).output().expect("run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("node.stripes") && errors.contains("server@a"),
        "{errors}"
    );
    assert_empty(temporary.path());
}
