//! How the pool is shared: every local pool its minimum, the rest by weight, up to each maximum.
//!
//! ```text
//!            minimum        excess by weight            maximum
//!  pool a  |=========|~~~~~~~~~~~~~~~~~~|                  .
//!  pool b  |====|~~~~~~~~~~~~~~~~~~|                       .
//!  pool c  |==|~~~~~~|  <- clamped at its maximum, what it leaves is shared again
//! ```
//!
//! The rule is that of Apache Flink's `NetworkBufferPool.redistributeBuffers`: required buffers first, the rest by weight,
//! clamped to each maximum, what that leaves shared again until none is left or all are full. It differs in two points: the
//! weight applies to what lies above the minimum, not to the whole size, and the arithmetic is exact.
//!
//! ```text
//! sum(sizes) == min(available, sum(maximum))        minimum <= size <= maximum
//! ```

/// What one local pool asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Buffers it always has.
    pub minimum: u32,
    /// Buffers it can use at most; at least `minimum`.
    pub maximum: u32,
    /// Its part of what is left after all minimums; at least 1.
    pub weight: u32,
}

/// Sizes in buffers, one per share and in the same order.
///
/// Rounding leftovers go one each to the first pools in order, so equal shares differ by one buffer at most.
///
/// # Panics
/// If the minimums do not fit into `available`, a maximum is below its minimum or a weight is 0: creation refuses these.
pub fn redistribute(available: u32, shares: &[Share]) -> Vec<u32> {
    let required: u64 = shares.iter().map(|share| u64::from(share.minimum)).sum();
    assert!(
        required <= u64::from(available),
        "invariant: minimums ({required}) fit into {available} buffers"
    );
    assert!(
        shares
            .iter()
            .all(|share| share.minimum <= share.maximum && share.weight > 0),
        "invariant: minimum <= maximum and weight > 0"
    );

    let mut sizes: Vec<u32> = shares.iter().map(|share| share.minimum).collect();
    let mut left = u64::from(available) - required;
    let mut open: Vec<usize> = (0..shares.len()).filter(|&at| room(&shares[at]) > 0).collect();

    // A pool whose part exceeds its room is filled and leaves; the others then get more, so one pass is not enough.
    while left > 0 && !open.is_empty() {
        let weights: u64 = open.iter().map(|&at| u64::from(shares[at].weight)).sum();
        let part = |at: usize| proportion(left, shares[at].weight, weights);
        let (full, still): (Vec<usize>, Vec<usize>) = open
            .iter()
            .copied()
            .partition(|&at| part(at) >= u64::from(room(&shares[at])));
        if full.is_empty() {
            let mut remainder = left - open.iter().map(|&at| part(at)).sum::<u64>();
            for &at in &open {
                let extra = u64::from(remainder > 0);
                remainder -= extra;
                sizes[at] += u32::try_from(part(at) + extra).expect("invariant: a part fits its room");
            }
            break;
        }
        for &at in &full {
            sizes[at] = shares[at].maximum;
            left -= u64::from(room(&shares[at]));
        }
        open = still;
    }
    sizes
}

fn room(share: &Share) -> u32 {
    share.maximum - share.minimum
}

/// `left * weight / weights`, rounded down.
fn proportion(left: u64, weight: u32, weights: u64) -> u64 {
    let exact = u128::from(left) * u128::from(weight) / u128::from(weights);
    u64::try_from(exact).expect("invariant: a proportion is at most the whole")
}
