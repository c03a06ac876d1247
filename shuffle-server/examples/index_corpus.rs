//! Writes the seeds of the fuzz corpus of the index. To be run again when its format changes.
#![forbid(unsafe_code)]

use std::path::Path;
use std::{fs, io};

use shuffle_protocol::partition::{BufferKind, Codec, PartitionKind};
use shuffle_protocol::{JobId, PartitionId, ResultId};
use shuffle_server::spill::{Index, IndexEntry, IndexGroup};

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/index");
    fs::create_dir_all(&folder)?;
    let whole = index(600, 3).encode();
    for (name, bytes) in [
        ("empty", &index(0, 0).encode()[..]),
        ("few", &index(2, 1).encode()),
        ("blocks", &whole),
        ("cut", &whole[..whole.len() - 1]),
        ("other-magic", b"SHUFIDX1"),
    ] {
        fs::write(folder.join(format!("seed-{name}")), bytes)?;
    }
    Ok(())
}

fn index(buffers: u32, subpartitions: u32) -> Index {
    let entry = |at: u32| IndexEntry {
        at: u64::from(at) * 4096,
        length: 4096 - at,
        checksum: at,
        records: 1,
        kind: if at.is_multiple_of(7) {
            BufferKind::Event
        } else {
            BufferKind::Data
        },
        continues: at.is_multiple_of(2),
        partial_start: at.is_multiple_of(3),
        unchecked: at.is_multiple_of(5),
        codec: if at.is_multiple_of(4) { Codec::Lz4 } else { Codec::Plain },
    };
    let group = |subpartition: u32| IndexGroup {
        subpartition,
        entries: (0..buffers).map(entry).collect(),
    };
    Index {
        job: JobId::new(1),
        partition: PartitionId {
            result: ResultId::new(2),
            index: 3,
            attempt: 4,
        },
        kind: PartitionKind::PIPELINE,
        is_broadcast: false,
        buffer_bytes: 4096,
        subpartitions,
        data_bytes: u64::from(buffers) * 4096,
        groups: (0..subpartitions).map(group).collect(),
    }
}
