//! What a person sees of a running job: a line for each stage.

use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::console::Console;
use crate::report::{bytes, grouped};

/// How far a stage is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StageState {
    pub(super) name: String,
    /// `None`: not decided yet.
    pub(super) tasks: Option<u32>,
    pub(super) running: u32,
    pub(super) done: u32,
    pub(super) failed: bool,
    pub(super) committed: bool,
    pub(super) bytes_in: u64,
    pub(super) rows: u64,
}

impl StageState {
    fn word(&self) -> &'static str {
        match (self.failed, self.committed, self.tasks) {
            (true, ..) => "failed",
            (_, true, _) => "complete",
            (_, _, None) => "waits",
            _ if self.running > 0 => "runs",
            _ => "ready",
        }
    }

    fn line(&self) -> String {
        let Some(tasks) = self.tasks else {
            return self.word().to_owned();
        };
        format!(
            "{:<8} {} running, {} of {tasks} done; {} in, {} rows",
            self.word(),
            self.running,
            self.done,
            bytes(self.bytes_in),
            grouped(self.rows)
        )
    }
}

/// The lines of one job on a terminal; elsewhere one message for each change of state.
#[derive(Debug)]
pub(super) struct View {
    lines: Option<(MultiProgress, Vec<ProgressBar>)>,
    drawn: Instant,
    said: Vec<&'static str>,
}

impl View {
    pub(super) fn open(stages: &[StageState], silent: bool) -> Self {
        let multi = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        let hidden = silent || multi.is_hidden();
        let bar = |stage: &StageState| {
            let bar = multi.add(ProgressBar::new(1));
            if let Ok(style) = ProgressStyle::with_template("  {prefix:<12} [{bar:24}] {msg}") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(stage.name.clone());
            bar
        };
        let bars = |multi: &MultiProgress| (multi.clone(), stages.iter().map(bar).collect());
        Self {
            lines: (!hidden).then(|| bars(&multi)),
            drawn: Instant::now(),
            said: if silent {
                Vec::new()
            } else {
                vec!["waits"; stages.len()]
            },
        }
    }

    /// Shows how far the stages are; often called, seldom drawn.
    pub(super) fn show(&mut self, stages: &[StageState], now: bool, console: &Console) {
        if let Some((_, bars)) = &self.lines {
            if now || self.drawn.elapsed() >= INTERVAL {
                self.drawn = Instant::now();
                for (bar, stage) in bars.iter().zip(stages) {
                    bar.set_length(stage.tasks.unwrap_or(1).into());
                    bar.set_position(stage.done.into());
                    bar.set_message(stage.line());
                }
            }
            return;
        }
        for (said, stage) in self.said.iter_mut().zip(stages) {
            if *said != stage.word() {
                *said = stage.word();
                console.say(format!("{}: {}", stage.name, stage.line()));
            }
        }
    }

    /// Leaves the last lines where they are.
    pub(super) fn close(self) {
        if let Some((_, bars)) = &self.lines {
            bars.iter().for_each(ProgressBar::abandon);
        }
    }
}

const INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::StageState;

    #[test]
    fn a_line_says_what_is_known() {
        let mut stage = StageState {
            name: "sort".to_owned(),
            ..StageState::default()
        };
        assert_eq!(stage.line(), "waits");
        (stage.tasks, stage.running, stage.done) = (Some(3), 2, 1);
        assert!(stage.line().starts_with("runs     2 running, 1 of 3 done"));
        (stage.running, stage.done, stage.committed) = (0, 3, true);
        assert!(stage.line().starts_with("complete"));
        stage.failed = true;
        assert!(stage.line().starts_with("failed"));
    }
}
