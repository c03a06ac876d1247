//! Options of `latency` and `compare`.

use clap::Args;

use super::measure::{MeasureArgs, NodePath, OutputArgs, SendStrategy};

/// Options of `latency`.
#[derive(Debug, Clone, Args)]
pub struct LatencyArgs {
    /// Between whom records go
    #[arg(long, value_enum, default_value = "local")]
    pub path: NodePath,
    /// Records a second
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: u32,
    /// Seconds of each round
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Rounds of the service and of each bare relay, by turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Bytes of a record, 8 to 16384
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = parse_record)]
    pub record_size: usize,
    /// Watch the servers for this long while nothing happens, and report their processor time; 0: do not
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    pub idle: u64,
    /// How servers send to other nodes
    #[arg(long, value_enum, default_value = "auto")]
    pub send: SendStrategy,
    /// An option of shuffle-server for every server of the run, such as stripes=2; may be repeated
    #[arg(long = "server-option", value_name = "NAME=VALUE")]
    pub server_options: Vec<String>,
    /// What every scenario has in common.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Options of `compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Pairs of producer and consumer, each in processes of their own, on every side
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: u32,
    /// Bind every process of every side to these cores, such as 0 or 0,1; default: where the system puts them
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cores: Option<Vec<usize>>,
    /// Leave the latencies out
    #[arg(long)]
    pub no_latency: bool,
    /// Seconds of each round of the latencies, of which there are three
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub latency_seconds: u32,
    /// What all measurements have in common.
    #[command(flatten)]
    pub measure: MeasureArgs,
}

fn parse_record(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes @ 8..=16_384) => Ok(bytes),
        _ => Err("expected from 8 bytes, which hold the moment, to 16384".to_owned()),
    }
}
