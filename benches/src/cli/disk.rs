//! Options of the scenarios with disks: `kinds` and `spill`.

use clap::Args;

use super::measure::{OutputArgs, parse_buffer, parse_bytes};

/// Options of `kinds`.
#[derive(Debug, Clone, Args)]
pub struct KindsArgs {
    /// Bytes that are written for each kind
    #[arg(long, value_name = "BYTES", default_value = "256m", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Producer processes, by turns on two nodes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub producers: u32,
    /// Consumer processes of each reading, by turns on two nodes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub consumers: u32,
    /// How often what is persistent is read, at one time, each time by as many consumers
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub readings: u32,
    /// Bytes in one buffer, a multiple of 4096
    #[arg(long, value_name = "BYTES", default_value = "32k", value_parser = parse_buffer)]
    pub buffer_size: u32,
    /// Buffers of each writer
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=65_536))]
    pub buffers: u32,
    /// What every scenario has in common.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Options of `spill`.
#[derive(Debug, Clone, Args)]
pub struct SpillArgs {
    /// Bytes of each round
    #[arg(long, value_name = "BYTES", default_value = "4g", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Rounds, in each of which the plain program has its turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Bytes in one buffer, a multiple of 4096
    #[arg(long, value_name = "BYTES", default_value = "128k", value_parser = parse_buffer)]
    pub buffer_size: u32,
    /// Bytes of the server's pool
    #[arg(long, value_name = "BYTES", default_value = "64m", value_parser = parse_bytes)]
    pub pool: u64,
    /// What every scenario has in common.
    #[command(flatten)]
    pub output: OutputArgs,
}
