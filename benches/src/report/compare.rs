//! The report of `compare`.

use std::fmt::Write;

use serde::{Serialize, Serializer};

use super::latency::LatencyFigures;
use super::table::{Table, bytes};
use crate::scenario::Spread;

/// What `compare` found. Names and units are stable; more may be added. A GB is 10^9 bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompareReport {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Whether on every side in every round what was read is what was filled.
    pub verified: bool,
    /// Bytes of each side in each round.
    pub bytes: u64,
    /// How often each side was measured.
    pub rounds: u32,
    /// Pairs of producer and consumer on every side.
    pub streams: u32,
    /// Buffers in circulation for each of them.
    pub buffers: u32,
    /// The cores to which every process of every side was bound; none: they went where the system put them.
    pub cores: Option<Vec<usize>>,
    /// All sides, without checksums and then with them.
    pub sides: Vec<Side>,
    /// Of the medians without checksums.
    pub ratios: Ratios,
    /// Of the medians with a checksum made and checked on every side.
    pub ratios_with_checksums: Ratios,
    /// The range of a side as a share of its median: the median over all sides.
    pub noise: f64,
    /// How the sending server of the remote path sent, if it says so.
    pub strategy: Option<&'static str>,
    /// Of the payload sent to another node, the share that the kernel copied; 0 if there was none. Of `io_uring` all counts
    /// as copied that the kernel has not reported as sent without a copy.
    pub copied_ratio: f64,
    /// Latency of the remote path, and of a bare relay through as many processes.
    #[serde(flatten)]
    pub remote_latency: LatencyFigures,
    /// The same of the local path.
    pub local_latency: LatencyFigures,
}

/// One side of the comparison, in one of its two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    /// `local`, `ring`, `relay`, `unix_stream`, `remote`, `remote_relay`, `tcp` or `flight`.
    pub name: &'static str,
    /// Whether every piece had a checksum that was made and checked.
    pub checksums: bool,
    /// The variant with the best median.
    #[serde(flatten)]
    pub best: Variant,
    /// All variants, if there is more than one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<Variant>,
}

/// One way in which a side did its work.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Variant {
    /// What it is.
    pub variant: String,
    /// Median over the rounds.
    pub gb_per_s_median: f64,
    /// The slowest round.
    pub gb_per_s_min: f64,
    /// The fastest round.
    pub gb_per_s_max: f64,
    /// Processor seconds of all processes together for 10^9 bytes, median.
    pub cpu_s_per_gb: f64,
}

/// Medians of the service divided by those of the others; absent if one side did not take part.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratios {
    /// Local path to the bare pair of processes over shared memory.
    pub local_vs_ring: Option<Ratio>,
    /// Local path to a giver and a taker with a bare relay between them: as many processes, and nothing to do but to pass on.
    pub local_vs_relay: Option<Ratio>,
    /// Local path to a Unix stream.
    pub local_vs_unix_stream: Option<Ratio>,
    /// Remote path to a plain TCP program.
    pub remote_vs_tcp: Option<Ratio>,
    /// Remote path to a giver and a taker with two bare relays and TCP between them.
    pub remote_vs_relay: Option<Ratio>,
    /// Remote path to Arrow Flight.
    pub remote_vs_flight: Option<Ratio>,
}

/// A ratio, in JSON its value alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// Of two medians.
    pub value: f64,
    /// Whether the difference is larger than the range of either side. If not, this run does not say which is faster.
    pub called: bool,
}

impl Serialize for Ratio {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.value)
    }
}

impl Side {
    pub(crate) fn spread(&self) -> Spread {
        Spread {
            median: self.best.gb_per_s_median,
            min: self.best.gb_per_s_min,
            max: self.best.gb_per_s_max,
        }
    }

    pub(crate) fn noise(&self) -> f64 {
        self.spread().noise()
    }
}

impl CompareReport {
    /// The tables that end a run.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (checksums, ratios) in [(false, &self.ratios), (true, &self.ratios_with_checksums)] {
            let with = if checksums {
                "with checksums"
            } else {
                "without checksums"
            };
            let title = format!(
                "shuffle-bench compare, {with}: {} a round, {} rounds",
                bytes(self.bytes),
                self.rounds
            );
            let mut table =
                Table::new(title).row("side", "GB/s, median (range)        CPU s/GB  best variant".to_owned());
            for side in self.sides.iter().filter(|side| side.checksums == checksums) {
                let Variant {
                    variant,
                    gb_per_s_median,
                    gb_per_s_min,
                    gb_per_s_max,
                    cpu_s_per_gb,
                } = &side.best;
                let speed = format!("{gb_per_s_median:.2} ({gb_per_s_min:.2} to {gb_per_s_max:.2})");
                table = table.row(side.name, format!("{speed:<26}  {cpu_s_per_gb:<8.3}  {variant}"));
            }
            for (name, ratio) in ratios.named() {
                table = table.row(name, ratio.map_or_else(|| "not measured".to_owned(), Ratio::text));
            }
            let _ = writeln!(text, "{table}\n");
        }
        let _ = write!(text, "{}", self.end());
        text
    }

    fn end(&self) -> Table {
        let share = 100.0 * self.noise;
        let judgement = match share {
            ..10.0 => "a quiet run",
            10.0..30.0 => "a noisy run: trust large differences only",
            _ => "a very noisy run: measure again on an idle machine",
        };
        let mut table = Table::new("the run")
            .row("verified", if self.verified { "yes" } else { "NO" })
            .row(
                "noise",
                format!("the range is {share:.0} % of the median, in the middle of all sides: {judgement}"),
            )
            .row("cores", cores(self.cores.as_deref()))
            .row("sent by", self.strategy.unwrap_or("not reported"));
        for (name, figures) in [
            ("latency, local", &self.local_latency),
            ("latency, remote", &self.remote_latency),
        ] {
            table = table.row(name, figures.text());
        }
        table
    }
}

fn cores(bound: Option<&[usize]>) -> String {
    bound.map_or_else(
        || "not bound: where the system put them".to_owned(),
        |cores| {
            let names: Vec<String> = cores.iter().map(usize::to_string).collect();
            format!("all processes of all sides on {}", names.join(", "))
        },
    )
}

impl Ratios {
    fn named(&self) -> [(&'static str, Option<Ratio>); 6] {
        [
            ("local_vs_ring", self.local_vs_ring),
            ("local_vs_relay", self.local_vs_relay),
            ("local_vs_unix_stream", self.local_vs_unix_stream),
            ("remote_vs_tcp", self.remote_vs_tcp),
            ("remote_vs_relay", self.remote_vs_relay),
            ("remote_vs_flight", self.remote_vs_flight),
        ]
    }
}

impl Ratio {
    fn text(self) -> String {
        if self.called {
            format!("{:.2}", self.value)
        } else {
            format!("{:.2}, no result: the noise is larger than the difference", self.value)
        }
    }
}
