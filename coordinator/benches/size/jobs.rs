//! Jobs of any number of stages of 1000 tasks, and executors that finish whatever they are given.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use coordinator::{
    Action, Config, Coordinator, Deployment, EdgeSpec, Event, GraphBuilder, JobGraph, PartitionChange, PartitionState,
    Stage, StageId,
};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{JobId, NodeAddress, PartitionId, ResultId, ShuffleError};

pub(crate) const TASKS: u32 = 1000;
const NODES: u32 = 10;
const SLOTS: u32 = 200;

/// Each stage but the first reads two earlier ones, any of them; every tenth pair of neighbours is pipelined and has nothing else
/// in common. The earlier a stage, the more read it: the first of ten thousand has twice the readers of the first of a hundred.
pub(crate) fn anyhow_joined(stages: u32) -> GraphBuilder {
    let mut random = Random(7);
    let mut builder = with_stages(stages);
    for to in 1..stages {
        let name = format!("s{to}");
        if to % 10 == 0 {
            builder = builder.edge(EdgeSpec::keyed(format!("s{}", to - 1), name).pipelined());
            continue;
        }
        for _ in 0..2 {
            builder = builder.edge(EdgeSpec::keyed(format!("s{}", random.below(to)), &name));
        }
    }
    builder
}

/// `sources` stages without input; every other one reads two earlier ones: of those that fewer than two read the first, so that
/// none is left over, and any. So each has two inputs and two readers, but for the sources and the last, however many there are;
/// and at any moment about `sources` of them have been written and not yet been read.
pub(crate) fn evenly_joined(stages: u32, sources: u32) -> GraphBuilder {
    let mut random = Random(7);
    let mut unread: Vec<u32> = (0..sources).chain(0..sources).collect();
    let mut builder = with_stages(stages);
    for to in sources..stages {
        let any = 1 + random.below(2 * sources - 1) as usize;
        for from in [unread.remove(any), unread.remove(0)] {
            builder = builder.edge(EdgeSpec::keyed(format!("s{from}"), format!("s{to}")));
        }
        unread.extend([to, to]);
    }
    builder
}

/// One stage that so many others read, with few tasks each.
pub(crate) fn star(readers: u32) -> GraphBuilder {
    let mut builder = JobGraph::builder().stage(Stage::new("s0").fixed(10));
    for reader in 1..=readers {
        let name = format!("s{reader}");
        builder = builder
            .stage(Stage::new(&name).fixed(10))
            .edge(EdgeSpec::keyed("s0", name));
    }
    builder
}

/// Blocks of ten stages that have nothing to do with one another, all of one shape: two sources, which begin when they are told
/// to, and eight that read two earlier ones of the block. What is lost of a block is made again from its sources at most.
pub(crate) fn in_blocks(stages: u32) -> GraphBuilder {
    let mut builder = JobGraph::builder();
    for number in 0..stages {
        let stage = Stage::new(format!("s{number}"));
        builder = builder.stage(if is_source_of_block(number) {
            stage.adaptive(1, TASKS).self_estimating()
        } else {
            stage.fixed(TASKS)
        });
    }
    for first in (0..stages).step_by(10) {
        let mut random = Random(7);
        for to in (first + 2..first + 10).filter(|to| *to < stages) {
            for _ in 0..2 {
                let from = first + random.below(to - first);
                builder = builder.edge(EdgeSpec::keyed(format!("s{from}"), format!("s{to}")));
            }
        }
    }
    builder
}

const fn is_source_of_block(number: u32) -> bool {
    number % 10 < 2
}

fn with_stages(stages: u32) -> GraphBuilder {
    let stage = |number| Stage::new(format!("s{number}")).fixed(TASKS);
    (0..stages).fold(JobGraph::builder(), |builder, number| builder.stage(stage(number)))
}

pub(crate) fn node(number: u32) -> NodeAddress {
    NodeAddress::parse(&format!("node-{number}:7337")).expect("an address")
}

pub(crate) fn coordinator(graph: GraphBuilder) -> Coordinator {
    let nodes = (0..NODES).map(|number| (node(number), SLOTS));
    let graph = graph.build().expect("a valid graph");
    let config = Config {
        // They are to fail again and again.
        max_attempts: u32::MAX,
        ..Config::default()
    };
    Coordinator::new(JobId::new(1), graph, config, nodes).expect("a job that can be taken")
}

/// Everything that is to be done now.
pub(crate) fn poll(coordinator: &mut Coordinator) -> Vec<Action> {
    std::iter::from_fn(|| coordinator.poll_action()).collect()
}

/// A job, and the tasks that run.
pub(crate) struct World {
    pub(crate) coordinator: Coordinator,
    pub(crate) running: VecDeque<Deployment>,
    /// Of partitions that were written more than once.
    attempts: HashMap<(ResultId, u32), u32>,
    joined: u32,
    /// The block of which something was lost.
    block: u32,
    bytes: Arc<[u64]>,
    /// Sources that wait to be told how many tasks they have.
    waiting: VecDeque<StageId>,
}

impl World {
    pub(crate) fn new(graph: GraphBuilder) -> Self {
        let coordinator = coordinator(graph);
        let stages = coordinator.graph().stages().iter().zip(0..);
        let sources = stages.filter(|(stage, _)| stage.estimates_itself());
        let subpartitions = coordinator.graph().results()[0].subpartitions;
        let mut world = Self {
            waiting: sources.map(|(_, number)| StageId::new(number)).collect(),
            coordinator,
            running: VecDeque::new(),
            attempts: HashMap::new(),
            joined: NODES,
            block: 0,
            bytes: vec![1000; subpartitions as usize].into(),
        };
        let first = poll(&mut world.coordinator);
        world.take_in(first);
        world.feed();
        world
    }

