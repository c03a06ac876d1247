//! Why a scenario did not come to its end.

use std::fmt;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use shuffle_protocol::ShuffleError;

/// What stopped a scenario.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The request makes no sense or cannot be met as asked.
    #[error("{0}")]
    Usage(String),
    /// A file, pipe or process could not be used.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// What the user gave cannot be read, or what the user asked for cannot be written.
    #[error("{0}")]
    Input(String),
    /// Processes of the run failed.
    #[error("{0}")]
    Run(RunFailure),
    /// A server refused or lost the tool's own session.
    #[error("{what}: {source}")]
    Session {
        /// What was attempted.
        what: String,
        /// What the client library said.
        source: ShuffleError,
    },
    /// Nothing happened for too long.
    #[error("{what} did not happen within {after:?}")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// Interrupted from outside.
    #[error("interrupted; all processes of the run are stopped")]
    Interrupted,
}

impl BenchError {
    /// The exit status that tells this kind of failure from others.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Interrupted => ExitCode::from(130),
            _ => ExitCode::FAILURE,
        }
    }
}

/// Attaches what was attempted to an error of the system.
pub(crate) trait Attempt<T> {
    /// Names what was attempted.
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T, BenchError>;
}

impl<T> Attempt<T> for io::Result<T> {
    fn attempt(self, what: impl FnOnce() -> String) -> Result<T, BenchError> {
        self.map_err(|source| BenchError::Io { what: what(), source })
    }
}

/// Which processes failed, and what each of them said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFailure {
    /// In the order in which the failures became known.
    pub reports: Vec<RoleFailure>,
    /// Consumers that said nothing in the time they were given.
    pub silent: Vec<String>,
}

/// The failure of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleFailure {
    /// Which one, with its process number.
    pub role: String,
    /// What it said, or how it ended.
    pub message: String,
    /// What it gave as the first cause, if it could still say.
    pub first_cause: Option<String>,
}

impl RunFailure {
    /// The first cause that all who named one agree on.
    pub fn common_cause(&self) -> Option<&str> {
        let mut causes = self.causes();
        let first = causes.next()?;
        causes.all(|cause| cause == first).then_some(first)
    }

    fn causes(&self) -> impl Iterator<Item = &str> {
        self.reports.iter().filter_map(|report| report.first_cause.as_deref())
    }
}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the run failed")?;
        for report in &self.reports {
            write!(f, "\n  {}: {}", report.role, report.message)?;
            if let Some(cause) = &report.first_cause {
                write!(f, "\n    first cause: {cause}")?;
            }
        }
        for role in &self.silent {
            write!(f, "\n  {role}: said nothing in time and was stopped")?;
        }
        match (self.common_cause(), self.causes().count()) {
            (_, 0) => Ok(()),
            (Some(cause), count) => write!(f, "\n  all {count} name the same first cause: {cause}"),
            (None, count) => write!(f, "\n  {count} name different first causes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RoleFailure, RunFailure};

    fn failure(role: &str, cause: Option<&str>) -> RoleFailure {
        RoleFailure {
            role: role.to_owned(),
            message: "failed".to_owned(),
            first_cause: cause.map(str::to_owned),
        }
    }

    #[test]
    fn a_common_cause_is_found_among_those_who_name_one() {
        let mut run = RunFailure {
            reports: vec![
                failure("producer-0@a", None),
                failure("consumer-0@a", Some("executor died")),
                failure("consumer-1@b", Some("executor died")),
            ],
            silent: Vec::new(),
        };
        assert_eq!(run.common_cause(), Some("executor died"));
        let text = run.to_string();
        assert!(text.contains("all 2 name the same first cause"), "{text}");
        run.reports.push(failure("consumer-2@b", Some("peer lost")));
        assert_eq!(run.common_cause(), None);
        assert!(run.to_string().contains("3 name different first causes"));
    }
}
