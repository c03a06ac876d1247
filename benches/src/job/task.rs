//! A task from its first to its last word.

use std::collections::BTreeMap;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use shuffle_client::{AttachOptions, Gate, GateSpec, PartitionSpec, Selector, Session, Writer};
use shuffle_protocol::{JobId, NodeAddress, PartitionId, ResultId, ShuffleError, SubpartitionRange};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::time::timeout;

use super::message::{ErrorBytes, Input, Location, Order, Report, TaskResult, TaskSpec};
use super::work::Hands;
use crate::executor::{ExecutorError, emit, prepare};

/// Runs a task to its end. The exit status says whether it succeeded; details were reported.
pub(crate) fn execute(role: &str, spec: &str) -> ExitCode {
    let (runtime, spec) = match prepare(spec, "of a job", |spec: &TaskSpec| spec.parent) {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("{error}");
            return error.exit_code();
        }
    };
    // A task of its own: to wake the future that `block_on` runs costs a system call each time.
    let task = runtime.spawn(run(role.to_owned(), spec));
    let result = runtime
        .block_on(task)
        .unwrap_or_else(|error| Err(Ended::Failed(ExecutorError::Other(format!("the task {error}")))));
    // A read of standard input may still be waiting in another thread.
    runtime.shutdown_background();
    let (report, code) = match &result {
        Ok(result) => (Report::Finished(*result), ExitCode::SUCCESS),
        Err(Ended::Failed(error)) => (Report::failed(error), ExitCode::FAILURE),
        Err(Ended::Cancelled(error)) => {
            let error = error.clone();
            (Report::Failed { error, cancelled: true }, ExitCode::FAILURE)
        }
    };
    emit(&report);
    code
}

/// How a task ends that is not done.
enum Ended {
    Failed(ExecutorError),
    /// The engine said so, and the service said nothing.
    Cancelled(ErrorBytes),
}

impl From<ExecutorError> for Ended {
    fn from(error: ExecutorError) -> Self {
        Self::Failed(error)
    }
}

impl From<ShuffleError> for Ended {
    fn from(error: ShuffleError) -> Self {
        Self::Failed(error.into())
    }
}

async fn run(role: String, spec: TaskSpec) -> Result<TaskResult, Ended> {
    let options = AttachOptions::new(JobId::new(spec.job))
        .socket(&spec.socket)
        .name(role)
        .timeout(ATTACH_TIMEOUT);
    let session = Session::attach(options).await?;
    let mut orders = Orders(BufReader::new(tokio::io::stdin()).lines());
    emit(&Report::Attached);
    // First: who reads it is told that it is there while this task still waits for its own input.
    let mut writer = open_writer(&session, &spec).await?;
    let gate = match &spec.input {
        None => None,
        Some(input) => match orders.locate(input).await? {
            Ok(places) => Some(open_gate(&session, &spec, input, &places).await?),
            Err(cause) => {
                // If its group has failed, the server says why.
                if let Some(writer) = writer.take()
                    && let Ok(Err(error)) = timeout(TIME_TO_FAIL, writer.finish()).await
                {
                    return Err(error.into());
                }
                return Err(Ended::Cancelled(cause));
            }
        },
    };
    let mut work = pin!(Hands::new(gate, writer, spec.output.as_ref()).work(&spec));
    let result = tokio::select! {
        result = &mut work => result?,
        cause = orders.cancelled() => match timeout(TIME_TO_FAIL, work).await {
            Ok(result) => result?,
            Err(_) => return Err(Ended::Cancelled(cause)),
        },
    };
    session.detach().await?;
    Ok(result)
}

async fn open_writer(session: &Session, spec: &TaskSpec) -> Result<Option<Writer>, ExecutorError> {
    let Some(output) = &spec.output else {
        return Ok(None);
    };
    let mut partition = PartitionSpec::new(spec.partition(output.result), output.subpartitions)
        .kind(output.kind.into())
        .determinate(output.determinate)
        .buffers(WRITER_BUFFERS, None);
    if output.in_turn {
        partition = partition.selector(Selector::RoundRobin);
    }
    if let Some(group) = &spec.group {
        partition = partition.group(group.parse()?);
    }
    Ok(Some(session.create_partition(partition).await?))
}

async fn open_gate(session: &Session, spec: &TaskSpec, input: &Input, places: &Places) -> Result<Gate, ExecutorError> {
    let range = SubpartitionRange::new(input.first, input.count)?;
    let mut gate = GateSpec::new();
    if let Some(group) = &spec.group {
        gate = gate.group(group.parse()?);
    }
    for (&index, (attempt, node)) in places {
        let partition = PartitionId {
            result: ResultId::new(input.result),
            index,
            attempt: *attempt,
        };
        gate = gate.channel(Some(NodeAddress::parse(node)?), partition, range);
    }
    Ok(session.open_gate(gate).await?)
}

/// Attempt and node of each partition, by its index.
type Places = BTreeMap<u32, (u32, String)>;

/// Standard input.
struct Orders(Lines<BufReader<Stdin>>);

impl Orders {
    /// Waits until every partition of the input is located; `Err` in it: cancelled meanwhile, and why. The engine decides how
    /// long that takes, and it ends its tasks with itself.
    async fn locate(&mut self, input: &Input) -> Result<Result<Places, ErrorBytes>, ExecutorError> {
        let mut places = Places::new();
        add(&mut places, &input.locations);
        while places.len() < usize::try_from(input.partitions).unwrap_or(usize::MAX) {
            match self.next().await? {
                Order::Locations(more) => add(&mut places, &more),
                Order::Cancel(cause) => return Ok(Err(cause)),
            }
        }
        Ok(Ok(places))
    }

    /// Resolves when the engine wants the task no more.
    async fn cancelled(&mut self) -> ErrorBytes {
        loop {
            match self.next().await {
                Ok(Order::Cancel(cause)) => return cause,
                Ok(Order::Locations(_)) => {}
                // The engine is gone or has no more to say: the work decides.
                Err(_) => std::future::pending().await,
            }
        }
    }

    async fn next(&mut self) -> Result<Order, ExecutorError> {
        let other = |message: String| Err(ExecutorError::Other(message));
        match self.0.next_line().await {
            Ok(Some(line)) => {
                serde_json::from_str(&line).or_else(|error| other(format!("not an order: {line:?}: {error}")))
            }
            Ok(None) => other("the engine is gone".to_owned()),
            Err(error) => other(format!("cannot read orders: {error}")),
        }
    }
}

fn add(places: &mut Places, locations: &[Location]) {
    for run in locations {
        for index in run.first..run.first + run.count {
            places.insert(index, (run.attempt, run.node.clone()));
        }
    }
}

const ATTACH_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a task that is cancelled waits for the service's own word.
const TIME_TO_FAIL: Duration = Duration::from_secs(3);
const WRITER_BUFFERS: u32 = 16;
