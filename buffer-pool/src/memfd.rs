//! The memory behind the books: one bank, and two sparse arenas per job.
//!
//! ```text
//! bank     |####|####|    |####|    |    |####|      fully allocated at start; a hole for each extent lent
//! arena a  |    |####|    |    |    |    |    |      blocks(bank) + blocks(arenas) <= pool, at every moment
//! arena b  |####|    |####|    |    |    |    |
//! ```
//!
//! A move gives pages back before it takes any: bank punched, then arena allocated; arena punched, then bank allocated.
//! What arrives is fresh from the kernel, so it reads as zero whoever had it before. If the second half fails, the first is
//! undone; if even that fails (somebody outside took the memory in between), the bank is *short*: its extents are still
//! counted, and lending one is a typed error until the memory is there again.

use std::{collections::HashMap, fmt, io, os::fd::BorrowedFd, sync::Arc};

use crate::{
    arena::{ArenaFile, MappedArena},
    backing::{Backing, PageHolder},
    budget,
    error::PoolError,
    file_range::FileRange,
    ids::{ArenaKind, JobKey, SlotRef},
    network_pool::PoolConfig,
};

/// [`Backing`] by sealed memfds.
pub struct MemfdBacking {
    config: PoolConfig,
    bank: Bank,
    jobs: HashMap<JobKey, [Arena; 2]>,
    page_holder: Option<Arc<dyn PageHolder>>,
}

impl fmt::Debug for MemfdBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemfdBacking")
            .field("config", &self.config)
            .field("bank", &self.bank)
            .field("jobs", &self.jobs)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Arena {
    file: ArenaFile,
    granted_extents: u64,
    mapped: Option<MappedArena>,
}

impl MemfdBacking {
    /// Allocates the whole pool.
    ///
    /// # Errors
    /// [`PoolError::Config`] also if buffers are not whole pages; [`PoolError::Budget`] says what it needs and what there is.
    pub fn new(config: PoolConfig) -> Result<Self, PoolError> {
        config.validate()?;
        let page = rustix::param::page_size();
        let buffer = usize::try_from(config.buffer_bytes).map_err(|error| PoolError::Config(error.to_string()))?;
        if !buffer.is_multiple_of(page) {
            return Err(PoolError::Config(format!(
                "buffer_bytes ({buffer}) must be a multiple of the page size ({page})"
            )));
        }
        let bank = Bank::fill(&config)?;
        Ok(Self {
            config,
            bank,
            jobs: HashMap::new(),
            page_holder: None,
        })
    }

    /// From now on `holder` is asked to let go of each extent before it is punched.
    pub fn set_page_holder(&mut self, holder: Arc<dyn PageHolder>) {
        self.page_holder = Some(holder);
    }

    /// Bytes of memory behind all memfds together: never more than the pool, but for what executors allocate behind the
    /// server's back (see [`Self::overdrawn_jobs`]).
    ///
    /// # Errors
    /// Whatever the operating system says.
    pub fn allocated_bytes(&self) -> io::Result<u64> {
        let arenas = self.jobs.values().flatten().map(|arena| arena.file.allocated_bytes());
        arenas.chain([self.bank.file.allocated_bytes()]).sum()
    }

    /// Bytes that the bank should have and could not get back (see the module's header).
    pub fn short_bytes(&self) -> u64 {
        self.bank.short() * self.config.extent_bytes()
    }

    /// Jobs of which an executor touched pages beyond the extents it was granted.
    ///
    /// # Errors
    /// Whatever the operating system says.
    pub fn overdrawn_jobs(&self) -> io::Result<Vec<JobKey>> {
        let mut overdrawn = Vec::new();
        for (&job, arenas) in &self.jobs {
            for arena in arenas {
                if arena.file.allocated_bytes()? > arena.granted_extents * self.config.extent_bytes() {
                    overdrawn.push(job);
                    break;
                }
            }
        }
        overdrawn.sort_unstable();
        Ok(overdrawn)
    }

    /// The arena mapped for reading and writing: at first use, then always the same mapping.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such job; else whatever the operating system says.
    pub fn mapped(&mut self, job: JobKey, kind: ArenaKind) -> io::Result<MappedArena> {
        let PoolConfig {
            total_buffers,
            buffer_bytes,
            ..
        } = self.config;
        let arena = self.arena_mut(job, kind)?;
        if let Some(mapped) = &arena.mapped {
            return Ok(mapped.clone());
        }
        let mapped = MappedArena::map_writable(arena.file.writable_fd(), total_buffers, buffer_bytes)?;
        Ok(arena.mapped.insert(mapped).clone())
    }

