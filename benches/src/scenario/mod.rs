//! The scenarios.
//!
//! ```text
//! demo, repartition --> Plan (who makes, who reads, how large the pools are)
//!                         --> run: servers up, executors attached, go, watch, ask, stop
//!                               --> Outcome (what each said) --> checks --> ShuffleReport
//! job --> Engine: the coordinator, servers, a process for each task --> JobReport
//! throughput, .. --> measure: rounds of workers, medians and ranges --> reports of their own
//! ```

mod broadcast;
mod compare;
mod demo;
mod feed;
mod job;
mod kinds;
mod latency;
mod many;
mod measure;
mod outcome;
mod parts;
mod plan;
mod pool;
mod repartition;
mod roster;
mod run;
mod scale;
mod spill;
mod throughput;
mod watch;

pub(crate) use broadcast::broadcast;
pub(crate) use compare::compare;
pub(crate) use demo::demo;
pub(crate) use job::job;
pub(crate) use kinds::kinds;
pub(crate) use latency::latency;
pub(crate) use many::many;
pub(crate) use measure::Spread;
pub(crate) use repartition::repartition;
pub(crate) use scale::scale;
pub(crate) use spill::spill;
pub(crate) use throughput::throughput;

use crate::cli::CommonArgs;
use crate::console::Console;
use crate::error::BenchError;
use crate::report::{self, ShuffleReport};
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
    report::publish(&report, &report.table(), common.output.json.as_ref())?;
    Ok(report)
}
