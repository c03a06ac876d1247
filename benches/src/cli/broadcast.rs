//! Options of `broadcast`.

use clap::Args;

use super::measure::{OutputArgs, parse_buffer, parse_bytes};

/// Options of `broadcast`.
#[derive(Debug, Clone, Args)]
pub struct BroadcastArgs {
    /// Nodes with consumers; the producer is on the first
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub nodes: u32,
    /// Consumers on each node, each with a gate and a cursor of its own
    #[arg(long, value_name = "S", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=256))]
    pub slots: u32,
    /// Executor processes on each node, which have the slots between them: 1 is one executor with a task in each slot
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub executors: u32,
    /// Bytes that are broadcast
    #[arg(long, value_name = "BYTES", default_value = "1g", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Rounds, each with one slot and with all
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Bytes in one buffer, a multiple of 4096
    #[arg(long, value_name = "BYTES", default_value = "256k", value_parser = parse_buffer)]
    pub buffer_size: u32,
    /// Buffers of the writer
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=65_536))]
    pub buffers: u32,
    /// Keep it on disk: what is stored is then what was written there, and any number of consumers may come
    #[arg(long)]
    pub persistent: bool,
    /// What every scenario has in common.
    #[command(flatten)]
    pub output: OutputArgs,
}
