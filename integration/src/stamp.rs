//! Stamped data: a record says where it belongs, and its every byte follows from that.
//!
//! ```text
//!  0     4      12      20         24       28            32        40      44         48
//!  +-----+------+-------+----------+--------+-------------+---------+-------+----------+-------
//!  |"STMP"| job | result| partition| attempt| subpartition| sequence| length| checksum | filler
//!  +-----+------+-------+----------+--------+-------------+---------+-------+----------+-------
//! ```
//!
//! The filler is a stream keyed by the identity, so foreign or stale bytes anywhere in a record
//! show. A record shorter than the stamp is filler only.

use serde::{Deserialize, Serialize};
use shuffle_protocol::{PartitionId, ResultId};

/// Bytes of the stamp.
pub const STAMP_BYTES: usize = 48;

const MAGIC: [u8; 4] = *b"STMP";
const CHECKSUM_AT: usize = 44;

/// Which attempt of which producer wrote a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Source {
    /// Job.
    pub job: u64,
    /// Intermediate result.
    pub result: u64,
    /// Index of the partition.
    pub partition: u32,
    /// Attempt.
    pub attempt: u32,
}

impl Source {
    /// Its identity in the protocol.
    #[must_use]
    pub fn partition_id(self) -> PartitionId {
        PartitionId {
            result: ResultId::new(self.result),
            index: self.partition,
            attempt: self.attempt,
        }
    }
}

/// The partition that most tests use. No two of its numbers are the same, so that one taken for another shows (F35).
pub const SOURCE: Source = Source {
    job: 7,
    result: 1011,
    partition: 13,
    attempt: 5,
};

/// Another partition beside [`SOURCE`].
#[must_use]
pub const fn partition(partition: u32) -> Source {
    Source { partition, ..SOURCE }
}

/// One record of one subpartition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Who wrote it.
    pub source: Source,
    /// Subpartition.
    pub subpartition: u32,
    /// Number of the record in the subpartition, from 0.
    pub sequence: u64,
}

/// Length of each record of a subpartition, by its number: producer and oracle agree on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lengths {
    /// All the same.
    Fixed(usize),
    /// One after the other, then from the front again.
    Cycle(Vec<usize>),
    /// Scattered over `least..=most`, different in each subpartition.
    Spread {
        /// Shortest.
        least: usize,
        /// Longest.
        most: usize,
    },
}

impl Lengths {
    /// Bytes of the record at `place`.
    #[must_use]
    pub fn of(&self, place: Place) -> usize {
        match self {
            Self::Fixed(length) => *length,
            Self::Cycle(lengths) => {
                let count = u64::try_from(lengths.len()).unwrap_or(1).max(1);
                let at = usize::try_from(place.sequence % count).unwrap_or(0);
                lengths.get(at).copied().unwrap_or(0)
            }
            Self::Spread { least, most } => {
                let span = u64::try_from(most - least + 1).unwrap_or(1);
                least + usize::try_from(mix(key(place)) % span).unwrap_or(0)
            }
        }
    }
}

/// Why a record is not the expected one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Wrong number of bytes.
    #[error("record {place:?} has {got} bytes instead of {expected}")]
    Length {
        /// Expected record.
        place: Place,
        /// Its length.
        expected: usize,
        /// Length that came.
        got: usize,
    },
    /// Another record stands in its place.
    #[error("expected {expected:?}, but {got:?} came")]
    Foreign {
        /// Expected record.
        expected: Place,
        /// Where the record that came belongs.
        got: Place,
    },
    /// Bytes changed on the way.
    #[error("record {place:?} differs at byte {at}: {expected:#04x} expected, {got:#04x} came")]
    Bytes {
        /// Expected record.
        place: Place,
        /// First wrong byte.
        at: usize,
        /// What it should be.
        expected: u8,
        /// What it is.
        got: u8,
    },
}