    /// A job of which every second stage is done.
    pub(crate) fn half_done(graph: GraphBuilder) -> Self {
        let mut world = Self::new(graph);
        let half = world.coordinator.graph().stages().len() / 2;
        while world.running.iter().all(|one| one.stage.value() as usize <= half) && world.finish_one() > 0 {}
        world
    }

    pub(crate) fn take_in(&mut self, actions: Vec<Action>) {
        for action in actions {
            if let Action::Deploy(deployment) = action {
                for task in deployment.tasks.iter().filter(|task| task.attempt > 0) {
                    let outputs = deployment.outputs.iter();
                    let written = outputs.map(|output| ((output.result, task.index), task.attempt));
                    self.attempts.extend(written);
                }
                self.running.push_back(deployment);
            } else if let Action::Cancel { tasks, .. } = action {
                for deployment in &mut self.running {
                    deployment.tasks.retain(|task| !tasks.contains(task));
                }
                self.running.retain(|deployment| !deployment.tasks.is_empty());
            }
        }
    }

    /// What is said about a deployment that comes to its end: one message of the node for all its partitions, and the end of each
    /// task. How many words that is: one for each partition and task.
    pub(crate) fn end_of(&self, deployment: &Deployment) -> (Vec<Event>, u64) {
        let finished = |partition| PartitionChange {
            partition,
            state: PartitionState::Finished {
                bytes: Arc::clone(&self.bytes),
            },
        };
        let (tasks, outputs) = (&deployment.tasks, &deployment.outputs);
        let of = |result: ResultId| tasks.iter().map(move |task| finished(task.partition(result)));
        let changes: Vec<_> = outputs.iter().flat_map(|output| of(output.result)).collect();
        let words = changes.len() + tasks.len();
        let node = deployment.node.clone();
        let mut events = vec![Event::Partitions { node, changes }];
        events.extend(tasks.iter().map(|&task| Event::TaskFinished { task }));
        (events, words as u64)
    }

    /// Everything comes to its end; how many words that took.
    pub(crate) fn finish_all(&mut self) -> u64 {
        let words = std::iter::from_fn(|| Some(self.finish_one()).filter(|words| *words > 0)).sum();
        assert!(self.coordinator.outcome().is_some(), "the job came to its end");
        words
    }

    /// The oldest deployment comes to its end; how many words that took, 0 if nothing runs.
    pub(crate) fn finish_one(&mut self) -> u64 {
        let Some(deployment) = self.running.pop_front() else {
            return 0;
        };
        let (events, words) = self.end_of(&deployment);
        let actions = handle(&mut self.coordinator, events);
        self.take_in(actions);
        self.feed();
        words
    }

    /// Sources begin while there is room for them.
    fn feed(&mut self) {
        while self.running.len() < NODES as usize
            && let Some(stage) = self.waiting.pop_front()
        {
            let estimate = Event::SourceEstimated { stage, tasks: TASKS };
            let actions = handle(&mut self.coordinator, vec![estimate]);
            self.take_in(actions);
        }
    }

    /// Goes on until the oldest deployment is of the sixth stage of a later block than before, or nothing runs: so that the same is
    /// to be done each time.
    pub(crate) fn next_block(&mut self) {
        let last = self.block;
        let is_there = |one: &Deployment| one.stage.value() % 10 == 5 && one.stage.value() / 10 > last;
        while !self.running.front().is_none_or(is_there) {
            self.finish_one();
        }
        self.block = self.running.front().map_or(last, |one| one.stage.value() / 10);
    }

    /// A task of the oldest deployment cannot read one of its inputs.
    pub(crate) fn failed_fetch(&self) -> Option<Event> {
        let deployment = self.running.front()?;
        let (task, result, index) = (deployment.tasks[0], deployment.inputs[0].result, 7);
        let attempt = self.attempts.get(&(result, index)).copied().unwrap_or(0);
        let partition = PartitionId { result, index, attempt };
        Some(Event::FetchFailed {
            task,
            partition,
            cause: cause(),
        })
    }

    /// The node that joined first is lost, and another one joins.
    pub(crate) fn lost_node(&mut self) -> Vec<Event> {
        let (old, new) = (node(self.joined - NODES), node(self.joined));
        self.joined += 1;
        self.running.retain(|deployment| deployment.node != old);
        let lost = Event::NodeLost {
            node: old,
            cause: cause(),
        };
        let joined = Event::NodeJoined {
            node: new,
            slots: SLOTS,
        };
        vec![lost, joined]
    }

    /// Until nothing that runs was lost before. How many tasks ran again.
    pub(crate) fn recover(&mut self) -> u64 {
        let mut again = 0;
        let runs_again = |one: &Deployment| one.tasks.iter().filter(|task| task.attempt > 0).count() as u64;
        while self.running.iter().any(|one| runs_again(one) > 0) {
            again += runs_again(&self.running[0]);
            self.finish_one();
        }
        again
    }
}

/// Gives it all to the coordinator, and then asks what is to be done.
pub(crate) fn handle(coordinator: &mut Coordinator, events: Vec<Event>) -> Vec<Action> {
    for event in events {
        coordinator.handle_event(event).expect("an event that can be");
    }
    poll(coordinator)
}

fn cause() -> ShuffleError {
    ShuffleError::new(ErrorKind::ExecutorDied, "the node is gone")
}

/// Knuth's `MMIX`.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(end)).expect("below 32 bits")
    }
}
