//! The only source of chance in a simulation: the same seed gives the same run.

/// SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Neighbouring seeds start far from each other.
        Self(mix(seed ^ 0x5EED_0F5A_1B2C_3D4E))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// `0..below`; 0 where that is empty.
    pub(super) fn below(&mut self, below: u64) -> u64 {
        self.next().checked_rem(below).unwrap_or(0)
    }

    /// `low..=high`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// `low..=high`.
    pub(super) fn count(&mut self, low: u32, high: u32) -> u32 {
        let drawn = self.between(low.into(), high.into());
        u32::try_from(drawn).expect("invariant: between two numbers of 32 bits")
    }

    /// An index of a list of that length.
    pub(super) fn index(&mut self, length: usize) -> usize {
        let length = u64::try_from(length).expect("invariant: a length fits 64 bits");
        usize::try_from(self.below(length)).expect("invariant: below a length")
    }

    /// True in `percent` of 100 cases.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.index(from.len())).copied()
    }
}

/// The finisher of SplitMix64.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}
