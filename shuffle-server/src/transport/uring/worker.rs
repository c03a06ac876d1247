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
use super::mail::{Command, Inbox, Post, dead};
use super::operation::{Completion, Manner, Tag, Wait};
use super::plan::Limits;
use super::ring::Ring;
use super::sender::{Report, Sender};

/// One message takes at most so many pieces, one chain so many operations, if the ring has room for them.
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
    post: Post,
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
    limits: Limits,
    commands: VecDeque<Command>,
    lines: Vec<Option<Line>>,
    /// Lines that may have something to submit or to report.
    due: VecDeque<u32>,
    stop: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(mut ring: Ring, shared: Arc<Shared>, extents: Extents, files: u32) -> Self {
        let lines = (0..files).map(|_| None).collect();
        let limits = Limits {
            steps: LIMITS.steps.min(ring.entries()),
            ..LIMITS
        };
        Self {
            limits,
            ring,
            shared,
            extents,
            commands: VecDeque::new(),
            lines,
            due: VecDeque::new(),
            stop: None,
        }
    }

    /// Runs until [`Command::Stop`].
    ///
    /// # Errors
    /// The ring itself does not work any more.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        self.listen()?;
        loop {
            self.shared.inbox.take(&mut self.commands);
            while let Some(command) = self.commands.pop_front() {
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
        Ok(())
    }

    /// The end of a ring that does not work any more: its connections are told at once, their buffers come back when the kernel
    /// is done with all of them. Waits for that, however long it takes: only this thread has to.
    pub(crate) fn bury(mut self) {
        let unheard = self.shared.inbox.close();
        for line in self.lines.iter().flatten() {
            line.post.report(Report::failed(dead()));
        }
        for (number, line) in self.lines.iter_mut().enumerate() {
            if line.as_ref().is_some_and(|line| line.has_file) {
                // A socket that its connection has closed is then reset, and what lies in it for the kernel to send goes. One
                // that cannot be let go of here goes with the ring, or when the other side is given up.
                let _ = self
                    .ring
                    .clear_file(u32::try_from(number).expect("invariant: lines are counted in 32 bits"));
            }
        }
        self.ring.close();
        self.shared.registered.clear();
        // Leases end before anybody is told that his connection has ended.
        let (mut opened, mut others) = (Vec::new(), Vec::new());
        for command in unheard.into_iter().chain(std::mem::take(&mut self.commands)) {
            match command {
                Command::Open { post, .. } => opened.push(post),
                other => others.push(other),
            }
        }
        drop(others);
        drop(opened);
        for line in self.lines.into_iter().flatten() {
            let Line { sender, post, .. } = line;
            // Its leases end before anybody is told.
            drop(sender);
            post.close(Report::default());
        }
    }

    fn handle_command(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Open { line, socket, post } => self.open(line, &socket, post),
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
            #[cfg(test)]
            Command::Do(deed) => deed.0()?,
        }
        Ok(())
    }

    fn open(&mut self, line: u32, socket: &OwnedFd, post: Post) {
        let mut open = Line {
            sender: Sender::default(),
            post,
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
        let has_room = self.ring.make_room(self.limits.steps)?;
        let Some(line) = self.lines[index(number)].as_mut() else {
            return Ok(());
        };
        line.due = false;
        if has_room {
            let (ring, extents, registered) = (&mut self.ring, &mut self.extents, &self.shared.registered);
            let chain = line
                .sender
                .poll_chain(self.limits, &mut |piece| extents.entry_of(piece, ring, registered));
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
        let report = line.sender.take_report();
        if !(line.closing && line.sender.is_idle()) {
            if !report.is_empty() {
                line.post.report(report);
            }
        } else if let Some(line) = place.take() {
            line.post.close(report);
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
                usage,
            } => {
                let line = self.line(tag.line);
                let sender = &mut line.expect("invariant: a line stays until nothing of it is out").sender;
                if let Some(result) = sent {
                    sender.handle_sent(tag.step, result);
                }
                if let Some(usage) = usage {
                    sender.handle_usage(usage);
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
