//! Jobs come with two empty arenas and leave when their last buffer is home.

use std::sync::Arc;

use super::{Job, NetworkPool};
use crate::{
    arena_books::ArenaBooks,
    backing::Backing,
    error::PoolError,
    ids::{ArenaKind, JobKey, PoolId, to_u32, to_usize},
};

impl<B: Backing> NetworkPool<B> {
    /// Makes a job's arenas, without a single buffer. A job that is retiring stays instead.
    ///
    /// # Errors
    /// [`PoolError::JobExists`], [`PoolError::CreateJob`].
    pub fn add_job(&mut self, job: JobKey) -> Result<(), PoolError> {
        if let Some(known) = self.jobs.get_mut(&job) {
            if !known.retiring {
                return Err(PoolError::JobExists(job));
            }
            known.retiring = false;
            return Ok(());
        }
        self.backing.create_job(job).map_err(|cause| PoolError::CreateJob {
            job,
            cause: Arc::new(cause),
        })?;
        let arenas = [ArenaKind::Write, ArenaKind::Read].map(|kind| self.add_arena(job, kind));
        self.jobs.insert(
            job,
            Job {
                arenas,
                retiring: false,
            },
        );
        self.waiters.reserve(self.pools.capacity(), self.arenas.len());
        self.after_step();
        Ok(())
    }

    /// Whether the job has its arenas here and is not retiring.
    pub fn has_job(&self, job: JobKey) -> bool {
        self.jobs.get(&job).is_some_and(|job| !job.retiring)
    }

    /// Destroys the job's local pools; its arenas go once all their buffers are home. Whether they have gone already.
    ///
    /// # Errors
    /// [`PoolError::JobUnknown`].
    pub fn retire_job(&mut self, job: JobKey) -> Result<bool, PoolError> {
        let known = self.jobs.get_mut(&job).ok_or(PoolError::JobUnknown(job))?;
        known.retiring = true;
        let arenas = known.arenas;
        let pools: Vec<PoolId> = self
            .pools
            .iter()
            .filter(|(_, pool)| !pool.leaving && arenas.contains(&pool.arena))
            .map(|(index, _)| self.pools.id(index))
            .collect();
        for &id in &pools {
            self.leave(id);
        }
        if !pools.is_empty() {
            self.resize_pools();
        }
        let gone = self.finish_retired(job);
        self.after_step();
        Ok(gone)
    }

    /// Like [`Self::retire_job`] where all buffers must be home.
    ///
    /// # Errors
    /// [`PoolError::JobUnknown`], [`PoolError::JobBusy`]; then nothing has changed.
    pub fn remove_job(&mut self, job: JobKey) -> Result<(), PoolError> {
        let known = self.jobs.get(&job).ok_or(PoolError::JobUnknown(job))?;
        let out = known.arenas.iter().map(|&arena| self.arena(arena).out()).sum();
        if out > 0 {
            return Err(PoolError::JobBusy { job, out });
        }
        self.retire_job(job).map(|_| ())
    }

    /// Removes a retiring job whose buffers are all home. An extent that cannot be moved keeps the job, and stays
    /// something that others can take over.
    pub(super) fn finish_retired(&mut self, job: JobKey) -> bool {
        let Some(known) = self.jobs.get(&job) else {
            return true;
        };
        let arenas = known.arenas;
        if !known.retiring || arenas.iter().any(|&arena| self.arena(arena).out() > 0) {
            return false;
        }
        for arena in arenas {
            while self.arena(arena).extents() > 0 {
                if self.give(arena).is_err() {
                    return false;
                }
            }
        }
        self.backing.remove_job(job);
        for arena in arenas {
            self.arenas[to_usize(arena)] = None;
            self.vacant_arenas.push(arena);
        }
        self.jobs.remove(&job);
        self.stirred = true;
        true
    }

    fn add_arena(&mut self, job: JobKey, kind: ArenaKind) -> u32 {
        let arena = ArenaBooks::new(job, kind, self.config.extents(), self.config.extent_buffers);
        if let Some(index) = self.vacant_arenas.pop() {
            self.arenas[to_usize(index)] = Some(arena);
            return index;
        }
        self.arenas.push(Some(arena));
        to_u32(self.arenas.len() - 1)
    }
}
