//! The shuffle service of one node. `shuffle-server --help` says how to run it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    shuffle_server::run_with_args(std::env::args_os())
}
