//! The scenarios.
//!
//! ```text
//! demo, repartition --> Plan (who makes, who reads, how large the pools are)
//!                         --> run: servers up, executors attached, go, watch, ask, stop
//!                               --> Outcome (what each said) --> checks --> ShuffleReport
//! ```

mod demo;
mod feed;
mod outcome;
mod parts;
mod plan;
mod pool;
mod repartition;
mod roster;
mod run;
mod watch;

pub(crate) use demo::demo;
pub(crate) use repartition::repartition;

use crate::cli::CommonArgs;
use crate::console::Console;
use crate::error::{Attempt, BenchError};
use crate::report::{JsonTarget, ShuffleReport};
use outcome::Outcome;

/// Writes a report as asked for and says whether the run was verified.
fn publish(
    scenario: &'static str,
    outcome: &Outcome,
    pool_bytes: u64,
    common: &CommonArgs,
    console: &Console,
) -> Result<ShuffleReport, BenchError> {
    let problems = outcome.problems();
    let report = outcome.report(scenario, pool_bytes, problems.is_empty());
    for note in outcome.notes() {
        console.say(format!("note: {note}"));
    }
    for problem in &problems {
        console.say(format!("not verified: {problem}"));
    }
    let table = report.table();
    if common.json == Some(JsonTarget::Standard) {
        eprintln!("{table}");
    } else {
        println!("{table}");
    }
    if let Some(target) = &common.json {
        target
            .write(&report)
            .attempt(|| "cannot write the JSON report".to_owned())?;
    }
    Ok(report)
}
