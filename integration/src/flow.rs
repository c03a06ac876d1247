//! Stamped data through a writer and out of a gate, in the test's own process.

use std::time::Duration;

use shuffle_client::{Gate, GateSpec, PartitionSpec, Session, Writer};
use shuffle_protocol::{NodeAddress, ShuffleError, SubpartitionIndex, SubpartitionRange};

use crate::oracle::{Counts, Oracle, Verdict};
use crate::script::kind_name;
use crate::stamp::{Lengths, Place, Source, fill};
use crate::wait::within;

/// Why reading ended before the end.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The service said so.
    #[error("the service answered: {0}")]
    Service(#[from] ShuffleError),
    /// The oracle did: data was lost, repeated, mixed up or changed.
    #[error("wrong data: {0}")]
    Wrong(#[from] Verdict),
}

impl ReadError {
    /// The service's error.
    ///
    /// # Panics
    /// If the data was wrong.
    #[must_use]
    pub fn into_service(self) -> ShuffleError {
        match self {
            Self::Service(error) => error,
            Self::Wrong(verdict) => panic!("wrong data: {verdict}"),
        }
    }
}

/// Writes records `from..to` of each subpartition, in turn.
///
/// # Errors
/// As the writer says; what was written before stays written.
pub async fn write_range(
    writer: &mut Writer,
    source: Source,
    subpartitions: u32,
    records: std::ops::Range<u64>,
    lengths: &Lengths,
) -> Result<Counts, ShuffleError> {
    let mut record = Vec::new();
    let mut counts = Counts::default();
    for sequence in records {
        for subpartition in 0..subpartitions {
            let place = Place {
                source,
                subpartition,
                sequence,
            };
            record.resize(lengths.of(place), 0);
            fill(&mut record, place);
            writer.write_to(SubpartitionIndex::new(subpartition), &record).await?;
            counts.records += 1;
            counts.bytes += u64::try_from(record.len()).unwrap_or(u64::MAX);
        }
    }
    Ok(counts)
}

/// Writes `records` records to each subpartition, in turn.
///
/// # Errors
/// As the writer says.
pub async fn write_all(
    writer: &mut Writer,
    source: Source,
    subpartitions: u32,
    records: u64,
    lengths: &Lengths,
) -> Result<Counts, ShuffleError> {
    write_range(writer, source, subpartitions, 0..records, lengths).await
}

/// Reads a gate to its end and judges every record. `sources[i]` is what channel `i` reads.
///
/// # Errors
/// As the gate or the oracle says.
pub async fn read_all(gate: &mut Gate, sources: &[Source], oracle: &mut Oracle) -> Result<Counts, ReadError> {
    while read_one(gate, sources, oracle).await? {}
    Ok(oracle.handle_end()?)
}

/// Reads and judges at most `records` records; true if there may be more.
///
/// # Errors
/// As the gate or the oracle says.
pub async fn read_some(
    gate: &mut Gate,
    sources: &[Source],
    oracle: &mut Oracle,
    records: u64,
) -> Result<bool, ReadError> {
    for _ in 0..records {
        if !read_one(gate, sources, oracle).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads on until the service says that something is wrong, and gives what it said.
///
/// # Panics
/// At an end: it would stand in place of the error.
pub async fn read_to_error(gate: &mut Gate) -> ShuffleError {
    loop {
        match gate.next_record().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("an end in place of an error"),
            Err(error) => return error,
        }
    }
}

async fn read_one(gate: &mut Gate, sources: &[Source], oracle: &mut Oracle) -> Result<bool, ReadError> {
    let Some(record) = gate.next_record().await? else {
        return Ok(false);
    };
    let source = sources[usize::try_from(record.channel).unwrap_or(usize::MAX)];
    oracle.handle_record(source, record.subpartition.value(), &record.bytes)?;
    Ok(true)
}

/// One producer, one gate, stamped data between them.
#[derive(Debug, Clone)]
pub struct Edge {
    /// What the gate calls the producing node; none for its own.
    pub from: Option<NodeAddress>,
    /// Partition.
    pub source: Source,
    /// Its subpartitions, all read by the one gate.
    pub subpartitions: u32,
    /// Records in each subpartition.
    pub records: u64,
    /// Their lengths.
    pub lengths: Lengths,
}

impl Edge {
    /// A partition with one subpartition of `records` records of 1000 bytes.
    #[must_use]
    pub fn new(from: Option<NodeAddress>, source: Source, records: u64) -> Self {
        Self {
            from,
            source,
            subpartitions: 1,
            records,
            lengths: Lengths::Fixed(1000),
        }
    }

    /// With so many subpartitions.
    #[must_use]
    pub fn subpartitions(mut self, subpartitions: u32) -> Self {
        self.subpartitions = subpartitions;
        self
    }

    /// With records of these lengths.
    #[must_use]
    pub fn lengths(mut self, lengths: Lengths) -> Self {
        self.lengths = lengths;
        self
    }

    /// What to create.
    #[must_use]
    pub fn partition(&self) -> PartitionSpec {
        PartitionSpec::new(self.source.partition_id(), self.subpartitions)
    }

    /// What to open to read all of it.
    #[must_use]
    pub fn gate(&self) -> GateSpec {
        let range = SubpartitionRange {
            first: 0,
            count: self.subpartitions,
        };
        GateSpec::new().channel(self.from.clone(), self.source.partition_id(), range)
    }

    /// What must come out of that gate.
    #[must_use]
    pub fn oracle(&self) -> Oracle {
        let mut oracle = Oracle::new(self.lengths.clone());
        for subpartition in 0..self.subpartitions {
            oracle.expect(self.source, subpartition, self.records);
        }
        oracle
    }

    /// Creates, writes and finishes it.
    ///
    /// # Errors
    /// As the service says.
    pub async fn produce(&self, session: &Session) -> Result<Counts, ShuffleError> {
        let mut writer = session.create_partition(self.partition()).await?;
        let counts = self.write(&mut writer).await?;
        writer.finish().await?;
        Ok(counts)
    }

    /// Writes all records.
    ///
    /// # Errors
    /// As the writer says.
    pub async fn write(&self, writer: &mut Writer) -> Result<Counts, ShuffleError> {
        write_all(writer, self.source, self.subpartitions, self.records, &self.lengths).await
    }

    /// Opens the gate and reads it to its end.
    ///
    /// # Errors
    /// As the service or the oracle says.
    pub async fn consume(&self, session: &Session) -> Result<Counts, ReadError> {
        let mut gate = session.open_gate(self.gate()).await?;
        read_all(&mut gate, &[self.source], &mut self.oracle()).await
    }

    /// Both at once; every record has arrived.
    ///
    /// # Panics
    /// If either side fails, or not everything arrives within `limit`.
    pub async fn run(&self, producer: &Session, consumer: &Session, limit: Duration) -> Counts {
        let counts = self.try_run(producer, consumer, limit).await;
        counts.expect("the producer finishes, and the consumer gets everything")
    }

    /// Both at once, until one of them fails.
    ///
    /// # Errors
    /// What the first of them says that fails.
    ///
    /// # Panics
    /// If neither fails and not everything arrives within `limit`.
    pub async fn try_run(&self, producer: &Session, consumer: &Session, limit: Duration) -> Result<Counts, ReadError> {
        let produce = async { Ok(self.produce(producer).await?) };
        let both = async { tokio::try_join!(produce, self.consume(consumer)) };
        let (produced, consumed) = within(limit, "one edge", both).await?;
        assert_eq!(produced, consumed);
        Ok(consumed)
    }
}

/// Names of the kinds of an error and of everything that led to it, the first cause last.
#[must_use]
pub fn kinds(error: &ShuffleError) -> Vec<String> {
    let chain = std::iter::successors(Some(error), |error| error.cause());
    chain.map(|error| kind_name(error.kind())).collect()
}
