//! Bytes as a source of decisions.

/// What is left of the bytes.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl Input<'_> {
    /// The next byte.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// One of `0 .. below`.
    pub(crate) fn below(&mut self, below: usize) -> Option<usize> {
        Some(usize::from(self.byte()?) % below.max(1))
    }

    /// A number that is likely to hurt: near `around`, or near one of the ends of its type.
    pub(crate) fn number(&mut self, around: u64) -> Option<u64> {
        let offset = u64::from(self.byte()?);
        Some(match offset {
            0..=79 => around.wrapping_add(offset % 8),
            80..=159 => around.wrapping_sub(offset % 8),
            160..=199 => offset - 160,
            200..=219 => u64::MAX - (offset - 200),
            220..=239 => u64::from(u32::MAX) - 10 + (offset - 220),
            _ => around.wrapping_add(1 << (offset - 240 + 8)),
        })
    }
}
