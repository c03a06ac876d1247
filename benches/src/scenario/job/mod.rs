//! `job`: jobs of three stages over real servers, with a process for each task, driven by the coordinator.

mod actions;
mod cluster;
mod crew;
mod engine;
mod findings;
mod kill;
mod loss;
mod plan;
mod verify;
mod view;

use std::time::Duration;

use super::measure::until_interrupted;
use crate::cli::{JobArgs, JobKind};
use crate::console::Console;
use crate::error::BenchError;
use crate::report::{JobReport, KillReport, publish};
use cluster::Cluster;
use engine::{Disturbance, Engine};
use findings::Findings;
use plan::Plan;

/// Runs it; whether it was verified.
///
/// # Errors
/// It did not come to its end.
pub(crate) async fn job(args: &JobArgs, console: &mut Console) -> Result<bool, BenchError> {
    let (report, problems) = until_interrupted(run(args, console)).await?;
    console.finish();
    for problem in &problems {
        console.say(format!("not verified: {problem}"));
    }
    publish(&report, &report.table(), args.output.json.as_ref())?;
    Ok(report.verified)
}

async fn run(args: &JobArgs, console: &mut Console) -> Result<(JobReport, Vec<String>), BenchError> {
    if args.kills > 0 && args.kind != JobKind::Batch {
        let message = "--kills is of --kind batch: a pipelined group is not run again, see --kind kill";
        return Err(BenchError::Usage(message.to_owned()));
    }
    if args.rebalanced && args.kind != JobKind::Batch {
        return Err(BenchError::Usage("--rebalanced is of --kind batch".to_owned()));
    }
    if args.lost_servers > 0 && (args.kind != JobKind::Batch || args.lost_servers >= args.nodes) {
        let message =
            "--lost-servers is of --kind batch, and fewer than --nodes: somebody has to make again what was lost";
        return Err(BenchError::Usage(message.to_owned()));
    }
    let mut cluster = Cluster::start(args, console).await?;
    let outcome = match args.kind {
        JobKind::Batch | JobKind::Pipelined => one(args, &mut cluster, console).await,
        JobKind::Kill => kill::rounds(args, &mut cluster, console).await,
    };
    cluster.close().await?;
    outcome
}

/// One job that is to succeed, and what came out of it beside what should.
async fn one(args: &JobArgs, cluster: &mut Cluster, console: &Console) -> Result<(JobReport, Vec<String>), BenchError> {
    let mut plan = Plan::new(args, FIRST_JOB)?;
    let mut findings = perform(args, cluster, &plan, Disturbance::default(), console).await?;
    if args.kills > 0 || args.lost_servers > 0 {
        // Now its length is known.
        let (mut random, length) = (kill::Random(args.seed), Duration::from_secs_f64(findings.seconds));
        let disturbance = Disturbance {
            kills: (0..args.kills).map(|_| random.kill(length)).collect(),
            losses: (0..args.lost_servers).map(|_| random.loss()).collect(),
        };
        plan = Plan::new(args, FIRST_JOB + 1)?;
        findings = perform(args, cluster, &plan, disturbance, console).await?;
    }
    let mut problems = verify::success(&findings);
    problems.extend(verify::losses(args, &findings));
    problems.extend(verify::result(args, &plan, cluster.dir(), &findings)?);
    problems.extend(cluster.leftovers().await?);
    let mut report = report(args, findings, None);
    if args.kind == JobKind::Pipelined && report.first_result_ms >= report.source_end_ms {
        problems.push("the first result came after the source's end".to_owned());
    }
    report.verified = problems.is_empty();
    Ok((report, problems))
}

/// Runs a job to its end, whatever that is.
async fn perform(
    args: &JobArgs,
    cluster: &mut Cluster,
    plan: &Plan,
    disturbance: Disturbance,
    console: &Console,
) -> Result<Findings, BenchError> {
    let silent = args.kind == JobKind::Kill;
    let mut engine = Engine::start_job(cluster, plan, args.slots, silent, disturbance, &args.output, console).await?;
    engine.run().await?;
    let findings = engine.findings();
    engine.close_view();
    Ok(findings)
}

fn report(args: &JobArgs, findings: Findings, kill: Option<KillReport>) -> JobReport {
    let since_start = |moment: crate::clock::Moment| moment.milliseconds_since(findings.started);
    let (first, last) = (findings.results.first(), findings.results.last());
    let first_result = last.and_then(|tasks| tasks.iter().filter_map(|task| task.first_row).min());
    let source_end = first.and_then(|tasks| tasks.iter().map(|task| task.last_row).max());
    let pipelined = args.kind == JobKind::Pipelined;
    JobReport {
        scenario: "job",
        kind: args.kind.name(),
        verified: false,
        scale: args.scale(),
        nodes: args.nodes,
        seconds: findings.seconds,
        first_result_ms: first_result.filter(|_| pipelined).map(since_start),
        source_end_ms: source_end.filter(|_| pipelined).map(since_start),
        stages: findings.stages,
        groups: findings.groups,
        messages_per_node: findings.messages,
        loss: (args.lost_servers > 0).then_some(findings.loss),
        kill,
    }
}

/// Others are of sessions that only ask.
const FIRST_JOB: u64 = 1000;
/// How long a driver tries to reach a node before it is lost: about as long as a server tries to reach another one.
const RECONNECT_WITHIN: Duration = Duration::from_secs(2);
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
