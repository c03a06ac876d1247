//! A set of small numbers, one bit each.

/// Which of `0 .. length` are in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// None of them.
    pub(crate) fn none(length: u32) -> Self {
        Self(vec![0; length.div_ceil(64) as usize])
    }

    /// Puts it in; false if it was.
    pub(crate) fn insert(&mut self, at: u32) -> bool {
        let (word, bit) = (&mut self.0[at as usize / 64], 1 << (at % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Takes it out.
    pub(crate) fn remove(&mut self, at: u32) {
        self.0[at as usize / 64] &= !(1 << (at % 64));
    }
}
