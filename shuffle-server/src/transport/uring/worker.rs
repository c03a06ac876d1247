//! The thread of one ring: commands in, chains into the ring, completions to the connections they belong to.
//!
//! ```text
//!   loop { commands -> senders -> chains -> submit, and wait if there is nothing to do -> completions -> senders -> mail }
//! ```

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::extents::{Extents, Registered};
use super::mail::{Command, Inbox, LineMail};
use super::operation::{Completion, Manner, Tag, Wait};
use super::plan::Limits;
use super::ring::Ring;
use super::sender::Sender;

/// One message takes at most so many pieces, one chain so many operations.
const LIMITS: Limits = Limits { slices: 128, steps: 64 };
/// How long the end waits for what the kernel still holds.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// What the two threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) inbox: Inbox,
    pub(crate) registered: Registered,
}

struct Line {
    sender: Sender,
    mail: Arc<LineMail>,
    closing: bool,
    /// The ring has its socket.
    has_file: bool,
    /// It stands in `due`.
    due: bool,
}

/// See the module's header.
pub(crate) struct Worker {
    ring: Ring,
    shared: Arc<Shared>,
    extents: Extents,
    lines: Vec<Option<Line>>,
    /// Lines that may have something to submit or to report.
    due: VecDeque<u32>,
    stop: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(ring: Ring, shared: Arc<Shared>, extents: Extents, files: u32) -> Self {
        let lines = (0..files).map(|_| None).collect();
        Self {
            ring,
            shared,
            extents,
            lines,
            due: VecDeque::new(),
            stop: None,
        }
    }

    /// Runs until [`Command::Stop`].
    ///
    /// # Errors
    /// The ring itself does not work any more.
    pub(crate) fn run(mut self) -> io::Result<()> {
        self.listen()?;
        loop {
            for command in self.shared.inbox.take() {
                self.handle_command(command)?;
            }
            self.serve_due()?;
            let wait = match self.stop {
                Some(_) if self.ring.sends() == 0 => break,
                Some(until) if until <= Instant::now() => break,
                Some(until) => Wait::AtMost(until.saturating_duration_since(Instant::now())),
                None if self.due.is_empty() && self.shared.inbox.fall_asleep() => Wait::Forever,
                None => Wait::No,
            };
            self.ring.submit(wait)?;
            self.shared.inbox.wake_up();
            while let Some(completion) = self.ring.next_completion() {
                self.handle_completion(completion)?;
            }
        }
        self.extents.forget_all(&mut self.ring, &self.shared.registered);
        Ok(())
    }

