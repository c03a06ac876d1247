//! What is written is read back; what was changed is found.

use proptest::prelude::*;
use shuffle_protocol::partition::{BufferKind, Codec, Lifetime, PartitionKind, Pressure, Readiness};
use shuffle_protocol::{JobId, PartitionId, ResultId};

use super::wire::{Header, WireEntry, WireGroup};
use super::{ENTRY_BYTES, HEADER_BYTES, Index, IndexEntry, IndexError, IndexGroup, IndexSummary};

const BUFFER_BYTES: u32 = 32 << 10;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(index in indexes()) {
        let bytes = index.encode();
        prop_assert_eq!(Index::decode(&bytes), Ok(index.clone()));
        let summary = IndexSummary::of(&bytes[..HEADER_BYTES]).expect("a header");
        prop_assert_eq!(summary, IndexSummary { index_bytes: bytes.len() as u64, data_bytes: index.data_bytes });
    }

    #[test]
    fn every_changed_bit_is_found(index in indexes(), at in any::<prop::sample::Index>(), bits in 1..=255u8) {
        let mut bytes = index.encode();
        *at.get_mut(&mut bytes) ^= bits;
        prop_assert!(Index::decode(&bytes).is_err());
    }

    #[test]
    fn a_part_or_more_is_no_index(index in indexes(), cut in any::<prop::sample::Index>(), more in 1..40usize) {
        let mut bytes = index.encode();
        let cut = cut.index(bytes.len());
        prop_assert!(Index::decode(&bytes[..cut]).is_err());
        bytes.resize(bytes.len() + more, 0);
        let is_longer = matches!(Index::decode(&bytes), Err(IndexError::Length { .. }));
        prop_assert!(is_longer);
    }

    /// Blocks of the same length in each other's place, with all their bits intact.
    #[test]
    fn blocks_that_changed_places_are_found(seed: u32) {
        let entries = (0..512).map(|n| entry(n * 7, seed.wrapping_add(1), n % 2 == 0)).collect();
        let index = index_of(vec![IndexGroup { subpartition: 0, entries }]);
        let mut bytes = index.encode();
        let first = HEADER_BYTES + size_of::<WireGroup>() + 4;
        let block = 256 * ENTRY_BYTES + 4;
        let (one, other) = bytes[first..].split_at_mut(block);
        one.swap_with_slice(&mut other[..block]);
        let is_found = matches!(Index::decode(&bytes), Err(IndexError::Checksum { .. }));
        prop_assert!(is_found);
    }

    #[test]
    fn noise_does_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..400), repaired: bool) {
        if repaired {
            repair(&mut bytes);
        }
        let _ = Index::decode(&bytes);
    }

    /// Numbers behind right checksums may be anything, too.
    #[test]
    fn contradictions_do_not_panic(index in indexes(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = index.encode();
        *at.get_mut(&mut bytes) = byte;
        repair(&mut bytes);
        if let Ok(read) = Index::decode(&bytes) {
            prop_assert_eq!(read.encode().len(), bytes.len());
        }
    }
}

/// Every single bit, of an index with all parts.
#[test]
fn each_bit_of_one_index_is_found() {
    let bytes = index_of(vec![
        IndexGroup {
            subpartition: 1,
            entries: vec![entry(0, 7, true), entry(7, 1, false)],
        },
        IndexGroup {
            subpartition: 9,
            entries: vec![entry(8, 0, true)],
        },
    ])
    .encode();
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(Index::decode(&changed).is_err(), "bit {bit}");
    }
}

#[test]
fn an_empty_subpartition_takes_no_byte() {
    let mut index = index_of(vec![IndexGroup {
        subpartition: 3,
        entries: vec![entry(0, 1, false)],
    }]);
    let few = index.encode().len();
    index.subpartitions = 100_000;
    assert_eq!(index.encode().len(), few);
    const { assert!(ENTRY_BYTES <= 32) };
}

/// A header that promises what would not fit in any memory.
#[test]
fn counts_are_checked_before_anything_is_allocated() {
    let mut bytes = index_of(Vec::new()).encode();
    bytes[56..64].copy_from_slice(&u64::MAX.to_le_bytes());
    repair(&mut bytes);
    assert!(
        matches!(Index::decode(&bytes), Err(IndexError::Contradiction(_))),
        "{:?}",
        Index::decode(&bytes)
    );
    bytes[56..64].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    repair(&mut bytes);
    assert!(matches!(Index::decode(&bytes), Err(IndexError::Length { .. })));
}

#[test]
fn another_version_is_named() {
    let mut bytes = index_of(Vec::new()).encode();
    bytes[8] = 2;
    repair(&mut bytes);
    assert_eq!(Index::decode(&bytes), Err(IndexError::Version { got: 2 }));
}

