//! One connection's sending, as a state machine without a ring: jobs in, chains of operations out, completions in, reports out.
//!
//! ```text
//!   waiting ──poll_chain──> sending ──all bytes sent──> unreleased ──last memory released──> slots reported
//!              (one chain at a time)                     (notifications come when they come)
//! ```
//!
//! Only one chain is out at a time, so bytes leave in order. The next does not wait for notifications.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;

use buffer_pool::SlotRef;

use super::piece::{Gather, Piece};
use super::plan::{Cursor, Limits, Step, ZeroCopy, plan};

/// Operations to be submitted together, in this order, each linked to the next.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) job: u64,
    pub(crate) gather: Rc<Gather>,
    pub(crate) steps: Vec<Step>,
}

/// What has happened since the last report.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Jobs of which every byte has been taken by the kernel, or that will never be.
    pub(crate) sent: usize,
    /// Buffers that the kernel reads no more.
    pub(crate) slots: Vec<SlotRef>,
    /// The connection is broken; said once.
    pub(crate) failed: Option<io::Error>,
    /// Zero-copy sends that were none, and those that were, as the notifications said.
    pub(crate) copied: u64,
    pub(crate) uncopied: u64,
}

impl Report {
    /// Adds what has happened after this.
    pub(crate) fn merge(&mut self, later: Self) {
        self.sent += later.sent;
        self.copied += later.copied;
        self.uncopied += later.uncopied;
        self.failed = self.failed.take().or(later.failed);
        if self.slots.is_empty() {
            self.slots = later.slots;
        } else {
            self.slots.extend(later.slots);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sent == 0 && self.slots.is_empty() && self.failed.is_none() && self.copied + self.uncopied == 0
    }
}

#[derive(Debug)]
struct Job {
    number: u64,
    gather: Rc<Gather>,
    cursor: Cursor,
    /// Operations whose memory the kernel may still read.
    held: usize,
}

#[derive(Debug)]
struct Out {
    steps: Vec<Step>,
    /// Operations without a result.
    unsent: usize,
    /// One sent less than it should have: those behind it are given up and planned anew.
    broken: bool,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    jobs: VecDeque<Job>,
    out: Option<Out>,
    unreleased: BTreeMap<u64, Job>,
    next: u64,
    zero_copy: ZeroCopy,
    failed: bool,
    report: Report,
}

impl Sender {
    /// Bytes to be sent behind all that were given before. On a broken connection they come back at once.
    pub(crate) fn handle_job(&mut self, gather: Gather) {
        self.jobs.push_back(Job {
            number: self.next,
            gather: Rc::new(gather),
            cursor: Cursor::default(),
            held: 0,
        });
        self.next += 1;
        self.settle();
    }

    /// What is to be submitted next; `None`: nothing, or something is still out.
    pub(crate) fn poll_chain(
        &mut self,
        limits: Limits,
        extent_of: &mut dyn FnMut(&Piece) -> Option<u16>,
    ) -> Option<Chain> {
        if self.out.is_some() || self.failed {
            return None;
        }
        let job = self.jobs.front_mut()?;
        let steps = plan(&job.gather, job.cursor, limits, self.zero_copy.allowed(), extent_of);
        if steps.iter().any(|step| step.extent.is_some()) {
            self.zero_copy.handle_used();
        }
        job.held += steps.len();
        self.out = Some(Out {
            unsent: steps.len(),
            steps: steps.clone(),
            broken: false,
        });
        Some(Chain {
            job: job.number,
            gather: Rc::clone(&job.gather),
            steps,
        })
    }

    /// The result of one operation of the chain that is out; results come in the chain's order.
    pub(crate) fn handle_sent(&mut self, step: usize, result: io::Result<usize>) {
        let (Some(out), Some(job)) = (&mut self.out, self.jobs.front_mut()) else {
            unreachable!("invariant: a result belongs to the chain that is out")
        };
        out.unsent -= 1;
        let step = &out.steps[step];
        match result {
            Ok(0) if step.bytes > 0 => self.fail(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                job.cursor.advance(&job.gather, count);
                out.broken |= count < step.bytes;
            }
            Err(error) if out.broken && is_cancelled(&error) => {}
            Err(error) if step.extent.is_some() && !is_cancelled(&error) => {
                // A copying send will tell whether it is the connection that is broken.
                self.zero_copy.handle_refused();
                out.broken = true;
            }
            Err(error) => self.fail(error),
        }
        self.settle();
    }

    /// The kernel reads the memory of one operation of this job no more.
    pub(crate) fn handle_released(&mut self, job: u64) {
        if let Some(unreleased) = self.unreleased.get_mut(&job) {
            unreleased.held -= 1;
            if unreleased.held == 0 {
                self.release(job);
            }
        } else {
            let front = self.jobs.front_mut().filter(|front| front.number == job);
            front
                .expect("invariant: memory is released once for each operation")
                .held -= 1;
        }
        self.settle();
    }

    /// A notification says whether a zero-copy send was copied after all.
    pub(crate) fn handle_copied(&mut self, copied: bool) {
        self.zero_copy.handle_report(copied);
        self.report.copied += u64::from(copied);
        self.report.uncopied += u64::from(!copied);
    }

    /// The connection is over: nothing more is sent. What is out is still waited for.
    pub(crate) fn fail(&mut self, error: io::Error) {
        if !self.failed {
            self.failed = true;
            self.report.failed = Some(error);
        }
        self.settle();
    }

    /// Whether operations wait for their results: they can be cancelled.
    pub(crate) fn is_out(&self) -> bool {
        self.out.is_some()
    }

    /// Whether the kernel holds no memory of this connection, and nothing is left to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.out.is_none() && self.jobs.is_empty() && self.unreleased.is_empty()
    }

    /// Whether zero copy is in use on this connection.
    #[cfg(test)]
    pub(crate) fn zero_copy(&self) -> ZeroCopy {
        self.zero_copy
    }

    /// What has happened since this was asked last.
    pub(crate) fn take_report(&mut self) -> Report {
        std::mem::take(&mut self.report)
    }

    /// Moves jobs on that have no reason to stay where they are.
    fn settle(&mut self) {
        if self.out.as_ref().is_some_and(|out| out.unsent == 0) {
            self.out = None;
        }
        if self.out.is_none() {
            while self
                .jobs
                .front()
                .is_some_and(|job| self.failed || job.cursor.is_at_end(&job.gather))
            {
                let Some(job) = self.jobs.pop_front() else { break };
                let (number, held) = (job.number, job.held);
                self.unreleased.insert(number, job);
                self.report.sent += 1;
                if held == 0 {
                    self.release(number);
                }
            }
        }
    }

    /// The last of a job's memory is free: its leases end here, before anybody is told.
    fn release(&mut self, job: u64) {
        let job = self.unreleased.remove(&job);
        let gather = job.map(|job| job.gather).and_then(Rc::into_inner);
        let gather = gather.expect("invariant: nobody else has the bytes that no operation reads");
        self.report.slots.extend(gather.slots());
    }
}

fn is_cancelled(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECANCELED)
}
