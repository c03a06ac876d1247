//! Who produces what, who reads it, and in which processes.

use shuffle_protocol::partition::PartitionKind;
use shuffle_protocol::{GroupId, GroupRef, JobId, NodeAddress, PartitionId, ResultId, SubpartitionRange};

use super::plan::{Plan, Scenario};
use super::random::Random;
use super::schedule::{MILLIS, Micros};

/// One attempt of one partition: what it holds, and so what its readers must get.
#[derive(Debug, Clone)]
pub(super) struct PartitionSpec {
    pub(super) job: JobId,
    pub(super) id: PartitionId,
    pub(super) kind: PartitionKind,
    pub(super) host: usize,
    /// Buffers of each subpartition.
    pub(super) counts: Vec<u64>,
    pub(super) min_buffers: u32,
    pub(super) max_buffers: u32,
    /// 0: as the server likes.
    pub(super) max_queued: u32,
    /// It is broadcast: its consumers by server, where they are declared.
    pub(super) broadcast: Option<Vec<(usize, u32)>>,
    pub(super) group: Option<GroupRef>,
}

#[derive(Debug, Clone)]
pub(super) struct ChannelSpec {
    pub(super) host: usize,
    pub(super) id: PartitionId,
    pub(super) range: SubpartitionRange,
    /// It is broadcast: how many consumers its side was told of.
    pub(super) told_of: Option<u32>,
    /// Which partition that is; `None` where nobody will register it.
    pub(super) partition: Option<usize>,
}

#[derive(Debug, Clone)]
pub(super) struct ProducerSpec {
    pub(super) partition: usize,
    pub(super) start: Micros,
    /// Buffers it wants in hand.
    pub(super) prefetch: u64,
    /// It gives up after so many buffers.
    pub(super) abort_after: Option<u64>,
    /// It finishes with wrong counts.
    pub(super) lies: bool,
    /// It hands over slots in slices.
    pub(super) sorts: bool,
}

#[derive(Debug, Clone)]
pub(super) struct GateSpec {
    pub(super) channels: Vec<ChannelSpec>,
    pub(super) exclusive: u32,
    pub(super) floating: u32,
    pub(super) group: Option<GroupRef>,
    pub(super) start: Micros,
    /// Longest time a view is held.
    pub(super) hold: Micros,
    /// It reads nothing until faults end.
    pub(super) stopped: bool,
    /// A failed channel leaves the others as they are.
    pub(super) tolerant: bool,
}

#[derive(Debug, Clone)]
pub(super) struct ProcessSpec {
    pub(super) host: usize,
    pub(super) job: JobId,
    /// It has no mapping: payload travels inline.
    pub(super) inline: bool,
    pub(super) producers: Vec<ProducerSpec>,
    pub(super) gates: Vec<GateSpec>,
}

#[derive(Debug, Default)]
pub(super) struct Workload {
    pub(super) partitions: Vec<PartitionSpec>,
    pub(super) processes: Vec<ProcessSpec>,
    /// Size of each server's pool, in buffers.
    pub(super) buffers: Vec<u32>,
}

/// Half of all partitions never see a disk.
pub(super) fn draw_kind(random: &mut Random) -> PartitionKind {
    let kinds: Vec<_> = PartitionKind::all().filter(|kind| kind.validate().is_ok()).collect();
    random.pick(&kinds).filter(|_| random.chance(50)).unwrap_or_default()
}

/// The address of a server.
pub(super) fn address(host: usize) -> NodeAddress {
    NodeAddress::parse(&format!("n{host}:7000")).expect("invariant: a well-formed address")
}

impl Workload {
    pub(super) fn draw(plan: &Plan, random: &mut Random) -> Self {
        let mut workload = Self::default();
        for job in 1..=plan.jobs {
            workload.draw_job(plan, random, JobId::new(job));
        }
        workload.draw_broadcasts(plan);
        workload.buffers = (0..plan.hosts)
            .map(|host| workload.pool_of(plan, random, host))
            .collect();
        workload
    }

    fn draw_job(&mut self, plan: &Plan, random: &mut Random, job: JobId) {
        let group = random.chance(plan.grouped).then(|| GroupRef {
            id: GroupId::new(100 + job.value()),
            home: address(random.index(plan.hosts)),
            nodes: (0..plan.hosts).map(address).collect(),
        });
        let mut gates: Vec<GateSpec> = (0..random.between(1, 4))
            .map(|_| draw_gate(plan, random, group.clone()))
            .collect();
        let partitions = random.between(1, 4);
        let isolated = plan.scenario == Scenario::Stopped && gates.len() > 1 && partitions > 1;
        if isolated {
            gates[0].stopped = true;
        }
        for index in 0..partitions {
            let no = self.draw_partition(plan, random, job, index, group.clone());
            let spec = &self.partitions[no];
            let (host, id) = (spec.host, spec.id);
            for range in draw_ranges(random, u64::try_from(spec.counts.len()).unwrap_or(1)) {
                if plan.faults.unread && random.chance(20) {
                    continue;
                }
                // What a stopped reader reads, nobody else does.
                let gate = match (isolated, index) {
                    (true, 0) => 0,
                    (true, _) => 1 + random.index(gates.len() - 1),
                    (false, _) => random.index(gates.len()),
                };
                gates[gate].channels.push(ChannelSpec {
                    host,
                    id,
                    range,
                    told_of: None,
                    partition: Some(no),
                });
            }
            let producer = draw_producer(plan, random, no);
            let process = self.process_on(random, host, job);
            self.processes[process].producers.push(producer);
        }
        for mut gate in gates {
            if plan.faults.strays && random.chance(50) {
                gate.channels.push(draw_stray(random, plan, job));
            }
            let host = random.index(plan.hosts);
            let process = self.process_on(random, host, job);
            self.processes[process].gates.push(gate);
        }
    }

