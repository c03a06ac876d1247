//! An order-independent digest of a set of rows.
//!
//! Each row is hashed to 64 bits by folded multiplication (as wyhash does it); the digest keeps the
//! number of rows, their bytes, and the wrapping sum and the exclusive or of the hashes. A lost,
//! repeated or altered row changes the sum; the exclusive or guards against errors that cancel out
//! in the sum.

use serde::{Deserialize, Serialize};

/// Count, bytes and 64-bit sums over a set of rows, in any order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowDigest {
    /// Number of rows.
    pub rows: u64,
    /// Sum of the lengths of the rows in bytes, without any framing.
    pub bytes: u64,
    /// Wrapping sum of the hashes of the rows.
    pub sum: u64,
    /// Exclusive or of the hashes of the rows.
    pub xor: u64,
}

impl RowDigest {
    /// Takes one row into account.
    pub fn add(&mut self, row: &[u8]) {
        let hash = hash(row);
        self.rows += 1;
        self.bytes += length(row);
        self.sum = self.sum.wrapping_add(hash);
        self.xor ^= hash;
    }

    /// Takes all rows of another digest into account.
    pub fn merge(&mut self, other: &Self) {
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.sum = self.sum.wrapping_add(other.sum);
        self.xor ^= other.xor;
    }
}

fn length(row: &[u8]) -> u64 {
    u64::try_from(row.len()).expect("invariant: a length fits 64 bits")
}

fn hash(row: &[u8]) -> u64 {
    let mut state = SEED ^ length(row).wrapping_mul(KEYS[0]);
    let mut blocks = row.chunks_exact(16);
    for block in &mut blocks {
        state = mix(state, block);
    }
    let tail = blocks.remainder();
    if !tail.is_empty() {
        // Zero padding is unambiguous because the length is part of the state.
        let mut padded = [0_u8; 16];
        padded[..tail.len()].copy_from_slice(tail);
        state = mix(state, &padded);
    }
    fold(state ^ KEYS[2], KEYS[3])
}

/// Folds a block of 16 bytes into the state.
fn mix(state: u64, block: &[u8]) -> u64 {
    let (low, high) = block.split_at(8);
    fold(word(low) ^ KEYS[1] ^ state, word(high) ^ KEYS[2])
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("invariant: a word has 8 bytes"))
}

fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    let low = u64::try_from(product & u128::from(u64::MAX)).expect("invariant: masked to 64 bits");
    let high = u64::try_from(product >> 64).expect("invariant: shifted to 64 bits");
    low ^ high
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const KEYS: [u64; 4] = [
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
    0x5899_65cc_7537_4cc3,
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_assert_ne, proptest};

    use super::{RowDigest, hash};

    fn digest(rows: &[Vec<u8>]) -> RowDigest {
        let mut digest = RowDigest::default();
        for row in rows {
            digest.add(row);
        }
        digest
    }

    #[test]
    fn padding_and_length_are_told_apart() {
        let rows: Vec<Vec<u8>> = (0..40).map(|length| vec![0; length]).collect();
        let hashes: HashSet<u64> = rows.iter().map(|row| hash(row)).collect();
        assert_eq!(hashes.len(), rows.len());
    }

    #[test]
    fn two_rows_that_swap_their_ends_differ() {
        let sent = digest(&[b"1|a".to_vec(), b"2|b".to_vec()]);
        let received = digest(&[b"1|b".to_vec(), b"2|a".to_vec()]);
        assert_eq!((sent.rows, sent.bytes), (received.rows, received.bytes));
        assert_ne!(sent, received);
    }

    #[test]
    fn a_repeated_pair_is_seen_though_xor_cancels() {
        let once = digest(&[b"row".to_vec()]);
        let thrice = digest(&[b"row".to_vec(), b"row".to_vec(), b"row".to_vec()]);
        assert_eq!(once.xor, thrice.xor);
        assert_ne!(once.sum, thrice.sum);
    }

    fn rows() -> impl Strategy<Value = Vec<Vec<u8>>> {
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..70), 1..20)
    }

    proptest! {
        #[test]
        fn order_and_division_do_not_matter(
            (rows, shuffled) in rows().prop_flat_map(|rows| (Just(rows.clone()), Just(rows).prop_shuffle())),
            cut in any::<proptest::sample::Index>(),
        ) {
            let (left, right) = shuffled.split_at(cut.index(shuffled.len()));
            let mut merged = digest(left);
            merged.merge(&digest(right));
            prop_assert_eq!(digest(&rows), merged);
        }

        #[test]
        fn a_flipped_bit_is_seen(
            mut rows in rows(),
            which in any::<proptest::sample::Index>(),
            at in any::<proptest::sample::Index>(),
        ) {
            let before = digest(&rows);
            let row = which.index(rows.len());
            if rows[row].is_empty() {
                rows[row].push(0);
            } else {
                let at = at.index(rows[row].len());
                rows[row][at] ^= 1;
            }
            prop_assert_ne!(before, digest(&rows));
        }
    }
}
