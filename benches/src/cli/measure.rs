//! Options of the scenarios that measure: `throughput` and what it has in common with the others.

use clap::{Args, ValueEnum};

use crate::report::JsonTarget;

/// Between whom data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NodePath {
    /// Producers and consumers on one node: through shared memory
    Local,
    /// Producers on one node, consumers on another: over TCP between two servers
    Remote,
}

impl NodePath {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

/// How servers send to other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SendStrategy {
    /// What the server finds best
    Auto,
    /// Gathering vectored writes
    Copy,
    /// Page references from the arena, by sendfile
    Sendfile,
    /// io_uring
    Uring,
}

impl SendStrategy {
    /// The value of the server's setting, unless it is left to the server.
    pub(crate) fn forced(self) -> Option<&'static str> {
        match self {
            Self::Auto => None,
            Self::Copy => Some("copy"),
            Self::Sendfile => Some("sendfile"),
            Self::Uring => Some("uring"),
        }
    }
}

/// Options of `throughput`.
#[derive(Debug, Clone, Args)]
pub struct ThroughputArgs {
    /// Between whom data goes
    #[arg(long, value_enum, default_value = "local")]
    pub path: NodePath,
    /// Producer processes, each with a partition of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub producers: u32,
    /// Consumer processes; each reads its share of the subpartitions of all partitions
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub consumers: u32,
    /// Subpartitions of each partition; default: one for each consumer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub subpartitions: Option<u32>,
    /// Bytes of one record, a multiple of 8, through the layer of records; 0: whole buffers, filled in
    /// place, through the layer of buffers
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_words)]
    pub record_size: u32,
    /// What all measurements have in common.
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Credits bound to each channel of a gate; the others, up to --buffers, float
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub exclusive: u32,
    /// Without the checksums that producers make and consumers check
    #[arg(long)]
    pub no_checksums: bool,
}

/// Options of every scenario that measures throughput.
#[derive(Debug, Clone, Args)]
pub struct MeasureArgs {
    /// Bytes of each round, such as 1g, 512m or 4096
    #[arg(long, value_name = "BYTES", default_value = "2g", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Rounds; the median and the range of all are reported
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Bytes in one buffer, a multiple of 4096
    #[arg(long, value_name = "BYTES", default_value = "32k", value_parser = parse_buffer)]
    pub buffer_size: u32,
    /// Buffers in circulation for each writer, and on another node for each gate
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=65_536))]
    pub buffers: u32,
    /// How servers send to other nodes
    #[arg(long, value_enum, default_value = "auto")]
    pub send: SendStrategy,
    /// An option of shuffle-server for every server of the run, such as stripes=2; may be repeated
    #[arg(long = "server-option", value_name = "NAME=VALUE")]
    pub server_options: Vec<String>,
    /// Buffers that a producer fills, or a consumer reads, before its task yields; default 8, in `compare` the best of 8, 32
    /// and never
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub turn: Option<u32>,
    /// What every scenario has in common.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Where results go, and when to give up.
#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// Write one JSON object with what was found to a file, or with - to standard output, which then
    /// holds nothing else (tables and progress go to standard error)
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<JsonTarget>,
    /// Give up when nothing has moved for this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub stall_timeout: u64,
    /// List every process with its number, and show the servers' log
    #[arg(short, long)]
    pub verbose: bool,
}

/// Bytes with an optional binary unit: k, m, g.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.strip_suffix(['k', 'm', 'g']) {
        Some(digits) if lower.ends_with('k') => (digits, 1 << 10),
        Some(digits) if lower.ends_with('m') => (digits, 1 << 20),
        Some(digits) => (digits, 1 << 30),
        None => (lower.as_str(), 1),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "expected a whole number of bytes, with k, m or g for 1024, 1024^2 or 1024^3".to_owned())?;
    match number.checked_mul(unit) {
        Some(bytes @ 1..=MOST_BYTES) => Ok(bytes),
        _ => Err("expected from 1 byte to 1024g".to_owned()),
    }
}

pub(super) fn parse_buffer(text: &str) -> Result<u32, String> {
    match u32::try_from(parse_bytes(text)?) {
        Ok(bytes @ 4096..=16_777_216) if bytes.is_multiple_of(4096) => Ok(bytes),
        _ => Err("expected a multiple of 4096 bytes, up to 16m".to_owned()),
    }
}

fn parse_words(text: &str) -> Result<u32, String> {
    if text == "0" {
        return Ok(0);
    }
    match u32::try_from(parse_bytes(text)?) {
        Ok(bytes) if bytes.is_multiple_of(8) && bytes <= 1 << 28 => Ok(bytes),
        _ => Err("expected a multiple of 8 bytes, up to 256m".to_owned()),
    }
}

const MOST_BYTES: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::{parse_buffer, parse_bytes, parse_words};

    #[test]
    fn bytes_have_units() {
        let all = ["1", "4K", "3m", "2g"].map(|text| parse_bytes(text).expect("bytes"));
        assert_eq!(all, [1, 4096, 3 << 20, 2 << 30]);
        for bad in ["", "k", "-1", "0", "1t", "1.5g", "99999999999g"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn buffers_are_pages_and_records_are_words() {
        assert_eq!(parse_buffer("32k"), Ok(32_768));
        assert!(parse_buffer("6000").is_err() && parse_buffer("32m").is_err());
        assert_eq!((parse_words("0"), parse_words("104")), (Ok(0), Ok(104)));
        assert!(parse_words("100").is_err());
    }
}
