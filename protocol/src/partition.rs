//! The three choices of a result partition, the statistics of a subpartition, and membership in a group.

use std::fmt;

use crate::error::{ErrorKind, Result, ShuffleError};
use crate::ids::{GroupId, NodeAddress};

/// How long data lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lifetime {
    /// Each buffer is gone once consumed.
    Ephemeral,
    /// Kept and re-readable until released or expired.
    Persistent,
}

/// When data can be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Readiness {
    /// From the first buffer on.
    Pipelined,
    /// Once the partition is finished.
    Blocking,
}

/// What happens when the pool is full.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pressure {
    /// The producer waits.
    Bounded,
    /// Overflow goes to disk and the producer goes on.
    Spilling,
}

/// The three independent choices of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PartitionKind {
    /// How long data lives.
    pub lifetime: Lifetime,
    /// When data can be read.
    pub readiness: Readiness,
    /// What happens when the pool is full.
    pub pressure: Pressure,
}

impl PartitionKind {
    /// Ephemeral, pipelined, bounded.
    pub const PIPELINE: Self = Self {
        lifetime: Lifetime::Ephemeral,
        readiness: Readiness::Pipelined,
        pressure: Pressure::Bounded,
    };

    /// Whether a partition of this kind can be created.
    ///
    /// # Errors
    /// `InvalidRequest` for blocking and bounded, which would wait for a reader that may not come before the end.
    pub fn validate(self) -> Result<()> {
        if self.readiness == Readiness::Blocking && self.pressure == Pressure::Bounded {
            return Err(ShuffleError::new(
                ErrorKind::InvalidRequest,
                "a partition that is blocking and bounded would fill the pool and wait for a reader that comes \
                 only after the end: choose spilling, or pipelined",
            ));
        }
        Ok(())
    }

    /// Whether its data may lie on a disk: what is kept always has a copy there, what spills may have.
    pub fn may_use_disk(self) -> bool {
        self.lifetime == Lifetime::Persistent || self.pressure == Pressure::Spilling
    }

    /// All eight combinations.
    pub fn all() -> impl Iterator<Item = Self> {
        let lifetimes = [Lifetime::Ephemeral, Lifetime::Persistent];
        lifetimes.into_iter().flat_map(|lifetime| {
            let readinesses = [Readiness::Pipelined, Readiness::Blocking];
            readinesses.into_iter().flat_map(move |readiness| {
                [Pressure::Bounded, Pressure::Spilling].map(|pressure| Self {
                    lifetime,
                    readiness,
                    pressure,
                })
            })
        })
    }
}

impl Default for PartitionKind {
    fn default() -> Self {
        Self::PIPELINE
    }
}

impl fmt::Display for PartitionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lifetime = match self.lifetime {
            Lifetime::Ephemeral => "ephemeral",
            Lifetime::Persistent => "persistent",
        };
        let readiness = match self.readiness {
            Readiness::Pipelined => "pipelined",
            Readiness::Blocking => "blocking",
        };
        let pressure = match self.pressure {
            Pressure::Bounded => "bounded",
            Pressure::Spilling => "spilling",
        };
        write!(f, "{lifetime}, {readiness} and {pressure}")
    }
}

/// What a buffer holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum BufferKind {
    /// Records.
    #[default]
    Data,
    /// A user event, or a part of one.
    Event,
}

/// How the payload of one buffer is packed. Length, checksum, counts of bytes and digest are of what travels, so nobody but
/// the reader unpacks it.
///
/// A packed payload is its length before packing, in 4 bytes, little-endian, and then the packed bytes: a block of LZ4
/// (without its own length), or one frame of Zstandard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Codec {
    /// As its writer filled it.
    #[default]
    Plain,
    /// A block of LZ4.
    Lz4,
    /// A frame of Zstandard.
    Zstd,
}

impl Codec {
    /// Its number on the wire and in the index of a data file.
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Plain => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// The codec of that number; `None` if there is none.
    pub const fn from_wire(codec: u16) -> Option<Self> {
        match codec {
            0 => Some(Self::Plain),
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Digest of the buffers of one subpartition, in order.
///
/// It folds the checksum that each buffer carries anyway, so it costs no pass over the payload:
/// `d' = fmix((rotl(d, 23) ^ (length << 32 | checksum)) * M + 1 + kind)` in wrapping 64-bit arithmetic, with
/// `M = 0x9E37_79B9_7F4A_7C15` and `fmix` the finisher of SplitMix64. No buffer at all is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Digest(u64);

impl Digest {
    /// Wraps a number, as it came over the wire.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number.
    pub const fn value(self) -> u64 {
        self.0
    }

    /// The digest with one more buffer behind the others.
    #[must_use]
    pub const fn mix(self, checksum: u32, length: u32, kind: BufferKind) -> Self {
        let kind = match kind {
            BufferKind::Data => 1,
            BufferKind::Event => 2,
        };
        let buffer = ((length as u64) << 32) | checksum as u64;
        let mut x = (self.0.rotate_left(23) ^ buffer)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(kind);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self(x ^ (x >> 31))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({:016x})", self.0)
    }
}

/// What went through one subpartition: counted by its writer, and again by its reader, who compares.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Totals {
    /// Buffers, data and event.
    pub buffers: u64,
    /// Records, counted where they start.
    pub records: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Digest over the buffers, in order.
    pub digest: Digest,
}

impl Totals {
    /// Counts one buffer of `length` bytes in which `records` records start.
    pub fn add_buffer(&mut self, length: u32, checksum: u32, records: u32, kind: BufferKind) {
        self.buffers += 1;
        self.records += u64::from(records);
        self.bytes += u64::from(length);
        self.digest = self.digest.mix(checksum, length, kind);
    }

    /// Compares what came with what `self`, the writer, says.
    ///
    /// # Errors
    /// `CountMismatch` that names the first number that differs.
    pub fn verify(&self, came: &Self) -> Result<()> {
        let pairs = [
            ("buffers", self.buffers, came.buffers),
            ("records", self.records, came.records),
            ("bytes", self.bytes, came.bytes),
            ("digest", self.digest.0, came.digest.0),
        ];
        match pairs.into_iter().find(|(_, expected, got)| expected != got) {
            None => Ok(()),
            Some((what, expected, got)) => Err(ShuffleError::new(
                ErrorKind::CountMismatch {
                    what: what.to_owned(),
                    expected,
                    got,
                },
                format!("the writer counted {self:?}, the reader {came:?}"),
            )),
        }
    }
}

/// Membership in a pipelined group.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct GroupRef {
    /// The group, within its job.
    pub id: GroupId,
    /// The node whose server decides which failure was first.
    pub home: NodeAddress,
    /// The nodes that are told of a failure.
    pub nodes: Vec<NodeAddress>,
}
