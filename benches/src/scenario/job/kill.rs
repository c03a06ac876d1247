//! The rounds of `kill`: the same job, each time with one task killed at a moment that the seed chooses.

use std::collections::BTreeSet;
use std::time::Duration;

use coordinator::Outcome;

use super::cluster::Cluster;
use super::engine::{Disturbance, Kill, Loss};
use super::findings::Findings;
use super::plan::Plan;
use super::{FIRST_JOB, perform, report, verify};
use crate::cli::JobArgs;
use crate::console::Console;
use crate::error::BenchError;
use crate::report::{JobReport, KillReport};
use crate::scenario::measure::{Spread, rounded};

pub(super) async fn rounds(
    args: &JobArgs,
    cluster: &mut Cluster,
    console: &mut Console,
) -> Result<(JobReport, Vec<String>), BenchError> {
    console.start(Some(args.rounds.into()));
    let mut problems = Vec::new();
    // One that nobody disturbs: how long it takes, and that it comes out right.
    let plan = Plan::new(args, FIRST_JOB)?;
    let undisturbed = perform(args, cluster, &plan, Disturbance::default(), console).await?;
    problems.extend(verify::success(&undisturbed));
    problems.extend(verify::result(args, &plan, cluster.dir(), &undisturbed)?);
    let length = Duration::from_secs_f64(undisturbed.seconds);
    let mut last = undisturbed;
    let (mut kills, mut teardowns, mut job) = (KillReport::default(), Vec::new(), FIRST_JOB);
    let mut random = Random(args.seed);
    while kills.rounds < args.rounds && problems.len() < MOST_PROBLEMS {
        job += 1;
        if kills.too_late > 10 * args.rounds + 10 {
            problems.push("most jobs were done before a task could be killed".to_owned());
            break;
        }
        let kill = random.kill(length);
        let what = format!("job {job}, a task is killed after {} ms", kill.after.as_millis());
        console.step(kills.rounds.into(), what);
        let plan = Plan::new(args, job)?;
        let findings = perform(args, cluster, &plan, Disturbance::kill(kill), console).await?;
        let left = cluster.leftovers().await?;
        let said = judge(&findings, &mut kills);
        if findings.killed_at.is_some() && matches!(findings.outcome, Outcome::Failed(_)) {
            kills.back_to_baseline += u32::from(left.is_empty());
        }
        if let Some(at) = findings.killed_at {
            teardowns.push(findings.ended_at.milliseconds_since(at));
        }
        problems.extend(said.into_iter().chain(left).map(|problem| {
            let (after, seed) = (kill.after, args.seed);
            format!("job {job} of seed {seed}, killed after {after:?}: {problem}")
        }));
        forget_files(&plan, cluster);
        last = findings;
    }
    if !teardowns.is_empty() {
        let spread = Spread::of(&teardowns);
        (kills.teardown_ms_median, kills.teardown_ms_max) = (rounded(spread.median), rounded(spread.max));
    }
    let mut report = report(args, last, Some(kills));
    report.verified = problems.is_empty();
    Ok((report, problems))
}

/// What is wrong with a job of which a task was killed.
fn judge(findings: &Findings, kills: &mut KillReport) -> Vec<String> {
    let mut problems = findings.problems.clone();
    let Outcome::Failed(cause) = &findings.outcome else {
        // The moment came when nothing was left to kill, or when what was killed had done its work.
        kills.too_late += 1;
        problems.extend(verify::success(findings));
        return problems;
    };
    if findings.killed_at.is_none() {
        problems.push(format!("the job failed though no task was killed: {cause}"));
        return problems;
    }
    kills.rounds += 1;
    kills.noticed_by_servers += u32::from(findings.noticed_by_server);
    if findings.committed > 0 {
        kills.partial_successes += 1;
        problems.push(format!("success was seen of {} stages", findings.committed));
    }
    let first = cause.first_cause().to_string();
    let others: BTreeSet<&String> = findings.causes.iter().filter(|named| **named != first).collect();
    if others.is_empty() && findings.mute.is_empty() {
        kills.consistent += 1;
    }
    if !others.is_empty() {
        problems.push(format!("the first cause is {first:?}, but {others:?} were named too"));
    }
    problems.extend(findings.mute.iter().cloned());
    kills.causes_heard += findings.causes.len() as u64;
    kills.told_by_driver_alone += u64::from(findings.cancelled);
    problems
}

