//! Whether what came out is what had to come out.

use std::path::Path;

use coordinator::{Outcome, StageId, TaskId};

use super::findings::Findings;
use super::plan::Plan;
use crate::cli::{JobArgs, JobKind};
use crate::error::{Attempt, BenchError};
use crate::job::{LineRow, expected};

/// What is wrong with a job that was to succeed.
pub(super) fn success(findings: &Findings) -> Vec<String> {
    let mut problems = findings.problems.clone();
    if let Outcome::Failed(cause) = &findings.outcome {
        problems.push(format!("the job failed: {cause}"));
    }
    if findings.committed != findings.stages.len() {
        let (seen, all) = (findings.committed, findings.stages.len());
        problems.push(format!("success was seen of {seen} of {all} stages"));
    }
    for stage in &findings.stages {
        let ranges = &stage.ranges;
        let read: u64 = ranges.iter().map(|range| range.bytes).sum();
        if !ranges.is_empty() && read != stage.bytes_in {
            problems.push(format!(
                "{}: ranges hold {read} of {} bytes",
                stage.name, stage.bytes_in
            ));
        }
    }
    for pair in findings.stages.windows(2) {
        let [from, to] = pair else { continue };
        if from.rows_out != to.rows_in {
            problems.push(format!(
                "{} gave out {} rows, {} took in {}",
                from.name, from.rows_out, to.name, to.rows_in
            ));
        }
    }
    problems
}

/// What is wrong with how losses were noticed.
pub(super) fn losses(args: &JobArgs, findings: &Findings) -> Vec<String> {
    let (loss, asked) = (&findings.loss, u32::from(args.lost_servers));
    let mut problems = Vec::new();
    if (loss.servers, loss.nodes_lost) != (asked, asked) {
        let (killed, told) = (loss.servers, loss.nodes_lost);
        problems.push(format!(
            "{asked} servers were to be lost, {killed} were killed, of {told} the driver was told"
        ));
    }
    if asked > 0 && loss.fetch_failures == 0 {
        problems.push("no task could not read what was lost".to_owned());
    }
    if args.rebalanced && asked > 0 && (loss.had_read == 0 || loss.had_read != loss.read_again) {
        let (had_read, again) = (loss.had_read, loss.read_again);
        problems.push(format!(
            "{had_read} tasks had read what was written again otherwise, {again} ran again"
        ));
    }
    problems
}

/// Compares the files of the last stage with the same table made and summed up in one go.
///
/// # Errors
/// A file cannot be read.
pub(super) fn result(args: &JobArgs, plan: &Plan, dir: &Path, findings: &Findings) -> Result<Vec<String>, BenchError> {
    let last = u32::try_from(findings.stages.len() - 1).unwrap_or(u32::MAX);
    let mut came: Vec<String> = Vec::new();
    for &(index, attempt) in &findings.last_tasks {
        let task = TaskId {
            stage: StageId::new(last),
            index,
            attempt,
        };
        let file = plan.file(task, dir);
        let text = std::fs::read_to_string(&file).attempt(|| format!("cannot read {}", file.display()))?;
        came.extend(text.lines().map(|line| format!("{line}\n")));
    }
    let rows = expected(plan.scale)
        .into_iter()
        .map(|(key, sums)| LineRow { key, sums });
    let mut rows: Vec<LineRow> = rows.collect();
    rows.sort_unstable_by_key(LineRow::rank);
    let mut wanted: Vec<String> = rows.iter().map(LineRow::line).collect();
    if args.kind != JobKind::Batch || args.rebalanced {
        // Only the sort gives them in order.
        came.sort_unstable();
        wanted.sort_unstable();
    }
    Ok(compare(&came, &wanted).into_iter().collect())
}

fn compare(came: &[String], wanted: &[String]) -> Option<String> {
    if came.len() != wanted.len() {
        return Some(format!("{} lines came out, {} had to", came.len(), wanted.len()));
    }
    let at = came.iter().zip(wanted).position(|(came, wanted)| came != wanted)?;
    Some(format!(
        "line {at} is {:?}, not {:?}",
        came[at].trim_end(),
        wanted[at].trim_end()
    ))
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn lines_and_their_order_count() {
        let lines = |text: &[&str]| text.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let wanted = lines(&["1", "2", "3"]);
        assert_eq!(compare(&wanted, &wanted), None);
        assert!(compare(&lines(&["1", "2"]), &wanted).is_some());
        let swapped = compare(&lines(&["1", "3", "2"]), &wanted).expect("out of order");
        assert!(swapped.contains("line 1"), "{swapped}");
    }
}
