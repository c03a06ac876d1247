#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

pub mod cli;
pub mod clock;
mod cluster;
mod console;
pub mod error;
mod executor;
mod job;
mod load;
mod peers;
pub mod report;
pub mod rows;
mod scenario;
pub mod text;

use std::process::ExitCode;

use cli::{Cli, Command};
use console::Console;
use error::BenchError;
use report::{FailureReport, JsonTarget};

/// Does what the command line says; the exit status is 0 if it succeeded and was verified.
pub fn run(cli: Cli) -> ExitCode {
    match cli.command {
        Command::Server { parent, options } => cluster::serve(parent, &options),
        Command::Executor { role, spec } => executor::execute(&role, &spec),
        Command::Worker { role, spec } => load::execute(&role, &spec),
        Command::JobTask { role, spec } => job::execute(&role, &spec),
        Command::Job(args) => conduct("job", args.output.json.as_ref(), async |console| {
            scenario::job(&args, console).await
        }),
        Command::Demo(args) => conduct("demo", args.common.output.json.as_ref(), async |console| {
            scenario::demo(&args, console).await.map(|report| report.verified)
        }),
        Command::Repartition(args) => conduct("repartition", args.common.output.json.as_ref(), async |console| {
            scenario::repartition(&args, console)
                .await
                .map(|report| report.verified)
        }),
        Command::Throughput(args) => conduct("throughput", args.measure.output.json.as_ref(), async |console| {
            scenario::throughput(&args, console).await
        }),
        Command::Latency(args) => conduct("latency", args.output.json.as_ref(), async |console| {
            scenario::latency(&args, console).await
        }),
        Command::Compare(args) => conduct("compare", args.measure.output.json.as_ref(), async |console| {
            scenario::compare(&args, console).await
        }),
        Command::Kinds(args) => conduct("kinds", args.output.json.as_ref(), async |console| {
            scenario::kinds(&args, console).await
        }),
        Command::Spill(args) => conduct("spill", args.output.json.as_ref(), async |console| {
            scenario::spill(&args, console).await
        }),
        Command::Broadcast(args) => conduct("broadcast", args.output.json.as_ref(), async |console| {
            scenario::broadcast(&args, console).await
        }),
        Command::Many(args) => conduct("many", args.output.json.as_ref(), async |console| {
            scenario::many(&args, console).await
        }),
        Command::Scale(args) => conduct("scale", args.measure.output.json.as_ref(), async |console| {
            scenario::scale(&args, console).await
        }),
    }
}

/// Runs a scenario on this thread, which lives as long as the process does.
fn conduct(
    name: &'static str,
    json: Option<&JsonTarget>,
    scenario: impl AsyncFnOnce(&mut Console) -> Result<bool, BenchError>,
) -> ExitCode {
    // A result that cannot be written is not worth the work.
    if let Err(error) = json.map_or(Ok(()), JsonTarget::check) {
        eprintln!("shuffle-bench {name}: {error}");
        return error.exit_code();
    }
    let mut console = Console::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.and_then(|runtime| cluster::raise_open_files().map(|()| runtime));
    let result = match runtime {
        Ok(runtime) => runtime.block_on(scenario(&mut console)),
        Err(source) => Err(BenchError::Io {
            what: "cannot start the runtime or raise its limit of open files".to_owned(),
            source,
        }),
    };
    let error = match result {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => return ExitCode::FAILURE,
        Err(error) => error,
    };
    eprintln!("shuffle-bench {name}: {error}");
    if let Some(target) = json
        && let Err(problem) = target.write(&FailureReport::new(name, &error))
    {
        eprintln!("shuffle-bench {name}: cannot write the JSON report: {problem}");
    }
    error.exit_code()
}
