//! Errors across the wire, and in words.

use std::time::Duration;

use proptest::prelude::*;
use shuffle_protocol::control;
use shuffle_protocol::error::{ErrorKind, Initiator, Location, ShuffleError, Verdict};
use shuffle_protocol::ids::{JobId, NodeAddress, PartitionId, ResultId, StreamId, SubpartitionIndex};
use shuffle_protocol::limits::{MAX_ERROR_DEPTH, MAX_ERROR_TEXT_BYTES};

fn across(error: &ShuffleError) -> ShuffleError {
    ShuffleError::from(control::Error::from(error))
}

fn kinds() -> impl Strategy<Value = ErrorKind> {
    let plain = prop::sample::select(vec![
        ErrorKind::Unknown,
        ErrorKind::Released,
        ErrorKind::Expired,
        ErrorKind::PartitionFailed,
        ErrorKind::Aborted,
        ErrorKind::ExecutorDied,
        ErrorKind::PeerRestarted,
        ErrorKind::Protocol,
        ErrorKind::Denied,
        ErrorKind::AlreadyExists,
        ErrorKind::InvalidRequest,
        ErrorKind::Cancelled,
        ErrorKind::Draining,
        ErrorKind::Unsupported,
        ErrorKind::GroupFailed,
        ErrorKind::ConnectionLost,
        ErrorKind::Io,
        ErrorKind::SessionClosed,
        ErrorKind::NodeUnreachable,
    ]);
    let millis = || any::<u64>().prop_map(Duration::from_millis);
    let text = || "\\PC{0,40}";
    let with_time = (0..3u8, millis(), text()).prop_map(|(kind, time, what)| match kind {
        0 => ErrorKind::NotRegistered { waited: time },
        1 => ErrorKind::PeerLost { silent_for: time },
        _ => ErrorKind::TimedOut { what, after: time },
    });
    let with_numbers = (0..4u8, any::<(u64, u64)>(), text()).prop_map(|(kind, (a, b), what)| match kind {
        0 => ErrorKind::RecordTooLarge { bytes: a, max_bytes: b },
        1 => ErrorKind::CountMismatch {
            what,
            expected: a,
            got: b,
        },
        2 => ErrorKind::NoSpace { needed: a, free: b },
        _ => ErrorKind::LimitExceeded {
            what,
            limit: a,
            asked: b,
        },
    });
    let with_small = (0..4u8, any::<[u32; 4]>(), text()).prop_map(|(kind, [a, b, c, d], text)| match kind {
        0 => ErrorKind::Superseded { by_attempt: a },
        1 => ErrorKind::ChecksumMismatch {
            expected: a,
            got: b,
            sequence: c.into(),
            verdict: Verdict::ALL[d as usize % Verdict::ALL.len()],
        },
        2 => ErrorKind::VersionMismatch {
            ours: (a, b),
            theirs: (c, d),
        },
        _ => ErrorKind::InsufficientBuffers {
            need: a,
            available: b,
            total: c,
            holders: text,
        },
    });
    let with_texts =
        [text(), text(), text()].prop_map(|[what, ours, theirs]| ErrorKind::ConfigMismatch { what, ours, theirs });
    prop_oneof![plain, with_time, with_numbers, with_small, with_texts]
}

fn locations() -> impl Strategy<Value = Location> {
    let partition = any::<Option<(u64, u32, u32)>>();
    let numbers = any::<(Option<u64>, Option<u32>, Option<u32>)>();
    let texts = (
        prop::option::of("[a-z]{1,9}:[1-9][0-9]{0,3}"),
        prop::option::of("\\PC{0,40}"),
    );
    (partition, numbers, texts).prop_map(|(partition, (job, subpartition, stream), texts)| Location {
        job: job.map(JobId::new),
        partition: partition.map(|(result, index, attempt)| PartitionId {
            result: ResultId::new(result),
            index,
            attempt,
        }),
        subpartition: subpartition.map(SubpartitionIndex::new),
        node: texts.0.map(|node| NodeAddress::parse(&node).expect("a good address")),
        path: texts.1,
        stream: stream.map(StreamId::new),
    })
}

