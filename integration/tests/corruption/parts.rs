//! What the tests of this folder share.

use std::time::Duration;

use integration::flip::Bit;
use integration::flow::{Edge, ReadError, read_all};
use integration::node::NodeOptions;
use integration::profile::{Profile, seed};
use integration::proxy::HEADER_BYTES;
use integration::raw::random_bytes;
use integration::stamp::{Lengths, Place, Source, partition};
use integration::wait::within;
use shuffle_client::{GateSpec, GateStats, PartitionSpec, Session};
use shuffle_protocol::error::{ErrorKind, Initiator, Verdict};
use shuffle_protocol::partition::{Lifetime, PartitionKind, Pressure, Readiness};
use shuffle_protocol::{JobId, NodeAddress, ShuffleError, SubpartitionIndex};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const BUFFER_BYTES: u32 = 4096;
/// Four of them, each with its length of 4 bytes before it, fill a buffer.
pub(crate) const RECORD_BYTES: usize = 1020;
pub(crate) const RECORDS: u64 = 20;
pub(crate) const BUFFERS: u64 = 5;
pub(crate) const KEPT: PartitionKind = PartitionKind {
    lifetime: Lifetime::Persistent,
    readiness: Readiness::Blocking,
    pressure: Pressure::Spilling,
};

/// Flips on one path.
pub(crate) fn flips() -> u32 {
    Profile::current().choose(25, 1000)
}

/// Numbers that follow from a seed.
pub(crate) struct Chance {
    seed: u64,
    drawn: u64,
}

impl Chance {
    pub(crate) fn new() -> Self {
        Self { seed: seed(), drawn: 0 }
    }

    pub(crate) fn below(&mut self, below: u64) -> u64 {
        self.drawn += 1;
        let bytes = random_bytes(self.seed ^ self.drawn, 8);
        u64::from_le_bytes(bytes.try_into().expect("eight bytes")) % below
    }

    pub(crate) fn bit(&mut self, bytes: u64) -> Bit {
        Bit {
            at: self.below(bytes),
            bit: u8::try_from(self.below(8)).expect("below 8"),
        }
    }
}

pub(crate) fn edge(source: Source, from: Option<NodeAddress>) -> Edge {
    Edge::new(from, source, RECORDS).lengths(Lengths::Fixed(RECORD_BYTES))
}

pub(crate) fn options() -> NodeOptions {
    NodeOptions::new().pool(64, BUFFER_BYTES)
}

/// Its own job in each test: all of them run in one process, whose memory is searched for a record.
pub(crate) fn source(job: u64, round: u32, attempt: usize) -> Source {
    Source {
        job,
        attempt: u32::try_from(attempt).expect("small"),
        ..partition(round)
    }
}

pub(crate) fn first_of(source: Source) -> Place {
    Place {
        source,
        subpartition: 0,
        sequence: 0,
    }
}

pub(crate) async fn finish(edge: &Edge, spec: PartitionSpec, session: &Session) {
    let written = async {
        let mut writer = session.create_partition(spec).await?;
        edge.write(&mut writer).await?;
        writer.finish().await
    };
    within(LIMIT, "writing", written).await.expect("finished");
}

/// Reads everything and judges it; what the gate counted.
pub(crate) async fn read(edge: &Edge, spec: GateSpec, session: &Session) -> (Result<(), ReadError>, GateStats) {
    let read = async {
        let mut gate = session.open_gate(spec).await.expect("a gate");
        let read = read_all(&mut gate, &[edge.source], &mut edge.oracle()).await;
        (read.map(drop), gate.stats())
    };
    within(LIMIT, "reading", read).await
}

/// The error says what was found, where, and with which checksums.
pub(crate) fn assert_verdict(
    error: &ShuffleError,
    wanted: Verdict,
    source: Source,
    node: &NodeAddress,
    buffer: Option<u64>,
) {
    let ErrorKind::ChecksumMismatch {
        expected,
        got,
        sequence,
        verdict,
    } = error.kind()
    else {
        panic!("{error}");
    };
    assert_eq!(*verdict, wanted, "{error}");
    assert_ne!(expected, got, "{error}");
    assert!(buffer.is_none_or(|buffer| buffer == *sequence), "{buffer:?}: {error}");
    let location = error.location();
    assert_eq!(location.job, Some(JobId::new(source.job)), "{error}");
    assert_eq!(location.partition, Some(source.partition_id()), "{error}");
    assert_eq!(location.subpartition, Some(SubpartitionIndex::new(0)), "{error}");
    assert_eq!(location.node.as_ref(), Some(node), "{error}");
    assert!(location.stream.is_some(), "{error}");
    let initiator = match wanted {
        Verdict::ProducerMemory => Initiator::Peer,
        Verdict::Disk => Initiator::Disk,
        Verdict::WireOrReceivingMemory | Verdict::Untraced => Initiator::Network,
    };
    assert_eq!(error.initiator(), initiator, "{error}");
}

pub(crate) async fn counter(session: &Session, name: &str) -> u64 {
    session.status().await.expect("a status")[name]
}

/// Where in its frame a byte of a payload is.
pub(crate) fn in_payload(chance: &mut Chance) -> u64 {
    let head = u64::try_from(HEADER_BYTES).expect("small") + 48;
    head + chance.below(BUFFER_BYTES.into())
}
