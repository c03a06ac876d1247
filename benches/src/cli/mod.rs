//! The command line.

mod broadcast;
mod disk;
mod job;
mod latency;
mod many;
mod measure;
mod scale;

pub use broadcast::BroadcastArgs;
pub use disk::{KindsArgs, SpillArgs};
pub use job::{JobArgs, JobKind};
pub use latency::{CompareArgs, LatencyArgs};
pub use many::ManyArgs;
pub use measure::{MeasureArgs, NodePath, OutputArgs, SendStrategy, ThroughputArgs};
pub use scale::{ScaleArgs, Sweep};

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::text::Delimiter;

/// Loads the shuffle service and reports what it measured.
///
/// Every scenario starts what it needs (servers and executors are this same program) on free ports in
/// a temporary folder, checks that everything arrived exactly once, and cleans up. The exit status is 0
/// if the run came to its end and was verified.
#[derive(Debug, Parser)]
#[command(name = "shuffle-bench", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The scenarios, and the roles in which the program starts itself.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shuffle TPC-H lineitem rows by order key between two nodes and show what happened
    ///
    /// Starts two servers and, on each node, producers and consumers as processes of their own (two of
    /// each by default). Producers make the rows; a hash of l_orderkey decides which consumer gets a row.
    Demo(DemoArgs),
    /// Distribute the lines of a text file by a key column over several files
    ///
    /// Lines with the same key end up in the same part. Lines pass unchanged, in no particular order; a
    /// missing line end after the last line is added. Parts appear under their names only when all of
    /// them are complete and checked.
    ///
    /// Example: shuffle-bench repartition --input lineitem.tbl --delimiter '|' --key 1 --consumers 8
    /// --output parts
    Repartition(RepartitionArgs),
    /// Measure how fast bytes go from producers to consumers, and what each GB costs
    ///
    /// Producers fill every byte, consumers read and sum every byte, all in processes of their own; the
    /// sums must be equal. Each round starts servers and workers anew; time runs from the moment all of
    /// them are ready to the end of the last one.
    ///
    /// Example: shuffle-bench throughput --path remote --send sendfile --bytes 4g
    Throughput(ThroughputArgs),
    /// Measure how long a record takes at a low rate, beside a bare relay through as many processes
    ///
    /// Each record is flushed at once and carries the moment at which it should have left, so that a stall
    /// counts for every record that waited. In the same run, by turns, the same records go through a bare
    /// chain of as many processes and sockets. Also shows the processor time of idle servers.
    ///
    /// Example: shuffle-bench latency --path remote --rate 1000
    Latency(LatencyArgs),
    /// Compare the service with what people would use instead, in one run
    ///
    /// Every side fills every byte, delivers it, reads and sums every byte, in processes of its own, with
    /// the same number of buffers in circulation: the service on one node and between two, a bare pair of
    /// processes over shared memory, the same with a bare relay between them, or two and TCP, a Unix
    /// stream, TCP, and (if built with `--features peers`) Arrow Flight. Rounds are interleaved; once without checksums and once with them. Where the noise is larger
    /// than the difference, no result is claimed.
    ///
    /// Example: shuffle-bench compare --bytes 1g --json compare.json
    Compare(CompareArgs),
    /// Measure how throughput changes with channels, producers, buffer sizes and flush intervals
    ///
    /// Draws each sweep as a curve into --output (SVG) and prints all points.
    ///
    /// Example: shuffle-bench scale --output curves --json scale.json
    Scale(ScaleArgs),
    /// Deliver through all eight kinds of partition and show which are refused, and why
    ///
    /// Persistent, ephemeral; pipelined, blocking; spilling, bounded: each by producers and consumers on two
    /// nodes, every byte checked; what is persistent is read several times at once.
    ///
    /// Example: shuffle-bench kinds --json kinds.json
    Kinds(KindsArgs),
    /// Measure a partition that is far larger than the pool, written and read back, beside a plain file
    ///
    /// Both sides fill every byte, make a checksum for each buffer, write and sync; then the page cache is
    /// dropped (this needs root), and both read, check and sum. By turns, in the same run.
    ///
    /// Example: shuffle-bench spill --bytes 4g --pool 64m
    Spill(SpillArgs),
    /// Deliver one partition to every consumer of every node and show what that costs when there are more
    ///
    /// With one consumer on each node and with many, by turns: once with consumers that only count, for the
    /// time; once with consumers that check and sum every byte. What went over the wire is what the kernel
    /// counts (shown by `ss` of iproute2).
    ///
    /// Example: shuffle-bench broadcast --nodes 2 --slots 16
    Broadcast(BroadcastArgs),
    /// Deliver from writers with very many subpartitions, and show what that costs in memory and on the wire
    ///
    /// Writers order their records by subpartition in buffers that these share. Every record says what it is, and is checked
    /// by its consumer: the next of its subpartition, and whole.
    ///
    /// Example: shuffle-bench many --producers 1000 --subpartitions 1000 --nodes 2
    Many(ManyArgs),
    /// Run jobs of three stages that a coordinator drives, with a process for each task
    ///
    /// batch: scan, keyed aggregation and global sort of TPC-H lineitem, each with as many tasks as the bytes that
    /// servers report ask for; the result is compared with one that is made in a single process. pipelined: three
    /// stages at once. kill: the same, and one task is killed at a random moment, again and again; the group has to
    /// fail as one, with one cause, and to leave nothing behind.
    ///
    /// Example: shuffle-bench job --kind kill --rounds 200 --json kill.json
    Job(JobArgs),
    /// (internal) A task of a job
    #[command(hide = true)]
    JobTask {
        /// What it is called in messages.
        role: String,
        /// Its task, as JSON.
        spec: String,
    },
    /// (internal) A server of a run; takes the options of shuffle-server
    #[command(hide = true, disable_help_flag = true)]
    Server {
        /// The process that started this one.
        #[arg(long)]
        parent: u32,
        /// Options of the server.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// (internal) A worker of a measurement
    #[command(hide = true)]
    Worker {
        /// What it is called in messages.
        role: String,
        /// Its task, as JSON.
        spec: String,
    },
    /// (internal) An executor of a run
    #[command(hide = true)]
    Executor {
        /// What it is called in messages.
        role: String,
        /// Its task, as JSON.
        spec: String,
    },
}

