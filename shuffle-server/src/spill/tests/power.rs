//! A file system that forgets, when the power fails, whatever was not synced, or part of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::harness::{Disks, section_of};
use super::script::{Event, serve, verify};
use crate::spill::FileSystem;

const BLOCK: usize = 4096;

#[derive(Clone, Default)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Clone)]
enum Change {
    Make(String, usize),
    Rename(String, String),
    Remove(String),
}

type Names = BTreeMap<String, usize>;

fn change(names: &mut Names, change: &Change) {
    match change {
        Change::Make(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        Change::Rename(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        Change::Remove(name) => {
            names.remove(name);
        }
    }
}

#[derive(Clone, Default)]
struct Disk {
    inodes: Vec<Inode>,
    now: Names,
    durable: Names,
    /// Since the directory was last synced.
    changes: Vec<Change>,
    calls: u64,
    /// The power fails before this call.
    until: u64,
    lost_something: bool,
}

impl Disk {
    /// What is there when the power is back: of what was not synced, as chance will have it.
    fn restart(&self, mut seed: u64) -> Self {
        let mut toss = move || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            seed >> 63 == 1
        };
        let mut names = self.durable.clone();
        let mut lost_something = false;
        for one in &self.changes {
            if toss() {
                change(&mut names, one);
            } else {
                lost_something = true;
            }
        }
        let keep = |inode: &Inode, toss: &mut dyn FnMut() -> bool, lost: &mut bool| {
            let mut bytes = if toss() {
                inode.now.clone()
            } else {
                inode.durable.clone()
            };
            for (number, block) in bytes.chunks_mut(BLOCK).enumerate() {
                let from = if toss() { &inode.now } else { &inode.durable };
                for (at, byte) in block.iter_mut().enumerate() {
                    *byte = from.get(number * BLOCK + at).copied().unwrap_or(0);
                }
            }
            *lost |= bytes != inode.now;
            bytes
        };
        let inodes = self
            .inodes
            .iter()
            .map(|inode| {
                let bytes = keep(inode, &mut toss, &mut lost_something);
                Inode {
                    now: bytes.clone(),
                    durable: bytes,
                }
            })
            .collect();
        Self {
            inodes,
            now: names.clone(),
            durable: names,
            until: u64::MAX,
            lost_something,
            ..Self::default()
        }
    }

    fn change(&mut self, one: Change) {
        change(&mut self.now, &one);
        self.changes.push(one);
    }
}

#[derive(Clone)]
struct Forgetful(Arc<Mutex<Disk>>);

impl Forgetful {
    fn new(mut disk: Disk, until: u64) -> Self {
        disk.until = until;
        Self(Arc::new(Mutex::new(disk)))
    }

    fn call<T>(&self, run: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let mut disk = self.0.lock().expect("no panic");
        if disk.calls >= disk.until {
            return Err(rustix::io::Errno::IO.into());
        }
        disk.calls += 1;
        run(&mut disk)
    }

    fn disk(&self) -> Disk {
        self.0.lock().expect("no panic").clone()
    }
}

impl FileSystem for Forgetful {
    type Dir = ();
    type File = usize;

    fn open_dir(&self, _: &Path) -> io::Result<()> {
        self.call(|_| Ok(()))
    }

    fn lock(&self, (): &(), _: &str) -> io::Result<Option<usize>> {
        self.call(|_| Ok(Some(usize::MAX)))
    }

    fn names(&self, (): &()) -> io::Result<Vec<OsString>> {
        self.call(|disk| Ok(disk.now.keys().map(OsString::from).collect()))
    }

    fn free_bytes(&self, (): &()) -> io::Result<u64> {
        self.call(|_| Ok(1 << 40))
    }

    fn create(&self, (): &(), name: &str) -> io::Result<usize> {
        self.call(|disk| {
            if disk.now.contains_key(name) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            disk.inodes.push(Inode::default());
            let inode = disk.inodes.len() - 1;
            disk.change(Change::Make(name.to_owned(), inode));
            Ok(inode)
        })
    }

    fn open(&self, (): &(), name: &str) -> io::Result<usize> {
        self.call(|disk| {
            disk.now
                .get(name)
                .copied()
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        })
    }

    fn length(&self, file: &usize) -> io::Result<u64> {
        self.call(|disk| Ok(disk.inodes[*file].now.len() as u64))
    }

    fn write(&self, file: &usize, at: u64, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.call(|disk| {
            let bytes = &mut disk.inodes[*file].now;
            let (at, some) = (usize::try_from(at).expect("small"), &from[0]);
            bytes.resize(bytes.len().max(at + some.len()), 0);
            bytes[at..at + some.len()].copy_from_slice(some);
            Ok(some.len())
        })
    }

    fn read(&self, file: &usize, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.call(|disk| {
            let bytes = disk.inodes[*file]
                .now
                .get(usize::try_from(at).expect("small")..)
                .unwrap_or_default();
            let length = bytes.len().min(into[0].len());
            into[0][..length].copy_from_slice(&bytes[..length]);
            Ok(length)
        })
    }

    fn sync(&self, file: &usize) -> io::Result<()> {
        self.call(|disk| {
            let inode = &mut disk.inodes[*file];
            inode.durable = inode.now.clone();
            Ok(())
        })
    }

    fn sync_dir(&self, (): &()) -> io::Result<()> {
        self.call(|disk| {
            disk.durable = disk.now.clone();
            disk.changes.clear();
            Ok(())
        })
    }

    fn rename(&self, (): &(), from: &str, to: &str) -> io::Result<()> {
        self.call(|disk| {
            disk.change(Change::Rename(from.to_owned(), to.to_owned()));
            Ok(())
        })
    }

    fn remove(&self, (): &(), name: &str) -> io::Result<()> {
        self.call(|disk| {
            if !disk.now.contains_key(name) {
                return Err(io::ErrorKind::NotFound.into());
            }
            disk.change(Change::Remove(name.to_owned()));
            Ok(())
        })
    }

    fn punch(&self, _: &usize, _: u64, _: u64) -> io::Result<()> {
        self.call(|_| Ok(()))
    }
}

/// The calls that were made, what the core was told, and what is on the disk.
fn work(until: u64) -> (u64, Vec<Event>, Disk) {
    let forgetful = Forgetful::new(Disk::default(), until);
    let mut told = Vec::new();
    if let Ok(mut disks) = Disks::open(forgetful.clone(), &section_of(Path::new("/nowhere"))) {
        serve(&mut disks, |event| told.push(event));
        disks.store.close();
    }
    let disk = forgetful.disk();
    (disk.calls, told, disk)
}

#[test]
fn nothing_finished_is_lost_whenever_the_power_fails() {
    let (calls, told, _) = work(u64::MAX);
    assert_eq!(told.last(), Some(&Event::Finished(15)));
    let mut forgotten = 0;
    for at in 0..=calls {
        let (_, told, disk) = work(at);
        for seed in 0..16 {
            let mut disk = disk.restart(seed * 1000 + at);
            forgotten += u32::from(disk.lost_something);
            // Two recoveries in which it fails again, then two that come to their end.
            for round in 0..4 {
                let until = if round < 2 { seed * 3 % 31 + round } else { u64::MAX };
                let forgetful = Forgetful::new(disk, until);
                match Disks::open(forgetful.clone(), &section_of(Path::new("/nowhere"))) {
                    Ok(mut disks) => {
                        if until == u64::MAX {
                            verify(&mut disks, &told, &format!("call {at}, seed {seed}, restart {round}"));
                        }
                        disks.store.close();
                    }
                    Err(error) => assert!(until < u64::MAX, "{error}"),
                }
                disk = forgetful.disk().restart(seed + round);
            }
        }
    }
    assert!(forgotten > 200, "only {forgotten} times something was forgotten");
}
