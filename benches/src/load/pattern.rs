//! The bytes of a measurement: every byte is written by its producer and read by its consumer, on every
//! side by the same two functions.
//!
//! The words of a producer are a running number. Their sum is known without reading them, so that a
//! producer does nothing but fill; a consumer adds up every word that it got.

use std::time::{Duration, Instant};

use super::message::{Event, emit};

/// All pieces are whole words of this many bytes.
const WORD_BYTES: usize = 8;

/// The endless words of one producer.
#[derive(Debug, Clone)]
pub(crate) struct Filler {
    next: u64,
    bytes: u64,
    sum: u64,
}

impl Filler {
    /// The words of producer number `index`; no two producers have words in common.
    pub(crate) fn new(index: u32) -> Self {
        Self {
            next: u64::from(index) << 40,
            bytes: 0,
            sum: 0,
        }
    }

    /// Fills a piece of whole words.
    #[inline]
    pub(crate) fn fill(&mut self, piece: &mut [u8]) {
        let first = self.next;
        let mut word = first;
        for place in piece.chunks_exact_mut(WORD_BYTES) {
            place.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(1);
        }
        let count = word.wrapping_sub(first);
        // count words from `first` on: count * first + (0 + 1 + .. + count - 1).
        let steps = count.wrapping_mul(count.wrapping_sub(1)) / 2;
        self.sum = self.sum.wrapping_add(count.wrapping_mul(first).wrapping_add(steps));
        self.next = word;
        self.bytes += length(piece);
    }

    /// Bytes filled so far, and the wrapping sum of their words.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            bytes: self.bytes,
            sum: self.sum,
        }
    }
}

/// What was filled or read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Totals {
    pub(crate) bytes: u64,
    /// Wrapping sum of all words.
    pub(crate) sum: u64,
}

impl Totals {
    /// The same, read so often.
    pub(crate) fn times(self, readings: u32) -> Self {
        Self {
            bytes: self.bytes * u64::from(readings),
            sum: self.sum.wrapping_mul(readings.into()),
        }
    }

    /// Adds a piece of words of 4 bytes.
    pub(crate) fn add(&mut self, piece: &[u8]) {
        let words = piece.chunks_exact(4).filter_map(|word| word.first_chunk());
        let sum = words.fold(0u64, |sum, word| sum.wrapping_add(u32::from_le_bytes(*word).into()));
        self.bytes += length(piece);
        self.sum = self.sum.wrapping_add(sum);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// Reads every byte of what arrives, and now and then says how far it is.
#[derive(Debug)]
pub(crate) struct Reader {
    totals: Totals,
    look_at: u64,
    told: Instant,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self {
            totals: Totals::default(),
            look_at: BYTES_BETWEEN_LOOKS,
            told: Instant::now(),
        }
    }

    /// Reads a piece of whole words.
    #[inline]
    pub(crate) fn read(&mut self, piece: &[u8]) {
        self.totals.sum = self.totals.sum.wrapping_add(sum(piece));
        self.totals.bytes += length(piece);
        if self.totals.bytes >= self.look_at {
            self.look();
        }
    }

    /// Counts a piece without a look at it.
    pub(crate) fn count(&mut self, piece: &[u8]) {
        self.totals.bytes += length(piece);
        if self.totals.bytes >= self.look_at {
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        self.look_at = self.totals.bytes + BYTES_BETWEEN_LOOKS;
        if self.told.elapsed() >= INTERVAL {
            self.told = Instant::now();
            emit(&Event::Progress(self.totals.bytes));
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }
}

/// The wrapping sum of the words of a piece.
#[inline]
fn sum(piece: &[u8]) -> u64 {
    piece.chunks_exact(WORD_BYTES).fold(0, |sum, word| {
        let word = word.try_into().expect("invariant: a chunk is a word");
        sum.wrapping_add(u64::from_le_bytes(word))
    })
}

fn length(piece: &[u8]) -> u64 {
    u64::try_from(piece.len()).expect("invariant: a length fits 64 bits")
}

const BYTES_BETWEEN_LOOKS: u64 = 64 << 20;
const INTERVAL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::{Filler, Reader, Totals};

    #[test]
    fn what_is_filled_is_what_is_read() {
        let (mut all, mut reader) = (Totals::default(), Reader::new());
        for index in [0, 1, 70_000] {
            let mut filler = Filler::new(index);
            for words in [0, 1, 2, 512, 4096] {
                let mut piece = vec![0xff; words * 8];
                filler.fill(&mut piece);
                reader.read(&piece);
            }
            all.merge(filler.totals());
        }
        assert_eq!(reader.totals(), all);
        assert_eq!(all.bytes, 3 * 8 * (1 + 2 + 512 + 4096));
    }

    #[test]
    fn words_go_on_from_piece_to_piece() {
        let mut filler = Filler::new(0);
        let mut piece = [0; 16];
        filler.fill(&mut piece);
        filler.fill(&mut piece);
        assert_eq!(piece[..8], 2_u64.to_le_bytes());
        assert_eq!(piece[8..], 3_u64.to_le_bytes());
    }

    #[test]
    fn a_changed_and_a_repeated_piece_are_noticed() {
        let mut filler = Filler::new(3);
        let mut piece = vec![0; 64];
        filler.fill(&mut piece);
        let (mut changed, mut repeated) = (Reader::new(), Reader::new());
        repeated.read(&piece);
        repeated.read(&piece);
        piece[9] ^= 1;
        changed.read(&piece);
        assert_ne!(changed.totals(), filler.totals());
        assert_ne!(repeated.totals(), filler.totals());
    }
}
