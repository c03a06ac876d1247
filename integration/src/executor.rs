//! An executor process that follows a script; for what only another process can suffer.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use tokio::process::Command as Program;

use crate::Binaries;
use crate::process::Process;
use crate::script::{Command, Happened};

const READY_WITHIN: Duration = Duration::from_secs(20);

/// A running executor. Dropping it kills it.
#[derive(Debug)]
pub struct Executor {
    process: Process,
}

impl Executor {
    /// Starts it and waits until it is attached.
    ///
    /// # Panics
    /// If it does not attach in time.
    pub async fn start(binaries: Binaries, name: &str, folder: &Path, socket: &Path, job: u64) -> Self {
        let mut program = Program::new(binaries.executor);
        program
            .arg("--socket")
            .arg(socket)
            .arg("--job")
            .arg(job.to_string())
            .arg("--name")
            .arg(name);
        let process = Process::start(name, program, folder).expect("an executor process");
        let mut executor = Self { process };
        let first = executor.hear(READY_WITHIN).await;
        assert_eq!(first, Happened::Ready, "{}", executor.process.log());
        executor
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Tells it what to do.
    ///
    /// # Panics
    /// If it no longer listens.
    pub async fn tell(&mut self, command: &Command) {
        let line = serde_json::to_string(command).expect("a command is a line");
        self.process.tell(&line).await.expect("the executor listens");
    }

    /// The next thing that happened.
    ///
    /// # Panics
    /// After `limit`, at the end of its output, or if its oracle found wrong data.
    pub async fn hear(&mut self, limit: Duration) -> Happened {
        let line = self.process.line(limit).await;
        let Some(line) = line else {
            panic!("{} has ended:\n{}", self.process.name(), self.process.log());
        };
        let happened = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        if let Happened::Wrong { task, text } = &happened {
            panic!("{}: wrong data in task {task}: {text}", self.process.name());
        }
        happened
    }

    /// The next thing that `wanted` accepts; what comes before is passed over.
    ///
    /// # Panics
    /// As [`Self::hear`].
    pub async fn hear_until(&mut self, limit: Duration, mut wanted: impl FnMut(&Happened) -> bool) -> Happened {
        let end = tokio::time::Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(tokio::time::Instant::now());
            let happened = self.hear(left).await;
            if wanted(&happened) {
                return happened;
            }
        }
    }

    /// The end of a task: done or failed.
    ///
    /// # Panics
    /// As [`Self::hear`].
    pub async fn hear_end(&mut self, task: u32, limit: Duration) -> Happened {
        let is_end = |happened: &Happened| {
            matches!(happened, Happened::Done { .. } | Happened::Failed { .. }) && happened.task() == Some(task)
        };
        self.hear_until(limit, is_end).await
    }

    /// SIGSTOP: alive, but it does nothing.
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
    }

    /// SIGCONT after [`Self::stop`].
    pub fn go_on(&self) {
        self.process.signal(Signal::CONT);
    }

    /// `kill -9`, reaped.
    pub async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Its process.
    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}
