//! One measured round: servers and workers up, all of them ready, go, until the last is done.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::time::timeout;

use super::cpu::seconds_of;
use crate::clock::Moment;
use crate::cluster::{ChildEvent, ChildId, Children, Server, ServerOptions};
use crate::console::Console;
use crate::error::{Attempt, BenchError, RoleFailure, RunFailure};
use crate::executor::GO;
use crate::load::{Done, Event, Task, WorkerSpec};

/// The processes of one round, and a folder for their sockets.
#[derive(Debug)]
pub(crate) struct Stage {
    dir: TempDir,
    children: Children,
    servers: Vec<Server>,
    workers: BTreeMap<ChildId, Worker>,
    stall_timeout: Duration,
    verbose: bool,
}

#[derive(Debug)]
struct Worker {
    label: String,
    input: ChildStdin,
    ready: bool,
    bytes: u64,
    done: Option<Done>,
}

/// What a round was.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Performance {
    /// From "go" to the end of the last worker.
    pub(crate) seconds: f64,
    /// Of each worker, in the order in which they were started.
    pub(crate) done: Vec<Done>,
    /// Processor time of each server in that time.
    pub(crate) server_cpu: Vec<f64>,
}

impl Performance {
    /// Processor time of all processes of the round.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let workers: f64 = self.done.iter().map(|done| done.cpu_seconds).sum();
        workers + self.server_cpu.iter().sum::<f64>()
    }
}

impl Stage {
    pub(crate) fn open(stall_timeout: Duration, verbose: bool) -> Result<Self, BenchError> {
        Ok(Self {
            dir: tempfile::Builder::new()
                .prefix("shuffle-bench-")
                .tempdir()
                .attempt(|| "cannot make a temporary folder".to_owned())?,
            children: Children::new(),
            servers: Vec::new(),
            workers: BTreeMap::new(),
            stall_timeout,
            verbose,
        })
    }

    /// A folder for the sockets of this round.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Starts the server of the next node. To be called before any worker is started.
    pub(crate) async fn start_server(&mut self, options: &ServerOptions, console: &Console) -> Result<(), BenchError> {
        let node = self.servers.len();
        let server = Server::start(&mut self.children, node, self.dir.path(), options, console).await?;
        if self.verbose {
            console.say(format!("{} pid {} serves {}", server.name, server.pid, server.address));
        }
        self.servers.push(server);
        Ok(())
    }

    /// Starts a worker and waits until it listens or is ready; the address at which it listens, if it does.
    pub(crate) async fn start_worker(
        &mut self,
        role: &str,
        task: Task,
        console: &Console,
    ) -> Result<Option<String>, BenchError> {
        let spec = WorkerSpec {
            parent: std::process::id(),
            task,
        };
        let spec = serde_json::to_string(&spec)
            .map_err(|error| BenchError::Usage(format!("a task cannot be written: {error}")))?;
        let spawned = self.children.spawn(["worker", role, &spec])?;
        if self.verbose {
            console.say(format!("{role} pid {}", spawned.pid));
        }
        let worker = Worker {
            label: format!("{role} (pid {})", spawned.pid),
            input: spawned.input,
            ready: false,
            bytes: 0,
            done: None,
        };
        self.workers.insert(spawned.id, worker);
        loop {
            match self.next(START_TIMEOUT, console).await? {
                (id, Event::Ready) if id == spawned.id => return Ok(None),
                (id, Event::Listening(address)) if id == spawned.id => return Ok(Some(address)),
                _ => {}
            }
        }
    }

    /// Lets all workers go once they are ready, and waits until all are done.
    pub(crate) async fn perform(&mut self, console: &mut Console) -> Result<Performance, BenchError> {
        while self.workers.values().any(|worker| !worker.ready) {
            self.next(START_TIMEOUT, console).await?;
        }
        let before = self.server_cpu()?;
        let start = Moment::now();
        for worker in self.workers.values_mut() {
            // One that is gone reports itself.
            let _ = timeout(WRITE_TIMEOUT, worker.input.write_all(GO)).await;
        }
        while self.workers.values().any(|worker| worker.done.is_none()) {
            self.next(self.stall_timeout, console).await?;
            console.show_bytes(self.workers.values().map(|worker| worker.bytes).sum());
        }
        let after = self.server_cpu()?;
        let done: Vec<Done> = self.workers.values().filter_map(|worker| worker.done.clone()).collect();
        let last = done.iter().map(|done| done.finished).max().unwrap_or(start);
        Ok(Performance {
            seconds: last.seconds_since(start),
            done,
            server_cpu: after
                .iter()
                .zip(&before)
                .map(|(after, before)| after - before)
                .collect(),
        })
    }

