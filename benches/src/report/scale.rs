//! The report of `scale`.

use std::fmt::Write;

use serde::Serialize;

use super::table::{Table, bytes};

/// What `scale` found. Names and units are stable; more may be added. A GB is 10^9 bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScaleReport {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Whether at every point in every round what was read is what was filled.
    pub verified: bool,
    /// Bytes of each point in each round; less where each record is flushed.
    pub bytes: u64,
    /// How often each point was measured.
    pub rounds: u32,
    /// Throughput with 10 000 channels open and 16 active at a time, divided by that with 16 open.
    pub channels_10000_vs_16: Option<f64>,
    /// The same with all of them active.
    pub all_channels_10000_vs_16: Option<f64>,
    /// Throughput with a flush interval of 1 ms, divided by that of 100 ms.
    pub flush_1ms_vs_100ms: Option<f64>,
    /// All points.
    pub points: Vec<Point>,
    /// Files with the curves.
    pub charts: Vec<String>,
}

/// One point of a curve.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// What is varied: `channels`, `producers`, `buffers` (KiB) or `flush` (ms).
    pub sweep: &'static str,
    /// The curve.
    pub series: &'static str,
    /// How much of it there is.
    pub x: String,
    /// Median over the rounds.
    pub gb_per_s_median: f64,
    /// The slowest round.
    pub gb_per_s_min: f64,
    /// The fastest round.
    pub gb_per_s_max: f64,
    /// Processor seconds of all processes for 10^9 bytes, median.
    pub cpu_s_per_gb: f64,
}

impl ScaleReport {
    /// The tables that end a run.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let title = format!(
            "shuffle-bench scale: {} a point, {} rounds",
            bytes(self.bytes),
            self.rounds
        );
        let mut table = Table::new(title).row("sweep", format!("{:<22}GB/s, median (range)        CPU s/GB", ""));
        for point in &self.points {
            let what = match point.sweep {
                "channels" => format!("{} ({})", point.x, point.series),
                "buffers" => format!("{} KiB", point.x),
                "flush" => format!("{} ms", point.x),
                _ => point.x.clone(),
            };
            let speed = format!(
                "{:.2} ({:.2} to {:.2})",
                point.gb_per_s_median, point.gb_per_s_min, point.gb_per_s_max
            );
            table = table.row(point.sweep, format!("{what:<22}{speed:<26}  {:.3}", point.cpu_s_per_gb));
        }
        let _ = writeln!(text, "{table}\n");
        let mut end = Table::new("the run").row("verified", if self.verified { "yes" } else { "NO" });
        for (name, ratio) in [
            ("10 000 channels to 16, 16 active", self.channels_10000_vs_16),
            ("10 000 channels to 16, all active", self.all_channels_10000_vs_16),
            ("flush after 1 ms to 100 ms", self.flush_1ms_vs_100ms),
        ] {
            end = end.row(
                name,
                ratio.map_or_else(|| "not measured".to_owned(), |ratio| format!("{ratio:.2}")),
            );
        }
        for chart in &self.charts {
            end = end.row("drawn", chart.as_str());
        }
        let _ = write!(text, "{end}");
        text
    }
}
