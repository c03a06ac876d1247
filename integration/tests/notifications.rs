//! What 1000 producers and 1000 consumers on 10 nodes cost in messages and bytes: ten cores of servers and the coordinator in one
//! thread and in virtual time, every message encoded as it goes over the wire.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use buffer_pool::{NetworkPool, NoBacking, PoolConfig};
use bytes::BytesMut;
use coordinator::{Action, Config, Coordinator, Deployment, EdgeSpec, Event, JobGraph, Stage};
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::frame::{Frame, encode_control};
use shuffle_protocol::notify::{Packer, PartitionChange, PartitionState, Unpacker};
use shuffle_protocol::{Incarnation, JobId, NodeAddress, PartitionId, ResultId};
use shuffle_server::node::{Node, NodeConfig, Output, SessionId, SessionInfo};

const NODES: usize = 10;
const TASKS: u32 = 1000;
const JOB: JobId = JobId::new(9);
const LINGER: Duration = Duration::from_millis(20);
/// Between two creations on one node.
const STEP: Duration = Duration::from_micros(100);

struct Server {
    core: Node<NoBacking>,
    driver: SessionId,
    executor: SessionId,
    unpacker: Unpacker,
}

/// What the driver heard, and what it said back.
#[derive(Debug, Default, Clone, Copy)]
struct Traffic {
    messages: usize,
    bytes: usize,
    acknowledgements: usize,
    acknowledged_bytes: usize,
}

fn address(index: usize) -> NodeAddress {
    NodeAddress::parse(&format!("worker-{index:03}.cluster.example:7337")).expect("an address")
}

fn encoded(message: &Message) -> usize {
    let mut frame = BytesMut::new();
    encode_control(message, &mut frame).expect("a message that may be sent");
    frame.len()
}

impl Server {
    fn start(index: usize, now: Instant) -> Self {
        let pool = PoolConfig {
            total_buffers: 1024,
            buffer_bytes: 32 << 10,
            extent_buffers: 8,
            read_reserve_buffers: 256,
        };
        let pool = NetworkPool::new(pool, NoBacking).expect("a pool");
        let mut config = NodeConfig::new(address(index), Incarnation::new(index as u64 + 1), 32 << 10);
        config.disks = true;
        let mut core = Node::new(config, pool);
        let mut open = |name: &str| {
            let info = SessionInfo {
                job: JOB,
                name: name.to_owned(),
                inline: false,
                packed: true,
            };
            core.handle_session_opened(now, info).expect("a session")
        };
        let (driver, executor) = (open("driver"), open("executor"));
        let mut server = Self {
            core,
            driver,
            executor,
            unpacker: Unpacker::default(),
        };
        let linger_ms = u32::try_from(LINGER.as_millis()).expect("small");
        server.say(
            now,
            driver,
            Message::Subscribe(control::Subscribe { request: 1, linger_ms }),
        );
        let mut snapshot = Traffic::default();
        assert!(server.hear(now, &mut snapshot).is_empty());
        assert_eq!(snapshot.messages, 1, "that nothing was there");
        server
    }

    fn say(&mut self, now: Instant, session: SessionId, message: Message) {
        let frame = Frame::Control(Box::new(message));
        self.core.handle_session_frame(now, session, frame).expect("a request");
    }

    /// Everything that is said to the driver now; each message is acknowledged.
    fn hear(&mut self, now: Instant, traffic: &mut Traffic) -> Vec<PartitionChange> {
        self.core.handle_timeout(now);
        let mut changes = Vec::new();
        loop {
            let mut outputs = Vec::new();
            while self.core.poll_session(now, self.driver, &mut outputs) {}
            let mut number = None;
            for output in outputs {
                let Output::Control(message) = output else { continue };
                let bytes = encoded(&message);
                if let Message::PartitionEvents(message) = *message {
                    (traffic.messages, traffic.bytes) = (traffic.messages + 1, traffic.bytes + bytes);
                    number = Some(message.number);
                    let unpacker = &mut self.unpacker;
                    let came = message
                        .events
                        .into_iter()
                        .map(|event| unpacker.handle_event(event).expect("an event"));
                    changes.extend(came.flatten());
                }
            }
            let Some(number) = number else { return changes };
            let seen = Message::EventsSeen(control::EventsSeen { number });
            traffic.acknowledgements += 1;
            traffic.acknowledged_bytes += encoded(&seen);
            self.say(now, self.driver, seen);
        }
    }