    fn handle_command(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Open { line, socket, mail } => self.open(line, &socket, mail),
            Command::Send { line, gather } => {
                if let Some(open) = self.line(line) {
                    open.sender.handle_job(gather);
                    self.make_due(line);
                }
            }
            Command::Close { line } => self.close(line)?,
            Command::Forget(extent) => self.extents.forget(extent, &mut self.ring, &self.shared.registered),
            Command::Stop => {
                self.stop = Some(Instant::now() + LAST_WAIT);
                for line in 0..self.lines.len() {
                    self.close(u32::try_from(line).expect("invariant: lines are counted in 32 bits"))?;
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, line: u32, socket: &OwnedFd, mail: Arc<LineMail>) {
        let mut open = Line {
            sender: Sender::default(),
            mail,
            closing: false,
            has_file: true,
            due: false,
        };
        if let Err(error) = self.ring.set_file(line, socket.as_fd()) {
            open.has_file = false;
            open.sender.fail(error);
        }
        let place = &mut self.lines[index(line)];
        assert!(
            place.is_none(),
            "invariant: a connection's number is free when it is given out"
        );
        *place = Some(open);
        self.make_due(line);
    }

    fn close(&mut self, line: u32) -> io::Result<()> {
        let Some(open) = self.line(line).filter(|open| !open.closing) else {
            return Ok(());
        };
        open.closing = true;
        open.sender.fail(io::ErrorKind::ConnectionAborted.into());
        self.make_due(line);
        self.give_up(line)
    }

    /// Cancels what is out of a line that closes, until nothing is.
    fn give_up(&mut self, line: u32) -> io::Result<()> {
        if self.line(line).is_some_and(|open| open.closing && open.sender.is_out()) {
            while !self.ring.make_room(1)? {
                self.take_completions()?;
            }
            self.ring.cancel(line);
        }
        Ok(())
    }

    /// Submits and reports for every line that may have something.
    fn serve_due(&mut self) -> io::Result<()> {
        for _ in 0..self.due.len() {
            let Some(number) = self.due.pop_front() else { break };
            self.serve(number)?;
        }
        Ok(())
    }

    fn serve(&mut self, number: u32) -> io::Result<()> {
        let has_room = self.ring.make_room(LIMITS.steps)?;
        let Some(line) = self.lines[index(number)].as_mut() else {
            return Ok(());
        };
        line.due = false;
        if has_room {
            let (ring, extents, registered) = (&mut self.ring, &mut self.extents, &self.shared.registered);
            let chain = line
                .sender
                .poll_chain(LIMITS, &mut |piece| extents.entry_of(piece, ring, registered));
            if let Some(chain) = chain {
                let last = chain.steps.len() - 1;
                for (at, step) in chain.steps.iter().enumerate() {
                    let manner = Manner {
                        linked: at < last,
                        more: step.pieces.end < chain.gather.pieces().len(),
                    };
                    let tag = Tag {
                        line: number,
                        job: chain.job,
                        step: at,
                    };
                    match step.extent {
                        Some(extent) => {
                            let from = (step.pieces.start, step.skip);
                            self.ring
                                .send_zero_copy(number, &chain.gather, from, extent, manner, tag);
                        }
                        None => self
                            .ring
                            .send(number, &chain.gather, step.pieces.clone(), step.skip, manner, tag),
                    }
                }
            }
        } else {
            self.make_due(number);
        }
        self.report(number);
        Ok(())
    }

    fn report(&mut self, number: u32) {
        let place = &mut self.lines[index(number)];
        let Some(line) = place else { return };
        if line.closing && line.has_file && !line.sender.is_out() {
            line.has_file = false;
            if let Err(error) = self.ring.clear_file(number) {
                tracing::error!("io_uring: a socket cannot be let go of: {error}");
            }
        }
        let closed = line.closing && line.sender.is_idle();
        let report = line.sender.take_report();
        if closed || !report.is_empty() {
            line.mail.post(report, closed);
        }
        if closed {
            *place = None;
        }
    }

    fn take_completions(&mut self) -> io::Result<()> {
        while let Some(completion) = self.ring.next_completion() {
            self.handle_completion(completion)?;
        }
        Ok(())
    }

    fn handle_completion(&mut self, completion: Completion) -> io::Result<()> {
        match completion {
            Completion::Bell { armed: true } => Ok(()),
            Completion::Bell { armed: false } => self.listen(),
            Completion::Cancelled { line } => self.give_up(line),
            Completion::Send {
                tag,
                sent,
                released,
                copied,
            } => {
                let line = self.line(tag.line);
                let sender = &mut line.expect("invariant: a line stays until nothing of it is out").sender;
                if let Some(result) = sent {
                    sender.handle_sent(tag.step, result);
                }
                if let Some(copied) = copied {
                    sender.handle_copied(copied);
                }
                if released {
                    sender.handle_released(tag.job);
                }
                self.make_due(tag.line);
                Ok(())
            }
        }
    }

    fn listen(&mut self) -> io::Result<()> {
        while !self.ring.make_room(1)? {
            self.take_completions()?;
        }
        self.ring.listen(self.shared.inbox.bell());
        Ok(())
    }

    fn line(&mut self, line: u32) -> Option<&mut Line> {
        self.lines[index(line)].as_mut()
    }

    fn make_due(&mut self, number: u32) {
        if let Some(line) = self.lines[index(number)].as_mut()
            && !std::mem::replace(&mut line.due, true)
        {
            self.due.push_back(number);
        }
    }
}

fn index(line: u32) -> usize {
    usize::try_from(line).expect("invariant: u32 fits usize")
}