    /// The descriptor for the job's writers.
    pub fn write_arena_fd(&self, job: JobKey) -> Option<BorrowedFd<'_>> {
        self.file(job, ArenaKind::Write).map(ArenaFile::writable_fd)
    }

    /// The descriptor for the job's readers.
    pub fn readonly_fd(&self, job: JobKey, kind: ArenaKind) -> Option<BorrowedFd<'_>> {
        self.file(job, kind).map(ArenaFile::readonly_fd)
    }

    /// `length` bytes at `offset` of a buffer, where they lie in the arena's file. They stay as they are while the buffer is
    /// pinned. `None` if there is no such job, or they do not lie within one buffer.
    pub fn file_range(&self, slot: SlotRef, offset: u32, length: u32) -> Option<FileRange> {
        let end = offset.checked_add(length)?;
        if slot.slot >= self.config.total_buffers || end > self.config.buffer_bytes {
            return None;
        }
        let start = u64::from(slot.slot) * u64::from(self.config.buffer_bytes) + u64::from(offset);
        self.jobs
            .get(&slot.job)
            .map(|arenas| arenas[slot.arena.index()].file.range(start, length))
    }

    fn file(&self, job: JobKey, kind: ArenaKind) -> Option<&ArenaFile> {
        self.jobs.get(&job).map(|arenas| &arenas[kind.index()].file)
    }

    fn arena_mut(&mut self, job: JobKey, kind: ArenaKind) -> io::Result<&mut Arena> {
        let arenas = self.jobs.get_mut(&job).ok_or_else(|| no_such_job(job))?;
        Ok(&mut arenas[kind.index()])
    }
}

impl Backing for MemfdBacking {
    fn create_job(&mut self, job: JobKey) -> io::Result<()> {
        let create = |name| -> io::Result<Arena> {
            let file = ArenaFile::create(name, self.config.total_bytes(), self.config.extent_bytes())?;
            Ok(Arena {
                file,
                granted_extents: 0,
                mapped: None,
            })
        };
        let arenas = [create("shuffle-write-arena")?, create("shuffle-read-arena")?];
        self.jobs.insert(job, arenas);
        Ok(())
    }

    fn remove_job(&mut self, job: JobKey) {
        let Some(arenas) = self.jobs.remove(&job) else { return };
        // An executor that still maps it may have touched pages it was not granted: they go too.
        for arena in arenas {
            for extent in 0..self.config.extents() {
                if arena.file.allocated_bytes().is_ok_and(|bytes| bytes == 0) || arena.file.punch(extent).is_err() {
                    break;
                }
            }
        }
    }

    fn move_in(&mut self, job: JobKey, kind: ArenaKind, extent: u32) -> io::Result<()> {
        let arenas = self.jobs.get_mut(&job).ok_or_else(|| no_such_job(job))?;
        let arena = &mut arenas[kind.index()];
        self.bank.lend()?;
        if let Err(error) = arena.file.allocate(extent) {
            self.bank.take_back();
            return Err(error);
        }
        arena.granted_extents += 1;
        Ok(())
    }

    fn move_out(&mut self, job: JobKey, kind: ArenaKind, extent: u32) -> io::Result<()> {
        if let Some(holder) = &self.page_holder {
            holder.let_go(job, kind, extent)?;
        }
        let arena = self.arena_mut(job, kind)?;
        arena.file.punch(extent)?;
        arena.granted_extents -= 1;
        self.bank.take_back();
        Ok(())
    }
}

fn no_such_job(job: JobKey) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{job} has no arenas"))
}

/// Pages that no arena has. Never mapped: it only holds them.
#[derive(Debug)]
struct Bank {
    file: ArenaFile,
    /// Extents with pages; extents without.
    full: Vec<u32>,
    holes: Vec<u32>,
    lent: u64,
}

impl Bank {
    fn fill(config: &PoolConfig) -> Result<Self, PoolError> {
        let need_bytes = config.total_bytes();
        // Asked before, because the kernel's answers to asking too much are signals: SIGXFSZ, or the OOM killer.
        budget::check(need_bytes)?;
        let file = ArenaFile::create("shuffle-bank", need_bytes, config.extent_bytes())
            .map_err(PoolError::system("create the bank's memfd"))?;
        for extent in 0..config.extents() {
            file.allocate(extent).map_err(|error| PoolError::Budget {
                need_bytes,
                have_bytes: u64::from(extent) * config.extent_bytes(),
                limit: format!("then the kernel said: {error}"),
            })?;
        }
        Ok(Self {
            file,
            full: (0..config.extents()).rev().collect(),
            holes: Vec::new(),
            lent: 0,
        })
    }

    /// Extents that are here by the books and have no pages.
    fn short(&self) -> u64 {
        u64::try_from(self.holes.len()).expect("invariant: usize fits u64") - self.lent
    }

    /// Gives an extent's pages back to the kernel, for an arena to take.
    fn lend(&mut self) -> io::Result<()> {
        // With nothing but short extents here the arena asks the kernel for what the bank could not get.
        if let Some(extent) = self.full.pop() {
            if let Err(error) = self.file.punch(extent) {
                self.full.push(extent);
                return Err(error);
            }
            self.holes.push(extent);
        }
        self.lent += 1;
        Ok(())
    }

    /// One extent less is lent. Fills what it can: this extent, and what it was short of.
    fn take_back(&mut self) {
        self.lent -= 1;
        while self.short() > 0 {
            let Some(&extent) = self.holes.last() else { return };
            if self.file.allocate(extent).is_err() {
                return;
            }
            self.holes.pop();
            self.full.push(extent);
        }
    }
}
