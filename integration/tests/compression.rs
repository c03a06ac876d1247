//! Buffers that are packed by their writer and unpacked by their reader, on both paths and in both layers.

use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::node::NodeOptions;
use integration::raw::random_bytes;
use integration::stamp::SOURCE;
use integration::wait::within;
use shuffle_client::{
    BufferOrEvent, Compression, FinishReport, Gate, GateSpec, PartitionSpec, RecordOrEvent, Session, Writer,
};
use shuffle_protocol::partition::{Lifetime, PartitionKind, Pressure};
use shuffle_protocol::{NodeAddress, PartitionId, ResultId, SubpartitionIndex, SubpartitionRange};

const LIMIT: Duration = Duration::from_secs(60);
const CHOICES: [Compression; 4] = [
    Compression::None,
    Compression::Lz4,
    Compression::Zstd { level: 1 },
    Compression::Zstd { level: 9 },
];

fn partition(index: u32) -> PartitionId {
    PartitionId {
        result: ResultId::new(SOURCE.result),
        index,
        attempt: 0,
    }
}

/// Text that repeats, with noise in every fifth record; from nothing to three buffers.
fn record(number: u32) -> Vec<u8> {
    let length = [0, 1, 63, 700, 5_000, 32 << 10, 100_000][usize::try_from(number).expect("small") % 7];
    if number.is_multiple_of(5) {
        return random_bytes(number.into(), length);
    }
    let text = b"zwei mal drei macht vier ".iter().cycle();
    text.skip(usize::try_from(number).expect("small"))
        .take(length)
        .copied()
        .collect()
}

const RECORDS: u32 = 70;

fn event() -> Vec<u8> {
    vec![7; 100_000]
}

async fn write(mut writer: Writer) -> FinishReport {
    for number in 0..RECORDS {
        let subpartition = SubpartitionIndex::new(0);
        writer.write_to(subpartition, &record(number)).await.expect("written");
        if number == RECORDS / 2 {
            writer.write_event(None, &event()).await.expect("an event");
        }
    }
    writer.finish().await.expect("finished")
}

async fn read_records(gate: &mut Gate) {
    let (mut next, mut events) = (0, 0);
    while let Some(item) = gate.next_record_or_event().await.expect("no error") {
        match item {
            RecordOrEvent::Record(got) => {
                assert!(got.bytes == record(next), "record {next}");
                next += 1;
            }
            RecordOrEvent::Event(got) => {
                assert!(
                    got.bytes == event() && next == RECORDS / 2 + 1,
                    "the event behind {next}"
                );
                events += 1;
            }
            _ => {}
        }
    }
    assert_eq!((next, events), (RECORDS, 1));
}

/// The layer of buffers gives what was filled: as many bytes as before packing.
async fn read_buffers(gate: &mut Gate) -> u64 {
    let mut bytes = 0;
    while let Some(item) = gate.next_buffer().await.expect("no error") {
        bytes += match item {
            BufferOrEvent::Buffer(buffer) => buffer.bytes.len(),
            BufferOrEvent::Event(event) => event.bytes.len(),
            _ => 0,
        };
    }
    u64::try_from(bytes).expect("fits")
}

async fn open(reader: &Session, node: Option<NodeAddress>, index: u32) -> Gate {
    let all = SubpartitionRange::new(0, 1).expect("one");
    let spec = GateSpec::new().channel(node, partition(index), all);
    reader.open_gate(spec).await.expect("a gate")
}

/// In memory alone; through memory and disk, read meanwhile; kept.
fn kinds() -> [PartitionKind; 3] {
    let spilling = PartitionKind {
        pressure: Pressure::Spilling,
        ..PartitionKind::PIPELINE
    };
    let kept = PartitionKind {
        lifetime: Lifetime::Persistent,
        ..spilling
    };
    [PartitionKind::PIPELINE, spilling, kept]
}

/// F19, too: what a reader looks at is not changed by what is spilled or packed beside it.
#[tokio::test]
async fn what_is_packed_comes_out_as_it_was_and_takes_less() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = NodeOptions::new().flag("storage-directories", folder.path().display());
    let cluster = Cluster::start(binaries!(), [disk, NodeOptions::new()]).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let remote = Some(cluster.node(0).address().clone());
    let mut index = 0;
    for (reader, node) in [(&producer, None), (&consumer, remote)] {
        let ways = kinds()
            .into_iter()
            .flat_map(|kind| CHOICES.map(|compression| (kind, compression)));
        for (kind, compression) in ways {
            for by_records in [true, false] {
                index += 1;
                let what = format!("{kind}, {compression:?}, from {node:?}, by records: {by_records}");
                let spec = PartitionSpec::new(partition(index), 1)
                    .compression(compression)
                    .kind(kind);
                let spec = spec.buffers(2, 4);
                let writer = producer.create_partition(spec).await.expect("created");
                let mut gate = open(reader, node.clone(), index).await;
                let read = async {
                    match by_records {
                        true => read_records(&mut gate).await,
                        false => assert_eq!(read_buffers(&mut gate).await, gate.stats().unpacked_bytes, "{what}"),
                    }
                };
                let (report, ()) = within(LIMIT, &what, async { tokio::join!(write(writer), read) }).await;
                let stats = gate.stats();
                assert_eq!(stats.local_bytes + stats.remote_bytes, report.bytes(), "{what}");
                assert_eq!(stats.unpacked_bytes, report.unpacked_bytes, "{what}");
                match compression {
                    Compression::None => assert_eq!(report.bytes(), report.unpacked_bytes, "{what}"),
                    _ => assert!(
                        report.bytes() < report.unpacked_bytes / 2,
                        "{what}: {} of {} bytes",
                        report.bytes(),
                        report.unpacked_bytes
                    ),
                }
            }
        }
    }
    let spec = PartitionSpec::new(partition(index + 1), 1).compression(Compression::Zstd { level: 99 });
    let error = producer.create_partition(spec).await.expect_err("no such level");
    assert!(error.to_string().contains("level 99"), "{error}");
    drop((producer, consumer));
    cluster.shut_down().await;
}
