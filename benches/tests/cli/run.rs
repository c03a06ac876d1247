//! Starting the tool as a user would, in a temporary folder of its own, and proving that nothing is left of it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// A run of the tool in the background.
pub(crate) struct Run {
    child: Child,
    temporary: tempfile::TempDir,
    errors: Receiver<String>,
    /// What was said on standard error so far.
    pub(crate) said: Vec<String>,
}

/// A command of the tool whose temporary folder is `temporary`.
pub(crate) fn command(arguments: &[&str], temporary: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shuffle-bench"));
    command.args(arguments).env("TMPDIR", temporary);
    command
}

impl Run {
    /// Starts the tool.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let temporary = tempfile::tempdir().expect("a folder");
        let mut child = command(arguments, temporary.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let (sender, errors) = sync_channel(10_000);
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            temporary,
            errors,
            said: Vec::new(),
        }
    }

    /// Waits until a line is said that fulfils the condition.
    pub(crate) fn until(&mut self, condition: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self
                .errors
                .recv_timeout(left)
                .unwrap_or_else(|_| panic!("not said; only {:#?}", self.said));
            self.said.push(line.clone());
            if condition(&line) {
                return line;
            }
        }
    }

    /// Processes of the run by what the listing at the start calls them (`producer-0@a`, `server@b`).
    pub(crate) fn process(&self, role: &str) -> Pid {
        let line = self
            .said
            .iter()
            .find(|line| line.starts_with(&format!("{role} pid ")))
            .expect("listed");
        pid(line.split(' ').nth(2).expect("a number"))
    }

    /// All processes that were listed.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let listed = self
            .said
            .iter()
            .filter_map(|line| line.split_once("@")?.1.split_once(" pid "));
        listed
            .map(|(_, rest)| pid(rest.split(' ').next().expect("a number")))
            .collect()
    }

    /// Sends the tool itself a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(&self.child.id().to_string()), signal).expect("it runs");
    }

    /// Waits for the end; everything that is said until then is kept.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.said.extend(self.errors.try_iter());
            if let Some(status) = self.child.try_wait().expect("awaited") {
                while let Ok(line) = self.errors.recv_timeout(Duration::from_secs(1)) {
                    self.said.push(line);
                }
                return status;
            }
            assert!(Instant::now() < deadline, "does not end; said {:#?}", self.said);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Nothing is left: no process, and no file if the tool could clean up itself.
    pub(crate) fn assert_clean(&self, files_too: bool) {
        assert_gone(&self.processes());
        if files_too {
            assert_empty(self.temporary.path());
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a measurement to its end and gives its report: verified, one object on standard output, nothing left.
pub(crate) fn measured(arguments: &[&str]) -> serde_json::Value {
    let temporary = tempfile::tempdir().expect("a folder");
    let output = command(arguments, temporary.path())
        .args(["--json", "-"])
        .output()
        .expect("run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object and nothing else");
    assert_eq!(report["verified"], true, "{report}");
    assert_empty(temporary.path());
    report
}

/// The folder is empty.
pub(crate) fn assert_empty(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir)
        .expect("a folder")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

fn assert_gone(processes: &[Pid]) {
    assert!(!processes.is_empty(), "no process was listed");
    let deadline = Instant::now() + Duration::from_secs(5);
    while let Some(left) = processes.iter().find(|process| is_alive(**process)) {
        assert!(Instant::now() < deadline, "process {left:?} is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process runs; one that has ended and is not reaped does not.
fn is_alive(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    test_kill_process(process).is_ok() && status.is_ok_and(|status| !status.contains(") Z "))
}

fn pid(text: &str) -> Pid {
    text.parse().ok().and_then(Pid::from_raw).expect("a process number")
}

const PATIENCE: Duration = Duration::from_secs(120);
