//! Options of `job`.

use clap::{Args, ValueEnum};

use super::measure::{OutputArgs, parse_buffer, parse_bytes};
use super::parse_scale;

/// Which job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JobKind {
    /// Scan, keyed aggregation, global sort: one after the other, with as many tasks as their inputs need
    Batch,
    /// A group of three stages that run at once: results while the source still makes rows
    Pipelined,
    /// The same again and again, with one task killed at a random moment: the group fails as one
    Kill,
}

impl JobKind {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Pipelined => "pipelined",
            Self::Kill => "kill",
        }
    }
}

/// Options of `job`.
#[derive(Debug, Clone, Args)]
pub struct JobArgs {
    /// Which job
    #[arg(long, value_enum, default_value = "batch")]
    pub kind: JobKind,
    /// TPC-H scale factor, 0.001 to 1000; default 0.1, for kill 0.02
    #[arg(long, value_parser = parse_scale)]
    pub scale: Option<f64>,
    /// Nodes, each with its own server
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub nodes: u16,
    /// Tasks that run at one time on each node
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub slots: u32,
    /// Tasks of the scan, and of each stage of a pipelined group
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub tasks: u32,
    /// batch: bytes that a task shall read; decides how many there are
    #[arg(long, value_name = "BYTES", default_value = "2m", value_parser = parse_bytes)]
    pub bytes_per_task: u64,
    /// kill: jobs of which one task is killed
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// batch: tasks that are killed, in a second job; they run again, and the result has to be the same
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub kills: u32,
    /// batch: servers that are killed in a second job, each when a stage is complete and the next is to read it; what they had is
    /// made again on the others, and the result has to be the same
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=2))]
    pub lost_servers: u16,
    /// batch: scan, convert and total, with the rows of the scan in turn to whoever has room: a second execution of it writes
    /// something else, so who has read it runs again. --lost-servers kills when the first has
    #[arg(long)]
    pub rebalanced: bool,
    /// Which tasks and servers are killed, and when
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Buffers in each server's pool
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    pub pool_buffers: u32,
    /// Bytes in one buffer, a multiple of 4096
    #[arg(long, value_name = "BYTES", default_value = "16k", value_parser = parse_buffer)]
    pub buffer_size: u32,
    /// What every scenario has in common.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl JobArgs {
    /// The scale of the table.
    pub fn scale(&self) -> f64 {
        let default = match self.kind {
            JobKind::Batch | JobKind::Pipelined => 0.1,
            JobKind::Kill => 0.02,
        };
        self.scale.unwrap_or(default)
    }
}
