//! Which subpartition a record goes to. Pure: the loads come in as a function.
//!
//! | selector | takes | determinate | waits |
//! | --- | --- | --- | --- |
//! | hash of key | `hash(key) * n / 2^64` | yes | for its subpartition |
//! | round-robin | the least queued of the next few that are not blocked | no | only if all are blocked |
//! | forward | subpartition 0 | yes | for it |
//! | custom | what the function says | as the caller declares | for its subpartition |

use std::fmt;

use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::ids::SubpartitionIndex;

/// Function of a custom selector: key and number of subpartitions in, subpartition out.
pub type SelectFn = Box<dyn FnMut(&[u8], u32) -> u32 + Send>;

/// How a [`Writer`](crate::Writer) chooses the subpartition of a record from its key.
#[derive(Default)]
pub enum Selector {
    /// [`hash_key`] of the key, scaled to the number of subpartitions: equal keys meet at the same consumer,
    /// whichever producer wrote them.
    #[default]
    HashKey,
    /// Self-balancing round-robin: goes round, prefers the subpartition with the fewest buffers waiting among the
    /// next few, and skips those that are blocked. A partition written this way is never determinate: a second
    /// attempt spreads its records differently.
    RoundRobin,
    /// Always subpartition 0: the one-to-one edge.
    Forward,
    /// A function of key and number of subpartitions. An answer beyond the last subpartition is an error of the
    /// caller.
    Custom(SelectFn),
}

impl Selector {
    /// A selector from a function of key and number of subpartitions.
    pub fn custom(select: impl FnMut(&[u8], u32) -> u32 + Send + 'static) -> Self {
        Self::Custom(Box::new(select))
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HashKey => "HashKey",
            Self::RoundRobin => "RoundRobin",
            Self::Forward => "Forward",
            Self::Custom(_) => "Custom",
        })
    }
}

/// A selector at work on one partition.
#[derive(Debug)]
pub(crate) struct Selection {
    selector: Selector,
    subpartitions: u32,
    cursor: u32,
}

/// Outcome of one selection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The record belongs to this subpartition, blocked or not.
    Fixed(SubpartitionIndex),
    /// The record may go anywhere, best here; this one is not blocked.
    Free(SubpartitionIndex),
    /// The record may go anywhere, and all are blocked.
    AllBlocked,
}

/// How many subpartitions round-robin compares before it takes the least queued.
const ROUND_ROBIN_LOOKAHEAD: u32 = 4;

impl Selection {
    pub(crate) fn new(selector: Selector, subpartitions: u32) -> Self {
        Self {
            selector,
            subpartitions,
            cursor: 0,
        }
    }

    /// Whether the choice depends on the load.
    pub(crate) fn needs_load(&self) -> bool {
        matches!(self.selector, Selector::RoundRobin)
    }

    /// Chooses for one record. `load` gives the number of buffers that wait in a subpartition, or `None` if it is
    /// blocked.
    pub(crate) fn select(&mut self, key: &[u8], load: impl Fn(u32) -> Option<u64>) -> Result<Choice> {
        if self.subpartitions == 0 {
            let nowhere = "the partition has no subpartition to which a record could go";
            return Err(ShuffleError::new(ErrorKind::InvalidRequest, nowhere));
        }
        let index = match &mut self.selector {
            Selector::HashKey => scale(hash_key(key), self.subpartitions),
            Selector::Forward => 0,
            Selector::RoundRobin => return Ok(self.next_in_turn(load)),
            Selector::Custom(select) => {
                let index = select(key, self.subpartitions);
                if index >= self.subpartitions {
                    return Err(ShuffleError::new(
                        ErrorKind::InvalidRequest,
                        format!(
                            "the selector chose subpartition {index} of a partition with {}",
                            self.subpartitions
                        ),
                    ));
                }
                index
            }
        };
        Ok(Choice::Fixed(SubpartitionIndex::new(index)))
    }

    /// The least queued of the next few open subpartitions; the first of them on a tie. If those few are all
    /// blocked, the next one that is not.
    fn next_in_turn(&mut self, load: impl Fn(u32) -> Option<u64>) -> Choice {
        let mut best: Option<(u64, u32)> = None;
        for step in 0..self.subpartitions {
            if step >= ROUND_ROBIN_LOOKAHEAD && best.is_some() {
                break;
            }
            let index = (self.cursor + step) % self.subpartitions;
            if let Some(queued) = load(index)
                && best.is_none_or(|(least, _)| queued < least)
            {
                best = Some((queued, index));
            }
        }
        match best {
            Some((_, index)) => {
                self.cursor = (index + 1) % self.subpartitions;
                Choice::Free(SubpartitionIndex::new(index))
            }
            None => Choice::AllBlocked,
        }
    }
}

