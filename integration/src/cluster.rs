//! Several servers and executors in one temporary folder, and the proof that nothing of them stays.

use std::path::Path;
use std::time::Duration;

use shuffle_client::Session;
use tempfile::TempDir;

use crate::executor::Executor;
use crate::flow::Edge;
use crate::node::{Node, NodeOptions};
use crate::stamp::{SOURCE, partition};
use crate::{Binaries, procfs};

/// Buffers, credits and channels are back where they were within this time (FAULTS, BASE).
pub const BASE_WITHIN: Duration = Duration::from_secs(5);

/// Fifty records from one server to another.
const SERVES_WITHIN: Duration = Duration::from_secs(30);

/// A server without work ends at once.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// Servers that know nothing of each other until a gate names one.
#[derive(Debug)]
pub struct Cluster {
    binaries: Binaries,
    nodes: Vec<Node>,
    pids: Vec<u32>,
    folder: Option<TempDir>,
}

impl Cluster {
    /// Starts one server for each of the options.
    ///
    /// # Panics
    /// If one does not get ready.
    pub async fn start(binaries: Binaries, options: impl IntoIterator<Item = NodeOptions>) -> Self {
        let folder = tempfile::Builder::new().prefix("shuffle-test-").tempdir();
        let mut cluster = Self {
            binaries,
            nodes: Vec::new(),
            pids: Vec::new(),
            folder: Some(folder.expect("a temporary folder")),
        };
        for options in options {
            cluster.add_node(options).await;
        }
        cluster
    }

    /// Starts servers that check tokens; the harness mints its own from `secret`.
    ///
    /// # Panics
    /// If one does not get ready.
    pub async fn start_with_secret(
        binaries: Binaries,
        options: impl IntoIterator<Item = NodeOptions>,
        secret: &str,
    ) -> Self {
        Self::start(binaries, options.into_iter().map(|one| one.secret(secret))).await
    }

    /// One server with the tests' defaults.
    pub async fn single(binaries: Binaries) -> Self {
        Self::start(binaries, [NodeOptions::new()]).await
    }

    /// Two servers with the tests' defaults.
    pub async fn pair(binaries: Binaries) -> Self {
        Self::start(binaries, [NodeOptions::new(), NodeOptions::new()]).await
    }

    /// Starts one more server.
    ///
    /// # Panics
    /// If it does not get ready.
    pub async fn add_node(&mut self, options: NodeOptions) -> &mut Node {
        let name = format!("node-{}", self.nodes.len());
        let node = Node::start(self.binaries, &name, self.folder(), options).await;
        self.pids.push(node.pid());
        self.nodes.push(node);
        self.nodes.last_mut().expect("just added")
    }

    /// One of the servers.
    ///
    /// # Panics
    /// If there are not that many.
    #[must_use]
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// One of the servers, to be stopped, killed or started again.
    ///
    /// # Panics
    /// If there are not that many.
    pub fn node_mut(&mut self, index: usize) -> &mut Node {
        &mut self.nodes[index]
    }

    /// Folder for sockets and logs; it goes with the cluster.
    ///
    /// # Panics
    /// Never: the folder lives as long as the cluster.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder
            .as_ref()
            .expect("the folder lives as long as the cluster")
            .path()
    }

    /// The binaries it was started from.
    #[must_use]
    pub fn binaries(&self) -> Binaries {
        self.binaries
    }

    /// A session of `job` with server `node`.
    ///
    /// # Panics
    /// If the server refuses it.
    pub async fn attach(&self, node: usize, job: u64) -> Session {
        self.node(node).attach(job).await
    }

    /// An executor process of `job`, attached to server `node`.
    ///
    /// # Panics
    /// If it cannot attach.
    pub async fn executor(&mut self, node: usize, job: u64) -> Executor {
        let name = format!("executor-{}", self.pids.len());
        let executor = Executor::start(self.binaries, &name, self.folder(), self.node(node).socket(), job).await;
        self.pids.push(executor.pid());
        executor
    }

    /// The first two servers still do their work: partition `1000 + round` goes from one to the other.
    ///
    /// # Panics
    /// If a record does not arrive.
    pub async fn assert_serves(&self, round: u32) {
        let (producer, consumer) = (self.attach(0, SOURCE.job).await, self.attach(1, SOURCE.job).await);
        Edge::new(Some(self.node(0).address()), partition(1000 + round), 50)
            .run(&producer, &consumer, SERVES_WITHIN)
            .await;
    }

    /// Every living server has its buffers back within 5 s.
    ///
    /// # Panics
    /// If one has not.
    pub async fn assert_base(&self) {
        for node in self.nodes.iter().filter(|node| node.is_alive()) {
            node.assert_base(BASE_WITHIN).await;
        }
    }

    /// Ends everything and proves that nothing is left: buffers home, servers ended by SIGTERM with
    /// status 0 and without a panic in their logs, sockets removed, no process, no folder.
    ///
    /// # Panics
    /// If something is left.
    pub async fn shut_down(mut self) {
        self.assert_base().await;
        for node in &mut self.nodes {
            if node.is_alive() {
                node.stop(STOP_WITHIN).await;
            }
        }
        for node in &self.nodes {
            let log = node.process().log();
            assert!(
                !log.contains("panicked at"),
                "{} panicked:\n{log}",
                node.process().name()
            );
        }
        let left: Vec<u32> = self.pids.iter().copied().filter(|pid| procfs::is_alive(*pid)).collect();
        assert!(left.is_empty(), "processes are left: {left:?}");
        let folder = self.folder.take().expect("the folder lives as long as the cluster");
        let path = folder.path().to_owned();
        folder.close().expect("the folder can be removed");
        assert!(!path.exists(), "{} is left", path.display());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in &self.nodes {
                let log = node.process().log();
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(40)..].join("\n");
                eprintln!("---- {} ({})\n{tail}", node.process().name(), node.address());
            }
        }
    }
}
