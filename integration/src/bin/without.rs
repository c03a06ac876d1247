//! Runs a program to which the kernel refuses one system call, as in a container with such a seccomp profile:
//! `without io_uring_setup EPERM PROGRAM ARGUMENTS...`.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Their numbers are the same on every architecture.
const CALLS: [(&str, i64); 3] = [
    ("io_uring_setup", 425),
    ("io_uring_enter", 426),
    ("io_uring_register", 427),
];
const ERRORS: [(&str, Errno); 2] = [("EPERM", Errno::PERM), ("ENOSYS", Errno::NOSYS)];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [call, error, program, arguments @ ..] = words.as_slice() else {
        return failed("usage: without CALL ERROR PROGRAM ARGUMENTS...");
    };
    let call = CALLS.iter().find(|(name, _)| name == call);
    let error = ERRORS.iter().find(|(name, _)| name == error);
    let (Some((_, call)), Some((_, error))) = (call, error) else {
        return failed(&format!("CALL is one of {CALLS:?}, ERROR one of {ERRORS:?}"));
    };
    if let Err(why) = refuse(*call, *error) {
        return failed(&format!("no filter: {why}"));
    }
    failed(&Command::new(program).args(arguments).exec().to_string())
}

/// From now on, for this process and what it becomes.
fn refuse(call: i64, error: Errno) -> Result<(), seccompiler::Error> {
    let error = SeccompAction::Errno(error.raw_os_error().unsigned_abs());
    let machine = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(
        BTreeMap::from([(call, Vec::new())]),
        SeccompAction::Allow,
        error,
        machine,
    )?;
    let program = BpfProgram::try_from(filter)?;
    seccompiler::apply_filter(&program)
}

fn failed(why: &str) -> ExitCode {
    eprintln!("without: {why}");
    ExitCode::FAILURE
}
