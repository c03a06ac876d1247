//! What the worker processes of a measurement do.
//!
//! ```text
//! parent --- spec (argument), "go" ---------------------------> standard input
//! parent <-- listening, ready, progress .., done | failed   --- standard output, one JSON a line
//! ```
//!
//! Everything is set up before a worker says that it is ready. What it does after "go" is measured:
//! fill every byte, deliver, read every byte.

mod consume;
mod file;
mod latency;
mod many;
mod message;
mod pattern;
mod produce;
mod ticks;
mod worker;

pub(crate) use latency::LatencyLoad;
pub(crate) use many::{ManyLoad, ManySide};
pub(crate) use message::emit;
pub(crate) use message::{
    Audience, Channel, ConsumeLoad, Desk, Done, Event, FileLoad, Flush, Kind, ProduceLoad, Task, WorkerSpec,
};
pub(crate) use pattern::{Filler, Reader, Totals};
pub(crate) use ticks::{Ear, Rhythm, Ticks, empty_latencies};
#[cfg(feature = "peers")]
pub(crate) use worker::Stopwatch;
pub(crate) use worker::{execute, in_runtime, wait_for_go};
