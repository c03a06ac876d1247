//! What a person sees while a scenario runs: a progress line and messages, all on standard error.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::report::{bytes, grouped};

/// Standard error, shared between messages and the progress line.
#[derive(Debug)]
pub(crate) struct Console {
    bar: ProgressBar,
    started: Instant,
    /// Without a terminal: when the last progress line was printed.
    last_plain: Instant,
    /// The present step.
    position: u64,
    what: String,
}

impl Console {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10)),
            started: now,
            last_plain: now,
            position: 0,
            what: String::new(),
        }
    }

    /// Prints a message above the progress line.
    pub(crate) fn say(&self, message: impl AsRef<str>) {
        self.bar.suspend(|| eprintln!("{}", message.as_ref()));
    }

    /// Starts the progress line; `total` is in the unit that [`Console::advance`] is told.
    pub(crate) fn start(&mut self, total: Option<u64>) {
        let template = match total {
            Some(_) => "{spinner} {elapsed_precise} [{wide_bar}] {percent:>3} %  {msg}",
            None => "{spinner} {elapsed_precise}  {msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        if let Some(total) = total {
            self.bar.set_length(total);
        }
        self.started = Instant::now();
        self.last_plain = self.started;
    }

    /// Shows how far the run is.
    pub(crate) fn advance(&mut self, position: u64, rows: u64, row_bytes: u64) {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-3);
        let rate = row_bytes as f64 / seconds / 1e9;
        let text = format!("{} rows, {}, {rate:.2} GB/s", grouped(rows), bytes(row_bytes));
        self.show(position, text);
    }

    /// Starts the next of the steps that [`Console::start`] was told the number of.
    pub(crate) fn step(&mut self, position: u64, what: impl Into<String>) {
        self.position = position;
        self.what = what.into();
        self.show(position, self.what.clone());
    }

    /// Shows what arrived in the present step.
    pub(crate) fn show_bytes(&mut self, arrived: u64) {
        let text = format!("{}, {}", self.what, bytes(arrived));
        self.show(self.position, text);
    }

    fn show(&mut self, position: u64, text: String) {
        let seconds = self.started.elapsed().as_secs_f64();
        if self.bar.is_hidden() {
            if self.last_plain.elapsed() >= PLAIN_INTERVAL {
                self.last_plain = Instant::now();
                eprintln!("{seconds:.0} s: {text}");
            }
            return;
        }
        // The total may be an estimate; the bar never runs beyond it.
        self.bar
            .set_position(position.min(self.bar.length().unwrap_or(u64::MAX)));
        self.bar.set_message(text);
    }

    /// Removes the progress line.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

const PLAIN_INTERVAL: Duration = Duration::from_secs(2);
