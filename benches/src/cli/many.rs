//! Options of `many`.

use clap::Args;

use super::measure::{OutputArgs, parse_buffer, parse_bytes};

/// Options of `many`.
#[derive(Debug, Clone, Args)]
pub struct ManyArgs {
    /// Writers, by turns on all nodes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub producers: u32,
    /// Subpartitions of each
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=131_072))]
    pub subpartitions: u32,
    /// Consumer processes, by turns on all nodes, each with a range of subpartitions of every writer
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub consumers: u32,
    /// Nodes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub nodes: u16,
    /// Records of each subpartition of each writer
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub records: u32,
    /// Bytes of a record, a multiple of 4
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = parse_record)]
    pub record_size: u32,
    /// Bytes of each server's pool
    #[arg(long, value_name = "BYTES", default_value = "64m", value_parser = parse_bytes)]
    pub pool: u64,
    /// Bytes in one buffer, a multiple of 4096
    #[arg(long, value_name = "BYTES", default_value = "32k", value_parser = parse_buffer)]
    pub buffer_size: u32,
    /// Most buffers of a writer (default: no limit but its share of the pool)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=65_536))]
    pub buffers: Option<u32>,
    /// Receive buffers of each consumer, which its channels share; there are no others
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub floating: u32,
    /// What every scenario has in common.
    #[command(flatten)]
    pub output: OutputArgs,
}

fn parse_record(text: &str) -> Result<u32, String> {
    let bytes: u32 = text.parse().map_err(|_| format!("{text:?} is not a number of bytes"))?;
    if bytes < 12 || !bytes.is_multiple_of(4) || bytes > 1 << 20 {
        return Err("a record has 12 to 1048576 bytes, a multiple of 4".to_owned());
    }
    Ok(bytes)
}
