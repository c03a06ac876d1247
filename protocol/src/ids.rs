//! Identity. None of these is ever a bare integer outside its own encoding, so a subpartition cannot be taken for a
//! stream, nor an attempt for a partition.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{ErrorKind, Result, ShuffleError};
use crate::limits::{MAX_NODE_BYTES, MAX_SUBPARTITIONS};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name($inner);

        impl $name {
            /// Wraps the number.
            pub const fn new(value: $inner) -> Self {
                Self(value)
            }

            /// The number.
            pub const fn value(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

id! {
    /// One job of the engine. A session of an executor is bound to one.
    JobId(u64)
}
id! {
    /// One intermediate result: the output of one stage, within a job.
    ResultId(u64)
}
id! {
    /// A set of stages that is admitted, completed and failed as one, within a job.
    GroupId(u64)
}
id! {
    /// One channel on one connection. In the two directions in which an entry speaks of a writer it holds the
    /// [`WriterId`] instead.
    StreamId(u32)
}
id! {
    /// One open writer of an executor, unique in its session.
    WriterId(u32)
}
id! {
    /// One open gate of an executor, unique in its session.
    GateId(u32)
}
id! {
    /// One queue of a result partition.
    SubpartitionIndex(u32)
}
id! {
    /// Place of a buffer or end marker in its channel, from 0, without gaps.
    Sequence(u64)
}
id! {
    /// One life of a server process: a random number chosen at its start.
    Incarnation(u64)
}
id! {
    /// How many connections were made before this one, for a pair of nodes and a stripe.
    Generation(u32)
}
id! {
    /// Number of a request in its session; its reply carries the same.
    RequestId(u64)
}

impl Sequence {
    /// The first of every channel.
    pub const ZERO: Self = Self(0);

    /// The one after this, or `None` at the end of 64 bits.
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_add(1) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }
}

impl From<WriterId> for StreamId {
    fn from(writer: WriterId) -> Self {
        Self(writer.0)
    }
}

impl From<StreamId> for WriterId {
    fn from(stream: StreamId) -> Self {
        Self(stream.0)
    }
}

/// What one execution of one producer task writes: a result partition and its attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PartitionId {
    /// The intermediate result it belongs to.
    pub result: ResultId,
    /// Which producer task.
    pub index: u32,
    /// Which execution of that task; a higher one fences all lower ones.
    pub attempt: u32,
}

/// A result partition without its attempt: what attempts compete for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PartitionKey {
    /// The intermediate result it belongs to.
    pub result: ResultId,
    /// Which producer task.
    pub index: u32,
}

impl PartitionId {
    /// The partition without its attempt.
    pub const fn key(self) -> PartitionKey {
        PartitionKey {
            result: self.result,
            index: self.index,
        }
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}#{}", self.result, self.index, self.attempt)
    }
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.result, self.index)
    }
}

/// Subpartitions `first .. first + count` of one partition: never beyond [`MAX_SUBPARTITIONS`] once
/// [`SubpartitionRange::new`] made it. An empty one is all of a partition without subpartitions; a channel on the wire
/// always has at least one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubpartitionRange {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl SubpartitionRange {
    /// Subpartitions `first .. first + count`.
    ///
    /// # Errors
    /// `InvalidRequest` if the range ends beyond [`MAX_SUBPARTITIONS`].
    pub fn new(first: u32, count: u32) -> Result<Self> {
        let end = first.checked_add(count);
        if end.is_none_or(|end| end > MAX_SUBPARTITIONS) {
            return Err(ShuffleError::new(
                ErrorKind::InvalidRequest,
                format!("{count} subpartitions from {first} on are not a range within 0 .. {MAX_SUBPARTITIONS}"),
            ));
        }
        Ok(Self { first, count })
    }

    /// One subpartition.
    ///
    /// # Errors
    /// `InvalidRequest` if it lies beyond [`MAX_SUBPARTITIONS`].
    pub fn one(index: SubpartitionIndex) -> Result<Self> {
        Self::new(index.value(), 1)
    }

    /// Whether the subpartition is one of these.
    pub fn contains(&self, index: SubpartitionIndex) -> bool {
        index
            .value()
            .checked_sub(self.first)
            .is_some_and(|offset| offset < self.count)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = SubpartitionIndex> + use<> {
        (self.first..self.first.saturating_add(self.count)).map(SubpartitionIndex::new)
    }
}

impl fmt::Display for SubpartitionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "{}", self.first),
            _ => write!(f, "{}..{}", self.first, self.first.saturating_add(self.count)),
        }
    }
}

/// Where a node's server serves other nodes: "host:port", in one spelling, so that equal nodes compare equal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeAddress(Arc<str>);

impl NodeAddress {
    /// Reads "host:port". The host is a name, an IPv4 address or an IPv6 address in brackets.
    ///
    /// # Errors
    /// `InvalidRequest` if the text is longer than [`MAX_NODE_BYTES`], the host is empty or holds anything but
    /// letters, digits and `.-_` (in brackets also `:` and `%`), or the port is not 1 to 65535 in plain digits.
    pub fn parse(text: &str) -> Result<Self> {
        match address_defect(text) {
            None => Ok(Self(text.into())),
            Some(defect) => {
                let shown: String = text.chars().take(64).collect();
                Err(ShuffleError::new(
                    ErrorKind::InvalidRequest,
                    format!("{shown:?} is not a node address \"host:port\": {defect}"),
                ))
            }
        }
    }

    /// The address as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeAddress({})", self.0)
    }
}

impl FromStr for NodeAddress {
    type Err = ShuffleError;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

fn address_defect(text: &str) -> Option<&'static str> {
    if text.len() > MAX_NODE_BYTES as usize {
        return Some("it is longer than 255 bytes");
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Some("it has no port");
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let host_is_good = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => !inner.is_empty() && inner.bytes().all(|b| plain(b) || matches!(b, b':' | b'%')),
        None => !host.is_empty() && host.bytes().all(plain),
    };
    if !host_is_good {
        return Some("the host is empty or holds a character that no host name has");
    }
    let port_is_good =
        port.bytes().all(|b| b.is_ascii_digit()) && !port.starts_with('0') && port.parse::<u16>().is_ok();
    (!port_is_good).then_some("the port is not a number from 1 to 65535")
}
