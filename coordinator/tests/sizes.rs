//! Parallelism and ranges, against known answers and against what must always hold.

use std::sync::Arc;

use coordinator::parallelism::{Adaptive, InputVolume, Limits, Rule};
use coordinator::ranges::{Ranges, SplitInput, TaskShare, by_volume, split_skew};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    config: Config,
    inputs: Option<Vec<Input>>,
    subpartition_bytes: Option<Vec<Vec<u64>>>,
    broadcast_bytes: Option<Vec<u64>>,
    parallelism: Option<u32>,
    ranges: Option<Vec<[u32; 2]>>,
    broadcast_ranges: Option<Vec<[u32; 2]>>,
    normalized_min: Option<u32>,
    normalized_max: Option<u32>,
}

#[derive(Deserialize)]
struct Config {
    min: u32,
    max: u32,
    bytes_per_task: u64,
    default_source: Option<u32>,
    max_broadcast_ratio: Option<f64>,
}

#[derive(Deserialize)]
struct Input {
    broadcast: bool,
    bytes: u128,
}

impl Config {
    fn limits(&self) -> Limits {
        Limits {
            min: self.min,
            max: self.max,
        }
    }

    fn adaptive(&self, rule: Rule) -> Adaptive {
        Adaptive {
            rule,
            bytes_per_task: self.bytes_per_task,
            default_source: self.default_source.unwrap_or(1),
        }
    }
}

impl Case {
    fn volumes(&self) -> Option<Vec<InputVolume>> {
        let volume = |input: &Input| InputVolume {
            broadcast: input.broadcast,
            bytes: input.bytes,
        };
        Some(self.inputs.as_ref()?.iter().map(volume).collect())
    }
}

fn inclusive(ranges: &Ranges) -> Vec<[u32; 2]> {
    ranges.iter().map(|range| [range.start, range.end - 1]).collect()
}

#[test]
fn power_of_two_gives_the_known_answers() {
    let vectors: Vectors = serde_json::from_str(include_str!("vectors/parallelism_power_of_two.json"))
        .expect("the vectors have this shape");
    assert_eq!(vectors.cases.len(), 6);
    for case in vectors.cases {
        let limits = case.config.limits();
        let ratio = case.config.max_broadcast_ratio.unwrap();
        assert!(
            (ratio - 0.5).abs() < f64::EPSILON,
            "{}: a ratio of 50 per cent",
            case.name
        );
        let adaptive = case.config.adaptive(Rule::PowerOfTwo {
            max_broadcast_percent: 50,
        });
        adaptive.validate().unwrap();
        if let Some(min) = case.normalized_min {
            let expected = Limits {
                min,
                max: case.normalized_max.unwrap(),
            };
            assert_eq!(limits.to_powers_of_two(), Some(expected), "{}", case.name);
        }
        if let (Some(inputs), Some(expected)) = (case.volumes(), case.parallelism) {
            let decided = match inputs.as_slice() {
                [] => adaptive.source(limits, None),
                inputs => adaptive.power_of_two(inputs, limits, 50),
            };
            assert_eq!(decided, expected, "{}", case.name);
        }
    }
}

#[test]
fn by_volume_gives_the_known_answers() {
    let vectors: Vectors =
        serde_json::from_str(include_str!("vectors/parallelism_by_volume.json")).expect("the vectors have this shape");
    assert_eq!(vectors.cases.len(), 7);
    for case in vectors.cases {
        let adaptive = case.config.adaptive(Rule::ByVolume { skew_factor: None });
        let limits = case.config.limits();
        let Some(results) = &case.subpartition_bytes else {
            let inputs = case.volumes().expect("totals, if no subpartitions");
            assert_eq!(
                Some(adaptive.by_total(&inputs, limits)),
                case.parallelism,
                "{}",
                case.name
            );
            continue;
        };
        let sums: Vec<u64> = (0..results[0].len())
            .map(|at| results.iter().map(|result| result[at]).sum())
            .collect();
        let found = by_volume(&sums, adaptive.bytes_per_task, limits).ranges;
        assert_eq!(Some(found.parts()), case.parallelism, "{}", case.name);
        assert_eq!(Some(inclusive(&found)), case.ranges, "{}", case.name);
        if let Some(expected) = case.broadcast_ranges {
            // One queue, read whole by each task: a broadcast result is cut into a single subpartition.
            assert_eq!(case.broadcast_bytes.map(|bytes| bytes.len()), Some(1));
            assert_eq!(vec![[0, 0]; found.parts() as usize], expected, "{}", case.name);
        }
    }
}

