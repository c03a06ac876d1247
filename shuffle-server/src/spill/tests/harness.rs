//! A store, an arena, and what a core would do with them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use buffer_pool::{ArenaFile, ArenaKind, JobKey, MappedArena, SlotRef};
use shuffle_protocol::partition::{BufferKind, Codec, Lifetime, PartitionKind, Pressure, Readiness};
use shuffle_protocol::{JobId, PartitionId, ResultId, ShuffleError};

use crate::config::StorageSection;
use crate::spill::names::LOCK;
use crate::spill::{
    Answer, DiskOp, DiskPiece, DiskTicket, FileSystem, Index, IndexEntry, IndexGroup, Linux, Memory, Recovery,
    StorageError, Store, StoreName, StoreNo, Targets,
};

pub(super) const BUFFER: u32 = 4096;
const BUFFERS: u32 = 64;

/// Longer than anything takes that is to succeed.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Disks<F: FileSystem> {
    pub(super) store: Store<F>,
    pub(super) recovery: Recovery,
    pub(super) arena: MappedArena,
    bell: Receiver<()>,
    next_ticket: u64,
    /// So far ahead of the clock is what is submitted.
    pub(super) ahead: Duration,
    /// Timed out, and not yet late.
    pub(super) hung: Vec<SlotRef>,
    pub(super) late: Vec<SlotRef>,
}

pub(super) type Outcome = Result<(), ShuffleError>;

pub(super) fn section(directories: &[PathBuf]) -> StorageSection {
    StorageSection {
        directories: directories.to_vec(),
        limit: 0,
        threads: 2,
        timeout: PATIENCE,
    }
}

pub(super) fn section_of(directory: &Path) -> StorageSection {
    section(&[directory.to_owned()])
}

impl Disks<Linux> {
    /// Waits until nobody has the directory.
    pub(super) fn open_lock(directory: &Path) {
        let dir = Linux.open_dir(directory).expect("a folder");
        while Linux.lock(&dir, LOCK).expect("a lock").is_none() {
            std::thread::yield_now();
        }
    }
}

impl<F: FileSystem> Disks<F> {
    pub(super) fn open(fs: F, section: &StorageSection) -> Result<Self, StorageError> {
        let (ring, bell) = sync_channel(1);
        let (store, recovery) = Store::open(fs, section, move || {
            let _ = ring.try_send(());
        })?;
        let bytes = u64::from(BUFFER) * u64::from(BUFFERS);
        let file = ArenaFile::create("spill-test", bytes, u64::from(BUFFER)).expect("a memfd");
        let arena = MappedArena::map_writable(file.writable_fd(), BUFFERS, BUFFER).expect("a mapping");
        Ok(Self {
            store,
            recovery,
            arena,
            bell,
            next_ticket: 0,
            ahead: Duration::ZERO,
            hung: Vec::new(),
            late: Vec::new(),
        })
    }

