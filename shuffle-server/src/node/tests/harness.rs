//! A handful of nodes in one thread, and what executors say to them.

use std::time::{Duration, Instant};

use buffer_pool::{NetworkPool, NoBacking, PoolConfig, SlotRef};
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::frame::{Arena, Batch, DataHead, Frame, NumberEntry, ReleaseEntry, SlotEntry};
use shuffle_protocol::partition::{BufferKind, Totals};
use shuffle_protocol::{
    GroupRef, Incarnation, JobId, NodeAddress, PartitionId, ResultId, Sequence, ShuffleError, StreamId,
    SubpartitionIndex,
};

use crate::node::{LinkId, Node, NodeConfig, Output, PeerInfo, SessionId, SessionInfo};

pub(super) const JOB: JobId = JobId::new(7);

pub(super) fn partition(attempt: u32) -> PartitionId {
    PartitionId {
        result: ResultId::new(11),
        index: 3,
        attempt,
    }
}

/// Some nodes, connected on demand, and the time.
pub(super) struct Scene {
    pub(super) nodes: Vec<Node<NoBacking>>,
    pub(super) now: Instant,
    links: Vec<(usize, LinkId, usize, LinkId)>,
    request: u64,
}

impl Scene {
    pub(super) fn new(nodes: usize, buffers: u32) -> Self {
        let nodes = (0..nodes)
            .map(|index| {
                let config = PoolConfig {
                    total_buffers: buffers,
                    buffer_bytes: 4096,
                    extent_buffers: 4,
                    read_reserve_buffers: buffers / 4,
                };
                let pool = NetworkPool::new(config, NoBacking).unwrap();
                Node::new(
                    NodeConfig::new(address(index), Incarnation::new(index as u64 + 1), 4096),
                    pool,
                )
            })
            .collect();
        Self {
            nodes,
            now: Instant::now(),
            links: Vec::new(),
            request: 0,
        }
    }

    pub(super) fn attach(&mut self, node: usize) -> SessionId {
        let info = SessionInfo {
            job: JOB,
            name: "test".to_owned(),
            inline: false,
        };
        self.nodes[node].handle_session_opened(self.now, info).unwrap()
    }

    pub(super) fn say(&mut self, node: usize, session: SessionId, frame: Frame) {
        self.nodes[node].handle_session_frame(self.now, session, frame).unwrap();
        self.nodes[node].check_invariants();
    }

    pub(super) fn ask(&mut self, node: usize, session: SessionId, message: Message) {
        self.say(node, session, Frame::Control(Box::new(message)));
    }

    pub(super) fn create(
        &mut self,
        node: usize,
        session: SessionId,
        id: PartitionId,
        subpartitions: u32,
        minimum: u32,
        group: Option<&GroupRef>,
    ) {
        self.request += 1;
        self.ask(
            node,
            session,
            Message::CreatePartition(control::CreatePartition {
                request: self.request,
                writer: id.attempt,
                partition: Some(id.into()),
                subpartitions,
                min_buffers: minimum,
                max_buffers: minimum + 4,
                group: group.map(Into::into),
                timeout_ms: 1000,
                ..control::CreatePartition::default()
            }),
        );
    }

    pub(super) fn demand(&mut self, node: usize, session: SessionId, id: PartitionId, buffers: u64) -> Vec<u32> {
        let entry = NumberEntry {
            stream: StreamId::new(id.attempt),
            subpartition: SubpartitionIndex::new(0),
            number: buffers,
        };
        self.say(node, session, Frame::Demand(Batch::from_entries(&[entry])));
        self.outputs(node, session)
            .iter()
            .filter_map(|output| {
                if let Output::Grant(grant) = output {
                    Some(grant.slot)
                } else {
                    None
                }
            })
            .collect()
    }

    pub(super) fn hand_over(
        &mut self,
        node: usize,
        session: SessionId,
        id: PartitionId,
        ordinal: u64,
        slot: u32,
    ) -> Totals {
        let entry = filled(id, ordinal, slot);
        self.say(node, session, Frame::Slots(Batch::from_entries(&[entry])));
        let mut totals = Totals::default();
        totals.add_buffer(entry.length, entry.checksum, entry.records, entry.kind);
        totals
    }

