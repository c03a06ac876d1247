//! Full is not broken, and it ends by itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use shuffle_protocol::error::{ErrorKind, Initiator};

use super::harness::{Disks, files, payload, section, section_of};
use crate::spill::Linux;

/// A small file system; `None` where this process may not mount one.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let size = format!("size={bytes}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(folder.path())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// F59, F126: others have filled the disk; as soon as they are gone new files go there again.
#[test]
fn a_full_disk_fails_what_needs_it_and_comes_back() {
    let Some(small) = Small::mount(2 << 20) else {
        eprintln!("not shown: no file system can be mounted here");
        return;
    };
    let mut disks = Disks::open(Linux, &section_of(small.path())).expect("a store");
    let bytes = payload(1);
    disks.write(1, 0, &bytes).expect("there is space");
    let filler = small.path().join("of-another-program");
    let mut filled = std::fs::File::create(&filler).expect("a file");
    let full = std::io::copy(&mut std::io::repeat(1), &mut filled).expect_err("it is full now");
    assert_eq!(full.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));

    let error = disks
        .write(1, bytes.len() as u64, &vec![1; 64 << 10])
        .expect_err("no space");
    assert!(
        matches!(error.kind(), ErrorKind::NoSpace { needed: 65536, .. }),
        "{error}"
    );
    assert_eq!(error.initiator(), Initiator::Disk);
    let path = error.location().path.clone().expect("a path");
    assert!(path.starts_with(small.path().to_str().expect("text")), "{path}");
    assert_eq!(disks.store.usable(), 0);
    assert_eq!(disks.read(1, 0, bytes.len()).expect("what is there can be read"), bytes);
    let error = disks.write(2, 0, &bytes).expect_err("no place for a new one");
    assert!(matches!(error.kind(), ErrorKind::NoSpace { .. }), "{error}");

    std::fs::remove_file(&filler).expect("space again");
    let since = Instant::now();
    drop(filled);
    while let Err(error) = disks.write(3, 0, &bytes) {
        assert!(matches!(error.kind(), ErrorKind::NoSpace { .. }), "{error}");
        assert!(since.elapsed() < Duration::from_secs(5), "space is not noticed");
        disks.pause();
        disks.poll(&mut BTreeMap::new());
    }
    assert_eq!(
        (disks.store.usable(), disks.read(3, 0, 9000).expect("read")),
        (1, bytes[..9000].to_vec())
    );
}

/// The other directory goes on meanwhile.
#[test]
fn a_full_disk_leaves_the_others_alone() {
    let Some(small) = Small::mount(64 << 20) else {
        eprintln!("not shown: no file system can be mounted here");
        return;
    };
    let other = Small::mount(32 << 20).expect("the first one could be mounted");
    let folders = [small.path().to_owned(), other.path().to_owned()];
    let mut disks = Disks::open(Linux, &section(&folders)).expect("a store");
    let bytes = payload(1);
    disks.write(1, 0, &bytes).expect("written");
    assert_eq!(files(small.path(), 1).len(), 1, "where there is more space");
    let mut filled = std::fs::File::create(small.path().join("filler")).expect("a file");
    std::io::copy(&mut std::io::repeat(1), &mut filled).expect_err("it is full now");
    disks.write(1, 1 << 20, &[1; 64]).expect_err("no space");
    disks.write(2, 0, &bytes).expect("elsewhere");
    assert_eq!((files(small.path(), 2).len(), files(other.path(), 2).len()), (0, 1));
}

#[test]
fn the_limit_is_kept_and_freed_by_removals_and_punches() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut limited = section_of(folder.path());
    limited.limit = 20_000;
    let mut disks = Disks::open(Linux, &limited).expect("a store");
    disks.write(1, 0, &[1; 12_000]).expect("within the limit");
    let error = disks
        .write(1, 12_000, &[2; 8_001])
        .expect_err("one byte more than there is");
    assert_eq!(
        error.kind(),
        &ErrorKind::NoSpace {
            needed: 8_001,
            free: 8_000
        }
    );
    assert!(error.message().contains("storage.limit"), "{error}");
    let error = disks.write(2, 0, &[2; 8_001]).expect_err("nor for another one");
    assert!(
        matches!(error.kind(), ErrorKind::NoSpace { free: 8_000, .. }),
        "{error}"
    );
    assert_eq!(file_bytes(folder.path(), 1), 12_000, "nothing was written of it");
    disks.write(1, 12_000, &[2; 8_000]).expect("what there is");
    disks.remove(1).expect("removed");
    disks.write(2, 0, &[2; 20_000]).expect("all of it again");
    assert_eq!((disks.store.usable(), disks.store.used()), (1, 20_000));
}

fn file_bytes(folder: &Path, store: u64) -> u64 {
    files(folder, store)
        .iter()
        .map(|path| path.metadata().expect("a file").len())
        .sum()
}
