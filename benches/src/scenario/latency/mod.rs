//! `latency`: how long a record takes when there are few of them, beside a bare relay through as many
//! processes and sockets.

mod chain;
mod probe;

pub(crate) use probe::{Plan, Probe, probe};

use super::measure::until_interrupted;
use crate::cli::LatencyArgs;
use crate::console::Console;
use crate::error::BenchError;
use crate::report::{LatencyReport, publish};

/// Runs the measurement; whether it was verified.
///
/// # Errors
/// It did not come to its end.
pub(crate) async fn latency(args: &LatencyArgs, console: &mut Console) -> Result<bool, BenchError> {
    let plan = Plan::of_latency(args);
    console.start(Some(plan.steps()));
    let found = until_interrupted(probe(&plan, console)).await?;
    console.finish();
    for problem in &found.problems {
        console.say(format!("not verified: {problem}"));
    }
    let report = LatencyReport {
        scenario: "latency",
        verified: found.problems.is_empty(),
        path: args.path.name(),
        rate: args.rate,
        records: found.records(),
        record_size: args.record_size,
        rounds: args.rounds,
        figures: found.figures(),
        relays: found.relays(),
    };
    publish(&report, &report.table(), args.output.json.as_ref())?;
    Ok(report.verified)
}
