//! What a scenario found: one JSON object with stable names, and a table for people.

mod broadcast;
mod compare;
mod disk;
mod job;
mod latency;
mod many;
mod scale;
mod shuffle;
mod table;
mod throughput;

pub use broadcast::{BroadcastReport, BroadcastSide};
pub use compare::{CompareReport, Ratio, Ratios, Side, Variant};
pub use disk::{KindOutcome, KindsReport, SpillDirection, SpillReport};
pub use job::{GroupReport, JobReport, KillReport, LossReport, MessagesReport, RangeReport, StageReport};
pub use latency::{LatencyFigures, LatencyReport, RelayFigures};
pub use many::ManyReport;
pub use scale::{Point, ScaleReport};
pub use shuffle::{FailureReport, ShuffleReport};
pub use table::Table;
pub(crate) use table::{bytes, grouped};
pub use throughput::ThroughputReport;

use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Access, access};
use serde::Serialize;

use crate::error::{Attempt, BenchError};

/// Where the JSON object of a scenario goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonTarget {
    /// Standard output, which then holds nothing else.
    Standard,
    /// A file, which is replaced.
    File(PathBuf),
}

impl FromStr for JsonTarget {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "-" => Self::Standard,
            path => Self::File(path.into()),
        })
    }
}

impl JsonTarget {
    /// Whether it can be written, as far as can be told without doing it.
    ///
    /// # Errors
    /// The folder does not exist, or the file or the folder may not be written.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        let Self::File(path) = self else {
            return Ok(());
        };
        let refuse = |why: &str| {
            Err(BenchError::Usage(format!(
                "cannot write --json {}: {why}",
                path.display()
            )))
        };
        if path.is_dir() {
            return refuse("it is a folder");
        }
        if path.exists() {
            let opened = OpenOptions::new().write(true).open(path);
            return opened.map_or_else(|error| refuse(&error.to_string()), |_| Ok(()));
        }
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        if !folder.is_dir() {
            return refuse(&format!("there is no folder {}", folder.display()));
        }
        access(folder, Access::WRITE_OK).or_else(|error| refuse(&format!("{}: {error}", folder.display())))
    }

    /// Writes one object and a line end.
    ///
    /// # Errors
    /// The file or standard output cannot be written.
    pub fn write(&self, report: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(report)?;
        text.push('\n');
        match self {
            Self::Standard => {
                let mut output = io::stdout().lock();
                output.write_all(text.as_bytes())?;
                output.flush()
            }
            Self::File(path) => fs::write(path, text),
        }
    }
}

/// Writes a report as asked for: the table on standard output, or on standard error if the object goes there.
pub(crate) fn publish(
    report: &impl Serialize,
    table: &impl Display,
    target: Option<&JsonTarget>,
) -> Result<(), BenchError> {
    if let Some(target) = target {
        let written = target.write(report);
        written.attempt(|| "cannot write the JSON report".to_owned())?;
    }
    // The object is written by now; who closes the table's pipe early has seen enough of it.
    let _ = match target {
        Some(JsonTarget::Standard) => writeln!(io::stderr(), "{table}"),
        _ => writeln!(io::stdout(), "{table}"),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::JsonTarget;

    #[test]
    fn a_dash_is_standard_output() {
        assert_eq!("-".parse(), Ok(JsonTarget::Standard));
        assert_eq!("out.json".parse(), Ok(JsonTarget::File("out.json".into())));
    }

    #[test]
    fn a_file_is_replaced_by_one_object() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("report.json");
        std::fs::write(&path, "something much longer than the object").expect("written");
        JsonTarget::File(path.clone())
            .write(&serde_json::json!({"scenario": "x"}))
            .expect("written");
        let text = std::fs::read_to_string(&path).expect("read");
        assert_eq!(text, "{\n  \"scenario\": \"x\"\n}\n");
    }

    #[test]
    fn what_cannot_be_written_is_known_before_the_work() {
        let dir = tempfile::tempdir().expect("folder");
        let check = |path: std::path::PathBuf| JsonTarget::File(path).check().map_err(|error| error.to_string());
        check(dir.path().join("new.json")).expect("can be made");
        assert!(!dir.path().join("new.json").exists(), "nothing is made yet");
        std::fs::write(dir.path().join("old.json"), "x").expect("written");
        check(dir.path().join("old.json")).expect("can be replaced");
        check("here.json".into()).expect("in this folder");
        JsonTarget::Standard.check().expect("always there");
        let missing = check(dir.path().join("missing/out.json")).expect_err("no folder");
        assert!(
            missing.contains("there is no folder") && missing.contains("missing"),
            "{missing}"
        );
        assert!(
            check(dir.path().to_owned())
                .expect_err("a folder")
                .contains("it is a folder")
        );
        let below_a_file = check(dir.path().join("old.json/out.json")).expect_err("not a folder");
        assert!(below_a_file.contains("there is no folder"), "{below_a_file}");
    }
}
