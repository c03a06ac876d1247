//! A broadcast's producer and its consumers, each of which keeps what it was given.

use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::frame::SlotEntry;
use shuffle_protocol::partition::{BufferKind, PartitionKind, Totals};
use shuffle_protocol::{ShuffleError, StreamId};

use super::harness::Scene;
use super::parts::{address, partition};
use crate::node::SessionId;

/// A consumer of the broadcast: where it is, what it was given and how far it has read.
pub(super) struct Listener {
    pub(super) node: usize,
    pub(super) session: SessionId,
    pub(super) stream: StreamId,
    pub(super) had: Vec<SlotEntry>,
    pub(super) taken: usize,
    pub(super) end: Option<Totals>,
    pub(super) errors: Vec<ShuffleError>,
}

impl Listener {
    pub(super) fn attach(scene: &mut Scene, node: usize) -> Self {
        let session = scene.attach(node);
        Self {
            node,
            session,
            stream: StreamId::new(400),
            had: Vec::new(),
            taken: 0,
            end: None,
            errors: Vec::new(),
        }
    }

    /// A consumer of the producer's node 0 that was told of so many on its node.
    pub(super) fn open(&mut self, scene: &mut Scene, told_of: u32) {
        let channel = control::ChannelRequest {
            stream: self.stream.value(),
            node: address(0).to_string(),
            partition: Some(partition(5).into()),
            range: Some(control::SubpartitionRange { first: 0, count: 1 }),
            broadcast: Some(control::Broadcast { consumers: told_of }),
        };
        let gate = control::OpenGate {
            request: 900 + self.stream.value() as u64,
            gate: self.stream.value(),
            exclusive: 2,
            floating: 2,
            channels: vec![channel],
            timeout_ms: 1000,
            ..control::OpenGate::default()
        };
        scene.ask(self.node, self.session, Message::OpenGate(gate));
        scene.exchange();
        self.look(scene);
    }

    pub(super) fn opened(scene: &mut Scene, node: usize, told_of: u32) -> Self {
        let mut listener = Self::attach(scene, node);
        listener.open(scene, told_of);
        listener
    }

    pub(super) fn look(&mut self, scene: &mut Scene) {
        let (slots, end, errors) = scene.received(self.node, self.session);
        self.had.extend(slots);
        self.end = self.end.or(end);
        self.errors.extend(errors);
    }

    /// Checks and drops everything that it was given and has not dropped.
    pub(super) fn take_all(&mut self, scene: &mut Scene) {
        self.look(scene);
        while let Some(entry) = self.had.get(self.taken) {
            assert_eq!(entry.sequence.value(), self.taken as u64, "in order");
            assert_eq!(entry.length, 1000 + u32::try_from(self.taken).unwrap(), "the right one");
            scene.take(self.node, self.session, &entry.clone());
            self.taken += 1;
        }
        if self.end.is_some() {
            scene.ack(self.node, self.session, self.stream, self.taken as u64 + 1);
        }
    }
}

pub(super) struct Broadcast {
    pub(super) session: SessionId,
    pub(super) slots: Vec<u32>,
    pub(super) totals: Totals,
}

impl Broadcast {
    pub(super) fn create(scene: &mut Scene, kind: PartitionKind, consumers: &[(usize, u32)]) -> Self {
        let session = scene.attach(0);
        let creation = control::CreatePartition {
            writer: 5,
            partition: Some(partition(5).into()),
            subpartitions: 1,
            min_buffers: 2,
            max_buffers: 8,
            max_queued_per_subpartition: 4,
            broadcast: true,
            consumers: consumers
                .iter()
                .map(|(node, count)| control::Consumers {
                    node: address(*node).to_string(),
                    count: *count,
                })
                .collect(),
            timeout_ms: 1000,
            ..control::CreatePartition::default()
        };
        scene.create_as(0, session, creation.with_kind(kind));
        Self {
            session,
            slots: Vec::new(),
            totals: Totals::default(),
        }
    }

    /// Hands over another buffer, if one is granted.
    pub(super) fn write(&mut self, scene: &mut Scene) -> bool {
        let ordinal = self.totals.buffers;
        self.slots
            .extend(scene.demand(0, self.session, partition(5), ordinal + 1));
        let Some(slot) = self.slots.pop() else { return false };
        let one = scene.hand_over(0, self.session, partition(5), ordinal, slot);
        let bytes = u32::try_from(one.bytes).unwrap();
        self.totals.add_buffer(bytes, 0xC0DE + 5, 1, BufferKind::Data);
        true
    }

    /// Writes so many as its readers take them.
    pub(super) fn stream(&mut self, scene: &mut Scene, count: u64, readers: &mut [&mut Listener]) {
        let mut idle = 0;
        while self.totals.buffers < count {
            let room = readers.iter().map(|reader| reader.taken as u64).min().unwrap_or(0) + 4;
            let wrote = self.totals.buffers < room && self.write(scene);
            scene.exchange();
            for reader in readers.iter_mut() {
                reader.take_all(scene);
            }
            scene.exchange();
            idle = if wrote { 0 } else { idle + 1 };
            assert!(idle < 10, "stuck at {} of {count}", self.totals.buffers);
        }
    }

    pub(super) fn finish(&self, scene: &mut Scene, readers: &mut [&mut Listener]) {
        scene.finish(0, self.session, partition(5), &self.totals);
        for _ in 0..4 {
            scene.exchange();
            for reader in readers.iter_mut() {
                reader.take_all(scene);
            }
        }
        scene.exchange();
        for reader in readers {
            assert!(reader.errors.is_empty(), "{:?}", reader.errors);
            assert_eq!(reader.end, Some(self.totals), "what the producer says, at every reader");
            assert_eq!(reader.taken as u64, self.totals.buffers);
        }
    }
}

pub(super) fn home(scene: &mut Scene, broadcast: &Broadcast, readers: &[&Listener]) {
    let mut sessions = vec![(0, broadcast.session)];
    sessions.extend(readers.iter().map(|reader| (reader.node, reader.session)));
    scene.assert_all_home(&sessions);
}
