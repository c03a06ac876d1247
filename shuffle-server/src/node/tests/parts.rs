//! Names and frames of the scenes.

use std::iter::Peekable;

use buffer_pool::{NetworkPool, NoBacking, PoolConfig, SlotRef};
use shuffle_protocol::frame::{Arena, Batch, DataHead, Frame, SlotEntry};
use shuffle_protocol::partition::{BufferKind, Codec};
use shuffle_protocol::{
    GroupRef, Incarnation, JobId, NodeAddress, PartitionId, ResultId, Sequence, StreamId, SubpartitionIndex,
};

use crate::node::{Node, NodeConfig, Output};

pub(super) const JOB: JobId = JobId::new(7);

pub(super) fn partition(attempt: u32) -> PartitionId {
    PartitionId {
        result: ResultId::new(11),
        index: 3,
        attempt,
    }
}

pub(super) fn address(index: usize) -> NodeAddress {
    NodeAddress::parse(&format!("node{index}:70")).unwrap()
}

/// Which start of which node's server.
pub(super) fn incarnation(index: usize, start: usize) -> Incarnation {
    Incarnation::new(index as u64 + 1 + 1000 * start as u64)
}

pub(super) fn node(index: usize, start: usize, buffers: u32) -> Node<NoBacking> {
    let config = PoolConfig {
        total_buffers: buffers,
        buffer_bytes: 4096,
        extent_buffers: 4,
        read_reserve_buffers: buffers / 4,
    };
    let pool = NetworkPool::new(config, NoBacking).unwrap();
    let mut config = NodeConfig::new(address(index), incarnation(index, start), 4096);
    config.disks = true;
    Node::new(config, pool)
}

pub(super) fn group(nodes: usize, home: usize) -> GroupRef {
    GroupRef {
        id: shuffle_protocol::GroupId::new(5),
        home: address(home),
        nodes: (0..nodes).map(address).collect(),
    }
}

pub(super) fn filled(id: PartitionId, ordinal: u64, slot: u32) -> SlotEntry {
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
        unchecked: false,
        codec: Codec::Plain,
        more_slices: false,
    }
}

pub(super) fn frame_of(output: Output) -> Frame {
    match output {
        Output::Control(message) => Frame::Control(message),
        Output::End(entry) => Frame::End(Batch::from_entries(&[entry])),
        Output::Credit(entry) => Frame::Credit(Batch::from_entries(&[entry])),
        Output::Ack(entry) => Frame::Ack(Batch::from_entries(&[entry])),
        Output::Backlog(entry) => Frame::Backlog(Batch::from_entries(&[entry])),
        Output::Ping(nonce) => Frame::Ping(nonce),
        Output::Pong(nonce) => Frame::Pong(nonce),
        Output::Slot { .. } | Output::Joined { .. } | Output::Grant(_) => unreachable!("not between nodes as a frame"),
    }
}

/// A buffer and those that go in its frame; nothing where it is none.
pub(super) fn frame_with(
    output: &Output,
    out: &mut Peekable<impl Iterator<Item = Output>>,
) -> Vec<(SlotEntry, SlotRef)> {
    let mut frame: Vec<_> = output.buffer().into_iter().collect();
    while let Some(joined) = out.next_if(|next| matches!(next, Output::Joined { .. })) {
        frame.extend(joined.buffer());
    }
    frame
}

/// The head of the frame of these.
pub(super) fn head_of(frame: &[(SlotEntry, SlotRef)]) -> DataHead {
    let entries: Vec<SlotEntry> = frame.iter().map(|(entry, _)| *entry).collect();
    DataHead {
        slots: Batch::from_entries(&entries),
        payload_bytes: entries.iter().map(|entry| entry.length).sum(),
        sequence: entries[0].sequence,
        stream: entries[0].stream,
    }
}
