//! What two nodes say to each other over TCP. Pure.
//!
//! ```text
//! sender --> receiver   |length u32|checksum u32| piece |length u32|checksum u32| piece | ..
//! receiver --> sender   |free slots u32|free slots u32| ..
//! ```

use crate::executor::ExecutorError;

/// Bytes in front of each piece.
pub(super) const HEAD_BYTES: usize = 8;
const CREDIT_BYTES: usize = 4;

/// What is said about a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: u32,
    pub(super) checksum: u32,
}

impl Head {
    pub(super) fn encode(self) -> [u8; HEAD_BYTES] {
        (u64::from(self.checksum) << 32 | u64::from(self.length)).to_le_bytes()
    }

    pub(super) fn decode(bytes: [u8; HEAD_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self {
            length: u32::from_le_bytes([a, b, c, d]),
            checksum: u32::from_le_bytes([e, f, g, h]),
        }
    }
}

/// Says that there are so many more free slots.
pub(super) fn encode_credits(slots: u32) -> [u8; CREDIT_BYTES] {
    slots.to_le_bytes()
}

/// What the sender may still send.
#[derive(Debug, Default)]
pub(super) struct Credits {
    left: usize,
    received: u64,
    /// Of a message that has come in part.
    part: Vec<u8>,
}

impl Credits {
    /// Takes in what came, which may be cut anywhere.
    pub(super) fn handle_bytes(&mut self, bytes: &[u8]) {
        self.part.extend_from_slice(bytes);
        let (messages, rest) = self.part.as_chunks::<CREDIT_BYTES>();
        for message in messages {
            let slots = u32::from_le_bytes(*message);
            self.left += usize::try_from(slots).expect("invariant: a count fits an address");
            self.received += u64::from(slots);
        }
        let done = self.part.len() - rest.len();
        self.part.drain(..done);
    }

    /// Pieces that may be sent now.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// All that ever came.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Takes the credits of so many pieces.
    ///
    /// # Errors
    /// There are not as many.
    pub(super) fn spend(&mut self, pieces: usize) -> Result<(), ExecutorError> {
        let too_many = || ExecutorError::Other(format!("{pieces} pieces with {} credits", self.left));
        self.left = self.left.checked_sub(pieces).ok_or_else(too_many)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Credits, Head, encode_credits};

    #[test]
    fn heads_read_as_they_are_written() {
        for (length, checksum) in [(0, u32::MAX), (32_768, 1)] {
            let head = Head { length, checksum };
            assert_eq!(Head::decode(head.encode()), head);
        }
        let head = Head { length: 1, checksum: 2 };
        assert_eq!(head.encode(), [1, 0, 0, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn credits_are_counted_wherever_they_are_cut_and_never_overspent() {
        let bytes = [64, 1, 70_000].map(encode_credits).concat();
        for cut in 0..=bytes.len() {
            let mut credits = Credits::default();
            credits.handle_bytes(&bytes[..cut]);
            credits.handle_bytes(&bytes[cut..]);
            assert_eq!((credits.left(), credits.received()), (70_065, 70_065), "cut at {cut}");
        }
        let mut credits = Credits::default();
        credits.handle_bytes(&bytes[..6]);
        assert_eq!(credits.left(), 64);
        credits.spend(60).expect("there are 64");
        assert!(credits.spend(5).is_err());
        credits.spend(4).expect("there are 4");
        assert_eq!((credits.left(), credits.received()), (0, 64));
    }
}
