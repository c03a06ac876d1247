//! Identity, the three choices and the statistics of a partition.

use proptest::prelude::*;
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::ids::{PartitionId, ResultId, Sequence, SubpartitionIndex, SubpartitionRange};
use shuffle_protocol::limits::MAX_SUBPARTITIONS;
use shuffle_protocol::partition::{BufferKind, Digest, Lifetime, PartitionKind, Pressure, Readiness, Totals};

/// What other implementations must compute too, see docs/protocol.md.
#[test]
fn the_digest_is_what_is_documented() {
    let documented = |digest: u64, checksum: u64, length: u64, kind: u64| {
        let mut x = (digest.rotate_left(23) ^ (length << 32 | checksum))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(1 + kind);
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    };
    let mut digest = Digest::default();
    assert_eq!(digest.value(), 0);
    for (checksum, length, kind) in [
        (0, 0, BufferKind::Data),
        (0, 0, BufferKind::Event),
        (0xDEAD_BEEF, 32 << 10, BufferKind::Data),
    ] {
        let number = u64::from(kind == BufferKind::Event);
        let expected = documented(digest.value(), checksum.into(), length.into(), number);
        digest = digest.mix(checksum, length, kind);
        assert_eq!(digest.value(), expected);
    }
}

type Buffer = (u32, u32, bool);

fn totals(buffers: &[Buffer]) -> Totals {
    let mut totals = Totals::default();
    for (checksum, length, event) in buffers {
        let kind = if *event { BufferKind::Event } else { BufferKind::Data };
        totals.add_buffer(*length, *checksum, 1, kind);
    }
    totals
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// F07, F37: what is lost, repeated, exchanged or changed shows in the totals.
    #[test]
    fn totals_notice(
        buffers in prop::collection::vec((any::<u32>(), 1u32..100, any::<bool>()), 2..20),
        at: prop::sample::Index, how in 0u8..4,
    ) {
        let sent = totals(&buffers);
        prop_assert_eq!(sent.verify(&sent), Ok(()));
        let mut came = buffers.clone();
        let at = at.index(buffers.len() - 1);
        match how {
            0 => drop(came.remove(at)),
            1 => came.insert(at, came[at]),
            2 => came.swap(at, at + 1),
            _ => came[at].0 ^= 1,
        }
        let error = sent.verify(&totals(&came));
        prop_assert_eq!(error.is_ok(), came == buffers);
        if let Err(error) = error {
            let is_count = matches!(error.kind(), ErrorKind::CountMismatch { .. });
            prop_assert!(is_count);
        }
    }
}

#[test]
fn of_eight_kinds_six_are_served_and_two_make_no_sense() {
    let all: Vec<PartitionKind> = PartitionKind::all().collect();
    let different: std::collections::HashSet<_> = all.iter().collect();
    assert_eq!((all.len(), different.len()), (8, 8));
    for kind in all {
        let senseless = kind.readiness == Readiness::Blocking && kind.pressure == Pressure::Bounded;
        let refusal = kind.validate().err().map(|error| error.kind().clone());
        assert_eq!(refusal, senseless.then_some(ErrorKind::InvalidRequest), "{kind}");
        let in_memory_only = kind.lifetime == Lifetime::Ephemeral && kind.pressure == Pressure::Bounded;
        assert_eq!(kind.may_use_disk(), !in_memory_only, "{kind}");
    }
}

/// F98: ranges at the end of their type.
#[test]
fn ranges_are_never_endless_and_on_the_wire_never_empty() {
    for (first, count) in [
        (u32::MAX, 1),
        (1, u32::MAX),
        (MAX_SUBPARTITIONS, 1),
        (0, MAX_SUBPARTITIONS + 1),
    ] {
        assert!(SubpartitionRange::new(first, count).is_err(), "{first} {count}");
    }
    let empty = SubpartitionRange::new(0, 0).unwrap();
    assert_eq!(empty.iter().len(), 0);
    assert!(SubpartitionRange::try_from(shuffle_protocol::control::SubpartitionRange::from(empty)).is_err());
    let range = SubpartitionRange::new(MAX_SUBPARTITIONS - 2, 2).unwrap();
    assert_eq!(
        range.iter().map(SubpartitionIndex::value).collect::<Vec<_>>(),
        [131_070, 131_071]
    );
    assert!(!range.contains(SubpartitionIndex::new(131_069)));
    assert!(!range.contains(SubpartitionIndex::new(131_072)));
}

#[test]
fn sequences_end_and_attempts_compete_for_one_key() {
    assert_eq!(Sequence::ZERO.next(), Some(Sequence::new(1)));
    assert_eq!(Sequence::new(u64::MAX).next(), None);
    let id = |attempt| PartitionId {
        result: ResultId::new(7),
        index: 11,
        attempt,
    };
    assert_eq!(id(0).key(), id(5).key());
    assert_eq!(
        (id(5).to_string(), id(5).key().to_string()),
        ("7/11#5".into(), "7/11".into())
    );
}
