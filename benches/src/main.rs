//! The command `shuffle-bench`; see the crate's documentation.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    shuffle_bench::run(shuffle_bench::cli::Cli::parse())
}
