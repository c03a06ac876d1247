//! Subpartitions far above the median, read by several tasks.

use std::sync::Arc;

use super::by_volume::{ByVolume, by_volume};
use super::{Piece, TaskShare, whole};
use crate::ids::number;
use crate::parallelism::Limits;

/// An input whose subpartitions may be split by producers.
#[derive(Clone, Copy, Debug)]
pub struct SplitInput<'a> {
    /// Which input of the stage, in the order of its edges.
    pub input: u32,
    /// Bytes of each subpartition, over all producers.
    pub bytes: &'a [u64],
    /// For each producer, bytes of each subpartition.
    pub by_producer: &'a [Arc<[u64]>],
}

/// The ranges of `found` as tasks, with skewed subpartitions split: those that stand alone in their range and hold more of one
/// splittable input than the limit of the ranges and than `factor` times the median of that input. Each becomes as many pieces
/// as the limit asks for, never more than `most_tasks` in all, nor than there are producers.
pub fn split_skew(found: &ByVolume, inputs: &[SplitInput<'_>], factor: u32, most_tasks: u32) -> Vec<TaskShare> {
    let medians: Vec<u64> = inputs.iter().map(|input| median(input.bytes)).collect();
    let mut spare = most_tasks.saturating_sub(found.ranges.parts());
    let mut shares = Vec::with_capacity(found.ranges.parts() as usize);
    for part in found.ranges.iter() {
        let skewed = inputs
            .iter()
            .zip(&medians)
            .map(|(input, median)| (input, u128::from(*median), input.bytes[part.start as usize]))
            .filter(|(_, median, bytes)| u128::from(*bytes) > u128::from(factor) * median)
            .max_by_key(|(_, _, bytes)| *bytes);
        let share = whole(&part);
        match (found.limit, skewed) {
            (Some(limit), Some((input, _, bytes))) if part.len() == 1 && spare > 0 && u128::from(bytes) > limit => {
                let volumes: Vec<u64> = input.by_producer.iter().map(|one| one[part.start as usize]).collect();
                let most = u128::from(bytes).div_ceil(limit.max(1)).min(u128::from(spare + 1));
                let most = u32::try_from(most).expect("invariant: at most the spare tasks and one");
                let pieces = pieces(&volumes, limit, most);
                spare -= number(pieces.len()) - 1;
                shares.extend(pieces.into_iter().map(|producers| TaskShare {
                    piece: Some(Piece {
                        input: input.input,
                        producers,
                    }),
                    ..share.clone()
                }));
            }
            _ => shares.push(share),
        }
    }
    shares
}

/// Producers in at most `most` contiguous parts of about `limit` bytes.
fn pieces(volumes: &[u64], limit: u128, most: u32) -> Vec<std::ops::Range<u32>> {
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    let limits = Limits { min: 1, max: most };
    by_volume(volumes, limit, limits).ranges.iter().collect()
}

/// The lower of the two in the middle, if there are two.
fn median(bytes: &[u64]) -> u64 {
    let mut sorted = bytes.to_vec();
    let middle = sorted.len().saturating_sub(1) / 2;
    match sorted.len() {
        0 => 0,
        _ => *sorted.select_nth_unstable(middle).1,
    }
}
