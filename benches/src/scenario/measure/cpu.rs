//! Processor time of other processes, as the kernel accounts for it.

use std::fs;
use std::io;

/// Seconds on a processor so far, all living threads of a process, to the nanosecond.
pub(super) fn seconds_of(pid: u32) -> io::Result<f64> {
    let mut nanoseconds = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        if let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) {
            nanoseconds += first_number(&text)?;
        }
    }
    Ok(nanoseconds as f64 / 1e9)
}

fn first_number(schedstat: &str) -> io::Result<u64> {
    schedstat
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a schedstat"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::{first_number, seconds_of};

    #[test]
    fn the_first_number_is_time_on_a_processor() {
        assert_eq!(first_number("1116370 934140 1\n").ok(), Some(1_116_370));
        assert!(first_number("").is_err());
    }

    #[test]
    fn work_costs_processor_time() {
        // Another process: here the threads of other tests come to their ends, and their time with them.
        let mut busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .expect("a shell");
        let deadline = Instant::now() + Duration::from_secs(60);
        while seconds_of(busy.id()).expect("it runs") < 0.02 {
            assert!(Instant::now() < deadline, "no time is counted");
            std::thread::sleep(Duration::from_millis(1));
        }
        busy.kill().expect("ended");
        busy.wait().expect("ended");
    }
}