/// The hash of the `HashKey` selector: MurmurHash64A with seed 0, over little-endian words. It is part of the
/// contract: every producer of a result, of any version, must send equal keys to the same subpartition.
pub fn hash_key(key: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let length = u64::try_from(key.len()).unwrap_or(u64::MAX);
    let mut hash = length.wrapping_mul(M);
    let mut words = key.chunks_exact(8);
    for word in &mut words {
        let mut k = word
            .iter()
            .rev()
            .fold(0u64, |k, byte| (k << 8) | u64::from(*byte))
            .wrapping_mul(M);
        k ^= k >> R;
        hash = (hash ^ k.wrapping_mul(M)).wrapping_mul(M);
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        let k = tail.iter().rev().fold(0u64, |k, byte| (k << 8) | u64::from(*byte));
        hash = (hash ^ k).wrapping_mul(M);
    }
    hash ^= hash >> R;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> R)
}

/// The subpartition among `subpartitions` that the `HashKey` selector chooses for this key.
///
/// An engine that fills buffers itself calls this to place records as the record layer would.
///
/// # Panics
/// If `subpartitions` is 0.
pub fn subpartition_of(key: &[u8], subpartitions: u32) -> SubpartitionIndex {
    assert!(subpartitions > 0, "a partition has at least one subpartition");
    SubpartitionIndex::new(scale(hash_key(key), subpartitions))
}

/// `hash * n / 2^64`: uses the high bits, needs no division.
fn scale(hash: u64, n: u32) -> u32 {
    let scaled = (u128::from(hash) * u128::from(n)) >> 64;
    u32::try_from(scaled).expect("invariant: hash * n / 2^64 < n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(choice: Choice) -> u32 {
        match choice {
            Choice::Fixed(index) | Choice::Free(index) => index.value(),
            Choice::AllBlocked => panic!("all blocked"),
        }
    }

    #[test]
    fn the_hash_never_changes() {
        let pinned = [
            (&b""[..], 0),
            (b"a", 0x071717d2d36b6b11),
            (b"abcdefgh", 0xafdb0257ff41aa98),
            (b"abcdefghi", 0xc9b9d84356146ac2),
        ];
        let now: Vec<_> = pinned.iter().map(|(key, _)| (*key, hash_key(key))).collect();
        assert_eq!(now, pinned, "records of different versions would no longer meet");
    }

    #[test]
    fn equal_keys_meet_and_distinct_keys_spread() {
        const N: u32 = 7;
        let mut selection = Selection::new(Selector::HashKey, N);
        let mut counts = [0u32; N as usize];
        for key in 0u64..70_000 {
            let key = key.to_le_bytes();
            let chosen = index(selection.select(&key, |_| Some(0)).unwrap());
            assert_eq!(chosen, subpartition_of(&key, N).value());
            counts[chosen as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_blocked_subpartition_still_gets_its_key() {
        let mut selection = Selection::new(Selector::HashKey, 4);
        let free = selection.select(b"k", |_| Some(0)).unwrap();
        assert_eq!(selection.select(b"k", |_| None).unwrap(), free);
        assert!(matches!(free, Choice::Fixed(_)));
    }

    #[test]
    fn round_robin_visits_all_in_turn_under_equal_load() {
        let mut selection = Selection::new(Selector::RoundRobin, 6);
        let visits: Vec<u32> = (0..12)
            .map(|_| index(selection.select(b"", |_| Some(3)).unwrap()))
            .collect();
        assert_eq!(visits, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn round_robin_prefers_the_least_queued_and_skips_the_blocked() {
        let mut selection = Selection::new(Selector::RoundRobin, 4);
        let loads = [Some(5), None, Some(2), Some(4)];
        assert_eq!(
            selection.select(b"", |i| loads[i as usize]).unwrap(),
            Choice::Free(SubpartitionIndex::new(2))
        );
        let only_last = |i: u32| (i == 99).then_some(9);
        let mut wide = Selection::new(Selector::RoundRobin, 100);
        assert_eq!(index(wide.select(b"", only_last).unwrap()), 99);
        assert_eq!(wide.select(b"", |_| None).unwrap(), Choice::AllBlocked);
    }

    #[test]
    fn without_subpartitions_every_record_is_refused() {
        let custom = Selector::custom(|_, _| 0);
        for selector in [Selector::HashKey, Selector::RoundRobin, Selector::Forward, custom] {
            let mut selection = Selection::new(selector, 0);
            let error = selection.select(b"x", |_| Some(0)).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidRequest));
        }
    }

    #[test]
    fn forward_and_custom() {
        let mut forward = Selection::new(Selector::Forward, 3);
        assert_eq!(index(forward.select(b"x", |_| None).unwrap()), 0);
        let mut custom = Selection::new(Selector::custom(|key, n| u32::from(key[0]) % n), 3);
        assert_eq!(index(custom.select(&[5], |_| Some(0)).unwrap()), 2);
        let mut wrong = Selection::new(Selector::custom(|_, n| n), 3);
        let error = wrong.select(b"", |_| Some(0)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidRequest));
    }
}