#[test]
fn even_ranges_are_the_known_ones() {
    #[derive(Deserialize)]
    struct Even {
        subpartitions: u32,
        consumers: u32,
        ranges: Vec<[u32; 2]>,
    }
    #[derive(Deserialize)]
    struct Evens {
        cases: Vec<Even>,
    }
    let vectors: Evens = serde_json::from_str(include_str!("vectors/subpartition_ranges_even.json"))
        .expect("the vectors have this shape");
    assert_eq!(vectors.cases.len(), 4);
    for case in vectors.cases {
        let ranges = Ranges::Even {
            whole: case.subpartitions,
            parts: case.consumers,
        };
        assert_eq!(inclusive(&ranges), case.ranges);
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let good = Adaptive::default();
    assert_eq!(good.validate(), Ok(()));
    let all_broadcast = Rule::PowerOfTwo {
        max_broadcast_percent: 100,
    };
    let bad = [
        Adaptive {
            bytes_per_task: 0,
            ..good
        },
        Adaptive {
            default_source: 0,
            ..good
        },
        Adaptive {
            rule: all_broadcast,
            ..good
        },
        Adaptive {
            rule: Rule::ByVolume { skew_factor: Some(0) },
            ..good
        },
    ];
    let named = bad.map(|one| one.validate().unwrap_err().setting);
    assert_eq!(
        named,
        [
            "bytes_per_task",
            "default_source",
            "max_broadcast_percent",
            "skew_factor"
        ]
    );
}

#[test]
fn limits_without_a_power_of_two_are_kept_as_they_are() {
    let limits = Limits { min: 5, max: 7 };
    assert_eq!(limits.to_powers_of_two(), None);
    let adaptive = Adaptive {
        bytes_per_task: 10,
        ..Adaptive::default()
    };
    let input = [InputVolume {
        broadcast: false,
        bytes: 60,
    }];
    assert_eq!(adaptive.power_of_two(&input, limits, 50), 6);
}

#[test]
fn one_subpartition_far_above_the_median_is_split_by_producers() {
    // Subpartition 2 holds 90 of 120 bytes, 30 from each producer.
    let by_producer: [Arc<[u64]>; 3] = std::array::from_fn(|_| Arc::from([4, 3, 30, 3]));
    let sums = [12, 9, 90, 9];
    let limits = Limits { min: 1, max: 10 };
    let found = by_volume(&sums, 30, limits);
    assert_eq!(inclusive(&found.ranges), [[0, 1], [2, 2], [3, 3]]);
    let input = SplitInput {
        input: 1,
        bytes: &sums,
        by_producer: &by_producer,
    };
    let pieces = |shares: Vec<TaskShare>| -> Vec<_> {
        let piece = |share: TaskShare| (share.subpartitions.first, share.piece.map(|piece| piece.producers));
        shares.into_iter().map(piece).collect()
    };
    let split = pieces(split_skew(&found, &[input], 5, 10));
    assert_eq!(
        split,
        [(0, None), (2, Some(0..1)), (2, Some(1..2)), (2, Some(2..3)), (3, None)]
    );
    let with_one_task_to_spare = pieces(split_skew(&found, &[input], 5, 4));
    assert_eq!(with_one_task_to_spare.len(), 4);
    let not_that_skewed = pieces(split_skew(&found, &[input], 11, 10));
    assert_eq!(
        not_that_skewed,
        [(0, None), (2, None), (3, None)],
        "90 is ten times the median"
    );
}

/// The least that the largest of at most `parts` contiguous ranges can hold, by trying everything.
fn optimum(bytes: &[u64], parts: u32) -> u64 {
    let mut best: Vec<u64> = (0..=bytes.len()).map(|to| bytes[..to].iter().sum()).collect();
    for _ in 1..parts {
        best = (0..=bytes.len())
            .map(|to| {
                let last = |from: usize| best[from].max(bytes[from..to].iter().sum());
                (0..=to).map(last).min().expect("at least one")
            })
            .collect();
    }
    best[bytes.len()]
}

fn volume(bytes: &[u64], range: &std::ops::Range<u32>) -> u64 {
    bytes[range.start as usize..range.end as usize].iter().sum()
}

fn check_partition(whole: u32, ranges: &Ranges) {
    let mut next = 0;
    for range in ranges.iter() {
        assert_eq!(range.start, next);
        assert!(range.end > range.start, "no task without a subpartition");
        next = range.end;
    }
    assert_eq!((next, ranges.whole()), (whole, whole));
}

proptest! {
    #[test]
    fn even_ranges_partition_the_subpartitions(whole in 1_u32..=131_072, parts in 1_u32..2000) {
        let parts = parts.min(whole);
        let ranges = Ranges::Even { whole, parts };
        check_partition(whole, &ranges);
        let sizes: Vec<usize> = ranges.iter().map(|range| range.len()).collect();
        prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().expect("at least one") <= 1);
    }

    #[test]
    fn ranges_by_volume_partition_the_subpartitions_and_are_as_small_as_can_be(
        bytes in prop::collection::vec(prop_oneof![Just(0), 0_u64..20, 0_u64..1000], 1..24),
        bytes_per_task in 1_u64..500,
        min in 1_u32..8,
        more in 0_u32..8,
    ) {
        let min = min.min(u32::try_from(bytes.len()).expect("a small number"));
        let limits = Limits { min, max: (min + more).min(u32::try_from(bytes.len()).expect("a small number")) };
        let found = by_volume(&bytes, bytes_per_task, limits);
        check_partition(u32::try_from(bytes.len()).expect("a small number"), &found.ranges);
        let parts = found.ranges.parts();
        prop_assert!(limits.allows(parts));
        let largest = *bytes.iter().max().unwrap();
        let most = found.ranges.iter().map(|range| volume(&bytes, &range)).max().unwrap();
        if let Some(limit) = found.limit {
            let limit = u64::try_from(limit).unwrap();
            for range in found.ranges.iter() {
                prop_assert!(volume(&bytes, &range) <= limit || range.len() == 1);
            }
            // Within one subpartition of what so many tasks can reach at best.
            prop_assert!(most <= optimum(&bytes, parts) + largest);
            if limit != bytes_per_task && limit >= largest {
                prop_assert_eq!(most, optimum(&bytes, parts), "the smallest limit is the optimum");
            }
        } else {
            prop_assert!(parts == limits.min || parts == limits.max);
        }
    }

    #[test]
    fn pieces_partition_the_producers_of_each_split_subpartition(
        by_producer in prop::collection::vec(prop::collection::vec(prop_oneof![0_u64..10, 0_u64..3000], 12), 1..10),
        bytes_per_task in 1_u64..200,
        factor in 1_u32..6,
        max in 1_u32..24,
    ) {
        let rows: Vec<Arc<[u64]>> = by_producer.into_iter().map(Arc::from).collect();
        let sums: Vec<u64> = (0..12).map(|at| rows.iter().map(|row| row[at]).sum()).collect();
        let limits = Limits { min: 1, max: max.min(12) };
        let found = by_volume(&sums, bytes_per_task, limits);
        let input = SplitInput { input: 0, bytes: &sums, by_producer: &rows };
        let shares = split_skew(&found, &[input], factor, max);
        prop_assert!(shares.len() <= max.max(found.ranges.parts()) as usize);
        // Each (subpartition, producer) is read exactly once.
        let mut read = vec![[0_u32; 12]; rows.len()];
        for share in &shares {
            let everyone = 0..u32::try_from(rows.len()).expect("a small number");
            let producers = share.piece.as_ref().map_or(everyone, |piece| piece.producers.clone());
            prop_assert!(share.piece.is_none() || share.subpartitions.count == 1);
            for producer in producers {
                for subpartition in share.subpartitions.iter() {
                    read[producer as usize][subpartition.value() as usize] += 1;
                }
            }
        }
        prop_assert!(read.iter().flatten().all(|&times| times == 1), "{shares:?}");
    }
}
