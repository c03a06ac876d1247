//! A disk that does not answer (F60).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use buffer_pool::LeaseError;
use shuffle_protocol::error::{ErrorKind, Initiator};

use super::faulty::{Call, Faulty, Verdict};
use super::harness::{Disks, files, name, payload, piece, section, section_of};
use crate::spill::{DiskOp, StoreNo};

/// Holds calls until it is opened.
#[derive(Default)]
struct Barrier {
    /// Closed, and how many wait.
    state: Mutex<(bool, u32)>,
    changed: Condvar,
}

impl Barrier {
    fn set(&self, closed: bool) {
        self.state.lock().expect("no panic").0 = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.1 += 1;
        self.changed.notify_all();
        while state.0 {
            state = self.changed.wait(state).expect("no panic");
        }
        state.1 -= 1;
    }

    fn wait_for(&self, waiting: u32) {
        let mut state = self.state.lock().expect("no panic");
        while state.1 < waiting {
            state = self.changed.wait(state).expect("no panic");
        }
    }
}

fn hanging(call: Call, directory: PathBuf) -> (Faulty, Arc<Barrier>) {
    let barrier = Arc::new(Barrier::default());
    let of = Arc::clone(&barrier);
    let faulty = Faulty::new(move |made, place| {
        if made == call && place == directory {
            of.pass();
        }
        Verdict::Go
    });
    (faulty, barrier)
}

/// The buffer of a read that hangs is nobody else's until the read is over, whoever was told what.
#[test]
fn a_hung_read_is_answered_and_keeps_its_buffer() {
    let folder = tempfile::tempdir().expect("a folder");
    let (faulty, barrier) = hanging(Call::Read, folder.path().to_owned());
    let mut short = section_of(folder.path());
    short.timeout = Duration::from_millis(50);
    short.threads = 1;
    let mut disks = Disks::open(faulty, &short).expect("a store");
    disks.write(1, 0, b"written").expect("written");
    disks.fill(9, b".......");
    barrier.set(true);
    let read = |slot| DiskOp::Read {
        store: StoreNo(1),
        at: 0,
        pieces: vec![piece(slot, 0, 7)],
    };
    let first = disks.submit(read(9));
    barrier.wait_for(1);
    let (second, removal) = (disks.submit(read(10)), {
        disks.fill(11, b"x");
        let pieces = vec![piece(11, 0, 1)];
        disks.submit(DiskOp::Write {
            store: StoreNo(2),
            name: name(2),
            at: 0,
            pieces,
        })
    });
    let mut others = BTreeMap::new();
    for (ticket, what) in [(first, "reading"), (second, "reading"), (removal, "writing")] {
        let error = disks.wait_for(ticket, &mut others).expect_err("nothing answers");
        let kind = ErrorKind::TimedOut {
            what: what.to_owned(),
            after: short.timeout,
        };
        assert_eq!((error.kind(), error.initiator()), (&kind, Initiator::Disk));
        assert!(error.location().path.is_some(), "{error}");
    }
    assert_eq!(
        disks.hung,
        [piece(9, 0, 7).slot],
        "only what is being done keeps its buffers"
    );
    assert_eq!(disks.store.usable(), 0);
    // What comes meanwhile is answered at once.
    disks.run(read(12)).expect_err("it still hangs");
    for store in [1, 2] {
        let error = disks.remove(store).expect_err("it still hangs");
        assert!(matches!(error.kind(), ErrorKind::TimedOut { .. }), "{error}");
    }
    assert_eq!(files(folder.path(), 1).len(), 1);
    // This is what keeps the kernel's memory the kernel's.
    assert!(matches!(disks.arena.writable(9), Err(LeaseError::InUse { .. })));
    assert!(matches!(disks.arena.leased(9, 0, 1), Err(LeaseError::InUse { .. })));
    assert!(disks.late.is_empty());

    barrier.set(false);
    disks.poll_until(&mut others, |disks| !disks.late.is_empty() && disks.store.used() == 0);
    assert_eq!(
        (disks.late.len(), others.len()),
        (1, 0),
        "told once more, and answered no more"
    );
    assert_eq!(disks.late, disks.hung);
    assert_eq!(disks.look(9, 7), b"written", "the kernel wrote into it, late");
    drop(disks.arena.writable(9).expect("it is free now"));
    // The removal was done when it could be; new files do not go there.
    assert_eq!(files(folder.path(), 1).len(), 0);
    disks.write(3, 0, b"x").expect_err("taken out");
}

/// A removal that waits behind something that hangs is answered as everything else is.
#[test]
fn a_removal_behind_a_hung_write_is_answered_in_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let (faulty, barrier) = hanging(Call::Write, folder.path().to_owned());
    let mut short = section_of(folder.path());
    short.timeout = Duration::from_millis(50);
    let mut disks = Disks::open(faulty, &short).expect("a store");
    barrier.set(true);
    disks.fill(0, b"x");
    let pieces = vec![piece(0, 0, 1)];
    let write = disks.submit(DiskOp::Write {
        store: StoreNo(1),
        name: name(1),
        at: 0,
        pieces,
    });
    barrier.wait_for(1);
    let remove = disks.submit(DiskOp::Remove { store: StoreNo(1) });
    let mut others = BTreeMap::new();
    for ticket in [write, remove] {
        let error = disks.wait_for(ticket, &mut others).expect_err("nothing answers");
        assert!(matches!(error.kind(), ErrorKind::TimedOut { .. }), "{error}");
    }
    barrier.set(false);
    disks.poll_until(&mut others, |disks| disks.store.used() == 0);
    assert_eq!((files(folder.path(), 1).len(), others.len()), (0, 0));
}

/// The threads of one directory are not those of another.
#[test]
fn a_hung_directory_holds_up_nobody_else() {
    let folders = [
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    ];
    let paths = [folders[0].path().to_owned(), folders[1].path().to_owned()];
    let (faulty, barrier) = hanging(Call::Write, paths[0].clone());
    let mut disks = Disks::open(faulty, &section(&paths)).expect("a store");
    barrier.set(true);
    let mut others = BTreeMap::new();
    let mut waiting = Vec::new();
    // As many writes as have to hang there, and one that does not.
    for slot in 0..40 {
        let store = u64::from(slot);
        disks.fill(slot, &payload(store)[..100]);
        let pieces = vec![piece(slot, 0, 100)];
        waiting.push(disks.submit(DiskOp::Write {
            store: StoreNo(store),
            name: name(store),
            at: 0,
            pieces,
        }));
    }
    barrier.wait_for(2);
    while others.is_empty() {
        disks.poll(&mut others);
        if others.is_empty() {
            disks.pause();
        }
    }
    assert!(others.values().all(Result::is_ok), "{others:?}");
    barrier.set(false);
    for ticket in waiting {
        disks.wait_for(ticket, &mut others).expect("written");
    }
}

/// A measurement that takes its time is not made a second time beside it, so other threads go on with what is to be done.
#[test]
fn a_directory_is_measured_once_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let (faulty, barrier) = hanging(Call::Free, folder.path().to_owned());
    let mut disks = Disks::open(faulty, &section_of(folder.path())).expect("a store");
    barrier.set(true);
    disks.ahead = Duration::from_secs(2);
    disks.write(1, 0, b"first").expect("written");
    barrier.wait_for(1);
    for store in 2..6 {
        disks.ahead += Duration::from_secs(2);
        disks
            .write(store, 0, b"next")
            .expect("written while the measurement hangs");
    }
    barrier.set(false);
    disks.write(7, 0, b"last").expect("written");
    assert_eq!(disks.store.usable(), 1);
}
