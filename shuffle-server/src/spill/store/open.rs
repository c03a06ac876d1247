//! The start: every directory taken, and what an earlier server left in it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tracing::{error, info, warn};

use super::{Directory, DiskCounters, Known, Store};
use crate::config::StorageSection;
use crate::spill::directories::Space;
use crate::spill::file::{Place, StoreFile};
use crate::spill::line::{Line, Reports};
use crate::spill::names::LOCK;
use crate::spill::recover::{Found, recover};
use crate::spill::system::FileSystem;
use crate::spill::{Index, StoreName, StoreNo};

/// A persistent partition that an earlier server has finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The number of its files from now on.
    pub store: StoreNo,
    /// Where its buffers lie.
    pub index: Index,
}

/// What an earlier server has left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Numbered from 0 on: new stores are numbered above.
    pub recovered: Vec<Recovered>,
    /// What cannot be served any more, and why. Every unfinished partition that had spilled is among them.
    pub lost: Vec<(StoreName, String)>,
    /// What lies in the directories and is not ours: it is left alone.
    pub foreign: Vec<PathBuf>,
}

/// Why a server cannot use its directories.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// Another one does.
    #[error(
        "{path} is in use by another server that is alive, or is listed twice; give each server directories of its own (storage.directories)"
    )]
    Locked {
        /// Which.
        path: PathBuf,
    },
    /// None of them can be used.
    #[error("none of storage.directories can be used, the last one ({path}) because: {source}")]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The threads could not be started.
    #[error("cannot start a thread for {path}: {source}")]
    Thread {
        /// Which directory's.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

struct Taken<F: FileSystem> {
    place: Place<F>,
    lock: F::File,
    free: u64,
    found: Found,
}

impl<F: FileSystem> Store<F> {
    /// Takes all directories, looks at what is there, and starts their threads. `bell` is rung from another thread when
    /// there is an answer. A directory that cannot be used is left out, if there are others.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn open(
        fs: F,
        section: &StorageSection,
        bell: impl Fn() + Send + Sync + 'static,
    ) -> Result<(Self, Recovery), StorageError> {
        let fs = Arc::new(fs);
        let mut store = Self {
            directories: Vec::new(),
            stores: BTreeMap::new(),
            operations: BTreeMap::new(),
            reports: Arc::new(Reports::new(bell)),
            answers: VecDeque::new(),
            next_serial: 1,
            timeout: section.timeout,
            counters: DiskCounters::default(),
        };
        let mut recovery = Recovery::default();
        let mut unusable = None;
        for path in &section.directories {
            let mut directory = Directory {
                path: path.clone(),
                space: Space::new(section.limit),
                line: None,
                place: None,
                lock: None,
                hung: 0,
            };
            match take(&fs, path) {
                Ok(Some(taken)) => store.enter(&mut directory, taken, section.threads, &mut recovery)?,
                Ok(None) => return Err(StorageError::Locked { path: path.clone() }),
                Err(source) => {
                    error!("{} is left out: {source}", path.display());
                    directory.space.handle_failing();
                    unusable = Some((path.clone(), source));
                }
            }
            store.directories.push(directory);
        }
        match unusable {
            Some((path, source)) if store.usable() == 0 => Err(StorageError::Unusable { path, source }),
            _ => {
                report(&recovery);
                Ok((store, recovery))
            }
        }
    }

    fn enter(
        &mut self,
        directory: &mut Directory<F>,
        taken: Taken<F>,
        threads: u32,
        recovery: &mut Recovery,
    ) -> Result<(), StorageError> {
        let Taken {
            place,
            lock,
            free,
            found,
        } = taken;
        let place = Arc::new(place);
        let number = self.directories.len();
        for (name, index, index_bytes) in found.sealed {
            let store = StoreNo(u64::try_from(recovery.recovered.len()).expect("invariant: a count in memory"));
            let known = Known {
                directory: number,
                name,
                file: StoreFile::sealed(Arc::clone(&place), name),
                bytes: index.data_bytes + index_bytes,
            };
            directory.space.enter(known.bytes);
            self.stores.insert(store, known);
            recovery.recovered.push(Recovered { store, index });
        }
        self.next_serial = self.next_serial.max(found.last_serial + 1);
        recovery.lost.extend(found.lost);
        let foreign = found.foreign.into_iter().map(|name| directory.path.join(name));
        recovery.foreign.extend(foreign);
        directory.space.handle_measured(Instant::now(), free);
        let line = Line::start(number, Arc::clone(&place), Arc::clone(&self.reports), threads);
        directory.line = Some(line.map_err(|source| StorageError::Thread {
            path: directory.path.clone(),
            source,
        })?);
        directory.place = Some(place);
        directory.lock = Some(lock);
        Ok(())
    }
}

/// `None`: another server has it.
fn take<F: FileSystem>(fs: &Arc<F>, path: &Path) -> io::Result<Option<Taken<F>>> {
    let dir = fs.open_dir(path)?;
    let Some(lock) = fs.lock(&dir, LOCK)? else {
        return Ok(None);
    };
    let found = recover(&**fs, &dir)?;
    let free = fs.free_bytes(&dir)?;
    let place = Place::new(Arc::clone(fs), dir);
    Ok(Some(Taken {
        place,
        lock,
        free,
        found,
    }))
}

fn report(recovery: &Recovery) {
    let Recovery {
        recovered,
        lost,
        foreign,
    } = recovery;
    if !recovered.is_empty() {
        info!("{} finished partitions are served again from disk", recovered.len());
    }
    for (StoreName { job, partition }, why) in lost {
        warn!("job {job}, partition {partition} is lost: {why}");
    }
    for path in foreign {
        warn!("{} is not a file of this server: it is left alone", path.display());
    }
}