    /// Processor time of the servers so far.
    pub(crate) fn server_cpu(&self) -> Result<Vec<f64>, BenchError> {
        let seconds =
            |server: &Server| seconds_of(server.pid).attempt(|| format!("the processor time of {}", server.name));
        self.servers.iter().map(seconds).collect()
    }

    /// Ends all processes and removes the folder.
    pub(crate) async fn close(mut self) -> Result<(), BenchError> {
        self.children.stop().await;
        self.dir
            .close()
            .attempt(|| "cannot remove the temporary folder".to_owned())
    }

    /// The next thing that a worker reports. Everything else is relayed, or is the end of the round.
    async fn next(&mut self, patience: Duration, console: &Console) -> Result<(ChildId, Event), BenchError> {
        loop {
            let (id, event) =
                timeout(patience, self.children.next_event())
                    .await
                    .map_err(|_| BenchError::TimedOut {
                        what: "any progress of a worker".to_owned(),
                        after: patience,
                    })?;
            match event {
                ChildEvent::Line(line) => match serde_json::from_str(&line) {
                    Ok(Event::Failed { message, first_cause }) => {
                        return Err(self.failure(id, message, first_cause, console).await);
                    }
                    Ok(event) => {
                        self.handle(id, &event);
                        return Ok((id, event));
                    }
                    Err(_) => console.say(format!("[{}] {line}", self.label(id))),
                },
                ChildEvent::Message(text) => console.say(format!("[{}] {text}", self.label(id))),
                ChildEvent::Ended(status) => {
                    let worker = self.workers.get(&id);
                    if worker.is_none_or(|worker| worker.done.is_none()) {
                        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                        let message = format!("ended before its task did ({how})");
                        return Err(self.failure(id, message, None, console).await);
                    }
                }
            }
        }
    }

    fn handle(&mut self, id: ChildId, event: &Event) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        match event {
            Event::Ready => worker.ready = true,
            Event::Progress(bytes) => worker.bytes = *bytes,
            Event::Done(done) => worker.done = Some(done.clone()),
            Event::Listening(_) | Event::Failed { .. } => {}
        }
    }

    /// A failure, with what others have to say about it within a moment.
    async fn failure(
        &mut self,
        id: ChildId,
        message: String,
        first_cause: Option<String>,
        console: &Console,
    ) -> BenchError {
        let report = |role: &str, message: String, first_cause: Option<String>| RoleFailure {
            role: role.to_owned(),
            message,
            first_cause,
        };
        let mut reports = vec![report(self.label(id), message, first_cause)];
        let more = async {
            loop {
                let (id, event) = self.children.next_event().await;
                match event {
                    ChildEvent::Line(line) => {
                        if let Ok(Event::Failed { message, first_cause }) = serde_json::from_str(&line) {
                            reports.push(report(self.label(id), message, first_cause));
                        }
                    }
                    ChildEvent::Message(text) => console.say(format!("[{}] {text}", self.label(id))),
                    ChildEvent::Ended(_) => {}
                }
            }
        };
        let _: Result<(), _> = timeout(TIME_TO_REPORT, more).await;
        BenchError::Run(RunFailure {
            reports,
            silent: Vec::new(),
        })
    }

    fn label(&self, id: ChildId) -> &str {
        let server = self.servers.iter().find(|server| server.id == id);
        match (self.workers.get(&id), server) {
            (Some(worker), _) => &worker.label,
            (None, Some(server)) => &server.name,
            (None, None) => "unknown process",
        }
    }
}

const START_TIMEOUT: Duration = Duration::from_secs(30);
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
const TIME_TO_REPORT: Duration = Duration::from_millis(500);
