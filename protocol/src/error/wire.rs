//! Errors on the wire: code, details as numbers and texts, and a bounded chain of causes.

use std::time::Duration;

use super::kind::{ErrorKind, Initiator};
use super::location::Location;
use super::shuffle_error::ShuffleError;
use super::verdict::Verdict;
use crate::control;
use crate::ids::{JobId, NodeAddress, StreamId, SubpartitionIndex};
use crate::limits::{MAX_ERROR_DEPTH, MAX_ERROR_TEXT_BYTES};

impl From<&ShuffleError> for control::Error {
    /// Encodes the error with its causes. Texts are cut at [`MAX_ERROR_TEXT_BYTES`]; of more than
    /// [`MAX_ERROR_DEPTH`] causes the first one is kept and the ones before it are left out.
    fn from(error: &ShuffleError) -> Self {
        let chain: Vec<_> = std::iter::successors(Some(error), |error| error.cause()).collect();
        kept(chain)
            .into_iter()
            .rev()
            .fold(None, |cause, error| Some(encode_one(error, cause)))
            .expect("invariant: a chain holds at least the error itself")
    }
}

impl From<ShuffleError> for control::Error {
    fn from(error: ShuffleError) -> Self {
        Self::from(&error)
    }
}

impl From<control::Error> for ShuffleError {
    /// Decodes an error. A code that this version does not know becomes [`ErrorKind::Protocol`] with the code and the
    /// message; a location it cannot read is left out: an error that came is passed on in any case.
    fn from(mut error: control::Error) -> Self {
        let mut chain = Vec::new();
        loop {
            let cause = error.cause.take();
            chain.push(error);
            match cause {
                Some(cause) => error = *cause,
                None => break,
            }
        }
        kept(chain)
            .into_iter()
            .rev()
            .fold(None, |cause, error| Some(decode_one(error, cause)))
            .expect("invariant: a chain holds at least the error itself")
    }
}

/// The outermost errors of a chain and its last, at most [`MAX_ERROR_DEPTH`].
fn kept<T>(mut chain: Vec<T>) -> Vec<T> {
    let most = MAX_ERROR_DEPTH as usize;
    if chain.len() > most {
        chain.drain(most - 1..chain.len() - 1);
    }
    chain
}

fn encode_one(error: &ShuffleError, cause: Option<control::Error>) -> control::Error {
    let (numbers, texts) = details(error.kind());
    control::Error {
        code: error.kind().code(),
        initiator: control::Initiator::from(error.initiator()).into(),
        retryable: error.is_retryable(),
        location: (!error.location().is_empty()).then(|| error.location().into()),
        message: cut(error.message()),
        numbers,
        texts,
        cause: cause.map(Box::new),
    }
}

fn decode_one(error: control::Error, cause: Option<ShuffleError>) -> ShuffleError {
    let initiator = Initiator::try_from(error.initiator()).ok();
    let message = cut(&error.message);
    let decoded = match kind(error.code, &error.numbers, &error.texts) {
        Some(kind) => ShuffleError::new(kind, message),
        None => ShuffleError::new(
            ErrorKind::Protocol,
            format!(
                "an error of code {}, which this version cannot read: {message}",
                error.code
            ),
        ),
    };
    let initiator = initiator.unwrap_or(decoded.initiator());
    let decoded = decoded
        .by(initiator)
        .retryable(error.retryable)
        .at(error.location.map(Location::from).unwrap_or_default());
    match cause {
        Some(cause) => decoded.because(cause),
        None => decoded,
    }
}

/// The details of a kind, in the order that [`kind`] reads.
fn details(kind: &ErrorKind) -> (Vec<u64>, Vec<String>) {
    let pair = |(min, max): (u32, u32)| [u64::from(min), u64::from(max)];
    match kind {
        ErrorKind::NotRegistered { waited } => (vec![millis(*waited)], vec![]),
        ErrorKind::Superseded { by_attempt } => (vec![u64::from(*by_attempt)], vec![]),
        ErrorKind::PeerLost { silent_for } => (vec![millis(*silent_for)], vec![]),
        ErrorKind::InsufficientBuffers {
            need,
            available,
            total,
            holders,
        } => (
            [need, available, total].map(|n| u64::from(*n)).to_vec(),
            vec![cut(holders)],
        ),
        ErrorKind::RecordTooLarge { bytes, max_bytes } => (vec![*bytes, *max_bytes], vec![]),
        ErrorKind::VersionMismatch { ours, theirs } => ([pair(*ours), pair(*theirs)].concat(), vec![]),
        ErrorKind::ConfigMismatch { what, ours, theirs } => {
            (vec![], [what, ours, theirs].map(|text| cut(text)).to_vec())
        }
        ErrorKind::CountMismatch { what, expected, got } => (vec![*expected, *got], vec![cut(what)]),
        ErrorKind::ChecksumMismatch {
            expected,
            got,
            sequence,
            verdict,
        } => {
            let (expected, got, verdict) = (u64::from(*expected), u64::from(*got), u64::from(verdict.code()));
            (vec![expected, got, *sequence, verdict], vec![])
        }
        ErrorKind::TimedOut { what, after } => (vec![millis(*after)], vec![cut(what)]),
        ErrorKind::LimitExceeded { what, limit, asked } => (vec![*limit, *asked], vec![cut(what)]),
        ErrorKind::NoSpace { needed, free } => (vec![*needed, *free], vec![]),
        ErrorKind::Unknown
        | ErrorKind::DataLost
        | ErrorKind::Released
        | ErrorKind::Expired
        | ErrorKind::PartitionFailed
        | ErrorKind::Aborted
        | ErrorKind::ExecutorDied
        | ErrorKind::PeerRestarted
        | ErrorKind::Protocol
        | ErrorKind::Denied
        | ErrorKind::AlreadyExists
        | ErrorKind::InvalidRequest
        | ErrorKind::Cancelled
        | ErrorKind::Draining
        | ErrorKind::Unsupported
        | ErrorKind::GroupFailed
        | ErrorKind::ConnectionLost
        | ErrorKind::Io
        | ErrorKind::SessionClosed
        | ErrorKind::NodeUnreachable => (vec![], vec![]),
    }
}

