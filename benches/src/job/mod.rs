//! Tasks of a job that a coordinator runs: what such a process is told, does and reports.
//!
//! ```text
//! engine --- spec (argument), locations, cancel     one JSON a line ---> standard input of a task
//! engine <-- attached, progress .., finished|failed one JSON a line ---  standard output
//! ```

mod message;
mod rows;
mod task;
mod work;

pub(crate) use message::{Input, Location, Order, Output, Report, TaskResult, TaskSpec, Work};
pub(crate) use rows::{LineRow, expected};
pub(crate) use task::execute;
