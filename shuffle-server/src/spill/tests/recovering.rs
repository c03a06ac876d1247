//! What a server finds that an earlier one has left.

use std::path::Path;

use super::harness::{Disks, file, files, index, name, payload, section, section_of};
use crate::spill::names::LOCK;
use crate::spill::{Linux, StorageError, StoreNo};

fn finished(folder: &Path, stores: std::ops::Range<u64>) {
    let mut disks = Disks::open(Linux, &section_of(folder)).expect("a store");
    for store in stores {
        disks.finish(store).expect("finished");
    }
    disks.store.close();
}

#[test]
fn finished_partitions_are_read_again_after_each_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    finished(folder.path(), 1..4);
    for round in 0..3_u64 {
        let mut disks = Disks::open_again(Linux, &section_of(folder.path()));
        assert_eq!(disks.recovery.lost, []);
        let recovered = std::mem::take(&mut disks.recovery.recovered);
        let expected: Vec<u64> = (1..4).chain(100..100 + round).collect();
        let mut found: Vec<u64> = recovered.iter().map(|one| one.index.partition.result.value()).collect();
        found.sort_unstable();
        assert_eq!(found, expected);
        for one in recovered {
            let store = one.index.partition.result.value();
            let bytes = payload(store);
            assert_eq!(one.index, index(store, bytes.len() as u64));
            assert_eq!(disks.read(one.store.0, 0, bytes.len()).expect("read"), bytes);
        }
        // A new one beside them: its number is above theirs, its file is another.
        disks.finish(100 + round).expect("finished");
        disks.store.close();
    }
}

#[test]
fn what_is_damaged_or_unfinished_is_named_and_the_rest_is_served() {
    let folder = tempfile::tempdir().expect("a folder");
    finished(folder.path(), 1..7);
    let path = folder.path();
    {
        let mut disks = Disks::open_again(Linux, &section_of(path));
        disks.write(50, 0, b"never finished").expect("written");
        disks.store.close();
    }
    // 1: one bit of the index; 2: the data cut; 3: the data gone; 4: an index of another partition; 5: an index cut.
    let flipped = file(path, 1, "index");
    let mut bytes = std::fs::read(&flipped).expect("the index");
    bytes[70] ^= 4;
    std::fs::write(&flipped, bytes).expect("written");
    let cut = std::fs::File::options()
        .write(true)
        .open(file(path, 2, "data"))
        .expect("the data");
    cut.set_len(10).expect("cut");
    std::fs::remove_file(file(path, 3, "data")).expect("gone");
    std::fs::copy(file(path, 6, "index"), file(path, 4, "index")).expect("copied");
    let cut = std::fs::File::options()
        .write(true)
        .open(file(path, 5, "index"))
        .expect("the index");
    cut.set_len(95).expect("cut");
    std::fs::write(file(path, 6, "index").with_extension("index.new"), b"begun").expect("written");
    // Not ours.
    std::fs::write(path.join("notes.txt"), b"of a person").expect("written");
    std::fs::create_dir(path.join("lost+found")).expect("made");

    let mut disks = Disks::open_again(Linux, &section_of(path));
    let [six] = &disks.recovery.recovered[..] else {
        panic!("{:?}", disks.recovery)
    };
    assert_eq!((six.store, six.index.partition), (StoreNo(0), name(6).partition));
    let mut lost = disks.recovery.lost.clone();
    lost.sort_by_key(|(name, _)| name.partition.result);
    let reasons = [
        (1, "checksum"),
        (2, "10 bytes, its index says"),
        (3, "Data file"),
        (4, "is of job 7, partition 6"),
        (5, "Index file"),
        (50, "was not finished"),
    ];
    assert_eq!(lost.len(), reasons.len(), "{lost:?}");
    for ((found, why), (store, part)) in lost.iter().zip(reasons) {
        assert_eq!(*found, name(store));
        assert!(why.contains(part), "{store}: {why}");
        assert_eq!(files(path, store).len(), 0, "{store} is swept");
    }
    assert_eq!(files(path, 6).len(), 2, "and what was begun");
    assert_eq!(
        disks.recovery.foreign,
        [path.join("lost+found"), path.join("notes.txt")]
    );
    assert!(path.join("notes.txt").exists() && path.join("lost+found").exists());
    let bytes = payload(6);
    assert_eq!(disks.read(0, 0, bytes.len()).expect("read"), bytes);
    let used = bytes.len() as u64 + file(path, 6, "index").metadata().expect("the index").len();
    assert_eq!(disks.store.used(), used);
    disks.remove(0).expect("removed");
    assert_eq!((disks.store.used(), files(path, 6).len()), (0, 0));
}

#[test]
fn a_directory_belongs_to_one_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let disks = Disks::open(Linux, &section_of(folder.path())).expect("a store");
    let error = Disks::open(Linux, &section_of(folder.path()))
        .err()
        .expect("it is taken");
    assert!(
        matches!(&error, StorageError::Locked { path } if path == folder.path()),
        "{error}"
    );
    disks.store.close();
    assert!(folder.path().join(LOCK).exists(), "the file stays, the lock does not");
    Disks::open_again(Linux, &section_of(folder.path()));
    let twice = [folder.path().to_owned(), folder.path().join(".")];
    let error = Disks::open(Linux, &section(&twice)).err().expect("twice the same");
    assert!(error.to_string().contains("listed twice"), "{error}");
}