fn forget_files(plan: &Plan, cluster: &Cluster) {
    let prefix = format!("job-{}-", plan.job.value());
    let entries = std::fs::read_dir(cluster.dir()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)) {
        // What stays goes with the folder.
        let _ = std::fs::remove_file(entry.path());
    }
}

/// `SplitMix64`.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// One of the tasks that run at some moment within `length`.
    pub(super) fn kill(&mut self, length: Duration) -> Kill {
        Kill {
            after: length.mul_f64(self.fraction()),
            which: usize::try_from(self.next() >> 33).unwrap_or_default(),
        }
    }

    /// One of the servers that have some of a stage, within a moment of its end.
    pub(super) fn loss(&mut self) -> Loss {
        Loss {
            after: LONGEST_WAIT_OF_LOSS.mul_f64(self.fraction()),
            which: usize::try_from(self.next() >> 33).unwrap_or_default(),
        }
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// From 0 up to 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Not longer than consumers take to attach and to open their gates.
const LONGEST_WAIT_OF_LOSS: Duration = Duration::from_millis(10);
/// After so many no more rounds are of use.
const MOST_PROBLEMS: usize = 20;

#[cfg(test)]
mod tests {
    use coordinator::Outcome;
    use shuffle_protocol::error::{ErrorKind, ShuffleError};

    use super::{Findings, Random, judge};
    use crate::clock::Moment;
    use crate::report::KillReport;

    fn failed(named: &[&str]) -> Findings {
        let cause = |text: &str| ShuffleError::new(ErrorKind::ExecutorDied, text);
        Findings {
            outcome: Outcome::Failed(ShuffleError::new(ErrorKind::GroupFailed, "as one").because(cause("killed"))),
            seconds: 1.0,
            started: Moment::now(),
            results: Vec::new(),
            last_tasks: Vec::new(),
            stages: Vec::new(),
            groups: Vec::new(),
            messages: Vec::new(),
            committed: 0,
            causes: named.iter().map(|text| cause(text).to_string()).collect(),
            mute: Vec::new(),
            cancelled: 0,
            killed_at: Some(Moment::now()),
            loss: crate::report::LossReport::default(),
            ended_at: Moment::now(),
            noticed_by_server: true,
            problems: Vec::new(),
        }
    }

    #[test]
    fn another_cause_a_mute_task_and_a_success_are_held_against_it() {
        let mut kills = KillReport::default();
        assert!(judge(&failed(&["killed", "killed"]), &mut kills).is_empty());
        assert_eq!((kills.rounds, kills.consistent, kills.causes_heard), (1, 1, 2));
        assert_eq!(judge(&failed(&["killed", "lost"]), &mut kills).len(), 1);
        let mute = Findings {
            mute: vec!["scan-0@a died".to_owned()],
            ..failed(&["killed"])
        };
        assert_eq!(judge(&mute, &mut kills).len(), 1);
        let partial = Findings {
            committed: 1,
            ..failed(&["killed"])
        };
        assert_eq!(judge(&partial, &mut kills).len(), 1);
        assert_eq!((kills.rounds, kills.consistent, kills.partial_successes), (4, 2, 1));
        let nobody = Findings {
            killed_at: None,
            ..failed(&["killed"])
        };
        assert_eq!(judge(&nobody, &mut kills).len(), 1);
        assert_eq!(kills.rounds, 4);
    }

    #[test]
    fn a_seed_always_gives_the_same_moments() {
        let fractions = |seed| {
            let mut random = Random(seed);
            [(); 50].map(|()| random.fraction())
        };
        assert_eq!(fractions(7).map(f64::to_bits), fractions(7).map(f64::to_bits));
        assert_ne!(fractions(7).map(f64::to_bits), fractions(8).map(f64::to_bits));
        assert!(fractions(7).iter().all(|fraction| (0.0..1.0).contains(fraction)));
        let late = fractions(7).iter().filter(|fraction| **fraction > 0.5).count();
        assert!((15..=35).contains(&late));
    }
}