    /// A task creates its partition; without data it needs a buffer for no longer than that.
    fn create(&mut self, now: Instant, id: PartitionId, subpartitions: u32, readiness: control::Readiness) {
        let mut create = control::CreatePartition {
            writer: id.index,
            partition: Some(id.into()),
            subpartitions,
            min_buffers: 1,
            ..control::CreatePartition::default()
        };
        create.set_readiness(readiness);
        if readiness == control::Readiness::Blocking {
            create.set_pressure(control::Pressure::Spilling);
        }
        self.say(now, self.executor, Message::CreatePartition(create));
    }

    fn finish(&mut self, now: Instant, id: PartitionId) {
        let finish = control::FinishPartition {
            writer: id.index,
            ..control::FinishPartition::default()
        };
        self.say(now, self.executor, Message::FinishPartition(finish));
    }
}

struct World {
    servers: Vec<Server>,
    coordinator: Coordinator,
    now: Instant,
    result: ResultId,
}

impl World {
    fn start(edge: EdgeSpec, slots: u32) -> (Self, Vec<Deployment>) {
        let graph = JobGraph::builder()
            .stage(Stage::new("produce").fixed(TASKS))
            .stage(Stage::new("consume").fixed(TASKS))
            .edge(edge)
            .build()
            .expect("a valid graph");
        let result = graph.edges()[0].result;
        let nodes = (0..NODES).map(|index| (address(index), slots));
        let coordinator = Coordinator::new(JOB, graph, Config::default(), nodes).expect("a job that fits");
        let now = Instant::now();
        let mut world = Self {
            servers: (0..NODES).map(|index| Server::start(index, now)).collect(),
            coordinator,
            now: now + LINGER,
            result,
        };
        let deployments = world.actions().into_iter().filter_map(|action| match action {
            Action::Deploy(deployment) => Some(deployment),
            _ => None,
        });
        let deployments = deployments.collect();
        (world, deployments)
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.coordinator.poll_action()).collect()
    }

    /// Where each producer runs.
    fn producers(&self, deployments: &[Deployment]) -> BTreeMap<usize, Vec<PartitionId>> {
        let mut on: BTreeMap<usize, Vec<PartitionId>> = BTreeMap::new();
        for deployment in deployments.iter().filter(|deployment| !deployment.outputs.is_empty()) {
            let at = (0..NODES).find(|at| address(*at) == deployment.node).expect("a node");
            on.entry(at)
                .or_default()
                .extend(deployment.tasks.iter().map(|task| task.partition(self.result)));
        }
        on
    }

    fn tell(&mut self, at: usize, changes: Vec<PartitionChange>) {
        let node = address(at);
        if !changes.is_empty() {
            self.coordinator
                .handle_event(Event::Partitions { node, changes })
                .expect("an event");
        }
    }
}

/// Messages that carry locations, and about how many bytes.
fn count(actions: &[Action]) -> (usize, usize) {
    let with_locations = |action: &&Action| match action {
        Action::Deploy(deployment) => deployment.inputs.iter().any(|input| !input.locations.is_empty()),
        Action::Update { .. } => true,
        _ => false,
    };
    let bytes = actions.iter().map(Action::payload_bytes).sum();
    (actions.iter().filter(with_locations).count(), bytes)
}