fn errors() -> impl Strategy<Value = ShuffleError> {
    let initiator = prop::sample::select(vec![
        Initiator::Caller,
        Initiator::Peer,
        Initiator::Network,
        Initiator::Disk,
        Initiator::Own,
    ]);
    (kinds(), "\\PC{0,60}", initiator, any::<bool>(), locations()).prop_map(
        |(kind, message, initiator, retryable, location)| {
            ShuffleError::new(kind, message)
                .by(initiator)
                .retryable(retryable)
                .at(location)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// F127: the type survives, with every detail and every cause.
    #[test]
    fn errors_come_back_as_they_went(chain in prop::collection::vec(errors(), 1..9)) {
        let error = chain.into_iter().rev().reduce(|cause, error| error.because(cause)).unwrap();
        prop_assert_eq!(across(&error), error);
    }

    #[test]
    fn anything_decodes(
        code: u32, initiator: i32, retryable: bool, message: String,
        numbers in prop::collection::vec(any::<u64>(), 0..6), texts: Vec<String>,
    ) {
        let wire = control::Error {
            code: code % 40, initiator, retryable, message, numbers, texts, ..control::Error::default()
        };
        let error = ShuffleError::from(wire);
        prop_assert_eq!(across(&error), error);
    }
}

fn chain(length: u32) -> ShuffleError {
    (0..length)
        .map(|n| ShuffleError::new(ErrorKind::Superseded { by_attempt: n }, format!("error {n}")))
        .reduce(|cause, error| error.because(cause))
        .expect("at least one")
}

#[test]
fn of_a_long_chain_the_first_cause_is_kept() {
    for length in [MAX_ERROR_DEPTH, MAX_ERROR_DEPTH + 1, 1000] {
        let error = chain(length);
        let came = across(&error);
        let depth = std::iter::successors(Some(&came), |error| error.cause()).count();
        assert_eq!(depth, usize::try_from(MAX_ERROR_DEPTH).unwrap());
        assert_eq!(came.kind(), error.kind());
        assert_eq!(came.first_cause(), error.first_cause());
        assert_eq!(came.first_cause().message(), "error 0");
    }
}

#[test]
fn a_very_long_chain_is_dropped_without_a_deep_stack() {
    let mut error = ShuffleError::new(ErrorKind::Unknown, "");
    for _ in 0..200_000 {
        error = ShuffleError::new(ErrorKind::Unknown, "").because(error);
    }
    drop(error);
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let long = "ü".repeat(5000);
    let error = ShuffleError::new(
        ErrorKind::TimedOut {
            what: format!("x{long}"),
            after: Duration::from_secs(1),
        },
        long,
    );
    let came = across(&error);
    let limit = usize::try_from(MAX_ERROR_TEXT_BYTES).unwrap();
    assert_eq!(came.message().len(), limit);
    let ErrorKind::TimedOut { what, .. } = came.kind() else {
        panic!("{came:?}")
    };
    assert_eq!(what.len(), limit - 1);
}

#[test]
fn an_unknown_code_keeps_what_can_be_kept() {
    let came = ShuffleError::from(control::Error {
        code: 4711,
        initiator: control::Initiator::Disk.into(),
        retryable: true,
        message: "from the future".to_owned(),
        cause: Some(Box::new(control::Error::from(&ShuffleError::new(ErrorKind::Io, "EIO")))),
        ..control::Error::default()
    });
    assert_eq!(came.kind(), &ErrorKind::Protocol);
    assert!(came.message().contains("4711") && came.message().contains("from the future"));
    assert_eq!((came.initiator(), came.is_retryable()), (Initiator::Disk, true));
    assert_eq!(came.first_cause().kind(), &ErrorKind::Io);
}

#[test]
fn in_words() {
    let partition = PartitionId {
        result: ResultId::new(7),
        index: 11,
        attempt: 5,
    };
    let error = ShuffleError::new(ErrorKind::PartitionFailed, "channel 2 of the gate")
        .subpartition(SubpartitionIndex::new(13))
        .partition(partition)
        .partition(PartitionId {
            attempt: 6,
            ..partition
        })
        .job(JobId::new(3))
        .because(ShuffleError::new(
            ErrorKind::InsufficientBuffers {
                need: 9,
                available: 4,
                total: 64,
                holders: "writer 1 of job 3: 60".to_owned(),
            },
            "",
        ));
    assert_eq!(
        error.to_string(),
        "the partition failed (job 3, partition 7/11#5, subpartition 13): channel 2 of the gate; first cause: need \
         9 buffers, 4 of 64 available, held by writer 1 of job 3: 60"
    );
}

/// The table of docs/protocol.md names every kind with its code.
#[test]
fn codes_are_documented() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/protocol.md");
    let page = std::fs::read_to_string(page).unwrap();
    for code in 1..=30 {
        let wire = control::Error {
            code,
            numbers: vec![0; 4],
            texts: vec![String::new(); 3],
            ..control::Error::default()
        };
        let error = ShuffleError::from(wire);
        assert_eq!(error.kind().code(), code);
        let debug = format!("{:?}", error.kind());
        let name = debug.split(' ').next().unwrap();
        let row = format!("| {code} | {name} |");
        let line = page.lines().find(|line| line.starts_with(&row));
        let line = line.unwrap_or_else(|| panic!("docs/protocol.md lacks {row}"));
        let initiator = match error.kind().initiator() {
            Initiator::Caller => "caller",
            Initiator::Peer => "peer",
            Initiator::Network => "network",
            Initiator::Disk => "disk",
            Initiator::Own => "own",
        };
        let retryable = if error.kind().is_retryable() { "yes " } else { "" };
        assert!(line.ends_with(&format!("| {initiator} | {retryable}|")), "{line}");
    }
}
