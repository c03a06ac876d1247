//! Partitions that are run again while their older attempts are still there.

use shuffle_protocol::control::Fence;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::{PartitionId, SubpartitionRange};

use super::desk::Asked;
use super::schedule::SECONDS;
use super::workload::{ChannelSpec, ProcessSpec, address, draw_gate, draw_producer};
use super::world::World;

impl World {
    /// A newer attempt of a partition starts, here or on another node, with readers of its own.
    pub(super) fn rerun_some_partition(&mut self) {
        let older = self.random.index(self.partitions.len());
        let mut spec = self.partitions[older].clone();
        let of_the_same = self
            .partitions
            .iter()
            .filter(|other| other.job == spec.job && other.id.key() == spec.id.key());
        let newest = of_the_same.map(|other| other.id.attempt).max().unwrap_or(0);
        spec.id = PartitionId {
            attempt: newest + self.random.count(1, 2),
            ..spec.id
        };
        spec.host = self.random.index(self.hosts.len());
        // A broadcast has one new consumer, where its producer is not.
        let listens = (spec.host + 1) % self.hosts.len();
        let told_of = spec.broadcast.as_mut().map(|consumers| {
            let declared = u32::from(!consumers.is_empty());
            consumers.clear();
            consumers.extend((declared > 0).then_some((listens, declared)));
            declared
        });
        let (id, job, host, group) = (spec.id, spec.job, spec.host, spec.group.clone());
        let range = SubpartitionRange {
            first: 0,
            count: u32::try_from(spec.counts.len()).expect("invariant: a few subpartitions"),
        };
        self.trace(|| format!("{id:?} of {job} is run again on {host}"));
        self.partitions.push(spec);
        let partition = Some(self.partitions.len() - 1);
        let mut gate = draw_gate(&self.plan, &mut self.random, group);
        gate.channels.push(ChannelSpec {
            host,
            id,
            range,
            told_of,
            partition,
        });
        let mut producer = draw_producer(&self.plan, &mut self.random, self.partitions.len() - 1);
        let start = self.now + self.random.between(0, SECONDS);
        (producer.start, gate.start) = (start, start);
        let on = |host, producers, gates| ProcessSpec {
            host,
            job,
            inline: false,
            producers,
            gates,
        };
        self.start_process(on(host, vec![producer], Vec::new()), self.now);
        let elsewhere = self.random.index(self.hosts.len());
        let elsewhere = if told_of.is_some() { listens } else { elsewhere };
        self.start_process(on(elsewhere, Vec::new(), vec![gate]), self.now);
        if self.random.chance(50) {
            self.announce_fence(id);
        }
    }

    fn announce_fence(&mut self, id: PartitionId) {
        let Some(process) = self.some_process() else { return };
        let nodes: Vec<String> = (0..self.hosts.len()).map(|host| address(host).to_string()).collect();
        self.with_desk(process, |_, _, desk| {
            desk.ask(Asked::Other, |request| {
                Message::Fence(Fence {
                    request,
                    partition: Some(id.into()),
                    nodes,
                })
            });
        });
    }
}