#[test]
fn a_blocking_result_costs_two_messages_for_each_node() {
    let (mut world, deployments) = World::start(EdgeSpec::keyed("produce", "consume"), 100);
    let producers = world.producers(&deployments);
    let mut heard = Traffic::default();
    for (&at, partitions) in &producers {
        let server = &mut world.servers[at];
        // All of a wave overlap: the last begins before the first ends, as tasks of one stage do. They last half the linger.
        for id in partitions {
            server.create(world.now, *id, TASKS, control::Readiness::Blocking);
            assert!(
                server.hear(world.now, &mut heard).is_empty(),
                "nobody needs to know that yet"
            );
        }
        let mut changes = Vec::new();
        for (done, id) in (1..).zip(partitions) {
            let now = world.now + LINGER / 2 * done / 100;
            server.finish(now, *id);
            changes.extend(server.hear(now, &mut heard));
        }
        assert_eq!(changes.len(), partitions.len());
        assert!(
            changes
                .iter()
                .all(|change| matches!(change.state, PartitionState::Finished { .. }))
        );
        world.tell(at, changes);
    }
    for deployment in &deployments {
        for &task in &deployment.tasks {
            world
                .coordinator
                .handle_event(Event::TaskFinished { task })
                .expect("an event");
        }
    }
    let (sent, sent_bytes) = count(&world.actions());
    println!("blocking: {heard:?}; {sent} messages with locations went out, about {sent_bytes} bytes");
    assert_eq!(
        (heard.messages, sent),
        (NODES, NODES),
        "2 for each node, and as many short acknowledgements"
    );
    assert_eq!(heard.acknowledgements, NODES);

    // With sizes as of a real result, 1 MiB in each subpartition: still one message for each node.
    let full = |at: usize| {
        let mut packer = Packer::default();
        for id in &producers[&at] {
            let bytes = (0..TASKS)
                .map(|subpartition| (1 << 20) + u64::from(subpartition * 31 + id.index))
                .collect();
            packer.push(&PartitionChange {
                partition: *id,
                state: PartitionState::Finished { bytes },
            });
        }
        let messages = packer.finish(2, false);
        assert_eq!(messages.len(), 1);
        messages
            .into_iter()
            .map(|message| encoded(&Message::PartitionEvents(message)))
            .sum::<usize>()
    };
    let bytes: usize = (0..NODES).map(full).sum();
    println!(
        "blocking, a TiB: {NODES} messages of {bytes} bytes, {} for each size",
        bytes as f64 / 1e6
    );
    assert!(
        bytes < 3_100_000,
        "3 bytes for each of a million sizes, and little else: {bytes}"
    );
}

#[test]
fn a_pipelined_result_costs_messages_by_node_and_by_time_and_not_by_pair() {
    let (mut world, deployments) = World::start(EdgeSpec::keyed("produce", "consume").pipelined(), 200);
    let producers = world.producers(&deployments);
    let mut heard = Traffic::default();
    let mut actions = Vec::new();
    let longest = producers.values().map(Vec::len).max().expect("producers");
    let start = world.now;
    let mut now = start;
    // All nodes side by side; the driver takes in what is there and acts after each step of time.
    for step in 0..longest {
        now += STEP;
        for (&at, partitions) in &producers {
            if let Some(id) = partitions.get(step) {
                world.servers[at].create(now, *id, TASKS, control::Readiness::Pipelined);
            }
            let changes = world.servers[at].hear(now, &mut heard);
            world.tell(at, changes);
        }
        actions.extend(world.actions());
    }
    now += LINGER;
    for at in 0..NODES {
        let changes = world.servers[at].hear(now, &mut heard);
        world.tell(at, changes);
    }
    actions.extend(world.actions());
    let (sent, sent_bytes) = count(&actions);
    println!("pipelined: {heard:?}; {sent} messages with locations went out, about {sent_bytes} bytes");
    // The first creation is told at once, everything else of the 10 ms with the end of the linger.
    assert_eq!((heard.messages, sent), (2 * NODES, 2 * NODES));
    assert!(heard.bytes < 20_000 + TASKS as usize * 20, "{heard:?}");
    let rounds = 1 + (now - start).as_millis().div_ceil(LINGER.as_millis());
    assert!(heard.messages <= NODES * usize::try_from(rounds).expect("few"));
}
