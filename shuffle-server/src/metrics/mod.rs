//! What is measured: the table of names, and the process's own gauges.

mod process;
mod table;

pub(crate) use process::ProcessGauges;
pub use table::{Kind, METRICS, Metric};
pub(crate) use table::{describe, publish};
