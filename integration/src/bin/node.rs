//! A server process of the tests: the same program as `shuffle-server`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    shuffle_server::run_with_args(std::env::args_os())
}
