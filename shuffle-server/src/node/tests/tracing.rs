//! Buffers that do not have their checksum at their reader.

use std::time::Duration;

use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::{ErrorKind, Initiator, Verdict};
use shuffle_protocol::frame::{Arena, SlotEntry};
use shuffle_protocol::partition::{BufferKind, PartitionKind, Totals};
use shuffle_protocol::{ShuffleError, SubpartitionIndex};

use super::harness::Scene;
use super::parts::{JOB, address, partition};
use super::storing::{FILE, SPILLING, write};
use crate::node::SessionId;
use crate::node::tests::storing;

const GOT: u32 = 0xBAD;
pub(super) const RIGHT: u32 = 0xC0DE + 5;
pub(super) const WRONG: u32 = 7;

/// One buffer at a reader on node `to`, of a producer on node 0.
pub(super) struct Stage {
    pub(super) scene: Scene,
    pub(super) to: usize,
    pub(super) writer: SessionId,
    pub(super) reader: SessionId,
    pub(super) entry: SlotEntry,
}

impl Stage {
    pub(super) fn new(to: usize) -> Self {
        let mut scene = Scene::new(2, 32);
        let (writer, reader) = (scene.attach(0), scene.attach(to));
        let id = partition(5);
        scene.open(to, reader, 0, id, None);
        scene.create(0, writer, id, 1, 4, None);
        scene.exchange();
        let slots = scene.demand(0, writer, id, 2);
        for (ordinal, slot) in (0..).zip(slots) {
            scene.hand_over(0, writer, id, ordinal, slot);
        }
        scene.exchange();
        Self::with(scene, to, writer, reader)
    }

    pub(super) fn stored(to: usize, kind: PartitionKind) -> Self {
        let mut scene = Scene::new(2, 32);
        let (writer, reader) = (scene.attach(0), scene.attach(to));
        let id = partition(5);
        storing::create(&mut scene, 0, writer, id, kind);
        let (_, totals) = write(&mut scene, 0, writer, id, 40, u64::MAX);
        scene.finish(0, writer, id, &totals);
        scene.spin_disks();
        scene.received(0, writer);
        scene.open(to, reader, 0, id, None);
        scene.exchange();
        let mut stage = Self {
            scene,
            to,
            writer,
            reader,
            entry: SlotEntry::default(),
        };
        // What is loaded first comes when it is first asked for.
        let mut came = Vec::new();
        while came.is_empty() {
            came = stage.received();
            stage.scene.exchange();
        }
        stage.entry = came[0];
        assert_eq!(stage.entry.arena, Arena::Read);
        stage
    }

    fn with(scene: Scene, to: usize, writer: SessionId, reader: SessionId) -> Self {
        let mut stage = Self {
            scene,
            to,
            writer,
            reader,
            entry: SlotEntry::default(),
        };
        stage.entry = stage.received()[0];
        stage
    }

    pub(super) fn received(&mut self) -> Vec<SlotEntry> {
        let (slots, _, errors) = self.scene.received(self.to, self.reader);
        assert!(errors.is_empty(), "{errors:?}");
        slots
    }

    pub(super) fn report(&mut self) {
        let entry = self.entry;
        let report = report_of(&entry);
        self.scene.ask(self.to, self.reader, Message::ReportMismatch(report));
        self.scene.exchange();
    }

    /// Answers the next sum that is wanted on a node.
    pub(super) fn look(&mut self, node: usize, sum: u32) {
        let verify = self.scene.nodes[node].poll_verify().expect("a sum is wanted");
        assert_eq!((verify.offset, verify.length), (0, self.entry.length));
        self.scene.nodes[node].handle_verified(self.scene.now, verify.ticket, Ok(sum));
        self.scene.nodes[node].check_invariants();
        self.scene.exchange();
    }

    /// The same buffer came, in the same slot.
    pub(super) fn assert_again(&mut self) {
        let again = self.received();
        assert_eq!(again.len(), 1, "{again:?}");
        let key = |entry: &SlotEntry| (entry.stream, entry.sequence, entry.slot, entry.arena, entry.length);
        assert_eq!(key(&again[0]), key(&self.entry));
    }

    pub(super) fn assert_verdict(&mut self, verdict: Verdict) -> ShuffleError {
        let (slots, _, errors) = self.scene.received(self.to, self.reader);
        assert!(slots.is_empty(), "{slots:?}");
        let expected = ErrorKind::ChecksumMismatch {
            expected: self.entry.checksum,
            got: GOT,
            sequence: self.entry.sequence.value(),
            verdict,
        };
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(*errors[0].kind(), expected, "{errors:?}");
        let location = errors[0].location();
        assert_eq!(location.job, Some(JOB));
        assert_eq!(location.partition, Some(partition(5)));
        assert_eq!(location.subpartition, Some(SubpartitionIndex::new(0)));
        assert_eq!(location.node, Some(address(0)));
        errors[0].clone()
    }

