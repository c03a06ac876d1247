//! Watching a run: events of all processes, a look at the servers now and then, the deadlines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::feed::FeedState;
use super::plan::{Plan, Total};
use super::roster::Roster;
use crate::cluster::{ChildEvent, ChildId, Children, Peaks, Server};
use crate::console::Console;
use crate::error::BenchError;
use crate::executor::Event;

/// The watch over one run.
#[derive(Debug)]
pub(super) struct Watch {
    roster: Roster,
    peaks: Peaks,
    /// Process and port of each server.
    servers: Vec<(u32, u16)>,
    total: Option<Total>,
    stall_timeout: Duration,
}

impl Watch {
    pub(super) fn new(plan: &Plan, servers: &[Server], roster: Roster) -> Self {
        Self {
            roster,
            peaks: Peaks::default(),
            servers: servers.iter().map(|server| (server.pid, server.port)).collect(),
            total: plan.total,
            stall_timeout: plan.stall_timeout,
        }
    }

    /// How far the progress line goes, in the unit of [`Watch::position`].
    pub(super) fn total(&self) -> Option<u64> {
        self.total.map(|total| match total {
            Total::Rows(total) | Total::Bytes(total) => total,
        })
    }

    /// Waits until every executor is attached.
    pub(super) async fn until_attached(
        &mut self,
        children: &mut Children,
        console: &mut Console,
    ) -> Result<(), BenchError> {
        let begun = Instant::now();
        let mut ticks = ticks();
        while !self.roster.are_all_attached() {
            self.step(children, console, &mut ticks).await?;
            if begun.elapsed() > ATTACH_TIMEOUT {
                return Err(BenchError::TimedOut {
                    what: "the start of all executors".to_owned(),
                    after: ATTACH_TIMEOUT,
                });
            }
        }
        Ok(())
    }

    /// Waits until every executor is done.
    pub(super) async fn until_done(
        &mut self,
        children: &mut Children,
        console: &mut Console,
        feed: Option<Arc<FeedState>>,
        mut problems: Option<mpsc::Receiver<String>>,
    ) -> Result<(), BenchError> {
        self.roster.touch(Instant::now());
        let mut ticks = ticks();
        while !self.roster.are_all_done() {
            self.step(children, console, &mut ticks).await?;
            if let Some(Ok(problem)) = problems.as_mut().map(mpsc::Receiver::try_recv) {
                return Err(BenchError::Input(problem));
            }
            let now = Instant::now();
            if feed.as_ref().is_some_and(|feed| feed.is_waiting()) {
                self.roster.touch(now);
            }
            if self.roster.idle(now) > self.stall_timeout {
                return Err(BenchError::TimedOut {
                    what: "any progress".to_owned(),
                    after: self.stall_timeout,
                });
            }
        }
        self.peaks.sample(&self.servers);
        self.peaks.look_at_connections(&self.servers);
        match problems.as_mut().map(mpsc::Receiver::try_recv) {
            Some(Ok(problem)) => Err(BenchError::Input(problem)),
            _ => Ok(()),
        }
    }

    /// Everyone's results, and what was seen of the servers.
    pub(super) fn into_parts(self) -> (Roster, Peaks) {
        (self.roster, self.peaks)
    }

    /// Handles one event or looks at the servers once.
    async fn step(
        &mut self,
        children: &mut Children,
        console: &mut Console,
        ticks: &mut tokio::time::Interval,
    ) -> Result<(), BenchError> {
        tokio::select! {
            (id, event) = children.next_event() => self.handle(id, event, console),
            _ = ticks.tick() => {
                self.peaks.sample(&self.servers);
                let (rows, bytes) = self.roster.arrived();
                console.advance(self.position(rows, bytes), rows, bytes);
            }
        }
        if let Some(fault) = self.roster.input_fault() {
            return Err(BenchError::Input(fault.to_owned()));
        }
        match self.roster.poll_failure(Instant::now()) {
            Some(failure) => Err(BenchError::Run(failure)),
            None => Ok(()),
        }
    }

    fn handle(&mut self, id: ChildId, event: ChildEvent, console: &Console) {
        let now = Instant::now();
        match event {
            ChildEvent::Line(line) => match serde_json::from_str::<Event>(&line) {
                Ok(event) => self.roster.handle_event(now, id, event),
                Err(_) => say_line(console, self.roster.label(id), &line),
            },
            ChildEvent::Message(text) => say_line(console, self.roster.label(id), &text),
            ChildEvent::Ended(status) => {
                let how = match status {
                    Ok(status) => status.to_string(),
                    Err(error) => error.to_string(),
                };
                self.roster.handle_end(now, id, &how);
            }
        }
    }

    fn position(&self, rows: u64, bytes: u64) -> u64 {
        match self.total {
            Some(Total::Rows(_)) | None => rows,
            // Each row had a line end.
            Some(Total::Bytes(_)) => rows + bytes,
        }
    }
}

/// Relays what a process said.
pub(super) fn say_line(console: &Console, label: &str, text: &str) {
    console.say(format!("[{label}] {text}"));
}

fn ticks() -> tokio::time::Interval {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

const TICK: Duration = Duration::from_millis(50);
const ATTACH_TIMEOUT: Duration = Duration::from_secs(30);
