//! What an executor process of a run does: attach, wait for the start, produce or consume, report.
//!
//! ```text
//! parent --- spec (argument), "go", blocks of text ---> standard input
//! parent <-- attached, progress .., finished | failed        --- standard output, one JSON a line
//! ```

mod consume;
mod message;
mod orders;
mod produce;
mod progress;
mod sink;

pub(crate) use message::emit;
pub(crate) use message::{
    ConsumeSpec, ConsumerResult, Event, ExecutorSpec, GroupSpec, ProduceSpec, ProducerResult, Sink, Source, Task,
};
pub(crate) use orders::{END_OF_TEXT, GO, Orders, block_order};

use std::process::ExitCode;
use std::time::Duration;

use serde::de::DeserializeOwned;
use shuffle_client::{AttachOptions, Session};
use shuffle_protocol::{JobId, ShuffleError};

use crate::cluster::follow_parent;
use crate::error::BenchError;

/// Why an executor cannot do its task.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecutorError {
    /// The shuffle failed.
    #[error("{0}")]
    Shuffle(#[from] ShuffleError),
    /// The input or the output did.
    #[error("{0}")]
    Other(String),
}

/// Runs an executor to its end. The exit status says whether it succeeded; details were reported.
pub(crate) fn execute(role: &str, spec: &str) -> ExitCode {
    match prepare(spec, "for an executor", |spec: &ExecutorSpec| spec.parent) {
        Ok((runtime, spec)) => {
            // A task of its own: to wake the future that `block_on` runs costs a system call each time.
            let task = runtime.spawn(run(role.to_owned(), spec));
            let result = runtime
                .block_on(task)
                .unwrap_or_else(|error| Err(ExecutorError::Other(format!("the executor's task {error}"))));
            // A read of standard input may still be waiting in another thread.
            runtime.shutdown_background();
            match result {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    emit(&failed(&error));
                    ExitCode::FAILURE
                }
            }
        }
        Err(error) => {
            eprintln!("{error}");
            error.exit_code()
        }
    }
}

/// What a process of a run was given to do, and a runtime of its thread to do it on. From here on it ends with the process that
/// started it, whose number is `parent` of what it was given.
pub(crate) fn prepare<Spec: DeserializeOwned>(
    spec: &str,
    what: &str,
    parent: impl FnOnce(&Spec) -> u32,
) -> Result<(tokio::runtime::Runtime, Spec), BenchError> {
    let spec: Spec =
        serde_json::from_str(spec).map_err(|error| BenchError::Usage(format!("not a task {what}: {error}")))?;
    follow_parent(parent(&spec))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| BenchError::Io {
            what: "cannot start the runtime".to_owned(),
            source,
        })?;
    Ok((runtime, spec))
}

async fn run(role: String, spec: ExecutorSpec) -> Result<(), ExecutorError> {
    let session = Session::attach(
        AttachOptions::new(JobId::new(spec.job))
            .socket(&spec.socket)
            .name(role)
            .timeout(Duration::from_secs(ATTACH_SECONDS)),
    )
    .await?;
    let mut orders = Orders::new();
    emit(&Event::Attached);
    orders.wait_for_go().await?;
    let result = match spec.task {
        Task::Produce(task) => produce::run(&session, task, orders).await,
        Task::Consume(task) => consume::run(&session, task).await,
    };
    let event = result?;
    session.detach().await?;
    emit(&event);
    Ok(())
}

fn failed(error: &ExecutorError) -> Event {
    let (message, first_cause) = error.message_and_cause();
    Event::Failed { message, first_cause }
}

impl ExecutorError {
    /// What is reported to the parent: the message without its first cause, and the first cause, if it is known.
    pub(crate) fn message_and_cause(&self) -> (String, Option<String>) {
        match self {
            Self::Shuffle(error) => {
                let (all, first_cause) = (error.to_string(), error.first_cause().to_string());
                let own = all.strip_suffix(&format!("; first cause: {first_cause}"));
                (own.unwrap_or(&all).to_owned(), Some(first_cause))
            }
            Self::Other(message) => (message.clone(), None),
        }
    }
}

/// The one intermediate result of a run.
const RESULT: u64 = 1;
const ATTACH_SECONDS: u64 = 20;
