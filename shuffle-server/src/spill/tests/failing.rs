//! A disk that says no.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::io::Errno;
use shuffle_protocol::error::{ErrorKind, Initiator};

use super::faulty::{Call, Faulty, Verdict};
use super::harness::{Disks, files, payload, section, section_of};
use crate::spill::{Linux, StorageError};

/// Fails that call in `directory` with `errno` while the switch is on; counts how often.
fn breaking(call: Call, directory: PathBuf, errno: Errno) -> (Faulty, Arc<AtomicBool>, Arc<AtomicU32>) {
    let (on, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (is_on, counted) = (Arc::clone(&on), Arc::clone(&count));
    let faulty = Faulty::new(move |made, place| {
        if made == call && place == directory && is_on.load(Ordering::Relaxed) {
            counted.fetch_add(1, Ordering::Relaxed);
            return Verdict::Fail(errno);
        }
        Verdict::Go
    });
    (faulty, on, count)
}

#[test]
fn a_disk_that_fails_is_taken_out_and_the_others_go_on() {
    for call in [
        Call::Write,
        Call::Read,
        Call::Create,
        Call::Sync,
        Call::SyncDir,
        Call::Rename,
    ] {
        let folders = [
            tempfile::tempdir().expect("a folder"),
            tempfile::tempdir().expect("a folder"),
        ];
        let paths = [folders[0].path().to_owned(), folders[1].path().to_owned()];
        let (faulty, on, count) = breaking(call, paths[0].clone(), Errno::IO);
        let mut disks = Disks::open(faulty, &section(&paths)).expect("a store");
        // Until each has a file: they are spread.
        let mut stores = 0;
        while paths
            .iter()
            .any(|path| (0..stores).all(|store| files(path, store).is_empty()))
        {
            disks.write(stores, 0, &payload(stores)).expect("written");
            stores += 1;
            assert!(stores < 100, "files are spread");
        }
        on.store(true, Ordering::Relaxed);
        // Until one fails: equal directories take turns.
        let mut errors = Vec::new();
        for store in 100..110 {
            let result = disks.finish(store).and_then(|()| disks.read(store, 0, 100).map(drop));
            errors.extend(result.err());
        }
        assert_eq!(
            count.load(Ordering::Relaxed),
            1,
            "{call:?}: no new file goes where one has failed"
        );
        let [error] = &errors[..] else {
            panic!("{call:?}: one fails: {errors:?}")
        };
        assert_eq!(
            (error.kind(), error.initiator()),
            (&ErrorKind::Io, Initiator::Disk),
            "{call:?}"
        );
        let path = error.location().path.as_deref().expect("a path");
        assert!(path.starts_with(paths[0].to_str().expect("text")), "{call:?}: {path}");
        assert_eq!(disks.store.usable(), 1, "{call:?}");
        assert_eq!(disks.store.counters().errors, 1, "{call:?}");
    }
}

/// F04: after a sync that failed the kernel takes the pages for clean, so a second one would say yes.
#[test]
fn a_failed_sync_is_never_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    let (faulty, on, count) = breaking(Call::Sync, folder.path().to_owned(), Errno::IO);
    let mut disks = Disks::open(faulty, &section_of(folder.path())).expect("a store");
    on.store(true, Ordering::Relaxed);
    disks.finish(1).expect_err("the sync fails");
    on.store(false, Ordering::Relaxed);
    let error = disks.seal(1, payload(1).len() as u64).expect_err("still");
    assert!(error.message().contains("earlier sync"), "{error}");
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert!(
        files(folder.path(), 1)
            .iter()
            .all(|path| path.extension().is_some_and(|ending| ending == "data"))
    );
}

/// F13: the index would promise what the file does not have.
#[test]
fn a_file_of_another_length_is_not_sealed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disks = Disks::open(Linux, &section_of(folder.path())).expect("a store");
    disks.write(1, 0, &[1; 100]).expect("written");
    let error = disks.seal(1, 101).expect_err("one byte is missing");
    assert!(error.message().contains("100 bytes, its index says 101"), "{error}");
    assert_eq!(files(folder.path(), 1).len(), 1, "no index");
    disks.seal(1, 100).expect("sealed");
}

/// What was begun by a seal that has failed is not in the way of the next.
#[test]
fn a_seal_can_be_tried_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (faulty, on, count) = breaking(Call::Rename, folder.path().to_owned(), Errno::NOSPC);
    let mut disks = Disks::open(faulty, &section_of(folder.path())).expect("a store");
    on.store(true, Ordering::Relaxed);
    let error = disks.finish(1).expect_err("the rename fails");
    assert!(matches!(error.kind(), ErrorKind::NoSpace { .. }), "{error}");
    assert_eq!(count.load(Ordering::Relaxed), 1);
    on.store(false, Ordering::Relaxed);
    disks.seal(1, payload(1).len() as u64).expect("sealed");
    drop(disks);
    let disks = Disks::open_again(Linux, &section_of(folder.path()));
    assert_eq!((disks.recovery.recovered.len(), disks.recovery.lost.len()), (1, 0));
}

/// F14: the directory goes while files are open there.
#[test]
fn a_directory_that_was_taken_away_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("spill");
    let mut disks = Disks::open(Linux, &section_of(&place)).expect("a store");
    disks.write(1, 0, b"before").expect("written");
    std::fs::remove_dir_all(&place).expect("away");
    assert_eq!(disks.read(1, 0, 6).expect("its file is open"), b"before");
    let error = disks.write(2, 0, b"after").expect_err("there is no directory");
    assert_eq!((error.kind(), error.initiator()), (&ErrorKind::Io, Initiator::Disk));
    assert!(
        error
            .location()
            .path
            .as_deref()
            .expect("a path")
            .starts_with(place.to_str().expect("text"))
    );
    let error = disks.write(3, 0, b"after").expect_err("nor another one");
    assert!(
        error.message().contains("every storage directory has failed"),
        "{error}"
    );
}

/// F125: one bad directory of several; and all of them.
#[test]
fn a_directory_that_cannot_be_used_is_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, good) = (folder.path().join("file"), folder.path().join("good"));
    std::fs::write(&file, b"no directory").expect("a file");
    let mut disks = Disks::open(Linux, &section(&[file.clone(), good.clone()])).expect("a store");
    assert_eq!(disks.store.usable(), 1);
    disks.finish(1).expect("finished");
    assert_eq!(files(&good, 1).len(), 2);
    let error = Disks::open(Linux, &section_of(&file)).err().expect("none is left");
    assert!(
        matches!(&error, StorageError::Unusable { path, .. } if *path == file),
        "{error}"
    );
}
