//! The buffers that an operation reads or fills, as a thread holds them.

use std::io::{IoSlice, IoSliceMut};

use buffer_pool::{Leased, Writable};

/// What an operation works on. It goes with the operation to the thread that does it, and ends there before anybody hears that
/// the operation is over: the next holder of a buffer never meets this one.
#[derive(Debug)]
pub enum Memory {
    /// No buffer.
    None,
    /// To be written, one behind the other.
    From(Vec<Leased>),
    /// To be filled.
    Into(Targets),
}

/// Buffers to be filled, and with which parts of them, one behind the other.
#[derive(Debug, Default)]
pub struct Targets {
    buffers: Vec<Writable>,
    /// Number in `buffers`, offset, length.
    parts: Vec<(usize, u32, u32)>,
}

impl Targets {
    /// One more buffer; gives its number.
    pub fn add(&mut self, buffer: Writable) -> usize {
        self.buffers.push(buffer);
        self.buffers.len() - 1
    }

    /// The next bytes go there.
    pub fn fill(&mut self, buffer: usize, offset: u32, length: u32) {
        self.parts.push((buffer, offset, length));
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, _, length)| u64::from(*length)).sum()
    }

    /// The parts in their order; `None` if two of them overlap or one does not lie within its buffer.
    pub(crate) fn slices(&mut self) -> Option<Vec<IoSliceMut<'_>>> {
        let mut parts: Vec<(usize, (usize, usize, usize))> = Vec::with_capacity(self.parts.len());
        for (order, (buffer, offset, length)) in self.parts.iter().enumerate() {
            let [offset, length] = [offset, length].map(|bytes| usize::try_from(*bytes).ok());
            parts.push((order, (*buffer, offset?, length?)));
        }
        parts.sort_unstable_by_key(|(_, part)| *part);
        let mut parts = parts.into_iter().peekable();
        let mut slices = Vec::with_capacity(parts.len());
        for (number, buffer) in self.buffers.iter_mut().enumerate() {
            let (mut rest, mut begun) = (&mut buffer[..], 0);
            while let Some((order, (_, offset, length))) = parts.next_if(|(_, (buffer, ..))| *buffer == number) {
                let (_, from) = rest.split_at_mut_checked(offset.checked_sub(begun)?)?;
                let (part, behind) = from.split_at_mut_checked(length)?;
                (rest, begun) = (behind, offset + length);
                // A call that is given nothing but empty slices says 0, as one at the end of a file does.
                if !part.is_empty() {
                    slices.push((order, IoSliceMut::new(part)));
                }
            }
        }
        slices.sort_unstable_by_key(|(order, _)| *order);
        Some(slices.into_iter().map(|(_, slice)| slice).collect())
    }

    /// Nothing more is read into them; what they hold stays.
    pub(crate) fn hand_over(self) {
        for buffer in self.buffers {
            buffer.hand_over();
        }
    }
}

/// The bytes to be written, without empty ones.
pub(crate) fn slices(from: &[Leased]) -> Vec<IoSlice<'_>> {
    from.iter()
        .filter(|piece| !piece.is_empty())
        .map(|piece| IoSlice::new(piece))
        .collect()
}

/// A length in memory.
pub(crate) fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("invariant: a length in memory fits in 64 bits")
}
