//! The report of `latency`.

use serde::Serialize;

use super::table::{Table, grouped};

/// What `latency` found. Names and units are stable; more may be added.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LatencyReport {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Whether every record arrived.
    pub verified: bool,
    /// `local` or `remote`.
    pub path: &'static str,
    /// Records a second.
    pub rate: u32,
    /// Records that were counted, all rounds together.
    pub records: u64,
    /// Bytes of a record.
    pub record_size: usize,
    /// Rounds of the service and of each relay.
    pub rounds: u32,
    /// The percentiles.
    #[serde(flatten)]
    pub figures: LatencyFigures,
    /// The bare relays.
    pub relays: Vec<RelayFigures>,
}

/// Percentiles in microseconds, from the moment at which a record should have left to its arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LatencyFigures {
    /// Half of the records took at most this long.
    pub p50_us: f64,
    /// 99 of 100.
    pub p99_us: f64,
    /// 999 of 1000.
    pub p999_us: f64,
    /// The same of the bare relay with the lower median.
    pub relay_p50_us: f64,
    /// See `relay_p50_us`.
    pub relay_p99_us: f64,
    /// See `relay_p50_us`.
    pub relay_p999_us: f64,
    /// Processor time of the busiest server while nothing happens, percent of a core, if it was watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_percent: Option<f64>,
}

/// Percentiles of one bare relay, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RelayFigures {
    /// `asynchronous` or `blocking`.
    pub style: &'static str,
    /// Half of the records took at most this long.
    pub p50_us: f64,
    /// 99 of 100.
    pub p99_us: f64,
    /// 999 of 1000.
    pub p999_us: f64,
}

impl LatencyFigures {
    /// One line.
    pub(super) fn text(&self) -> String {
        if self.p50_us == 0.0 {
            return "not measured".to_owned();
        }
        format!(
            "p50 {:.1} us (bare relay {:.1}: {:.2} times), p99 {:.1} us (bare relay {:.1}: {:.2} times)",
            self.p50_us,
            self.relay_p50_us,
            self.p50_us / self.relay_p50_us,
            self.p99_us,
            self.relay_p99_us,
            self.p99_us / self.relay_p99_us
        )
    }
}

impl LatencyReport {
    /// The table that ends a run.
    pub fn table(&self) -> Table {
        let line =
            |p50: f64, p99: f64, p999: f64| format!("p50 {p50:>8.1} us   p99 {p99:>8.1} us   p99.9 {p999:>8.1} us");
        let figures = &self.figures;
        let mut table = Table::new(format!("shuffle-bench {}", self.scenario))
            .row("verified", if self.verified { "yes" } else { "NO" })
            .row("path", self.path)
            .row(
                "what",
                format!(
                    "{} records of {} bytes at {} a second, {} rounds",
                    grouped(self.records),
                    self.record_size,
                    self.rate,
                    self.rounds
                ),
            )
            .row("service", line(figures.p50_us, figures.p99_us, figures.p999_us));
        for relay in &self.relays {
            let name = if relay.style == "blocking" {
                "bare relay, blocking"
            } else {
                "bare relay, asynchronous"
            };
            table = table.row(name, line(relay.p50_us, relay.p99_us, relay.p999_us));
        }
        table = table.row(
            "to the faster relay",
            format!(
                "p50 {:.2} times, p99 {:.2} times",
                figures.p50_us / figures.relay_p50_us,
                figures.p99_us / figures.relay_p99_us
            ),
        );
        match figures.idle_percent {
            Some(percent) => table.row("idle server", format!("{percent:.3} % of a core")),
            None => table,
        }
    }
}