/// The kind of a code with its details; `None` if the code is not known or the details are not what it has.
fn kind(code: u32, numbers: &[u64], texts: &[String]) -> Option<ErrorKind> {
    let number = |i: usize| numbers.get(i).copied();
    let small = |i: usize| number(i).and_then(|n| u32::try_from(n).ok());
    let text = |i: usize| texts.get(i).map(|text| cut(text));
    Some(match code {
        1 => ErrorKind::NotRegistered {
            waited: Duration::from_millis(number(0)?),
        },
        2 => ErrorKind::Unknown,
        3 => ErrorKind::Released,
        4 => ErrorKind::Expired,
        5 => ErrorKind::Superseded { by_attempt: small(0)? },
        6 => ErrorKind::PartitionFailed,
        7 => ErrorKind::Aborted,
        8 => ErrorKind::ExecutorDied,
        9 => ErrorKind::PeerLost {
            silent_for: Duration::from_millis(number(0)?),
        },
        10 => ErrorKind::PeerRestarted,
        11 => ErrorKind::InsufficientBuffers {
            need: small(0)?,
            available: small(1)?,
            total: small(2)?,
            holders: text(0)?,
        },
        12 => ErrorKind::RecordTooLarge {
            bytes: number(0)?,
            max_bytes: number(1)?,
        },
        13 => ErrorKind::Protocol,
        14 => ErrorKind::VersionMismatch {
            ours: (small(0)?, small(1)?),
            theirs: (small(2)?, small(3)?),
        },
        15 => ErrorKind::ConfigMismatch {
            what: text(0)?,
            ours: text(1)?,
            theirs: text(2)?,
        },
        16 => ErrorKind::Denied,
        17 => ErrorKind::AlreadyExists,
        18 => ErrorKind::InvalidRequest,
        19 => ErrorKind::CountMismatch {
            what: text(0)?,
            expected: number(0)?,
            got: number(1)?,
        },
        20 => ErrorKind::ChecksumMismatch {
            expected: small(0)?,
            got: small(1)?,
            sequence: number(2).unwrap_or(0),
            verdict: small(3).and_then(Verdict::from_code).unwrap_or(Verdict::Untraced),
        },
        21 => ErrorKind::Cancelled,
        22 => ErrorKind::Draining,
        23 => ErrorKind::TimedOut {
            what: text(0)?,
            after: Duration::from_millis(number(0)?),
        },
        24 => ErrorKind::Unsupported,
        25 => ErrorKind::GroupFailed,
        26 => ErrorKind::ConnectionLost,
        27 => ErrorKind::Io,
        28 => ErrorKind::LimitExceeded {
            what: text(0)?,
            limit: number(0)?,
            asked: number(1)?,
        },
        29 => ErrorKind::SessionClosed,
        30 => ErrorKind::NodeUnreachable,
        31 => ErrorKind::NoSpace {
            needed: number(0)?,
            free: number(1)?,
        },
        32 => ErrorKind::DataLost,
        _ => return None,
    })
}

impl From<Initiator> for control::Initiator {
    fn from(initiator: Initiator) -> Self {
        match initiator {
            Initiator::Caller => Self::Caller,
            Initiator::Peer => Self::Peer,
            Initiator::Network => Self::Network,
            Initiator::Disk => Self::Disk,
            Initiator::Own => Self::Self_,
        }
    }
}

impl TryFrom<control::Initiator> for Initiator {
    type Error = ();

    fn try_from(initiator: control::Initiator) -> Result<Self, ()> {
        match initiator {
            control::Initiator::Unspecified => Err(()),
            control::Initiator::Caller => Ok(Self::Caller),
            control::Initiator::Peer => Ok(Self::Peer),
            control::Initiator::Network => Ok(Self::Network),
            control::Initiator::Disk => Ok(Self::Disk),
            control::Initiator::Self_ => Ok(Self::Own),
        }
    }
}

impl From<&Location> for control::Location {
    fn from(location: &Location) -> Self {
        Self {
            job: location.job.map(JobId::value),
            partition: location.partition.map(Into::into),
            subpartition: location.subpartition.map(SubpartitionIndex::value),
            node: location.node.as_ref().map(ToString::to_string),
            path: location.path.as_deref().map(cut),
            stream: location.stream.map(StreamId::value),
        }
    }
}

impl From<control::Location> for Location {
    fn from(location: control::Location) -> Self {
        Self {
            job: location.job.map(JobId::new),
            partition: location.partition.map(Into::into),
            subpartition: location.subpartition.map(SubpartitionIndex::new),
            node: location.node.and_then(|node| NodeAddress::parse(&node).ok()),
            path: location.path.as_deref().map(cut),
            stream: location.stream.map(StreamId::new),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// At most [`MAX_ERROR_TEXT_BYTES`] of a text, at the border of a character.
fn cut(text: &str) -> String {
    let mut end = text.len().min(MAX_ERROR_TEXT_BYTES as usize);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
