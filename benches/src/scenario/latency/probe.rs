//! Rounds of the service and of the two relays by turns, and what all rounds together say.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::chain::{start_chain, start_ours};
use crate::cli::{CompareArgs, LatencyArgs, NodePath, SendStrategy};
use crate::console::Console;
use crate::error::BenchError;
use crate::load::{Done, Rhythm, empty_latencies};
use crate::report::{LatencyFigures, RelayFigures};
use crate::scenario::measure::{Stage, rounded};

/// What is measured.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(super) path: NodePath,
    pub(super) rhythm: Rhythm,
    rounds: u32,
    /// How long the servers are watched while nothing happens; none: not at all.
    idle: Duration,
    pub(super) send: SendStrategy,
    pub(super) server_options: Vec<String>,
    stall_timeout: Duration,
    pub(super) verbose: bool,
}

/// Who takes the records along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Ours,
    RelayInRuntime,
    RelayBlocking,
}

const ALL: [Who; 3] = [Who::Ours, Who::RelayInRuntime, Who::RelayBlocking];

/// What was found.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    /// Of the service and of the two relays, in nanoseconds.
    histograms: [Histogram<u64>; 3],
    /// Of the busiest server, percent of a core.
    idle_percent: Option<f64>,
    pub(crate) problems: Vec<String>,
}

impl Plan {
    pub(super) fn of_latency(args: &LatencyArgs) -> Self {
        Self {
            path: args.path,
            rhythm: rhythm(args.rate, args.seconds, args.record_size),
            rounds: args.rounds,
            idle: Duration::from_secs(args.idle),
            send: args.send,
            server_options: args.server_options.clone(),
            stall_timeout: Duration::from_secs(args.output.stall_timeout),
            verbose: args.output.verbose,
        }
    }

    /// The short measurement that is part of a comparison.
    pub(crate) fn of_compare(args: &CompareArgs, path: NodePath) -> Self {
        Self {
            path,
            rhythm: rhythm(1_000, args.latency_seconds, 64),
            rounds: 3,
            idle: Duration::ZERO,
            send: args.measure.send,
            server_options: args.measure.server_options.clone(),
            stall_timeout: Duration::from_secs(args.measure.output.stall_timeout),
            verbose: args.measure.output.verbose,
        }
    }

    pub(super) fn steps(&self) -> u64 {
        3 * u64::from(self.rounds)
    }
}

fn rhythm(per_second: u32, seconds: u32, record_bytes: usize) -> Rhythm {
    let records = u64::from(per_second) * u64::from(seconds);
    Rhythm {
        records,
        warm_up: (records / 10).min(200),
        per_second,
        record_bytes,
    }
}

/// Measures.
///
/// # Errors
/// A round did not come to its end.
pub(crate) async fn probe(plan: &Plan, console: &mut Console) -> Result<Probe, BenchError> {
    let empty = || empty_latencies().map_err(|error| BenchError::Usage(error.to_string()));
    let mut found = Probe {
        histograms: [empty()?, empty()?, empty()?],
        idle_percent: None,
        problems: Vec::new(),
    };
    for round in 0..plan.rounds {
        for (index, who) in ALL.into_iter().enumerate() {
            let name = ["the service", "a bare relay, asynchronous", "a bare relay, blocking"][index];
            let step = 3 * u64::from(round) + u64::try_from(index).unwrap_or(0);
            console.step(step, format!("round {} of {}: {name}", round + 1, plan.rounds));
            let mut stage = Stage::open(plan.stall_timeout, plan.verbose)?;
            if who == Who::Ours {
                start_ours(plan, &mut stage, console).await?;
                if round == 0 && !plan.idle.is_zero() {
                    found.idle_percent = Some(idle_percent(plan.idle, &stage).await?);
                }
            } else {
                start_chain(plan, who, &mut stage, console).await?;
            }
            let performance = stage.perform(console).await?;
            stage.close().await?;
            found.take(index, name, plan.rhythm, &performance.done);
        }
    }
    Ok(found)
}

/// Processor time of the busiest server while everybody waits, percent of a core.
async fn idle_percent(idle: Duration, stage: &Stage) -> Result<f64, BenchError> {
    let before = stage.server_cpu()?;
    tokio::time::sleep(idle).await;
    let after = stage.server_cpu()?;
    let used = after.iter().zip(&before).map(|(after, before)| after - before);
    Ok(100.0 * used.fold(0.0, f64::max) / idle.as_secs_f64())
}

impl Probe {
    fn take(&mut self, index: usize, name: &str, rhythm: Rhythm, done: &[Done]) {
        let mut heard = 0;
        for (value, count) in done.iter().flat_map(|done| &done.latencies) {
            heard += count;
            self.histograms[index].saturating_record_n(*value, *count);
        }
        let expected = rhythm.records - rhythm.warm_up;
        if heard != expected {
            self.problems
                .push(format!("{name}: {heard} records arrived of {expected}"));
        }
    }

    /// Records of the service that were counted.
    pub(super) fn records(&self) -> u64 {
        self.histograms[0].len()
    }

    /// The figures of the service, and of the faster relay.
    pub(crate) fn figures(&self) -> LatencyFigures {
        let own = &self.histograms[0];
        let relays = self.relays();
        let best = relays.iter().min_by(|a, b| a.p50_us.total_cmp(&b.p50_us));
        LatencyFigures {
            p50_us: micros(own, 0.5),
            p99_us: micros(own, 0.99),
            p999_us: micros(own, 0.999),
            relay_p50_us: best.map_or(0.0, |relay| relay.p50_us),
            relay_p99_us: best.map_or(0.0, |relay| relay.p99_us),
            relay_p999_us: best.map_or(0.0, |relay| relay.p999_us),
            idle_percent: self.idle_percent.map(rounded),
        }
    }

    /// Both relays.
    pub(crate) fn relays(&self) -> Vec<RelayFigures> {
        let named = ["asynchronous", "blocking"].into_iter().zip(&self.histograms[1..]);
        let figures = named.map(|(style, histogram)| RelayFigures {
            style,
            p50_us: micros(histogram, 0.5),
            p99_us: micros(histogram, 0.99),
            p999_us: micros(histogram, 0.999),
        });
        figures.collect()
    }
}

fn micros(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    rounded(histogram.value_at_quantile(quantile) as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::{Probe, rhythm};

    #[test]
    fn the_faster_relay_is_the_measure() {
        let of = |micros: u64| {
            let mut histogram = Histogram::new(3).expect("digits");
            histogram.record_n(micros * 1000, 100).expect("recorded");
            histogram
        };
        let probe = Probe {
            histograms: [of(50), of(40), of(30)],
            idle_percent: Some(0.1),
            problems: Vec::new(),
        };
        let figures = probe.figures();
        assert!(
            (figures.p50_us - 50.0).abs() < 0.1 && (figures.relay_p99_us - 30.0).abs() < 0.1,
            "{figures:?}"
        );
        assert_eq!(probe.records(), 100);
    }

    #[test]
    fn a_tenth_at_most_is_for_warming_up() {
        assert_eq!((rhythm(1_000, 10, 8).warm_up, rhythm(100, 1, 8).warm_up), (200, 10));
    }
}