    pub(super) fn finish(&mut self, node: usize, session: SessionId, id: PartitionId, totals: &Totals) {
        self.request += 1;
        let totals = if totals.buffers == 0 {
            vec![]
        } else {
            vec![control::SubpartitionTotals::new(SubpartitionIndex::new(0), totals)]
        };
        self.ask(
            node,
            session,
            Message::FinishPartition(control::FinishPartition {
                request: self.request,
                writer: id.attempt,
                totals,
            }),
        );
    }

    pub(super) fn open(
        &mut self,
        node: usize,
        session: SessionId,
        from: usize,
        id: PartitionId,
        group: Option<&GroupRef>,
    ) {
        self.request += 1;
        self.ask(
            node,
            session,
            Message::OpenGate(control::OpenGate {
                request: self.request,
                gate: id.attempt,
                exclusive: 2,
                floating: 2,
                channels: vec![control::ChannelRequest {
                    stream: 100 + id.attempt,
                    node: address(from).to_string(),
                    partition: Some(id.into()),
                    range: Some(control::SubpartitionRange { first: 0, count: 1 }),
                }],
                group: group.map(Into::into),
                timeout_ms: 1000,
                selective: false,
            }),
        );
    }

    pub(super) fn close_gate(&mut self, node: usize, session: SessionId, id: PartitionId) {
        self.request += 1;
        self.ask(
            node,
            session,
            Message::CloseGate(control::CloseGate {
                request: self.request,
                gate: id.attempt,
            }),
        );
    }

    /// The reader has checked everything below, and drops its view of that slot.
    pub(super) fn take(&mut self, node: usize, session: SessionId, entry: &SlotEntry) {
        self.ack(node, session, entry.stream, entry.sequence.value() + 1);
        let release = ReleaseEntry {
            stream: entry.stream,
            slot: entry.slot,
            arena: entry.arena,
        };
        self.say(node, session, Frame::Release(Batch::from_entries(&[release])));
    }

    pub(super) fn ack(&mut self, node: usize, session: SessionId, stream: StreamId, below: u64) {
        let ack = NumberEntry {
            stream,
            subpartition: SubpartitionIndex::new(0),
            number: below,
        };
        self.say(node, session, Frame::Ack(Batch::from_entries(&[ack])));
    }

    pub(super) fn outputs(&mut self, node: usize, session: SessionId) -> Vec<Output> {
        let mut out = Vec::new();
        while self.nodes[node].poll_session(self.now, session, &mut out) {}
        out
    }

    /// What a reader was given since it was last asked: buffers, whether the end came, errors.
    pub(super) fn received(
        &mut self,
        node: usize,
        session: SessionId,
    ) -> (Vec<SlotEntry>, Option<Totals>, Vec<ShuffleError>) {
        let (mut slots, mut end, mut errors) = (Vec::new(), None, Vec::new());
        for output in self.outputs(node, session) {
            match output {
                Output::Slot { entry, .. } => slots.push(entry),
                Output::End(entry) => end = Some(entry.totals),
                Output::Control(message) => match *message {
                    Message::ChannelFailed(control::ChannelFailed { error: Some(error), .. })
                    | Message::WriterFailed(control::WriterFailed { error: Some(error), .. })
                    | Message::Reply(control::Reply { error: Some(error), .. }) => errors.push(error.into()),
                    _ => {}
                },
                _ => {}
            }
        }
        (slots, end, errors)
    }

    /// Makes the connections that are wanted and carries everything over them until nothing moves.
    pub(super) fn exchange(&mut self) {
        loop {
            let mut moved = self.dial_all();
            for index in 0..self.links.len() {
                let (a, a_link, b, b_link) = self.links[index];
                moved |= self.carry(a, a_link, b, b_link, u32::MAX);
                moved |= self.carry(b, b_link, a, a_link, u32::MAX);
            }
            if !moved {
                return;
            }
        }
    }

    fn dial_all(&mut self) -> bool {
        let mut moved = false;
        for from in 0..self.nodes.len() {
            while let Some(dial) = self.nodes[from].poll_dial(self.now) {
                let to = (0..self.nodes.len()).find(|to| address(*to) == dial.node).unwrap();
                let info = |of: usize, dialled| PeerInfo {
                    node: address(of),
                    incarnation: Incarnation::new(of as u64 + 1),
                    generation: dial.generation,
                    stripe: 0,
                    dialled,
                };
                let there = self.nodes[to].handle_link_opened(self.now, &info(from, false)).unwrap();
                let here = self.nodes[from].handle_link_opened(self.now, &info(to, true)).unwrap();
                self.links.push((from, here, to, there));
                moved = true;
            }
        }
        moved
    }