    /// Opens what was open in this process before. Another test that starts a process holds a copy of each descriptor, that of the
    /// lock as well, until that process has begun.
    pub(super) fn open_again(fs: F, section: &StorageSection) -> Self
    where
        F: Clone,
    {
        let until = Instant::now() + PATIENCE;
        loop {
            match Self::open(fs.clone(), section) {
                Ok(disks) => return disks,
                Err(StorageError::Locked { .. }) if Instant::now() < until => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Fills a buffer of the arena.
    pub(super) fn fill(&self, slot: u32, bytes: &[u8]) {
        let mut buffer = self.arena.writable(slot).expect("a buffer");
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer.hand_over();
    }

    /// What stands in a buffer.
    pub(super) fn look(&self, slot: u32, length: u32) -> Vec<u8> {
        self.arena.shared(slot, 0, length).expect("a buffer").to_vec()
    }

    pub(super) fn submit(&mut self, op: DiskOp) -> DiskTicket {
        let ticket = DiskTicket(self.next_ticket);
        self.next_ticket += 1;
        let memory = match &op {
            DiskOp::Write { pieces, .. } => Memory::From(
                pieces
                    .iter()
                    .map(|piece| {
                        self.arena
                            .leased(piece.slot.slot, piece.offset, piece.length)
                            .expect("a lease")
                    })
                    .collect(),
            ),
            DiskOp::Read { pieces, .. } => {
                let mut targets = Targets::default();
                let mut buffers = BTreeMap::new();
                for piece in pieces {
                    let slot = piece.slot.slot;
                    let buffer = *buffers
                        .entry(slot)
                        .or_insert_with(|| targets.add(self.arena.writable(slot).expect("a lease")));
                    targets.fill(buffer, piece.offset, piece.length);
                }
                Memory::Into(targets)
            }
            _ => Memory::None,
        };
        self.store.submit(Instant::now() + self.ahead, ticket, op, memory);
        ticket
    }

    /// Waits until `ticket` is answered; what others are answered meanwhile is kept by `others`.
    pub(super) fn wait_for(&mut self, ticket: DiskTicket, others: &mut BTreeMap<DiskTicket, Outcome>) -> Outcome {
        let until = Instant::now() + PATIENCE;
        loop {
            self.poll(others);
            if let Some(outcome) = others.remove(&ticket) {
                return outcome;
            }
            assert!(Instant::now() < until, "{ticket:?} is not answered");
            self.pause();
        }
    }

    /// All answers that there are.
    pub(super) fn poll(&mut self, answers: &mut BTreeMap<DiskTicket, Outcome>) {
        let now = Instant::now();
        self.store.handle_timeout(now);
        while let Some(answer) = self.store.poll_answer(now) {
            let (ticket, outcome) = match answer {
                Answer::Done { ticket, outcome } => (ticket, outcome),
                Answer::TimedOut { ticket, error, slots } => {
                    self.hung.extend(slots);
                    (ticket, Err(error))
                }
                Answer::Late { slots } => {
                    self.late.extend(slots);
                    continue;
                }
            };
            assert!(answers.insert(ticket, outcome).is_none(), "{ticket:?} is answered once");
        }
    }

    /// Polls until that is so.
    pub(super) fn poll_until(&mut self, others: &mut BTreeMap<DiskTicket, Outcome>, is_so: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            self.poll(others);
            if is_so(self) {
                return;
            }
            assert!(Instant::now() < until, "it does not come");
            self.pause();
        }
    }

    /// Until something happens, or until the store wants to be called.
    pub(super) fn pause(&self) {
        let now = Instant::now();
        let next = self.store.poll_timeout(now).unwrap_or(now + PATIENCE);
        let _ = self
            .bell
            .recv_timeout(next.saturating_duration_since(now).min(PATIENCE));
    }

    pub(super) fn run(&mut self, op: DiskOp) -> Outcome {
        let ticket = self.submit(op);
        self.wait_for(ticket, &mut BTreeMap::new())
    }

    /// Writes those bytes, from as many buffers as it takes.
    pub(super) fn write(&mut self, store: u64, at: u64, bytes: &[u8]) -> Outcome {
        let pieces = self.pieces_of(bytes);
        self.run(DiskOp::Write {
            store: StoreNo(store),
            name: name(store),
            at,
            pieces,
        })
    }

    pub(super) fn pieces_of(&self, bytes: &[u8]) -> Vec<DiskPiece> {
        let chunks = bytes.chunks(BUFFER as usize);
        (0..)
            .zip(chunks)
            .map(|(slot, chunk)| {
                self.fill(slot, chunk);
                piece(slot, 0, u32::try_from(chunk.len()).expect("small"))
            })
            .collect()
    }

    /// Reads so many bytes there.
    pub(super) fn read(&mut self, store: u64, at: u64, length: usize) -> Result<Vec<u8>, ShuffleError> {
        let pieces = empty_pieces(length);
        for piece in &pieces {
            self.fill(piece.slot.slot, &[0xEE; BUFFER as usize]);
        }
        self.run(DiskOp::Read {
            store: StoreNo(store),
            at,
            pieces: pieces.clone(),
        })?;
        Ok(pieces
            .iter()
            .flat_map(|piece| self.look(piece.slot.slot, piece.length))
            .collect())
    }

    pub(super) fn seal(&mut self, store: u64, data_bytes: u64) -> Outcome {
        self.run(DiskOp::Seal {
            store: StoreNo(store),
            name: name(store),
            index: index(store, data_bytes).encode(),
        })
    }

    pub(super) fn remove(&mut self, store: u64) -> Outcome {
        self.run(DiskOp::Remove { store: StoreNo(store) })
    }

    /// Writes and seals a partition whose bytes follow from its number.
    pub(super) fn finish(&mut self, store: u64) -> Outcome {
        let bytes = payload(store);
        self.write(store, 0, &bytes)?;
        self.seal(store, bytes.len() as u64)
    }
}

pub(super) fn piece(slot: u32, offset: u32, length: u32) -> DiskPiece {
    let slot = SlotRef {
        job: JobKey(1),
        arena: ArenaKind::Read,
        slot,
    };
    DiskPiece { slot, offset, length }
}

pub(super) fn empty_pieces(length: usize) -> Vec<DiskPiece> {
    let whole = vec![0_u8; length];
    (0..)
        .zip(whole.chunks(BUFFER as usize))
        .map(|(slot, chunk)| piece(slot, 0, u32::try_from(chunk.len()).expect("small")))
        .collect()
}

pub(super) fn name(store: u64) -> StoreName {
    StoreName {
        job: JobId::new(7),
        partition: PartitionId {
            result: ResultId::new(store),
            index: 1,
            attempt: 2,
        },
    }
}

/// Bytes that tell store and place.
pub(super) fn payload(store: u64) -> Vec<u8> {
    let length = 9000 + usize::try_from(store % 100).expect("small") * 37;
    (0..length)
        .map(|at| u8::try_from((at * 31 + usize::try_from(store).expect("small") * 7) % 251).expect("a byte"))
        .collect()
}

pub(super) fn index(store: u64, data_bytes: u64) -> Index {
    let StoreName { job, partition } = name(store);
    let kind = PartitionKind {
        lifetime: Lifetime::Persistent,
        readiness: Readiness::Blocking,
        pressure: Pressure::Spilling,
    };
    let step = u64::from(BUFFER);
    let entries: Vec<IndexEntry> = (0..data_bytes.div_ceil(step))
        .map(|number| IndexEntry {
            at: number * step,
            length: u32::try_from((data_bytes - number * step).min(step)).expect("small"),
            checksum: u32::try_from(number).expect("small"),
            records: 1,
            kind: BufferKind::Data,
            continues: false,
            partial_start: false,
            unchecked: false,
            codec: Codec::Plain,
        })
        .collect();
    let groups = if entries.is_empty() {
        Vec::new()
    } else {
        vec![IndexGroup {
            subpartition: 0,
            entries,
        }]
    };
    Index {
        job,
        partition,
        kind,
        is_broadcast: false,
        buffer_bytes: BUFFER,
        subpartitions: 3,
        data_bytes,
        groups,
    }
}

/// The store's files in a directory, by the ending of their names.
pub(super) fn files(directory: &Path, store: u64) -> Vec<PathBuf> {
    let part = format!("-{store:016x}-00000001-00000002-");
    let mut found: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("the directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().contains(&part))
        })
        .collect();
    found.sort();
    found
}

pub(super) fn file(directory: &Path, store: u64, ending: &str) -> PathBuf {
    let files = files(directory, store);
    let found = files
        .iter()
        .find(|path| path.extension().is_some_and(|of| of == ending));
    found
        .unwrap_or_else(|| panic!("a file .{ending} among {files:?}"))
        .clone()
}
