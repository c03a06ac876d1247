//! The processes of one round: the service's, or a bare chain.

use super::probe::{Plan, Who};
use crate::cli::NodePath;
use crate::cluster::ServerOptions;
use crate::console::Console;
use crate::error::BenchError;
use crate::load::{Desk, LatencyLoad, Task};
use crate::peers::{Place, RelayLoad};
use crate::scenario::measure::Stage;

/// Starts servers and both ends.
pub(super) async fn start_ours(plan: &Plan, stage: &mut Stage, console: &Console) -> Result<(), BenchError> {
    let options = ServerOptions {
        pool_buffers: POOL_BUFFERS,
        buffer_bytes: BUFFER_BYTES,
        verbose: plan.verbose,
        send: plan.send,
        has_disk: false,
        more: plan.server_options.clone(),
    };
    let nodes = if plan.path == NodePath::Local { 1 } else { 2 };
    for _ in 0..nodes {
        stage.start_server(&options, console).await?;
    }
    let servers = stage.servers();
    let desk = |socket: &std::path::Path| Desk {
        socket: socket.to_owned(),
        job: 1,
    };
    let (first, last) = (&servers[0], &servers[servers.len() - 1]);
    let teller = LatencyLoad {
        desk: desk(&first.socket),
        rhythm: plan.rhythm,
        listens_to: None,
    };
    let ear = LatencyLoad {
        desk: desk(&last.socket),
        rhythm: plan.rhythm,
        listens_to: Some(first.address.to_string()),
    };
    stage.start_worker("producer", Task::Latency(teller), console).await?;
    stage.start_worker("consumer", Task::Latency(ear), console).await?;
    Ok(())
}

/// Starts a chain from its end to its beginning.
pub(super) async fn start_chain(plan: &Plan, who: Who, stage: &mut Stage, console: &Console) -> Result<(), BenchError> {
    let path = |name: &str| Place::Unix(stage.dir().join(name).display().to_string());
    let (to_ear, to_relay) = (path("ear.sock"), path("relay.sock"));
    let between = Place::Tcp("127.0.0.1:0".to_owned());
    // Each with the place at which it listens; the teller comes last and has none.
    let chain = match plan.path {
        NodePath::Local => vec![("ear", Some(to_ear)), ("relay", Some(to_relay)), ("teller", None)],
        NodePath::Remote => vec![
            ("ear", Some(to_ear)),
            ("relay-b", Some(between)),
            ("relay-a", Some(to_relay)),
            ("teller", None),
        ],
    };
    let mut to = None;
    for (role, from) in chain {
        let load = RelayLoad {
            in_runtime: who == Who::RelayInRuntime,
            rhythm: plan.rhythm,
            from: from.clone(),
            to,
        };
        let address = stage.start_worker(role, Task::Relay(load), console).await?;
        to = match (from, address) {
            (Some(Place::Tcp(_)), Some(address)) => Some(Place::Tcp(address)),
            (from, _) => from,
        };
    }
    Ok(())
}

const POOL_BUFFERS: u32 = 512;
const BUFFER_BYTES: u32 = 32 << 10;
