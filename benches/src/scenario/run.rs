//! A run from the first process to the last.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use shuffle_client::{AttachOptions, Session};
use shuffle_protocol::JobId;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::feed;
use super::outcome::Outcome;
use super::plan::{EXCLUSIVE, FLOATING, Plan};
use super::roster::{Kind, Roster};
use super::watch::{Watch, say_line};
use crate::cli::SendStrategy;
use crate::clock::Moment;
use crate::cluster::{ChildEvent, Children, Order, Server, ServerOptions, node_name};
use crate::console::Console;
use crate::error::{Attempt, BenchError};
use crate::executor::{ConsumeSpec, ExecutorSpec, GO, GroupSpec, ProduceSpec, Sink, Task};

/// Runs a plan and gathers what all processes say. All of them have ended when it returns.
///
/// # Errors
/// A process failed, nothing moved for too long, or the run was interrupted.
pub(super) async fn run(plan: Plan, console: &mut Console) -> Result<Outcome, BenchError> {
    let dir = tempfile::Builder::new()
        .prefix("shuffle-bench-")
        .tempdir()
        .attempt(|| "cannot make a temporary folder".to_owned())?;
    let mut children = Children::new();
    let interrupted = interrupted()?;
    let result = tokio::select! {
        () = interrupted => Err(BenchError::Interrupted),
        result = drive(plan, dir.path(), &mut children, console) => result,
    };
    console.finish();
    children.stop().await;
    dir.close()
        .attempt(|| "cannot remove the temporary folder".to_owned())?;
    result
}