/// Options of `demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// TPC-H scale factor, 0.001 to 1000: 1 is about 6 million rows, 750 MB
    #[arg(long, default_value = "0.1", value_parser = parse_scale)]
    pub scale: f64,
    /// Producer processes on each node
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub producers: u16,
    /// Consumer processes on each node
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub consumers: u16,
    /// What all scenarios have in common.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Options of `repartition`.
#[derive(Debug, Clone, Args)]
pub struct RepartitionArgs {
    /// Text file to read, or - for standard input
    #[arg(long, value_name = "FILE|-")]
    pub input: PathBuf,
    /// The character between two columns; \t stands for a tabulator
    #[arg(long, value_name = "C")]
    pub delimiter: Delimiter,
    /// Number of the column that holds the key, counted from 1
    #[arg(long, value_name = "N")]
    pub key: NonZeroU32,
    /// Number of parts to write
    #[arg(long, value_name = "K", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub consumers: u32,
    /// Folder for part-00000, part-00001, ...; made if it does not exist
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
    /// Replace parts that are already there
    #[arg(long)]
    pub force: bool,
    /// Producer processes on each node
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub producers: u16,
    /// Number of nodes, each with its own server
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=2))]
    pub nodes: u16,
    /// What all scenarios have in common.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Options of every scenario.
#[derive(Debug, Clone, Args)]
pub struct CommonArgs {
    /// Buffers in each server's pool; the default makes 64 MiB together with the buffer size
    #[arg(long, value_name = "N")]
    pub pool_buffers: Option<u32>,
    /// Bytes in one buffer, a power of two; default 32768, or less if the pool could not guarantee
    /// every writer and reader its minimum otherwise
    #[arg(long, value_name = "BYTES")]
    pub buffer_size: Option<u32>,
    /// Where results go, and when to give up.
    #[command(flatten)]
    pub output: OutputArgs,
}

fn parse_scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.001..=1000.0).contains(&scale) {
        Ok(scale)
    } else {
        Err("expected a number from 0.001 to 1000".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Cli, Command};
    use crate::report::JsonTarget;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn demo_needs_no_option() {
        let cli = Cli::try_parse_from(["shuffle-bench", "demo"]).expect("parsed");
        let Command::Demo(demo) = cli.command else {
            panic!("not a demo");
        };
        assert!((demo.scale - 0.1).abs() < 1e-9);
        assert_eq!((demo.producers, demo.consumers), (2, 2));
    }

    #[test]
    fn nonsense_is_refused() {
        for arguments in [
            &["demo", "--scale", "0"][..],
            &["demo", "--scale", "nan"],
            &["demo", "--producers", "0"],
            &["repartition", "--input", "-"],
            &[
                "repartition",
                "--input",
                "-",
                "--delimiter",
                "ab",
                "--key",
                "1",
                "--output",
                "x",
            ],
            &[
                "repartition",
                "--input",
                "-",
                "--delimiter",
                "|",
                "--key",
                "0",
                "--output",
                "x",
            ],
        ] {
            let all = ["shuffle-bench"].iter().chain(arguments);
            assert!(Cli::try_parse_from(all).is_err(), "{arguments:?}");
        }
    }

    #[test]
    fn repartition_reads_as_in_its_help() {
        let cli = Cli::try_parse_from([
            "shuffle-bench",
            "repartition",
            "--input",
            "-",
            "--delimiter",
            "\\t",
            "--key",
            "2",
            "--consumers",
            "8",
            "--output",
            "parts",
            "--json",
            "-",
        ])
        .expect("parsed");
        let Command::Repartition(args) = cli.command else {
            panic!("not a repartition");
        };
        assert_eq!((args.key.get(), args.consumers, args.nodes), (2, 8, 2));
        assert_eq!(args.common.output.json, Some(JsonTarget::Standard));
    }
}
