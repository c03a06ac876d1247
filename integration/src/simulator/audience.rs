//! Broadcasts of a simulation, beside everything else that it draws: by chance of their own, so that a seed without one means
//! what it meant before there were any.

use shuffle_protocol::partition::{Lifetime, Pressure};
use shuffle_protocol::{JobId, PartitionId, ResultId, SubpartitionRange};

use super::plan::{Plan, Scenario};
use super::random::Random;
use super::schedule::MILLIS;
use super::workload::{ChannelSpec, PartitionSpec, Workload, draw_gate, draw_kind, draw_producer};

/// Seeds with broadcasts: those that leave one of these when divided.
const DIVISOR: u64 = 7;
const WITH_BROADCASTS: [u64; 3] = [0, 1, 2];

impl Workload {
    /// Adds broadcasts to the jobs of some seeds.
    pub(super) fn draw_broadcasts(&mut self, plan: &Plan) {
        if !WITH_BROADCASTS.contains(&(plan.seed % DIVISOR)) {
            return;
        }
        let random = &mut Random::new(!plan.seed);
        let first = self.partitions.len();
        for job in 1..=plan.jobs {
            for index in 0..random.between(1, 2) {
                self.draw_broadcast(plan, random, JobId::new(job), index);
            }
        }
        self.draw_stragglers(plan, first);
    }

    /// Where others need not wait for them, some consumers of broadcasts are slow, or come late. By chance of their own, too.
    fn draw_stragglers(&mut self, plan: &Plan, first: usize) {
        if plan.scenario == Scenario::Stopped {
            // There everybody else is to be done in time.
            return;
        }
        let random = &mut Random::new(plan.seed.rotate_left(32));
        for (no, partition) in self.partitions.iter_mut().enumerate().skip(first) {
            if partition.kind.pressure != Pressure::Spilling || !random.chance(60) {
                continue;
            }
            partition.counts = vec![40];
            let gates = self.processes.iter_mut().flat_map(|process| &mut process.gates);
            for gate in gates.filter(|gate| gate.channels.iter().any(|channel| channel.partition == Some(no))) {
                match random.between(0, 3) {
                    0 => gate.hold = 4000 * MILLIS,
                    1 => gate.start += 8000 * MILLIS,
                    _ => gate.hold = 0,
                }
            }
        }
    }

    fn draw_broadcast(&mut self, plan: &Plan, random: &mut Random, job: JobId, index: u64) {
        let same_job = |partition: &&PartitionSpec| partition.job == job;
        let group = self.partitions.iter().find(same_job).and_then(|of| of.group.clone());
        let kind = draw_kind(random);
        let mut listeners = vec![0_u32; plan.hosts];
        for _ in 0..random.between(1, 5) {
            listeners[random.index(plan.hosts)] += 1;
        }
        let declared = kind.lifetime == Lifetime::Ephemeral || random.chance(30);
        let consumers = listeners.iter().copied().enumerate();
        let consumers: Vec<(usize, u32)> = consumers.filter(|(_, count)| declared && *count > 0).collect();
        let host = random.index(plan.hosts);
        let min_buffers = random.count(1, 3);
        let id = PartitionId {
            result: ResultId::new(50 + index),
            index: 1,
            attempt: random.count(0, 2),
        };
        self.partitions.push(PartitionSpec {
            job,
            id,
            kind,
            host,
            counts: vec![random.pick(&[0, 3, 12, 40]).unwrap_or(12)],
            min_buffers,
            max_buffers: min_buffers + random.count(0, 8),
            max_queued: random.count(0, 5),
            broadcast: Some(consumers),
            group: group.clone(),
        });
        let partition = self.partitions.len() - 1;
        let producer = draw_producer(plan, random, partition);
        let process = self.process_on(random, host, job);
        self.processes[process].producers.push(producer);
        for (at, count) in listeners.iter().enumerate() {
            for _ in 0..*count {
                if plan.faults.unread && random.chance(10) {
                    continue;
                }
                let mut gate = draw_gate(plan, random, group.clone());
                gate.channels.push(ChannelSpec {
                    host,
                    id,
                    range: SubpartitionRange { first: 0, count: 1 },
                    told_of: Some(if declared { *count } else { 0 }),
                    partition: Some(partition),
                });
                let process = self.process_on(random, at, job);
                self.processes[process].gates.push(gate);
            }
        }
    }
}