/// Writes the record of `place` over all of `record`.
pub fn fill(record: &mut [u8], place: Place) {
    let key = key(place);
    let mut words = record.chunks_exact_mut(8);
    let mut index = 0;
    for word in words.by_ref() {
        word.copy_from_slice(&filler(key, index).to_le_bytes());
        index += 1;
    }
    let tail = words.into_remainder();
    let last = filler(key, index).to_le_bytes();
    tail.copy_from_slice(&last[..tail.len()]);
    if record.len() >= STAMP_BYTES {
        let stamp = stamp(place, record.len());
        record[..CHECKSUM_AT].copy_from_slice(&stamp);
        record[CHECKSUM_AT..STAMP_BYTES].fill(0);
        let checksum = crc32fast::hash(record);
        record[CHECKSUM_AT..STAMP_BYTES].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Checks that `record` is exactly the one of `place`. `scratch` is reused between calls.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn check(record: &[u8], place: Place, expected: usize, scratch: &mut Vec<u8>) -> Result<(), Violation> {
    if let Some(got) = read_stamp(record).filter(|got| *got != place) {
        return Err(Violation::Foreign { expected: place, got });
    }
    if record.len() != expected {
        return Err(Violation::Length {
            place,
            expected,
            got: record.len(),
        });
    }
    scratch.resize(expected, 0);
    fill(scratch, place);
    if record == scratch.as_slice() {
        return Ok(());
    }
    let mut pairs = scratch.iter().zip(record).enumerate();
    let (at, (expected, got)) = pairs.find(|(_, (a, b))| a != b).unwrap_or((0, (&0, &0)));
    Err(Violation::Bytes {
        place,
        at,
        expected: *expected,
        got: *got,
    })
}

fn stamp(place: Place, length: usize) -> [u8; CHECKSUM_AT] {
    let mut stamp = [0; CHECKSUM_AT];
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    stamp[0..4].copy_from_slice(&MAGIC);
    stamp[4..12].copy_from_slice(&place.source.job.to_le_bytes());
    stamp[12..20].copy_from_slice(&place.source.result.to_le_bytes());
    stamp[20..24].copy_from_slice(&place.source.partition.to_le_bytes());
    stamp[24..28].copy_from_slice(&place.source.attempt.to_le_bytes());
    stamp[28..32].copy_from_slice(&place.subpartition.to_le_bytes());
    stamp[32..40].copy_from_slice(&place.sequence.to_le_bytes());
    stamp[40..44].copy_from_slice(&length.to_le_bytes());
    stamp
}

/// Where a record says it belongs, if it bears a stamp.
fn read_stamp(record: &[u8]) -> Option<Place> {
    if record.len() < STAMP_BYTES || record[..4] != MAGIC {
        return None;
    }
    let long = |at: usize| record[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    let short = |at: usize| record[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    Some(Place {
        source: Source {
            job: long(4)?,
            result: long(12)?,
            partition: short(20)?,
            attempt: short(24)?,
        },
        subpartition: short(28)?,
        sequence: long(32)?,
    })
}

fn key(place: Place) -> u64 {
    let Place {
        source,
        subpartition,
        sequence,
    } = place;
    let parts = [
        source.job,
        source.result,
        u64::from(source.partition) << 32 | u64::from(source.attempt),
        u64::from(subpartition),
        sequence,
    ];
    parts.iter().fold(0x243F_6A88_85A3_08D3, |key, part| mix(key ^ part))
}

fn filler(key: u64, index: u64) -> u64 {
    key.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .rotate_left(23)
}

/// The finaliser of splitmix64.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::{Lengths, Place, Source, Violation, check, fill};

    fn place(subpartition: u32, sequence: u64) -> Place {
        let source = Source {
            job: 7,
            result: 11,
            partition: 13,
            attempt: 5,
        };
        Place {
            source,
            subpartition,
            sequence,
        }
    }

    #[test]
    fn a_record_is_only_itself() {
        for length in [0, 1, 47, 48, 49, 1000] {
            let mut record = vec![0; length];
            fill(&mut record, place(3, 17));
            let mut scratch = Vec::new();
            assert_eq!(check(&record, place(3, 17), length, &mut scratch), Ok(()));
            if length > 0 {
                assert!(check(&record, place(3, 18), length, &mut scratch).is_err());
                assert!(check(&record, place(2, 17), length, &mut scratch).is_err());
            }
            assert!(check(&record, place(3, 17), length + 1, &mut scratch).is_err());
        }
    }

    #[test]
    fn each_changed_byte_shows() {
        let mut record = vec![0; 300];
        fill(&mut record, place(0, 1));
        for at in 0..record.len() {
            record[at] ^= 1;
            assert!(check(&record, place(0, 1), 300, &mut Vec::new()).is_err(), "byte {at}");
            record[at] ^= 1;
        }
    }

    #[test]
    fn a_foreign_record_says_where_it_belongs() {
        let mut record = vec![0; 100];
        fill(&mut record, place(9, 4));
        let violation = check(&record, place(0, 0), 100, &mut Vec::new());
        assert_eq!(
            violation,
            Err(Violation::Foreign {
                expected: place(0, 0),
                got: place(9, 4)
            })
        );
    }

    #[test]
    fn lengths_keep_to_their_plan() {
        let spread = Lengths::Spread { least: 10, most: 20 };
        assert!((0..1000).all(|n| (10..=20).contains(&spread.of(place(1, n)))));
        let cycle = Lengths::Cycle(vec![0, 1, 5]);
        let lengths: Vec<usize> = (0..5).map(|n| cycle.of(place(1, n))).collect();
        assert_eq!(lengths, [0, 1, 5, 0, 1]);
    }
}
