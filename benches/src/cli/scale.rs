//! Options of `scale`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::measure::MeasureArgs;

/// What is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sweep {
    /// Channels open between two nodes
    Channels,
    /// Producer processes
    Producers,
    /// Bytes in a buffer
    Buffers,
    /// How long a partly filled buffer waits
    Flush,
}

/// Options of `scale`.
#[derive(Debug, Clone, Args)]
pub struct ScaleArgs {
    /// Folder for the curves, one SVG for each sweep; made if it does not exist
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
    /// Only these sweeps, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["channels", "producers", "buffers", "flush"])]
    pub only: Vec<Sweep>,
    /// Most channels of that sweep
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub most_channels: u32,
    /// Most producers of that sweep
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub most_producers: u32,
    /// Buffers that go to each of 16 active channels before the next 16 have their turn
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    pub burst: u64,
    /// What all measurements have in common.
    #[command(flatten)]
    pub measure: MeasureArgs,
}
