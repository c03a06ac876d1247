//! `compare`: the service beside what people would use instead, in one run.
//!
//! ```text
//! round 1:  local  ring  relay ..  tcp  flight     without checksums, then with them
//! round 2:  flight tcp ..  relay  ring  local      the other way round
//! round 3:  ..
//! ```
//!
//! What disturbs the machine for a while disturbs all sides. A side that has several variants is
//! represented by the one with the best median.

mod sides;
mod verdict;

use sides::{Contender, contenders};
use verdict::{Sample, report};

use super::latency::{self, Probe};
use super::measure::until_interrupted;
use crate::cli::{CompareArgs, NodePath};
use crate::cluster::bind_to;
use crate::console::Console;
use crate::error::BenchError;
use crate::report::publish;

/// Runs the comparison; whether it was verified.
///
/// # Errors
/// It did not come to its end.
pub(crate) async fn compare(args: &CompareArgs, console: &mut Console) -> Result<bool, BenchError> {
    if cfg!(not(feature = "peers")) {
        console.say("built without the feature `peers`: Arrow Flight does not take part");
    }
    if let Some(cores) = &args.cores {
        bind_to(cores)?;
    }
    let contenders = contenders(args);
    let (samples, latencies) = until_interrupted(measure(args, &contenders, console)).await?;
    console.finish();
    for sample in &samples {
        for problem in &sample.problems {
            console.say(format!("not verified: {} ({}): {problem}", sample.side, sample.variant));
        }
    }
    let report = report(args, &samples, &latencies);
    publish(&report, &report.text(), args.measure.output.json.as_ref())?;
    Ok(report.verified)
}

/// All rounds, and the latencies of both paths.
async fn measure(
    args: &CompareArgs,
    contenders: &[Contender],
    console: &mut Console,
) -> Result<(Vec<Sample>, Vec<(NodePath, Probe)>), BenchError> {
    let rounds = args.measure.rounds;
    let each = 2 * contenders.len();
    let steps = u64::from(rounds) * u64::try_from(each).expect("invariant: a handful");
    console.start(Some(steps));
    let mut samples = Vec::new();
    let mut step = 0;
    for round in 0..rounds {
        let mut order: Vec<(&Contender, bool)> = [false, true]
            .iter()
            .flat_map(|checksums| contenders.iter().map(|who| (who, *checksums)))
            .collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (who, checksums) in order {
            let what = format!("round {} of {rounds}: {}, {}", round + 1, who.side, who.variant);
            console.step(step, what);
            step += 1;
            let delivery = who.deliver(checksums, console).await?;
            samples.push(Sample::new(who, checksums, delivery));
        }
    }
    let mut latencies = Vec::new();
    if !args.no_latency {
        for path in [NodePath::Local, NodePath::Remote] {
            console.step(step, format!("latency, {}", path.name()));
            let probe = latency::probe(&latency::Plan::of_compare(args, path), console).await?;
            latencies.push((path, probe));
        }
    }
    Ok((samples, latencies))
}
