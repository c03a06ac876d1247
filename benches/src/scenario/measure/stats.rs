//! Medians, ranges, and when a difference is one. Pure.

/// What several rounds gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// The middle one; of an even number, the mean of the two in the middle.
    pub(crate) median: f64,
    /// The lowest.
    pub(crate) min: f64,
    /// The highest.
    pub(crate) max: f64,
}

impl Spread {
    /// The spread of at least one value.
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        Self {
            median: f64::midpoint(at(low), at(high)),
            min: at(0),
            max: at(sorted.len().saturating_sub(1)),
        }
    }

    /// Highest minus lowest.
    pub(crate) fn range(&self) -> f64 {
        self.max - self.min
    }

    /// The range as a share of the median.
    pub(crate) fn noise(&self) -> f64 {
        self.range() / self.median.abs().max(f64::MIN_POSITIVE)
    }

    /// Whether the difference between the medians of two sides is larger than what either of them varied by itself. If it
    /// is not, the run says nothing about which is faster.
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        (self.median - other.median).abs() > self.range().max(other.range())
    }
}

/// The share of the first in both; 0 if there is nothing.
pub(crate) fn copied_ratio(sends: impl Iterator<Item = (u64, u64)>) -> f64 {
    let (copied, not) = sends.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    match copied + not {
        0 => 0.0,
        all => rounded(copied as f64 / all as f64),
    }
}

/// To six digits after the point: what is beyond them is noise of the conversion.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::{Spread, copied_ratio};

    #[test]
    fn the_median_is_in_the_middle() {
        let odd = Spread::of(&[5.0, 1.0, 3.0]);
        assert_eq!((odd.median, odd.min, odd.max), (3.0, 1.0, 5.0));
        assert!((Spread::of(&[4.0, 1.0, 3.0, 2.0]).median - 2.5).abs() < 1e-12);
        assert!((odd.noise() - 4.0 / 3.0).abs() < 1e-12);
        assert!(Spread::of(&[]).median.is_nan());
    }

    #[test]
    fn nothing_sent_is_nothing_copied() {
        assert_eq!(copied_ratio([].into_iter()), 0.0);
        assert_eq!(copied_ratio([(1, 3), (0, 0), (0, 4)].into_iter()), 0.125);
    }

    #[test]
    fn a_difference_below_the_noise_is_none() {
        let (slow, noisy, fast) = (
            Spread::of(&[1.0, 1.1, 1.2]),
            Spread::of(&[1.0, 1.5, 2.0]),
            Spread::of(&[2.0, 2.1, 2.2]),
        );
        assert!(slow.differs_from(&fast) && fast.differs_from(&slow));
        assert!(!slow.differs_from(&noisy) && !noisy.differs_from(&slow));
    }
}