    /// Wire, producer memory and disk, and what was fetched once more, on a node.
    pub(super) fn counted(&self, node: usize) -> [u64; 4] {
        let of = self.scene.nodes[node].counters();
        [
            of.mismatches_wire,
            of.mismatches_producer_memory,
            of.mismatches_disk,
            of.buffers_refetched,
        ]
    }

    pub(super) fn end(mut self) {
        let (writer, to, reader) = (self.writer, self.to, self.reader);
        self.scene.assert_all_home(&[(0, writer), (to, reader)]);
        assert!(self.scene.nodes.iter_mut().all(|node| node.poll_verify().is_none()));
    }
}

pub(super) fn report_of(entry: &SlotEntry) -> control::ReportMismatch {
    control::ReportMismatch {
        stream: entry.stream.value(),
        sequence: entry.sequence.value(),
        subpartition: 0,
        slot: entry.slot,
        write_arena: entry.arena == Arena::Write,
        length: entry.length,
        expected: entry.checksum,
        got: GOT,
        offset: entry.offset,
    }
}

#[test]
fn what_the_producer_holds_wrong_fails_the_channel_here_and_there() {
    for (to, finished) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut stage = Stage::new(to);
        if finished {
            let (writer, mut totals) = (stage.writer, Totals::default());
            for length in [1000, 1001] {
                totals.add_buffer(length, RIGHT, 1, BufferKind::Data);
            }
            stage.scene.finish(0, writer, partition(5), &totals);
            stage.scene.exchange();
            stage.scene.outputs(0, writer);
        }
        stage.report();
        if to == 1 {
            stage.look(1, WRONG);
        }
        stage.look(0, WRONG);
        let error = stage.assert_verdict(Verdict::ProducerMemory);
        assert_eq!(error.initiator(), Initiator::Peer);
        assert_eq!(stage.scene.nodes[0].counters().partitions_released, u64::from(finished));
        assert_eq!(stage.counted(0), [0, 1, 0, 0]);
        stage.end();
    }
}

#[test]
fn what_the_producer_holds_right_comes_once_more_and_no_more() {
    for to in [0, 1] {
        let mut stage = Stage::new(to);
        stage.report();
        if to == 1 {
            stage.look(1, WRONG);
        }
        stage.look(0, RIGHT);
        stage.assert_again();
        assert_eq!(stage.counted(to), [1, 0, 0, 1]);
        stage.report();
        if to == 1 {
            stage.look(1, WRONG);
        }
        stage.look(0, RIGHT);
        let error = stage.assert_verdict(Verdict::WireOrReceivingMemory);
        assert_eq!(error.initiator(), Initiator::Network);
        assert_eq!(stage.counted(to), [2, 0, 0, 1]);
        stage.end();
    }
}

#[test]
fn a_channel_goes_on_behind_what_came_once_more() {
    for to in [0, 1] {
        let mut stage = Stage::new(to);
        stage.report();
        if to == 1 {
            stage.look(1, WRONG);
        }
        stage.look(0, RIGHT);
        stage.assert_again();
        let (reader, entry) = (stage.reader, stage.entry);
        stage.scene.take(to, reader, &entry);
        let id = partition(5);
        let slot = stage.scene.demand(0, stage.writer, id, 3)[0];
        stage.scene.hand_over(0, stage.writer, id, 2, slot);
        stage.scene.exchange();
        assert_eq!(stage.received()[0].sequence.value(), 2, "the second had come before");
        stage.end();
    }
}

#[test]
fn what_was_received_right_is_looked_at_once_more_without_the_producer() {
    let mut stage = Stage::new(1);
    stage.report();
    stage.look(1, RIGHT);
    stage.assert_again();
    assert!(stage.scene.nodes[0].poll_verify().is_none());
    stage.report();
    stage.look(1, RIGHT);
    stage.assert_verdict(Verdict::WireOrReceivingMemory);
    assert_eq!(stage.counted(1), [2, 0, 0, 1]);
    stage.end();
}

