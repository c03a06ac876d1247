//! What is written is what is read, however the kernel cuts it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use shuffle_protocol::error::{ErrorKind, Initiator};

use super::faulty::{Call, Faulty, Verdict};
use super::harness::{BUFFER, Disks, file, files, name, payload, piece, section_of};
use crate::spill::{DiskOp, Linux, StoreNo};

#[test]
fn a_run_is_written_read_and_stands_in_the_file_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disks = Disks::open(Linux, &section_of(folder.path())).expect("a store");
    let bytes = payload(3);
    disks.write(3, 0, &bytes).expect("written");
    disks.write(3, bytes.len() as u64, b"more").expect("written");
    let on_disk = std::fs::read(file(folder.path(), 3, "data")).expect("the file");
    assert_eq!(on_disk, [&bytes[..], b"more"].concat());
    assert_eq!(disks.read(3, 0, bytes.len()).expect("read"), bytes);
    assert_eq!(disks.read(3, 5000, 2000).expect("read"), bytes[5000..7000]);
    let counters = disks.store.counters();
    assert_eq!(
        (counters.bytes_written, counters.bytes_read),
        (on_disk.len() as u64, bytes.len() as u64 + 2000)
    );
    assert_eq!((counters.operations, counters.errors), (4, 0));
    assert_eq!(disks.store.used(), on_disk.len() as u64);
}

/// F10, F31: lengths that are no round numbers, and none at all.
#[test]
fn the_file_is_as_long_as_its_pieces() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disks = Disks::open(Linux, &section_of(folder.path())).expect("a store");
    let mut at = 0;
    for length in [0, 1, 7, 777, 4095, 4096] {
        disks.fill(0, &vec![u8::try_from(length % 256).expect("a byte"); 4096]);
        let pieces = vec![piece(0, 0, length), piece(0, 0, 0)];
        disks
            .run(DiskOp::Write {
                store: StoreNo(1),
                name: name(1),
                at,
                pieces,
            })
            .expect("written");
        at += u64::from(length);
    }
    let length = file(folder.path(), 1, "data").metadata().expect("the file").len();
    assert_eq!(length, at);
}

#[test]
fn pieces_of_one_buffer_may_lie_anywhere_in_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disks = Disks::open(Linux, &section_of(folder.path())).expect("a store");
    disks.write(1, 0, b"abcdefgh").expect("written");
    disks.fill(5, &[b'.'; 16]);
    disks.fill(6, &[b'.'; 4]);
    let pieces = vec![piece(5, 8, 3), piece(6, 0, 2), piece(5, 0, 1), piece(5, 2, 2)];
    disks
        .run(DiskOp::Read {
            store: StoreNo(1),
            at: 0,
            pieces,
        })
        .expect("read");
    assert_eq!(disks.look(5, 16), b"f.gh....abc.....");
    assert_eq!(disks.look(6, 4), b"de..");
    let pieces = vec![piece(5, 0, 3), piece(5, 2, 2)];
    let error = disks
        .run(DiskOp::Read {
            store: StoreNo(1),
            at: 0,
            pieces,
        })
        .expect_err("they overlap");
    assert!(error.message().contains("overlap"), "{error}");
}

/// More pieces than the kernel takes in one call.
#[test]
fn a_run_of_more_pieces_than_one_call_takes() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disks = Disks::open(Linux, &section_of(folder.path())).expect("a store");
    let source: Vec<u8> = (0..=255).collect();
    disks.fill(0, &source);
    let pieces: Vec<_> = (0..2500).map(|n| piece(0, n % 250, n % 5)).collect();
    let expected: Vec<u8> = pieces
        .iter()
        .flat_map(|one| &source[one.offset as usize..(one.offset + one.length) as usize])
        .copied()
        .collect();
    disks
        .run(DiskOp::Write {
            store: StoreNo(1),
            name: name(1),
            at: 0,
            pieces,
        })
        .expect("written");
    assert_eq!(
        std::fs::read(file(folder.path(), 1, "data")).expect("the file"),
        expected
    );
    let pieces: Vec<_> = (0..2000).map(|n| piece(1 + n / 1000, (n % 1000) * 2, 1)).collect();
    disks
        .run(DiskOp::Read {
            store: StoreNo(1),
            at: 100,
            pieces,
        })
        .expect("read");
    let read: Vec<u8> = [1, 2]
        .iter()
        .flat_map(|slot| disks.look(*slot, 2000).into_iter().step_by(2))
        .collect();
    assert_eq!(read, expected[100..2100]);
}