/// Resolves when this process is asked to end.
pub(super) fn interrupted() -> Result<impl Future<Output = ()>, BenchError> {
    let listen = |kind| signal(kind).attempt(|| "cannot listen for signals".to_owned());
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

async fn drive(
    mut plan: Plan,
    dir: &Path,
    children: &mut Children,
    console: &mut Console,
) -> Result<Outcome, BenchError> {
    let mut roster = Roster::default();
    let options = ServerOptions {
        pool_buffers: plan.pool.buffers,
        buffer_bytes: plan.pool.buffer_bytes,
        verbose: plan.verbose,
        send: SendStrategy::Auto,
        has_disk: false,
        more: Vec::new(),
    };
    let mut servers = Vec::new();
    for node in 0..plan.nodes {
        let server = Server::start(children, node, dir, &options, console).await?;
        console.say(format!("{} pid {} serves {}", server.name, server.pid, server.address));
        roster.add(server.id, Kind::Server, format!("{} (pid {})", server.name, server.pid));
        servers.push(server);
    }
    let inputs = start_executors(&plan, &servers, children, &mut roster, console)?;
    let feed = plan.feed.take();
    let mut watch = Watch::new(&plan, &servers, roster);
    watch.until_attached(children, console).await?;

    let start = Moment::now();
    console.start(watch.total());
    let producers = go(inputs).await;
    let (state, problems) = match feed {
        Some(feed) => {
            let (state, problems) = feed::start(feed, producers);
            (Some(state), Some(problems))
        }
        None => (None, None),
    };
    watch.until_done(children, console, state, problems).await?;
    console.finish();

    let mut counters = Vec::new();
    for server in &servers {
        counters.push(ask(server).await?);
    }
    let (roster, peaks) = watch.into_parts();
    let stops = stop_servers(&servers, children, console).await;
    let (producers, consumers) = roster.into_results();
    Ok(Outcome {
        start,
        producers,
        consumers,
        peaks,
        counters,
        stops,
    })
}

/// Standard inputs of the executors, consumers first.
struct Inputs {
    consumers: Vec<ChildStdin>,
    producers: Vec<ChildStdin>,
}

fn start_executors(
    plan: &Plan,
    servers: &[Server],
    children: &mut Children,
    roster: &mut Roster,
    console: &Console,
) -> Result<Inputs, BenchError> {
    let address = |server: &Server| server.address.to_string();
    let group = GroupSpec {
        home: address(&servers[0]),
        nodes: servers.iter().map(address).collect(),
    };
    let producing_nodes: Vec<String> = (0..plan.sources.len())
        .map(|index| address(&servers[index % plan.nodes]))
        .collect();
    let count = plan.sources.len() + plan.consumers.len();
    let listed = plan.verbose || count <= MOST_LISTED;
    if !listed {
        console.say(format!("{count} executors start (-v lists them)"));
    }
    let mut start = |kind: Kind, index: usize, task: Task| {
        let node = index % plan.nodes;
        let name = if kind == Kind::Producer { "producer" } else { "consumer" };
        let role = format!("{name}-{index}@{}", node_name(node));
        let spec = ExecutorSpec {
            parent: std::process::id(),
            socket: servers[node].socket.clone(),
            job: JOB,
            task,
        };
        let spec = serde_json::to_string(&spec)
            .map_err(|error| BenchError::Usage(format!("a task cannot be written: {error}")))?;
        let spawned = children.spawn(["executor", &role, &spec])?;
        if listed {
            console.say(format!("{role} pid {}", spawned.pid));
        }
        roster.add(spawned.id, kind, format!("{role} (pid {})", spawned.pid));
        Ok::<_, BenchError>(spawned.input)
    };
    let mut inputs = Inputs {
        consumers: Vec::new(),
        producers: Vec::new(),
    };
    for (index, consumer) in plan.consumers.iter().enumerate() {
        let task = Task::Consume(ConsumeSpec {
            producers: producing_nodes.clone(),
            first: consumer.first,
            count: consumer.count,
            exclusive: EXCLUSIVE,
            floating: FLOATING,
            group: group.clone(),
            sink: if consumer.files.is_empty() {
                Sink::Digest
            } else {
                Sink::Files(consumer.files.clone())
            },
        });
        inputs.consumers.push(start(Kind::Consumer, index, task)?);
    }
    for (index, source) in (0_u32..).zip(&plan.sources) {
        let task = Task::Produce(ProduceSpec {
            partition: index,
            subpartitions: plan.subpartitions,
            min_buffers: plan.subpartitions,
            group: group.clone(),
            source: source.clone(),
        });
        let position = inputs.producers.len();
        inputs.producers.push(start(Kind::Producer, position, task)?);
    }
    Ok(inputs)
}

/// Lets all executors go, consumers first: their gates wait for partitions that do not exist yet. An
/// executor that is gone reports itself.
async fn go(mut inputs: Inputs) -> Vec<ChildStdin> {
    for input in inputs.consumers.iter_mut().chain(&mut inputs.producers) {
        let _ = timeout(WRITE_TIMEOUT, input.write_all(GO)).await;
    }
    inputs.producers
}

/// Asks a server for its counters.
pub(super) async fn ask(server: &Server) -> Result<BTreeMap<String, u64>, BenchError> {
    ask_at(&server.name, &server.socket).await
}

/// The same of the server of that name, at that socket.
pub(super) async fn ask_at(name: &str, socket: &Path) -> Result<BTreeMap<String, u64>, BenchError> {
    let failed = |source| BenchError::Session {
        what: format!("asking {name} for its counters"),
        source,
    };
    let options = AttachOptions::new(JobId::new(JOB))
        .socket(socket)
        .name("shuffle-bench")
        .timeout(ASK_TIMEOUT);
    let asking = async {
        let session = Session::attach(options).await?;
        let counters = session.status().await?;
        session.detach().await?;
        Ok(counters)
    };
    match timeout(ASK_TIMEOUT, asking).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(BenchError::TimedOut {
            what: format!("an answer of {name}"),
            after: ASK_TIMEOUT,
        }),
    }
}

/// Lets the servers end in order. Returns what did not go as it should.
async fn stop_servers(servers: &[Server], children: &mut Children, console: &Console) -> Vec<String> {
    let mut problems = Vec::new();
    for server in servers {
        server.orders.send_replace(Order::Terminate);
    }
    let mut running: Vec<&Server> = servers.iter().collect();
    let deadline = Instant::now() + STOP_TIMEOUT;
    while !running.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((id, event)) = timeout(left, children.next_event()).await else {
            let names: Vec<&str> = running.iter().map(|server| server.name.as_str()).collect();
            problems.push(format!("{} did not end within {STOP_TIMEOUT:?}", names.join(", ")));
            break;
        };
        let Some(server) = running.iter().position(|server| server.id == id) else {
            continue;
        };
        match event {
            ChildEvent::Line(text) | ChildEvent::Message(text) => {
                say_line(console, &running[server].name, &text);
            }
            ChildEvent::Ended(Ok(status)) if status.success() => {
                running.remove(server);
            }
            ChildEvent::Ended(status) => {
                let name = &running.remove(server).name;
                problems.push(match status {
                    Ok(status) => format!("{name} did not end in order: {status}"),
                    Err(error) => format!("{name} was lost: {error}"),
                });
            }
        }
    }
    problems
}

const JOB: u64 = 1;
const MOST_LISTED: usize = 16;
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
