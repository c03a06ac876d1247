//! Several servers' cores, their executors and the network between them, in one thread and in virtual time.
//!
//! ```text
//!   seed ──▶ Plan ──▶ Workload            faults ──┐
//!                        │                         ▼
//!   executors ──frames──▶ Node ══ delay, cut, hole ══ Node ◀──frames── executors
//!       │ oracle: what must come follows from (job, partition, subpartition, ordinal)
//!       ▼
//!   faults end ──▶ everything finished, or failed with a cause ──▶ sessions close ──▶ nothing is left
//! ```
//!
//! The cores are the servers' own ([`shuffle_server::node`]); payload is a number per buffer that lies in a simulated
//! memory, so that a buffer which is given to somebody else too early shows. The same seed gives the same run.
//!
//! What is checked: the cores' own invariants; that nobody accuses anybody, since all keep to the protocol; every buffer,
//! its order, the totals and the last end marker at each reader; that views stay as they are while they are viewed; that
//! requests are answered in time; that each failure is one that something which broke excuses; that groups fail with one
//! cause; that a stopped reader stops nobody else; that in the end no buffer, partition, channel or job is left.

mod afterlife;
mod audience;
mod channel;
mod connection;
mod data;
mod desk;
mod dial;
mod disk;
mod ending;
mod executor;
mod faults;
mod flips;
mod gate;
mod inbox;
mod network;
mod plan;
mod producer;
mod random;
mod rerun;
mod schedule;
mod verdict;
mod verify;
mod workload;
mod world;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub use plan::{Faults, Plan, Scenario};
use world::World;

/// A mistake made on purpose, once, to see that the simulation finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A data frame between two servers is lost, and the connection goes on.
    LoseBuffer,
    /// A writer hands buffers over with a wrong checksum.
    WrongChecksum,
    /// A server's driver forgets to say that a buffer was written.
    KeepPinned,
    /// A read from disk fills a buffer with something else.
    WrongLoad,
}

/// What a simulation did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Things that happened.
    pub events: u64,
    /// Calls into the cores.
    pub steps: u64,
    /// Channels that delivered everything.
    pub complete_channels: usize,
    /// Writers and channels that failed.
    pub failures: usize,
    /// Channels that were taken up again on a new connection.
    pub resumed_channels: u64,
    /// Groups that failed, counted on each server.
    pub failed_groups: u64,
    /// Peers that were given up.
    pub lost_peers: u64,
    /// Bits that were changed, and buffers that were given to their readers once more.
    pub flips: u64,
    /// See `flips`.
    pub refetched_buffers: u64,
    /// Buffers that went to another server in the frame of the one before.
    pub packed_buffers: u64,
    /// Buffers that came once more behind others in their slot.
    pub refetched_parts: u64,
    /// Verdicts: producer memory, disk, wire or receiving memory.
    pub verdicts: [u64; 3],
    /// Payload that was written to disks, and loaded from them, in bytes.
    pub spilled_bytes: u64,
    /// See `spilled_bytes`.
    pub loaded_bytes: u64,
    /// Partitions that a later start of their server served again.
    pub recovered_partitions: u64,
    /// How long it took for those in it.
    pub virtual_time: Duration,
    /// The mistake on purpose was made.
    pub sabotaged: bool,
    closed_at: Option<u64>,
    is_balanced: bool,
}

/// A seed that failed: with the same build it fails again in the same way.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What the seed means.
    pub plan: Plan,
    /// What was found.
    pub what: String,
    /// What had been done until then.
    pub report: Report,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.report.virtual_time.as_secs_f64();
        writeln!(f, "seed {} failed after {seconds:.6} virtual seconds", self.plan.seed)?;
        writeln!(f, "{:?}", self.plan)?;
        write!(f, "{}", self.what)
    }
}

impl std::error::Error for Failure {}

/// Runs one seed; with `trace`, says on standard error what happens.
///
/// # Errors
/// What was found.
pub fn run(seed: u64, trace: bool) -> Result<Report, Box<Failure>> {
    run_sabotaged(seed, None, trace)
}

/// As [`run`], with a mistake made on purpose.
///
/// # Errors
/// What was found.
pub fn run_sabotaged(seed: u64, sabotage: Option<Sabotage>, trace: bool) -> Result<Report, Box<Failure>> {
    let plan = Plan::new(seed);
    if trace {
        eprintln!("{plan:?}");
    }
    let mut world = World::new(plan.clone(), sabotage, trace);
    // A core that finds itself broken panics.
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    let mut report = world.report.clone();
    report.sabotaged = sabotage.is_some() && world.sabotage.is_none();
    report.virtual_time = Duration::from_micros(world.now);
    report.flips = world.flips.count();
    for counters in world.counters() {
        report.refetched_buffers += counters.buffers_refetched;
        for (sum, count) in report.verdicts.iter_mut().zip([
            counters.mismatches_producer_memory,
            counters.mismatches_disk,
            counters.mismatches_wire,
        ]) {
            *sum += count;
        }
        report.resumed_channels += counters.channels_resumed;
        report.failed_groups += counters.groups_failed;
        report.lost_peers += counters.peers_lost;
        report.spilled_bytes += counters.bytes_spilled;
        report.loaded_bytes += counters.bytes_loaded;
        report.recovered_partitions += counters.partitions_recovered;
    }
    let what = match outcome {
        Ok(()) => world.wrong.take(),
        Err(panic) => Some(format!("panic: {}", message_of(panic.as_ref()))),
    };
    match what {
        None => Ok(report),
        Some(what) => Err(Box::new(Failure { plan, what, report })),
    }
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