#[test]
fn a_buffer_lies_within_the_data_file() {
    let mut index = index_of(vec![IndexGroup {
        subpartition: 0,
        entries: vec![entry(90, 10, false)],
    }]);
    index.data_bytes = 99;
    assert!(matches!(
        Index::decode(&index.encode()),
        Err(IndexError::Contradiction(_))
    ));
}

/// The corpus of the fuzz target: what the fuzzer starts from, and what it has found, stays tested.
#[test]
fn the_corpus_replays() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/index");
    let mut whole = 0;
    let mut replayed = 0;
    for file in std::fs::read_dir(&corpus).expect("the corpus") {
        let bytes = std::fs::read(file.expect("an entry").path()).expect("a readable file");
        whole += usize::from(Index::decode(&bytes).is_ok_and(|index| index.encode() == bytes));
        replayed += 1;
    }
    assert!(whole > 0 && replayed > whole, "{whole} of {replayed} are whole");
}

/// Right checksums over whatever is there, as far as there are whole blocks.
fn repair(bytes: &mut [u8]) {
    let Some((header, rest)) = bytes.split_first_chunk_mut::<HEADER_BYTES>() else {
        return;
    };
    let checksum = crc32fast::hash(&header[..HEADER_BYTES - 4]);
    header[HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    let Ok(groups) = Header::check(header).and_then(|header| header.groups()) else {
        return;
    };
    let groups = super::blocks::checked_section_bytes::<WireGroup>(groups)
        .unwrap_or(0)
        .min(rest.len());
    let (groups, entries) = rest.split_at_mut(groups);
    let blocks = groups
        .chunks_mut(256 * size_of::<WireGroup>() + 4)
        .chain(entries.chunks_mut(256 * size_of::<WireEntry>() + 4));
    for (number, block) in (0_u32..).zip(blocks) {
        if let Some((items, written)) = block.split_last_chunk_mut::<4>() {
            *written = super::blocks::checksum(&[&checksum.to_le_bytes(), &number.to_le_bytes(), items]).to_le_bytes();
        }
    }
}

fn entry(at: u64, length: u32, odd: bool) -> IndexEntry {
    IndexEntry {
        at,
        length,
        checksum: length ^ 0x5a5a_5a5a,
        records: 3,
        kind: if odd { BufferKind::Event } else { BufferKind::Data },
        continues: odd,
        partial_start: !odd,
        unchecked: odd,
        codec: if odd { Codec::Zstd } else { Codec::Plain },
    }
}

fn index_of(groups: Vec<IndexGroup>) -> Index {
    let ends = groups
        .iter()
        .flat_map(|group| &group.entries)
        .map(|one| one.at + u64::from(one.length));
    Index {
        job: JobId::new(7),
        partition: PartitionId {
            result: ResultId::new(8),
            index: 9,
            attempt: 1,
        },
        kind: PartitionKind {
            lifetime: Lifetime::Persistent,
            readiness: Readiness::Blocking,
            pressure: Pressure::Spilling,
        },
        is_broadcast: false,
        buffer_bytes: 16 << 20,
        subpartitions: 10,
        data_bytes: ends.max().unwrap_or(0),
        groups,
    }
}

fn indexes() -> impl Strategy<Value = Index> {
    let kind = any::<(bool, bool, bool)>().prop_map(|(lifetime, readiness, pressure)| PartitionKind {
        lifetime: if lifetime {
            Lifetime::Persistent
        } else {
            Lifetime::Ephemeral
        },
        readiness: if readiness {
            Readiness::Blocking
        } else {
            Readiness::Pipelined
        },
        pressure: if pressure {
            Pressure::Spilling
        } else {
            Pressure::Bounded
        },
    });
    let codec = prop::sample::select(vec![Codec::Plain, Codec::Lz4, Codec::Zstd]);
    let entry = (
        0..u64::MAX - u64::from(u32::MAX),
        0..=BUFFER_BYTES,
        any::<[u32; 2]>(),
        any::<[bool; 4]>(),
        codec,
    )
        .prop_map(
            |(at, length, [checksum, records], [event, continues, partial_start, unchecked], codec)| IndexEntry {
                at,
                length,
                checksum,
                records,
                kind: if event { BufferKind::Event } else { BufferKind::Data },
                continues,
                partial_start,
                unchecked,
                codec,
            },
        );
    let groups = prop::collection::btree_map(0..3000_u32, prop::collection::vec(entry, 1..40), 0..30);
    (any::<(u64, u64, u32, u32)>(), kind, groups).prop_map(|((job, result, index, attempt), kind, groups)| Index {
        job: JobId::new(job),
        partition: PartitionId {
            result: ResultId::new(result),
            index,
            attempt,
        },
        kind,
        is_broadcast: job % 2 == 1,
        buffer_bytes: BUFFER_BYTES,
        subpartitions: 3000,
        data_bytes: u64::MAX,
        groups: groups
            .into_iter()
            .map(|(subpartition, entries)| IndexGroup { subpartition, entries })
            .collect(),
    })
}
