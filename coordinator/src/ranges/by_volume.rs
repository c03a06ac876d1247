//! Ranges that hold about the same number of bytes.

use super::Ranges;
use crate::ids::number;
use crate::parallelism::Limits;

/// What [`by_volume`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ByVolume {
    /// A range for each task.
    pub ranges: Ranges,
    /// The bytes that a range of more than one subpartition does not exceed. `None`: no limit gives an allowed number of
    /// tasks, so they are spread evenly.
    pub limit: Option<u128>,
}

/// Cuts subpartitions of the given bytes into ranges.
///
/// The rule is that of Apache Flink (`VertexInputInfoComputationUtils`, 1.17 and later): add subpartitions up and close a range
/// before the one that would exceed `bytes_per_task`. Where that gives a number of tasks that is not allowed, take the smallest
/// limit that gives at most the nearest allowed one; where even that is not allowed, spread that many tasks evenly.
/// The search takes `O(P * log(total bytes))`.
///
/// ```text
/// volume(range) <= limit   or   the range is a single subpartition
/// max(volume) == the least that so many contiguous ranges can have, if limit >= the largest subpartition
/// ```
///
/// # Panics
/// If there are fewer subpartitions than `limits.min`.
pub fn by_volume(bytes: &[u64], bytes_per_task: u64, limits: Limits) -> ByVolume {
    assert!(bytes.len() >= limits.min as usize, "more tasks than subpartitions");
    let wanted = count(bytes, u128::from(bytes_per_task));
    if limits.allows(wanted) {
        return cut(bytes, u128::from(bytes_per_task));
    }
    let nearest = if wanted > limits.max { limits.max } else { limits.min };
    let limit = smallest_limit(bytes, nearest);
    if limits.allows(count(bytes, limit)) {
        return cut(bytes, limit);
    }
    ByVolume {
        ranges: Ranges::Even {
            whole: number(bytes.len()),
            parts: nearest,
        },
        limit: None,
    }
}

fn cut(bytes: &[u64], limit: u128) -> ByVolume {
    let mut bounds = vec![0];
    walk(bytes, limit, |at| bounds.push(at));
    bounds.push(number(bytes.len()));
    ByVolume {
        ranges: Ranges::Cut { bounds: bounds.into() },
        limit: Some(limit),
    }
}

fn count(bytes: &[u64], limit: u128) -> u32 {
    let mut parts = 1;
    walk(bytes, limit, |_| parts += 1);
    parts
}

/// Calls `close` with each place at which a new range begins behind another.
fn walk(bytes: &[u64], limit: u128, mut close: impl FnMut(u32)) {
    let mut volume = 0;
    for (at, &bytes) in bytes.iter().enumerate() {
        let bytes = u128::from(bytes);
        if at > 0 && volume + bytes > limit {
            close(number(at));
            volume = 0;
        }
        volume += bytes;
    }
}

/// The smallest limit that gives at most so many ranges: the higher the limit, the fewer.
fn smallest_limit(bytes: &[u64], most: u32) -> u128 {
    let mut low = 0;
    let mut high = bytes.iter().map(|&bytes| u128::from(bytes)).sum();
    while low < high {
        let middle = (low + high) / 2;
        if count(bytes, middle) <= most {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}