#[test]
fn what_came_from_disk_is_read_once_more() {
    for (to, kind) in [(0, FILE), (1, FILE), (0, SPILLING), (1, SPILLING)] {
        for (second, verdict) in [(RIGHT, None), (WRONG, Some(Verdict::Disk))] {
            let mut stage = Stage::stored(to, kind);
            stage.report();
            if to == 1 {
                stage.look(1, WRONG);
            }
            let reads = stage.scene.disks[0].reads;
            stage.look(0, WRONG);
            assert_eq!(stage.scene.disks[0].reads, reads + 1);
            stage.look(0, second);
            match verdict {
                None => {
                    stage.assert_again();
                    assert_eq!(stage.counted(to), [1, 0, 0, 1]);
                }
                Some(verdict) => {
                    stage.assert_verdict(verdict);
                    assert_eq!(stage.counted(0), [0, 0, 1, 0]);
                }
            }
            stage.end();
        }
    }
}

#[test]
fn a_disk_that_cannot_be_read_once_more_says_so() {
    let mut stage = Stage::stored(1, FILE);
    stage.report();
    stage.look(1, WRONG);
    stage.scene.disks[0].fault = Some(ShuffleError::new(ErrorKind::Io, "/spill: input/output error"));
    stage.look(0, WRONG);
    let (_, _, errors) = stage.scene.received(1, stage.reader);
    assert!(matches!(errors[0].kind(), ErrorKind::Io), "{errors:?}");
    stage.end();
}

#[test]
fn a_reader_that_leaves_meanwhile_leaves_nothing() {
    for to in [0, 1] {
        for steps in 0..3 {
            let mut stage = Stage::new(to);
            stage.report();
            if to == 1 && steps > 0 {
                stage.look(1, WRONG);
            }
            let node = if to == 1 && steps == 0 { 1 } else { 0 };
            let verify = stage.scene.nodes[node].poll_verify().expect("a sum is wanted");
            if steps == 2 {
                stage.scene.nodes[node].handle_verified(stage.scene.now, verify.ticket, Ok(RIGHT));
            }
            stage.scene.close_gate(to, stage.reader, partition(5));
            let release = shuffle_protocol::frame::ReleaseEntry {
                stream: stage.entry.stream,
                slot: stage.entry.slot,
                arena: stage.entry.arena,
            };
            let release = shuffle_protocol::frame::Batch::from_entries(&[release]);
            let reader = stage.reader;
            stage
                .scene
                .say(to, reader, shuffle_protocol::frame::Frame::Release(release));
            if steps < 2 {
                stage.scene.nodes[node].handle_verified(stage.scene.now, verify.ticket, Ok(WRONG));
            }
            stage.scene.exchange();
            assert_eq!(stage.received(), [], "it has left");
            stage.scene.nodes[to].check_invariants();
            stage.end();
        }
    }
}

#[test]
fn a_producer_that_does_not_answer_costs_the_request_timeout() {
    let mut stage = Stage::new(1);
    let started = stage.scene.now;
    stage.report();
    stage.look(1, WRONG);
    let unanswered = stage.scene.nodes[0].poll_verify().expect("it was asked");
    let timeout = stage.scene.nodes[0].config.request_timeout;
    while stage.scene.now < started + timeout {
        assert_eq!(stage.received(), []);
        stage.scene.pass(Duration::from_millis(500));
        stage.scene.exchange();
    }
    let error = stage.assert_verdict(Verdict::Untraced);
    assert!(
        matches!(error.first_cause().kind(), ErrorKind::TimedOut { .. }),
        "{error}"
    );
    stage.scene.nodes[0].handle_verified(stage.scene.now, unanswered.ticket, Ok(RIGHT));
    stage.scene.exchange();
    stage.end();
}

#[test]
fn nobody_can_report_what_he_does_not_hold() {
    for to in [0, 1] {
        let wrongs: [fn(&mut control::ReportMismatch); 3] = [
            |report| report.sequence += 2,
            |report| report.sequence = u64::MAX,
            |report| report.slot += 20,
        ];
        for (index, wrong) in wrongs.into_iter().enumerate() {
            let mut stage = Stage::new(to);
            let mut report = report_of(&stage.entry);
            wrong(&mut report);
            let frame = shuffle_protocol::frame::Frame::Control(Box::new(Message::ReportMismatch(report)));
            let told = stage.scene.nodes[to].handle_session_frame(stage.scene.now, stage.reader, frame);
            // Of a local channel the node knows the slot itself.
            let may = to == 0 && index == 2;
            assert_eq!(told.is_ok(), may, "{told:?}");
            if may {
                stage.look(0, RIGHT);
                stage.assert_again();
            }
            stage.end();
        }
    }
}