    fn draw_partition(
        &mut self,
        plan: &Plan,
        random: &mut Random,
        job: JobId,
        index: u64,
        group: Option<GroupRef>,
    ) -> usize {
        let most = random.pick(&[0, 3, 12, 12, 30]).unwrap_or(12);
        let counts = (0..random.between(1, 4)).map(|_| random.below(most + 1)).collect();
        let min_buffers = random.count(1, 4);
        self.partitions.push(PartitionSpec {
            job,
            // The same in each job: a job must not see another's.
            id: PartitionId {
                result: ResultId::new(7 + index / 2),
                index: u32::try_from(index).unwrap_or(0) + 3,
                attempt: random.count(0, 2),
            },
            kind: draw_kind(random),
            host: random.index(plan.hosts),
            counts,
            min_buffers,
            // What is written for a reader that stops is to leave buffers for others.
            max_buffers: if random.chance(50) && plan.scenario != Scenario::Stopped {
                0
            } else {
                min_buffers + random.count(0, 8)
            },
            max_queued: random.count(0, 5),
            broadcast: None,
            group,
        });
        self.partitions.len() - 1
    }

    /// A process of the job on that server: one that is there, or another.
    pub(super) fn process_on(&mut self, random: &mut Random, host: usize, job: JobId) -> usize {
        let there: Vec<usize> = (0..self.processes.len())
            .filter(|&at| self.processes[at].host == host && self.processes[at].job == job)
            .collect();
        if let Some(process) = random.pick(&there).filter(|_| random.chance(50)) {
            return process;
        }
        self.processes.push(ProcessSpec {
            host,
            job,
            inline: random.chance(25),
            producers: Vec::new(),
            gates: Vec::new(),
        });
        self.processes.len() - 1
    }

    fn pool_of(&self, plan: &Plan, random: &mut Random, host: usize) -> u32 {
        let extent = plan.extent_buffers;
        if plan.faults.starved {
            return extent * random.count(16u32.div_ceil(extent), 48 / extent);
        }
        let here = || self.processes.iter().filter(|process| process.host == host);
        let written: u32 = here()
            .flat_map(|process| &process.producers)
            .map(|producer| self.partitions[producer.partition].min_buffers)
            .sum();
        let read: u32 = here()
            .flat_map(|process| &process.gates)
            .map(|gate| {
                let remote = gate.channels.iter().filter(|channel| channel.host != host);
                let (relayed, plain): (Vec<_>, Vec<_>) = remote.partition(|channel| channel.told_of.is_some());
                let count = |channels: Vec<_>| u32::try_from(channels.len()).unwrap_or(0);
                (count(plain) * gate.exclusive).max(1) + 2 * count(relayed)
            })
            .sum();
        // What readers of files load into.
        let channels = || {
            self.processes
                .iter()
                .flat_map(|process| &process.gates)
                .flat_map(|gate| &gate.channels)
        };
        let loaded = channels().filter(|channel| channel.host == host).count();
        let read = read + 2 * u32::try_from(loaded).unwrap_or(0);
        // Twice over, and some extents for every arena of every job.
        let buffers = 2 * (written + read) + 16 + 8 * extent + random.count(0, 64);
        buffers.div_ceil(extent) * extent
    }
}

pub(super) fn draw_producer(plan: &Plan, random: &mut Random, partition: usize) -> ProducerSpec {
    ProducerSpec {
        partition,
        start: random.between(0, plan.start_within),
        prefetch: random.between(1, 6),
        abort_after: (plan.faults.aborts && random.chance(30)).then(|| random.below(20)),
        lies: plan.faults.liars && random.chance(30),
        sorts: random.chance(30),
    }
}

pub(super) fn draw_gate(plan: &Plan, random: &mut Random, group: Option<GroupRef>) -> GateSpec {
    let exclusive = random.count(0, 3);
    let hold = random.pick(&[0, MILLIS, 20 * MILLIS, 400 * MILLIS]).unwrap_or(0);
    GateSpec {
        channels: Vec::new(),
        exclusive,
        floating: random.count(u32::from(exclusive == 0), 6),
        group,
        start: random.between(0, plan.start_within),
        hold,
        stopped: false,
        tolerant: random.chance(50),
    }
}

fn draw_ranges(random: &mut Random, subpartitions: u64) -> Vec<SubpartitionRange> {
    let mut ranges = Vec::new();
    let mut first = 0;
    while first < subpartitions {
        let count = random.between(1, subpartitions - first);
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        ranges.push(SubpartitionRange {
            first: narrow(first),
            count: narrow(count),
        });
        first += count;
    }
    ranges
}

fn draw_stray(random: &mut Random, plan: &Plan, job: JobId) -> ChannelSpec {
    ChannelSpec {
        host: random.index(plan.hosts),
        id: PartitionId {
            result: ResultId::new(9000 + job.value()),
            index: random.count(0, 3),
            attempt: 0,
        },
        range: SubpartitionRange { first: 0, count: 1 },
        told_of: None,
        partition: None,
    }
}
