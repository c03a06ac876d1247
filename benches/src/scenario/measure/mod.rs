//! Measuring: rounds of processes that all do the same work, and what their numbers are worth.
//!
//! ```text
//! Load (ours) --+--> Stage: servers, workers, ready, go, done --> Performance: seconds, CPU, totals
//! Pairs (peers) +                                                     --> Spread over the rounds
//! ```

mod cpu;
mod delivery;
mod ours;
mod pair;
mod stage;
mod stats;

pub(crate) use delivery::Delivery;
pub(crate) use ours::Load;
pub(crate) use pair::{Between, Pairs};
pub(crate) use stage::{Performance, Stage};
pub(crate) use stats::{Spread, copied_ratio, rounded};

use crate::error::BenchError;

/// Runs a measurement until it ends or this process is asked to; either way its processes end.
pub(crate) async fn until_interrupted<T>(work: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    tokio::select! {
        () = super::run::interrupted()? => Err(BenchError::Interrupted),
        result = work => result,
    }
}
