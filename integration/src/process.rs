//! One child process: started, heard line by line, signalled by its id, reaped with a deadline.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

use crate::wait::within;

/// Lines of standard output that may wait for the test.
const WAITING_LINES: usize = 4096;

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; its standard error goes to `folder/NAME.log`.
    ///
    /// `SHUFFLE_*` of this process's own environment is not handed on, so that a test means the
    /// same everywhere; but the send strategy is, because the whole suite runs once with each.
    ///
    /// # Errors
    /// If the log cannot be made or the program cannot be started.
    pub fn start(name: &str, mut command: Command, folder: &Path) -> io::Result<Self> {
        for (key, _) in std::env::vars_os() {
            let explicit = command.as_std().get_envs().any(|(set, _)| set == key);
            let key_is_ours = key.to_string_lossy().starts_with("SHUFFLE_") && key != "SHUFFLE_TRANSPORT_SEND";
            if key_is_ours && !explicit {
                command.env_remove(key);
            }
        }
        let log = folder.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let pid = child
            .id()
            .ok_or_else(|| io::Error::other("the child was reaped at once"))?;
        let input = child.stdin.take();
        let output = child
            .stdout
            .take()
            .ok_or_else(|| io::Error::other("no standard output"))?;
        let (sender, lines) = mpsc::channel(WAITING_LINES);
        tokio::spawn(async move {
            let mut reader = BufReader::new(output).lines();
            while let Ok(Some(line)) = reader.next_line().await {
                if sender.send(line).await.is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            name: name.to_owned(),
            pid,
            child,
            input,
            lines,
            log,
        })
    }

    /// Its id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its name in logs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Next line of its standard output, `None` at the end of it.
    ///
    /// # Panics
    /// After `limit`.
    pub async fn line(&mut self, limit: Duration) -> Option<String> {
        let what = format!("a line from {}", self.name);
        within(limit, &what, self.lines.recv()).await
    }

    /// Writes one line to its standard input.
    ///
    /// # Errors
    /// If the process no longer reads.
    pub async fn tell(&mut self, line: &str) -> io::Result<()> {
        let input = self.input.as_mut().ok_or_else(|| io::Error::other("input is closed"))?;
        input.write_all(format!("{line}\n").as_bytes()).await?;
        input.flush().await
    }

    /// Sends a signal to this process and no other.
    ///
    /// # Panics
    /// If it has been reaped already.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(Pid::from_raw)
            .expect("a process id");
        kill_process(pid, signal).unwrap_or_else(|error| panic!("signal {signal:?} to {}: {error}", self.name));
    }

    /// Its exit, reaped.
    ///
    /// # Panics
    /// After `limit`.
    pub async fn exit(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("the exit of {}", self.name);
        within(limit, &what, self.child.wait())
            .await
            .expect("a child can be waited for")
    }

    /// `kill -9`, reaped.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.exit(Duration::from_secs(5)).await;
    }

    /// What it has written to standard error so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}