    /// Carries one direction; stops in the middle of the payload after so many buffers.
    pub(super) fn carry(&mut self, from: usize, link: LinkId, to: usize, there: LinkId, buffers: u32) -> bool {
        let mut out = Vec::new();
        while self.nodes[from].poll_link(self.now, link, 1 << 20, &mut out) {}
        let moved = !out.is_empty();
        let mut left = buffers;
        let mut sent: Vec<SlotRef> = Vec::new();
        for output in out {
            if let Output::Slot { slot, .. } = &output {
                sent.push(*slot);
            }
            if left == 0 && matches!(output, Output::Slot { .. }) {
                continue;
            }
            let target = &mut self.nodes[to];
            match output {
                Output::Slot { entry, .. } => {
                    let head = DataHead {
                        slots: Batch::from_entries(&[entry]),
                        payload_bytes: entry.length,
                        sequence: entry.sequence,
                        stream: entry.stream,
                    };
                    target.handle_link_data_head(self.now, there, &head).unwrap();
                    left -= 1;
                    if left > 0 {
                        target.handle_link_data(self.now, there, &head).unwrap();
                    }
                }
                other => target.handle_link_frame(self.now, there, frame_of(other)).unwrap(),
            }
            target.check_invariants();
        }
        for slot in sent {
            self.nodes[from].handle_written(self.now, slot);
        }
        moved
    }

    /// Breaks every connection, in the middle of the first buffer that is on its way to `reader`.
    pub(super) fn cut(&mut self, reader: usize) {
        for (a, a_link, b, b_link) in std::mem::take(&mut self.links) {
            if b == reader {
                self.carry(a, a_link, b, b_link, 1);
            } else {
                self.carry(b, b_link, a, a_link, 1);
            }
            let lost = ShuffleError::new(shuffle_protocol::error::ErrorKind::ConnectionLost, "cut");
            self.nodes[a].handle_link_closed(self.now, a_link, lost.clone());
            self.nodes[b].handle_link_closed(self.now, b_link, lost);
            self.nodes[a].check_invariants();
            self.nodes[b].check_invariants();
        }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        for node in &mut self.nodes {
            node.handle_timeout(self.now);
            node.check_invariants();
        }
    }

    /// Every session goes; then every buffer is home.
    pub(super) fn assert_all_home(&mut self, sessions: &[(usize, SessionId)]) {
        for (node, session) in sessions {
            self.nodes[*node].handle_session_closed(self.now, *session, false);
        }
        self.exchange();
        for node in &mut self.nodes {
            node.check_invariants();
            let books = node.books();
            assert_eq!(books.unassigned + books.free, books.total(), "{books:?}");
            assert_eq!(books.held(), 0);
        }
    }
}

pub(super) fn address(index: usize) -> NodeAddress {
    NodeAddress::parse(&format!("node{index}:70")).unwrap()
}

pub(super) fn group(nodes: usize, home: usize) -> GroupRef {
    GroupRef {
        id: shuffle_protocol::GroupId::new(5),
        home: address(home),
        nodes: (0..nodes).map(address).collect(),
    }
}

fn filled(id: PartitionId, ordinal: u64, slot: u32) -> SlotEntry {
    SlotEntry {
        stream: StreamId::new(id.attempt),
        subpartition: SubpartitionIndex::new(0),
        sequence: Sequence::new(ordinal),
        slot,
        offset: 0,
        length: 1000 + u32::try_from(ordinal).unwrap(),
        checksum: 0xC0DE + id.attempt,
        records: 1,
        backlog: 0,
        arena: Arena::Write,
        kind: BufferKind::Data,
        continues: false,
        partial_start: false,
    }
}

fn frame_of(output: Output) -> Frame {
    match output {
        Output::Control(message) => Frame::Control(message),
        Output::End(entry) => Frame::End(Batch::from_entries(&[entry])),
        Output::Credit(entry) => Frame::Credit(Batch::from_entries(&[entry])),
        Output::Ack(entry) => Frame::Ack(Batch::from_entries(&[entry])),
        Output::Backlog(entry) => Frame::Backlog(Batch::from_entries(&[entry])),
        Output::Ping(nonce) => Frame::Ping(nonce),
        Output::Pong(nonce) => Frame::Pong(nonce),
        Output::Slot { .. } | Output::Grant(_) => unreachable!("not between nodes as a frame"),
    }
}
