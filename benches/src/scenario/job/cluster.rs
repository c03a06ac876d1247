//! The servers of all jobs of a run, and the proof that nothing of a job is left on them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shuffle_client::AttachOptions;
use shuffle_protocol::{JobId, NodeAddress};
use tempfile::TempDir;

use crate::cli::{JobArgs, SendStrategy};
use crate::cluster::{Children, Order, Server, ServerOptions};
use crate::console::Console;
use crate::error::{Attempt, BenchError};
use crate::scenario::run::ask;

/// Servers, and a folder for sockets and results.
#[derive(Debug)]
pub(super) struct Cluster {
    dir: TempDir,
    pub(super) children: Children,
    pub(super) servers: Vec<Server>,
    /// Those that were killed.
    lost: BTreeSet<NodeAddress>,
}

impl Cluster {
    pub(super) async fn start(args: &JobArgs, console: &Console) -> Result<Self, BenchError> {
        let dir = tempfile::Builder::new()
            .prefix("shuffle-bench-")
            .tempdir()
            .attempt(|| "cannot make a temporary folder".to_owned())?;
        let options = ServerOptions {
            pool_buffers: args.pool_buffers,
            buffer_bytes: args.buffer_size,
            verbose: args.output.verbose,
            send: SendStrategy::Auto,
            has_disk: true,
            // What a killed job has to say is the report's.
            more: if args.output.verbose {
                Vec::new()
            } else {
                vec!["log=error".to_owned()]
            },
        };
        let mut cluster = Self {
            dir,
            children: Children::new(),
            servers: Vec::new(),
            lost: BTreeSet::new(),
        };
        for node in 0..args.nodes.into() {
            let server = Server::start(&mut cluster.children, node, cluster.dir.path(), &options, console).await?;
            if args.output.verbose {
                console.say(format!("{} pid {} serves {}", server.name, server.pid, server.address));
            }
            cluster.servers.push(server);
        }
        Ok(cluster)
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn socket_of(&self, node: &NodeAddress) -> Option<PathBuf> {
        let mut servers = self.servers.iter();
        servers
            .find(|server| server.address == *node)
            .map(|server| server.socket.clone())
    }

    /// Ends a server without a word to it.
    pub(super) fn kill_server(&mut self, address: &NodeAddress) {
        if let Some(server) = self.servers.iter().find(|server| server.address == *address) {
            server.orders.send_replace(Order::Kill);
            self.lost.insert(address.clone());
        }
    }

    /// Whether it was killed.
    pub(super) fn is_lost(&self, address: &NodeAddress) -> bool {
        self.lost.contains(address)
    }

    fn living(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(|server| !self.is_lost(&server.address))
    }

    /// How the driver of a job reaches the nodes.
    pub(super) fn attach_options(&self, job: JobId) -> Vec<AttachOptions> {
        let options = |server: &Server| {
            AttachOptions::new(job)
                .socket(&server.socket)
                .name("driver")
                .timeout(ATTACH_TIMEOUT)
        };
        self.living().map(options).collect()
    }

    /// What is left of jobs on the nodes once they have had time to clean up; empty: nothing.
    pub(super) async fn leftovers(&self) -> Result<Vec<String>, BenchError> {
        let deadline = Instant::now() + BASE_WITHIN;
        let mut left = Vec::new();
        for server in self.living() {
            loop {
                let held = leftovers(&ask(server).await?);
                if held.is_empty() {
                    break;
                }
                if Instant::now() >= deadline {
                    left.extend(held.iter().map(|(name, n)| format!("{}: {n} {name}", server.name)));
                    break;
                }
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
        }
        Ok(left)
    }

    pub(super) async fn close(mut self) -> Result<(), BenchError> {
        self.children.stop().await;
        self.dir
            .close()
            .attempt(|| "cannot remove the temporary folder".to_owned())
    }
}

/// What a server without work does not have.
fn leftovers(counters: &std::collections::BTreeMap<String, u64>) -> Vec<(String, u64)> {
    const NOTHING: [&str; 5] = [
        "partitions",
        "gates",
        "channels_serving",
        "channels_fetching",
        "subscriptions",
    ];
    let home = ["buffers_unassigned", "buffers_free"];
    // Counters of buffers end in what was done with them; states are gauges.
    const STATES: [&str; 8] = [
        "granted",
        "queued",
        "reserved",
        "receiving",
        "viewed",
        "read_ahead",
        "kernel",
        "quarantined",
    ];
    let is_held = |name: &str| {
        let state = name.strip_prefix("buffers_").filter(|_| !home.contains(&name));
        NOTHING.contains(&name) || state.is_some_and(|state| STATES.contains(&state))
    };
    let held = counters.iter().filter(|(name, n)| **n > 0 && is_held(name));
    let mut held: Vec<(String, u64)> = held.map(|(name, n)| (name.clone(), *n)).collect();
    // The one that asks.
    let sessions = counters.get("sessions").copied().unwrap_or(0);
    held.extend((sessions > 1).then(|| ("sessions".to_owned(), sessions - 1)));
    held
}

const ATTACH_TIMEOUT: Duration = Duration::from_secs(20);
const BASE_WITHIN: Duration = Duration::from_secs(10);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::leftovers;

    #[test]
    fn states_are_left_and_counts_are_not() {
        let counters = [
            ("buffers_free", 9),
            ("buffers_queued", 2),
            ("buffers_produced", 7),
            ("gates", 1),
            ("partitions_created", 5),
            ("sessions", 3),
        ];
        let counters = counters.map(|(name, n)| (name.to_owned(), n)).into_iter().collect();
        let left = [("buffers_queued", 2), ("gates", 1), ("sessions", 2)];
        assert_eq!(leftovers(&counters), left.map(|(name, n)| (name.to_owned(), n)));
    }
}
