//! How a driver reaches its nodes.

use std::time::Duration;

use shuffle_protocol::ids::JobId;

use crate::attach::AttachOptions;

/// How a job's driver connects to the servers of a cluster.
#[derive(Clone, Debug)]
pub struct JobDriverOptions {
    pub(crate) nodes: Vec<AttachOptions>,
    pub(crate) linger: Duration,
    pub(crate) reconnect_within: Duration,
    pub(crate) retry_every: Duration,
}

impl JobDriverOptions {
    /// The driver of this job, which reaches each node as [`AttachOptions`] says: over TCP, or over the Unix socket for the
    /// node that it runs on. The job is this one, whatever the options say.
    pub fn new(job: JobId, nodes: impl IntoIterator<Item = AttachOptions>) -> Self {
        let nodes = nodes.into_iter().map(|node| AttachOptions { job, ..node });
        Self {
            nodes: nodes.collect(),
            linger: Duration::from_millis(20),
            reconnect_within: Duration::from_secs(5),
            retry_every: Duration::from_millis(50),
        }
    }

    /// How long a server may let a change wait for others to leave with it (default 20 ms). Failures never wait, and what a
    /// complete blocking result has to say neither.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// How long a node whose connection broke is tried again before it is lost (default 5 s). A server that was restarted is
    /// lost at once: it has forgotten the job.
    #[must_use]
    pub fn reconnect_within(mut self, within: Duration) -> Self {
        self.reconnect_within = within;
        self
    }
}