/// F03: what comes short is gone on with.
#[test]
fn short_calls_are_continued() {
    for most in [1, 13, 4097] {
        let folder = tempfile::tempdir().expect("a folder");
        let (count, counted) = std::sync::mpsc::sync_channel(1 << 20);
        let short = Faulty::new(move |call, _| match call {
            Call::Write | Call::Read => {
                count.send(()).expect("room");
                Verdict::Short(most)
            }
            _ => Verdict::Go,
        });
        let mut disks = Disks::open(short, &section_of(folder.path())).expect("a store");
        let bytes = payload(1);
        disks.write(1, 0, &bytes).expect("written");
        assert_eq!(disks.read(1, 0, bytes.len()).expect("read"), bytes, "{most}");
        let whole = 2 * bytes.len().div_ceil(BUFFER as usize);
        assert!(counted.try_iter().count() >= whole, "the calls were cut");
    }
}

/// F93: a file that ends early is an error with its path, never bytes that were there before.
#[test]
fn a_file_that_ends_early_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disks = Disks::open(Linux, &section_of(folder.path())).expect("a store");
    let bytes = payload(1);
    disks.write(1, 0, &bytes).expect("written");
    let path = file(folder.path(), 1, "data");
    std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("the file")
        .set_len(5000)
        .expect("cut");
    let error = disks.read(1, 1000, 8000).expect_err("it ends early");
    assert_eq!((error.kind(), error.initiator()), (&ErrorKind::Io, Initiator::Disk));
    assert_eq!(error.location().path.as_deref(), path.to_str());
    assert!(
        error
            .message()
            .contains("8000 bytes expected at 1000, the file ends after 4000"),
        "{error}"
    );
    assert_eq!(disks.read(1, 0, 5000).expect("what is there"), bytes[..5000]);
    assert_eq!(disks.store.usable(), 1, "one bad file is no bad directory");
}

#[test]
fn a_punch_gives_blocks_back_and_keeps_the_length() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disks = Disks::open(Linux, &section_of(folder.path())).expect("a store");
    let bytes = vec![9; 40 * BUFFER as usize];
    disks.write(1, 0, &bytes).expect("written");
    let path = file(folder.path(), 1, "data");
    std::fs::File::open(&path)
        .expect("the file")
        .sync_all()
        .expect("synced");
    let before = path.metadata().expect("the file").blocks();
    let punched = 32 * u64::from(BUFFER);
    disks
        .run(DiskOp::Punch {
            store: StoreNo(1),
            at: 0,
            bytes: punched,
        })
        .expect("punched");
    let after = path.metadata().expect("the file");
    assert_eq!((before - after.blocks()) * 512, punched);
    assert_eq!(after.len(), bytes.len() as u64);
    assert_eq!(disks.store.used(), bytes.len() as u64 - punched);
    assert_eq!(disks.read(1, punched, 100).expect("what is left"), [9; 100]);
}

#[test]
fn a_removal_takes_all_files_and_gives_all_bytes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disks = Disks::open(Linux, &section_of(folder.path())).expect("a store");
    disks.finish(1).expect("finished");
    disks.write(2, 0, b"spilled").expect("written");
    assert_eq!((files(folder.path(), 1).len(), files(folder.path(), 2).len()), (2, 1));
    for store in [1, 2, 3] {
        disks.remove(store).expect("removed, or never there");
        assert_eq!(files(folder.path(), store).len(), 0);
    }
    assert_eq!(disks.store.used(), 0);
    let error = disks.read(1, 0, 10).expect_err("it is gone");
    assert_eq!(error.kind(), &ErrorKind::Unknown);
    // The same partition once more, while its name may still be in a queue.
    let bytes = payload(9);
    for round in 10..20 {
        let remove = disks.submit(DiskOp::Remove {
            store: StoreNo(round - 1),
        });
        let pieces = disks.pieces_of(&bytes);
        let store = StoreNo(round);
        let write = disks.submit(DiskOp::Write {
            store,
            name: name(9),
            at: 0,
            pieces,
        });
        let mut others = BTreeMap::new();
        disks.wait_for(write, &mut others).expect("written");
        others
            .remove(&remove)
            .unwrap_or_else(|| disks.wait_for(remove, &mut BTreeMap::new()))
            .expect("removed");
        assert_eq!(disks.read(round, 0, bytes.len()).expect("read"), bytes);
    }
}

/// F88: descriptors do not grow with partitions.
#[test]
fn open_files_are_few() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disks = Disks::open(Linux, &section_of(folder.path())).expect("a store");
    for store in 0..300 {
        disks.write(store, 0, &store.to_le_bytes()).expect("written");
    }
    let open = std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|path| path.starts_with(folder.path()) && path.extension().is_some_and(|ending| ending == "data"))
        .count();
    assert!((1..=128).contains(&open), "{open} of 300 files are open");
    for store in 0..300 {
        assert_eq!(disks.read(store, 0, 8).expect("read"), store.to_le_bytes());
    }
}
