//! A server of the run: how it is started, and what the process that becomes one does.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use shuffle_protocol::NodeAddress;
use tokio::process::ChildStdin;
use tokio::sync::watch;
use tokio::time::timeout;

use super::child::{ChildEvent, ChildId, Children, Order, follow_parent};
use crate::cli::SendStrategy;
use crate::console::Console;
use crate::error::{BenchError, RoleFailure, RunFailure};

/// What the servers of a run have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerOptions {
    pub(crate) pool_buffers: u32,
    pub(crate) buffer_bytes: u32,
    pub(crate) verbose: bool,
    pub(crate) send: SendStrategy,
    /// It has a folder for spilled and persistent partitions, in the folder of the run.
    pub(crate) has_disk: bool,
    /// More options of `shuffle-server`, without the dashes.
    pub(crate) more: Vec<String>,
}

/// A server that is ready.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: ChildId,
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) address: NodeAddress,
    pub(crate) port: u16,
    pub(crate) socket: PathBuf,
    pub(crate) orders: watch::Sender<Order>,
    /// Kept open as long as the server is to run.
    _input: ChildStdin,
}

impl Server {
    /// Starts a server and waits until it serves.
    pub(crate) async fn start(
        children: &mut Children,
        node: usize,
        dir: &Path,
        options: &ServerOptions,
        console: &Console,
    ) -> Result<Self, BenchError> {
        let name = format!("server@{}", node_name(node));
        let socket = dir.join(format!("{}.sock", node_name(node)));
        let log = if options.verbose { "info" } else { "warn" };
        let mut arguments = vec![
            "server".to_owned(),
            format!("--parent={}", std::process::id()),
            "--".to_owned(),
            format!("--listen={}", LISTEN),
            format!("--socket={}", socket.display()),
            "--socket-mode=0600".to_owned(),
            format!("--buffers={}", options.pool_buffers),
            format!("--buffer-size={}", options.buffer_bytes),
            format!("--log={log}"),
        ];
        if options.has_disk {
            let disk = dir.join(format!("{}.disk", node_name(node)));
            arguments.push(format!("--storage-directories={}", disk.display()));
        }
        arguments.extend(options.more.iter().map(|option| format!("--{option}")));
        let forced = options.send.forced().map(|name| (SEND_VARIABLE, name));
        let spawned = children.spawn_with(&arguments, forced.as_slice())?;
        let ready = wait_until_ready(children, spawned.id, &name, console);
        let address = timeout(START_TIMEOUT, ready).await.map_err(|_| BenchError::TimedOut {
            what: format!("the start of {name}"),
            after: START_TIMEOUT,
        })??;
        Ok(Self {
            id: spawned.id,
            port: port_of(&address)?,
            name,
            pid: spawned.pid,
            address,
            socket,
            orders: spawned.orders,
            _input: spawned.input,
        })
    }
}

/// The letter that stands for a node in messages.
pub(crate) fn node_name(node: usize) -> String {
    let letter = u8::try_from(node % 26).expect("invariant: below 26");
    char::from(b'a' + letter).to_string()
}

async fn wait_until_ready(
    children: &mut Children,
    id: ChildId,
    name: &str,
    console: &Console,
) -> Result<NodeAddress, BenchError> {
    loop {
        let (from, event) = children.next_event().await;
        match event {
            ChildEvent::Line(line) if from == id => {
                if let Some(address) = parse_ready(&line) {
                    return address;
                }
                console.say(format!("[{name}] {line}"));
            }
            ChildEvent::Ended(status) => {
                let message = match status {
                    Ok(status) => format!("ended while the servers were started: {status}"),
                    Err(error) => format!("was lost while the servers were started: {error}"),
                };
                return Err(BenchError::Run(RunFailure {
                    reports: vec![RoleFailure {
                        role: if from == id { name } else { "another server" }.to_owned(),
                        message,
                        first_cause: None,
                    }],
                    silent: Vec::new(),
                }));
            }
            ChildEvent::Line(text) | ChildEvent::Message(text) => {
                console.say(format!("[{name}] {text}"));
            }
        }
    }
}

/// Reads `ready node=HOST:PORT socket=PATH`.
fn parse_ready(line: &str) -> Option<Result<NodeAddress, BenchError>> {
    let node = line
        .strip_prefix("ready ")?
        .split(' ')
        .find_map(|field| field.strip_prefix("node="))?;
    Some(NodeAddress::parse(node).map_err(|source| BenchError::Session {
        what: format!("the server says that it is {node:?}"),
        source,
    }))
}

fn port_of(address: &NodeAddress) -> Result<u16, BenchError> {
    let text = address.to_string();
    text.rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok())
        .ok_or_else(|| BenchError::Usage(format!("no port in the node address {text}")))
}

/// What a process does that was started as a server.
pub(crate) fn serve(parent: u32, options: &[String]) -> ExitCode {
    if let Err(error) = follow_parent(parent) {
        eprintln!("{error}");
        return error.exit_code();
    }
    let arguments = std::iter::once("shuffle-server".into()).chain(options.iter().map(std::ffi::OsString::from));
    shuffle_server::run_with_args(arguments)
}

/// The server's setting `transport.send`.
const SEND_VARIABLE: &str = "SHUFFLE_TRANSPORT_SEND";
const LISTEN: &str = "127.0.0.1:0";
const START_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::{node_name, parse_ready, port_of};

    #[test]
    fn the_ready_line_names_the_node() {
        let address = parse_ready("ready node=127.0.0.1:40123 socket=/tmp/x y/a.sock")
            .expect("a ready line")
            .expect("an address");
        assert_eq!(address.to_string(), "127.0.0.1:40123");
        assert_eq!(port_of(&address).expect("a port"), 40123);
        assert!(parse_ready("listening").is_none());
    }

    #[test]
    fn nodes_are_letters() {
        assert_eq!([node_name(0), node_name(1)], ["a", "b"]);
    }
}
