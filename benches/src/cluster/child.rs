//! Starting, hearing and ending child processes.

use std::ffi::OsStr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::error::{Attempt, BenchError};

/// A child of this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChildId(pub(crate) usize);

/// What a child did.
#[derive(Debug)]
pub(crate) enum ChildEvent {
    /// Wrote a line to standard output.
    Line(String),
    /// Wrote a line to standard error.
    Message(String),
    /// Ended; nothing more comes from it.
    Ended(std::io::Result<ExitStatus>),
}

/// What a child is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Go on.
    Run,
    /// End in order (SIGTERM).
    Terminate,
    /// End now (SIGKILL).
    Kill,
}

/// A started child.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) id: ChildId,
    pub(crate) pid: u32,
    pub(crate) input: ChildStdin,
    pub(crate) orders: watch::Sender<Order>,
}

/// All children of a run, and the one queue of what they do.
#[derive(Debug)]
pub(crate) struct Children {
    attendants: JoinSet<()>,
    orders: Vec<watch::Sender<Order>>,
    sender: mpsc::Sender<(ChildId, ChildEvent)>,
    receiver: mpsc::Receiver<(ChildId, ChildEvent)>,
}

impl Children {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = mpsc::channel(EVENT_QUEUE);
        Self {
            attendants: JoinSet::new(),
            orders: Vec::new(),
            sender,
            receiver,
        }
    }

    /// Starts this program again with other arguments. To be called on the thread that lives as long
    /// as the process: the kernel ends children with the thread that started them.
    pub(crate) fn spawn(
        &mut self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Spawned, BenchError> {
        self.spawn_with(arguments, &[])
    }

    /// As [`Children::spawn`], with some variables in the child's environment.
    pub(crate) fn spawn_with(
        &mut self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        variables: &[(&str, &str)],
    ) -> Result<Spawned, BenchError> {
        let arguments: Vec<_> = arguments.into_iter().collect();
        check_lengths(&arguments)?;
        let program = std::env::current_exe().attempt(|| "cannot find this program".to_owned())?;
        let mut command = Command::new(&program);
        for (name, _) in std::env::vars_os() {
            // A run is configured by its own arguments only, and by what it gives its children.
            if name.to_string_lossy().starts_with("SHUFFLE_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C in a terminal goes to this process alone, which then ends its children.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .attempt(|| format!("cannot start {}", program.display()))?;
        let id = ChildId(self.orders.len());
        let (orders, watching) = watch::channel(Order::Run);
        let pid = child.id().expect("invariant: not yet awaited");
        let input = child.stdin.take().expect("invariant: piped");
        self.orders.push(orders.clone());
        self.attendants.spawn(attend(id, child, watching, self.sender.clone()));
        Ok(Spawned { id, pid, input, orders })
    }

    /// The next thing that any child does.
    pub(crate) async fn next_event(&mut self) -> (ChildId, ChildEvent) {
        self.receiver.recv().await.expect("invariant: a sender is kept here")
    }

    /// Kills and reaps all children that are left.
    pub(crate) async fn stop(&mut self) {
        self.receiver.close();
        for orders in &self.orders {
            orders.send_replace(Order::Kill);
        }
        let all = async { while self.attendants.join_next().await.is_some() {} };
        // A killed process that the kernel cannot end yet is not waited for.
        if timeout(REAP_TIMEOUT, all).await.is_err() {
            self.attendants.abort_all();
        }
    }
}

/// The system passes no argument that is longer; what it says then names neither the limit nor the way out.
fn check_lengths(arguments: &[impl AsRef<OsStr>]) -> Result<(), BenchError> {
    let longest = arguments
        .iter()
        .map(|argument| argument.as_ref().len())
        .max()
        .unwrap_or(0);
    if longest <= LONGEST_ARGUMENT {
        return Ok(());
    }
    let role = arguments
        .get(1)
        .map(|role| role.as_ref().to_string_lossy())
        .unwrap_or_default();
    Err(BenchError::Usage(format!(
        "the task of {role} takes {longest} bytes, and the system passes at most {LONGEST_ARGUMENT} to a process in one argument: \
         fewer producers, consumers or parts for each process"
    )))
}

/// Relays what a child says until it has ended, and passes orders on to it.
async fn attend(
    id: ChildId,
    mut child: Child,
    mut orders: watch::Receiver<Order>,
    events: mpsc::Sender<(ChildId, ChildEvent)>,
) {
    let output = child.stdout.take().expect("invariant: piped");
    let messages = child.stderr.take().expect("invariant: piped");
    let relay = async {
        tokio::join!(
            relay(id, output, &events, ChildEvent::Line),
            relay(id, messages, &events, ChildEvent::Message),
        );
    };
    let mut kills = orders.clone();
    let told_to_kill = kills.wait_for(|order| *order == Order::Kill);
    let wait = async {
        loop {
            tokio::select! {
                status = child.wait() => return status,
                Ok(()) = orders.changed() => {
                    let order = *orders.borrow_and_update();
                    signal(&mut child, order);
                }
            }
        }
    };
    // What was said before the end is relayed before the end is; descendants that hold the pipes open
    // are not waited for.
    let (status, ()) = tokio::join!(wait, async {
        tokio::select! { () = relay => {}, _ = told_to_kill => {} }
    });
    let _ = events.send((id, ChildEvent::Ended(status))).await;
}

async fn relay(
    id: ChildId,
    source: impl AsyncRead + Unpin,
    events: &mpsc::Sender<(ChildId, ChildEvent)>,
    wrap: fn(String) -> ChildEvent,
) {
    let mut source = BufReader::new(source);
    let mut line = Vec::new();
    loop {
        line.clear();
        match source.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if events.send((id, wrap(text))).await.is_err() {
            return;
        }
    }
}

fn signal(child: &mut Child, order: Order) {
    match order {
        Order::Run => {}
        Order::Terminate => {
            // `id` is None once the child was reaped, so that no other process is hit.
            let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
            if let Some(pid) = pid.and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        Order::Kill => {
            let _ = child.start_kill();
        }
    }
}

/// Makes the kernel end this process when its parent ends. Called by a child at its start.
///
/// # Errors
/// The kernel refused, or the parent has ended already.
pub(crate) fn follow_parent(parent: u32) -> Result<(), BenchError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(Into::into)
        .attempt(|| "cannot ask to end with the parent process".to_owned())?;
    let now = getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
    if now == Some(parent) {
        Ok(())
    } else {
        Err(BenchError::Usage(format!(
            "the process {parent} that started this one has ended"
        )))
    }
}

const EVENT_QUEUE: usize = 1024;
const REAP_TIMEOUT: Duration = Duration::from_secs(5);
/// MAX_ARG_STRLEN of Linux, without the zero at the end.
const LONGEST_ARGUMENT: usize = 32 * 4096 - 1;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{LONGEST_ARGUMENT, check_lengths};

    #[test]
    fn a_task_that_the_system_would_not_pass_is_refused_with_its_length() {
        let arguments = |length: usize| ["worker".to_owned(), "consumer-3@b".to_owned(), "x".repeat(length)];
        let run = |length| Command::new("true").args(arguments(length)).status();
        check_lengths(&arguments(LONGEST_ARGUMENT)).expect("just short enough");
        assert!(run(LONGEST_ARGUMENT).is_ok() && run(LONGEST_ARGUMENT + 1).is_err());
        let error = check_lengths(&arguments(LONGEST_ARGUMENT + 1))
            .expect_err("too long")
            .to_string();
        assert!(error.contains("consumer-3@b") && error.contains("131072"), "{error}");
    }
}
