//! A handful of nodes in one thread, and what executors say to them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use buffer_pool::{NoBacking, SlotRef};
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::{Batch, Frame, NumberEntry, ReleaseEntry, SlotEntry};
use shuffle_protocol::partition::Totals;
use shuffle_protocol::{GroupRef, PartitionId, ShuffleError, StreamId, SubpartitionIndex};

use super::model_disk::ModelDisk;
use super::parts::{JOB, address, filled, frame_of, frame_with, head_of, incarnation, node};
use crate::node::{LinkId, Node, Output, PeerInfo, SessionId, SessionInfo};

/// Some nodes, connected on demand, and the time.
pub(super) struct Scene {
    pub(super) nodes: Vec<Node<NoBacking>>,
    pub(super) now: Instant,
    pub(super) links: Vec<(usize, LinkId, usize, LinkId)>,
    /// How often each server was started.
    starts: Vec<usize>,
    /// Nodes whose server is gone for good.
    dead: BTreeSet<usize>,
    request: u64,
    /// What lies on each node's disk.
    pub(super) disks: Vec<ModelDisk>,
}

impl Scene {
    pub(super) fn new(nodes: usize, buffers: u32) -> Self {
        Self {
            nodes: (0..nodes).map(|index| node(index, 1, buffers)).collect(),
            starts: vec![1; nodes],
            now: Instant::now(),
            links: Vec::new(),
            dead: BTreeSet::new(),
            request: 0,
            disks: (0..nodes).map(|_| ModelDisk::default()).collect(),
        }
    }

    pub(super) fn attach(&mut self, node: usize) -> SessionId {
        let info = SessionInfo {
            job: JOB,
            name: "test".to_owned(),
            inline: false,
            packed: true,
        };
        self.nodes[node].handle_session_opened(self.now, info).unwrap()
    }

    fn next_request(&mut self) -> u64 {
        self.request += 1;
        self.request
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
        let creation = control::CreatePartition {
            writer: id.attempt,
            partition: Some(id.into()),
            subpartitions,
            min_buffers: minimum,
            max_buffers: minimum + 4,
            group: group.map(Into::into),
            timeout_ms: 1000,
            ..control::CreatePartition::default()
        };
        self.create_as(node, session, creation);
    }

    pub(super) fn create_as(&mut self, node: usize, session: SessionId, creation: control::CreatePartition) {
        let request = self.next_request();
        let creation = control::CreatePartition { request, ..creation };
        self.ask(node, session, Message::CreatePartition(creation));
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
        let request = self.next_request();
        let totals = if totals.buffers == 0 {
            vec![]
        } else {
            vec![control::SubpartitionTotals::new(SubpartitionIndex::new(0), totals)]
        };
        self.ask(
            node,
            session,
            Message::FinishPartition(control::FinishPartition {
                request,
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
        let request = self.next_request();
        self.ask(
            node,
            session,
            Message::OpenGate(control::OpenGate {
                request,
                gate: id.attempt,
                exclusive: 2,
                floating: 2,
                channels: vec![control::ChannelRequest {
                    stream: 100 + id.attempt,
                    node: address(from).to_string(),
                    partition: Some(id.into()),
                    range: Some(control::SubpartitionRange { first: 0, count: 1 }),
                    broadcast: None,
                }],
                group: group.map(Into::into),
                timeout_ms: 1000,
                selective: false,
            }),
        );
    }

    pub(super) fn close_gate(&mut self, node: usize, session: SessionId, id: PartitionId) {
        let request = self.next_request();
        self.ask(
            node,
            session,
            Message::CloseGate(control::CloseGate {
                request,
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
            let mut moved = self.dial_all() | self.spin_disks();
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

    /// Has done what is wanted of the disks that run.
    pub(super) fn spin_disks(&mut self) -> bool {
        let mut moved = false;
        for at in (0..self.nodes.len()).filter(|at| !self.dead.contains(at)) {
            moved |= self.disks[at].run(&mut self.nodes[at], self.now);
        }
        moved
    }

    fn dial_all(&mut self) -> bool {
        let mut moved = false;
        for from in (0..self.nodes.len())
            .filter(|from| !self.dead.contains(from))
            .collect::<Vec<_>>()
        {
            while let Some(dial) = self.nodes[from].poll_dial(self.now) {
                let to = (0..self.nodes.len()).find(|to| address(*to) == dial.node).unwrap();
                moved = true;
                if self.dead.contains(&to) {
                    let refused = ShuffleError::new(ErrorKind::NodeUnreachable, "connection refused");
                    self.nodes[from].handle_dial_failed(self.now, &dial, refused, true);
                    continue;
                }
                let info = |of: usize, dialled| PeerInfo {
                    node: address(of),
                    incarnation: incarnation(of, self.starts[of]),
                    generation: dial.generation,
                    stripe: 0,
                    dialled,
                };
                let there = self.nodes[to].handle_link_opened(self.now, &info(from, false)).unwrap();
                let here = self.nodes[from].handle_link_opened(self.now, &info(to, true)).unwrap();
                self.links.push((from, here, to, there));
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
        let mut out = out.into_iter().peekable();
        while let Some(output) = out.next() {
            let frame = frame_with(&output, &mut out);
            sent.extend(frame.iter().map(|(_, slot)| *slot));
            if left == 0 && !frame.is_empty() {
                continue;
            }
            let target = &mut self.nodes[to];
            match output {
                Output::Slot { .. } => {
                    let head = head_of(&frame);
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
            let lost = ShuffleError::new(ErrorKind::ConnectionLost, "cut");
            self.nodes[a].handle_link_closed(self.now, a_link, lost.clone());
            self.nodes[b].handle_link_closed(self.now, b_link, lost);
            self.nodes[a].check_invariants();
            self.nodes[b].check_invariants();
        }
    }

    /// The server of a node was killed, and another one is there, without memory.
    pub(super) fn restart(&mut self, at: usize) {
        let buffers = self.nodes[at].books().total();
        self.kill(at);
        self.dead.remove(&at);
        self.starts[at] += 1;
        self.nodes[at] = node(at, self.starts[at], buffers);
    }

    /// The server of a node is gone for good.
    pub(super) fn kill(&mut self, node: usize) {
        self.dead.insert(node);
        let (gone, links) = std::mem::take(&mut self.links)
            .into_iter()
            .partition(|(a, _, b, _)| *a == node || *b == node);
        self.links = links;
        let gone: Vec<(usize, LinkId, usize, LinkId)> = gone;
        for (a, a_link, b, b_link) in gone {
            let (other, link) = if a == node { (b, b_link) } else { (a, a_link) };
            let lost = ShuffleError::new(ErrorKind::ConnectionLost, "the server is gone").node(&address(node));
            self.nodes[other].handle_link_closed(self.now, link, lost);
        }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        let dead = &self.dead;
        let living = self.nodes.iter_mut().enumerate().filter(|(at, _)| !dead.contains(at));
        for (_, node) in living {
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
        for (_, node) in self
            .nodes
            .iter_mut()
            .enumerate()
            .filter(|(at, _)| !self.dead.contains(at))
        {
            node.check_invariants();
            let books = node.books();
            assert_eq!(books.unassigned + books.free, books.total(), "{books:?}");
            assert_eq!(books.held(), 0);
        }
    }
}
