//! The documentation names every metric, and no other.

use shuffle_server::metrics::METRICS;

#[test]
fn the_page_is_the_table() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows.len(), METRICS.len());
    for (metric, row) in METRICS.iter().zip(rows) {
        assert!(
            row.starts_with(&format!("| `{}` |", metric.name)) && row.contains(metric.help),
            "{row}"
        );
    }
}
