//! One connection's sending, as a state machine without a ring: jobs in, chains of operations out, completions in, reports out.
//!
//! ```text
//!   waiting ──poll_chain──> sending ──all bytes sent──> unreleased ──last memory released──> released
//!              (one chain at a time)                     (notifications come when they come)
//! ```
//!
//! Only one chain is out at a time, so bytes leave in order. The next does not wait for notifications.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;

use super::operation::Usage;
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
    /// Jobs of which the kernel reads no buffer any more, by their numbers: counted from 0 as they were given.
    pub(crate) released: Vec<u64>,
    /// The connection is broken; said once.
    pub(crate) failed: Option<io::Error>,
    /// What the notifications of zero-copy sends said.
    pub(crate) zero_copy: ZeroCopySends,
}

/// Zero-copy sends by what the kernel reported of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ZeroCopySends {
    /// Sends that the kernel copied after all.
    pub(crate) copied: u64,
    /// Sends that it did not copy, and their bytes.
    pub(crate) uncopied: u64,
    pub(crate) uncopied_bytes: u64,
}

impl ZeroCopySends {
    pub(crate) fn add(&mut self, more: Self) {
        self.copied += more.copied;
        self.uncopied += more.uncopied;
        self.uncopied_bytes += more.uncopied_bytes;
    }
}

impl Report {
    pub(crate) fn failed(error: io::Error) -> Self {
        Self {
            failed: Some(error),
            ..Self::default()
        }
    }

    /// Adds what has happened after this.
    pub(crate) fn merge(&mut self, later: Self) {
        self.sent += later.sent;
        self.zero_copy.add(later.zero_copy);
        self.failed = self.failed.take().or(later.failed);
        if self.released.is_empty() {
            self.released = later.released;
        } else {
            self.released.extend(later.released);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let no_sends = self.zero_copy == ZeroCopySends::default();
        self.sent == 0 && self.released.is_empty() && self.failed.is_none() && no_sends
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
            Err(error) if out.broken && is_cancelled(&error) => {
                if step.extent.is_some() {
                    self.zero_copy.handle_unsent();
                }
            }
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
    pub(crate) fn handle_usage(&mut self, usage: Usage) {
        self.zero_copy.handle_report(usage.copied);
        let bytes = if usage.copied { 0 } else { usage.bytes };
        self.report.zero_copy.add(ZeroCopySends {
            copied: u64::from(usage.copied),
            uncopied: u64::from(!usage.copied),
            uncopied_bytes: u64::try_from(bytes).expect("invariant: usize fits u64"),
        });
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
    fn release(&mut self, number: u64) {
        let job = self.unreleased.remove(&number);
        let gather = job.map(|job| job.gather).and_then(Rc::into_inner);
        drop(gather.expect("invariant: nobody else has the bytes that no operation reads"));
        self.report.released.push(number);
    }
}

fn is_cancelled(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECANCELED)
}
