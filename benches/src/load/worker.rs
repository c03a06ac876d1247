//! A worker from its first to its last word.

use std::io::BufRead;
use std::process::ExitCode;

use super::message::{Done, Event, Task, WorkerSpec, emit};
use super::pattern::Totals;
use super::{consume, file, latency, many, produce};
use crate::clock::{Moment, cpu_seconds};
use crate::cluster::follow_parent;
use crate::error::BenchError;
use crate::executor::ExecutorError;
use crate::peers;

/// Runs a worker to its end. The exit status says whether it succeeded; details were reported.
pub(crate) fn execute(role: &str, spec: &str) -> ExitCode {
    let spec: WorkerSpec = match prepare(spec) {
        Ok(spec) => spec,
        Err(error) => {
            eprintln!("{error}");
            return error.exit_code();
        }
    };
    let result = match spec.task {
        Task::Produce(load) => in_runtime(produce::run(role.to_owned(), load)),
        Task::Consume(load) => in_runtime(consume::run(role.to_owned(), load)),
        Task::Latency(load) => in_runtime(latency::run(role.to_owned(), load)),
        Task::Many(load) => in_runtime(many::run(role.to_owned(), load)),
        Task::Pair(load) => peers::run(&load),
        Task::Carry(load) => peers::carry(&load),
        Task::Relay(load) => peers::relay(load),
        Task::File(load) => file::run(&load),
    };
    match result {
        Ok(done) => {
            emit(&Event::Done(done));
            ExitCode::SUCCESS
        }
        Err(error) => {
            emit(&Event::failed(&error));
            ExitCode::FAILURE
        }
    }
}

fn prepare(spec: &str) -> Result<WorkerSpec, BenchError> {
    let spec: WorkerSpec =
        serde_json::from_str(spec).map_err(|error| BenchError::Usage(format!("not a task for a worker: {error}")))?;
    follow_parent(spec.parent)?;
    Ok(spec)
}

/// Runs a task on a runtime of this thread.
pub(crate) fn in_runtime(
    work: impl Future<Output = Result<Done, ExecutorError>> + Send + 'static,
) -> Result<Done, ExecutorError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ExecutorError::Other(format!("cannot start the runtime: {error}")))?;
    // A task of its own: to wake the future that `block_on` runs costs a system call each time.
    let task = runtime.spawn(work);
    let result = runtime
        .block_on(task)
        .unwrap_or_else(|error| Err(ExecutorError::Other(format!("the worker's task {error}"))));
    // A read of standard input may still be waiting in another thread.
    runtime.shutdown_background();
    result
}

/// Says that the worker is ready and waits for the start, on this thread.
pub(crate) fn wait_for_go() -> Result<Stopwatch, ExecutorError> {
    emit(&Event::Ready);
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(_) if line == "go\n" => Ok(Stopwatch::start()),
        Ok(_) => Err(ExecutorError::Other(format!("expected the start, got {line:?}"))),
        Err(error) => Err(ExecutorError::Other(format!("cannot read orders: {error}"))),
    }
}

/// The processor time of the measured part.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    cpu: f64,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { cpu: cpu_seconds() }
    }

    /// The end of the task.
    pub(crate) fn stop(self, totals: Totals) -> Done {
        Done {
            totals,
            finished: Moment::now(),
            cpu_seconds: cpu_seconds() - self.cpu,
            local_bytes: 0,
            remote_bytes: 0,
            latencies: Vec::new(),
        }
    }
}
