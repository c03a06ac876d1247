//! A backing that knows which extents are where.

use std::{collections::BTreeSet, io};

use buffer_pool::{ArenaKind, Backing, JobKey};

/// Refuses moves that make no sense, and as many others as it is told to.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) jobs: BTreeSet<JobKey>,
    pub(super) extents: BTreeSet<(JobKey, ArenaKind, u32)>,
    pub(super) fail: u32,
}

impl Memory {
    fn may_fail(&mut self) -> io::Result<()> {
        if self.fail == 0 {
            return Ok(());
        }
        self.fail -= 1;
        Err(io::ErrorKind::OutOfMemory.into())
    }
}

impl Backing for Memory {
    fn create_job(&mut self, job: JobKey) -> io::Result<()> {
        assert!(self.jobs.insert(job));
        Ok(())
    }

    fn remove_job(&mut self, job: JobKey) {
        assert!(self.jobs.remove(&job));
        assert!(
            self.extents.iter().all(|extent| extent.0 != job),
            "all extents of {job} were moved out"
        );
    }

    fn move_in(&mut self, job: JobKey, arena: ArenaKind, extent: u32) -> io::Result<()> {
        self.may_fail()?;
        assert!(self.extents.insert((job, arena, extent)));
        Ok(())
    }

    fn move_out(&mut self, job: JobKey, arena: ArenaKind, extent: u32) -> io::Result<()> {
        self.may_fail()?;
        assert!(self.extents.remove(&(job, arena, extent)));
        Ok(())
    }
}
