//! From samples to sides and ratios. Pure.

use super::sides::{Contender, SIDES};
use crate::cli::{CompareArgs, NodePath};
use crate::report::{CompareReport, LatencyFigures, Ratio, Ratios, Side, Variant};
use crate::scenario::latency::Probe;
use crate::scenario::measure::{Delivery, Spread, copied_ratio, rounded};

/// One contender in one round.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) side: &'static str,
    pub(super) variant: String,
    checksums: bool,
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    pub(super) problems: Vec<String>,
    strategy: Option<&'static str>,
    /// Payload that the kernel copied on its way to another node, and payload sent by reference.
    copied: (u64, u64),
}

impl Sample {
    pub(super) fn new(who: &Contender, checksums: bool, delivery: Delivery) -> Self {
        Self {
            side: who.side,
            variant: who.variant.clone(),
            checksums,
            gb_per_s: delivery.gb_per_s(),
            cpu_s_per_gb: delivery.cpu_s_per_gb(),
            strategy: delivery.strategy(),
            copied: delivery.sent_bytes(),
            problems: delivery.problems,
        }
    }
}

/// What was found.
pub(super) fn report(args: &CompareArgs, samples: &[Sample], latencies: &[(NodePath, Probe)]) -> CompareReport {
    let mut sides = Vec::new();
    for checksums in [false, true] {
        sides.extend(SIDES.iter().filter_map(|name| side(name, checksums, samples)));
    }
    let figures = |wanted: NodePath| {
        let found = latencies.iter().find(|(path, _)| *path == wanted);
        found.map_or_else(LatencyFigures::default, |(_, probe)| probe.figures())
    };
    let remote = || samples.iter().filter(|sample| sample.side == "remote");
    CompareReport {
        scenario: "compare",
        verified: samples.iter().all(|sample| sample.problems.is_empty())
            && latencies.iter().all(|(_, probe)| probe.problems.is_empty()),
        bytes: args.measure.bytes,
        rounds: args.measure.rounds,
        streams: args.streams,
        buffers: args.measure.buffers,
        cores: args.cores.clone(),
        ratios: ratios(&sides, false, args.measure.rounds),
        ratios_with_checksums: ratios(&sides, true, args.measure.rounds),
        noise: rounded(Spread::of(&sides.iter().map(Side::noise).collect::<Vec<_>>()).median),
        sides,
        strategy: remote().find_map(|sample| sample.strategy),
        copied_ratio: copied_ratio(remote().map(|sample| sample.copied)),
        remote_latency: figures(NodePath::Remote),
        local_latency: figures(NodePath::Local),
    }
}

/// The best variant of a side stands for it.
fn side(name: &'static str, checksums: bool, samples: &[Sample]) -> Option<Side> {
    let mut variants: Vec<Variant> = Vec::new();
    for sample in samples.iter().filter(|sample| sample.side == name) {
        if variants.iter().any(|variant| variant.variant == sample.variant) {
            continue;
        }
        let of_variant = || {
            let own = samples
                .iter()
                .filter(|other| other.side == name && other.variant == sample.variant);
            own.filter(|other| other.checksums == checksums)
        };
        let speeds: Vec<f64> = of_variant().map(|sample| sample.gb_per_s).collect();
        let cpu: Vec<f64> = of_variant().map(|sample| sample.cpu_s_per_gb).collect();
        let speed = Spread::of(&speeds);
        variants.push(Variant {
            variant: sample.variant.clone(),
            gb_per_s_median: rounded(speed.median),
            gb_per_s_min: speed.min,
            gb_per_s_max: speed.max,
            cpu_s_per_gb: rounded(Spread::of(&cpu).median),
        });
    }
    let best = variants
        .iter()
        .max_by(|a, b| a.gb_per_s_median.total_cmp(&b.gb_per_s_median))?;
    Some(Side {
        name,
        checksums,
        best: best.clone(),
        variants: if variants.len() > 1 { variants } else { Vec::new() },
    })
}

/// Fewer rounds do not tell noise from a difference.
const LEAST_ROUNDS: u32 = 3;

fn ratios(sides: &[Side], checksums: bool, rounds: u32) -> Ratios {
    let find = |name: &str| {
        sides
            .iter()
            .find(|side| side.name == name && side.checksums == checksums)
    };
    let ratio = |ours: &str, theirs: &str| {
        let (ours, theirs) = (find(ours)?, find(theirs)?);
        Some(Ratio {
            value: rounded(ours.best.gb_per_s_median / theirs.best.gb_per_s_median),
            called: rounds >= LEAST_ROUNDS && ours.spread().differs_from(&theirs.spread()),
        })
    };
    Ratios {
        local_vs_ring: ratio("local", "ring"),
        local_vs_relay: ratio("local", "relay"),
        local_vs_unix_stream: ratio("local", "unix_stream"),
        remote_vs_tcp: ratio("remote", "tcp"),
        remote_vs_relay: ratio("remote", "remote_relay"),
        remote_vs_flight: ratio("remote", "flight"),
    }
}

#[cfg(test)]
mod tests {
    use super::{LEAST_ROUNDS, Sample, ratios, side};

    fn sample(side: &'static str, variant: &str, gb_per_s: f64) -> Sample {
        Sample {
            side,
            variant: variant.to_owned(),
            checksums: false,
            gb_per_s,
            cpu_s_per_gb: 0.5,
            problems: Vec::new(),
            strategy: None,
            copied: (0, 0),
        }
    }

    #[test]
    fn the_best_variant_stands_for_a_side_and_noise_calls_nothing() {
        let samples = [
            sample("local", "x", 6.0),
            sample("local", "x", 6.2),
            sample("ring", "slow", 9.0),
            sample("ring", "fast", 10.0),
            sample("ring", "slow", 8.0),
            sample("ring", "fast", 10.2),
            sample("relay", "x", 8.0),
            sample("relay", "x", 8.2),
            sample("unix_stream", "x", 1.0),
            sample("unix_stream", "x", 9.0),
        ];
        let sides: Vec<_> = ["local", "ring", "relay", "unix_stream", "remote_relay", "tcp"]
            .iter()
            .filter_map(|name| side(name, false, &samples))
            .collect();
        assert_eq!(sides.len(), 4);
        assert_eq!((sides[1].best.variant.as_str(), sides[1].variants.len()), ("fast", 2));
        let ratios = ratios(&sides, false, LEAST_ROUNDS);
        let (ring, stream) = (
            ratios.local_vs_ring.expect("both"),
            ratios.local_vs_unix_stream.expect("both"),
        );
        assert!((ring.value - 6.1 / 10.1).abs() < 1e-6 && ring.called);
        assert!((stream.value - 1.22).abs() < 1e-6 && !stream.called);
        let relay = ratios.local_vs_relay.expect("both");
        assert!((relay.value - 6.1 / 8.1).abs() < 1e-6 && relay.called);
        assert!(ratios.remote_vs_tcp.is_none() && ratios.remote_vs_relay.is_none());
        let early = super::ratios(&sides, false, LEAST_ROUNDS - 1);
        assert!(!early.local_vs_ring.expect("both").called, "too few rounds");
    }
}
