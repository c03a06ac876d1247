//! One of everything: frames and control messages, and headers with anything in them.

// Each user of it uses a part.
#![allow(dead_code)]

use bytes::BytesMut;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::{ErrorKind, ShuffleError};
use shuffle_protocol::frame::{
    EndEntry, FrameKind, GrantEntry, HEADER_BYTES, MAGIC, NumberEntry, ReleaseEntry, SlotEntry, WIRE_VERSION,
    encode_control, encode_data_head, encode_ends, encode_grants, encode_numbers, encode_ping, encode_releases,
    encode_slots,
};
use shuffle_protocol::ids::{JobId, PartitionId, ResultId, Sequence, StreamId, SubpartitionIndex};
use shuffle_protocol::partition::{BufferKind, PartitionKind, Totals};

pub(crate) const KINDS: [FrameKind; 12] = [
    FrameKind::Control,
    FrameKind::Data,
    FrameKind::Slots,
    FrameKind::Release,
    FrameKind::Ack,
    FrameKind::Credit,
    FrameKind::Backlog,
    FrameKind::Demand,
    FrameKind::Grant,
    FrameKind::End,
    FrameKind::Ping,
    FrameKind::Pong,
];

/// A frame of every kind: a name, the bytes, and how many of them are under a checksum of the frame.
pub(crate) fn frames() -> Vec<(&'static str, Vec<u8>, usize)> {
    let slot = SlotEntry {
        stream: StreamId::new(3),
        subpartition: SubpartitionIndex::new(13),
        sequence: Sequence::new(40),
        slot: 17,
        offset: 64,
        length: 1000,
        checksum: 0xDEAD_BEEF,
        records: 9,
        backlog: 2,
        partial_start: true,
        ..SlotEntry::default()
    };
    let event = SlotEntry {
        kind: BufferKind::Event,
        continues: true,
        length: 24,
        ..slot
    };
    let mut totals = Totals::default();
    totals.add_buffer(slot.length, slot.checksum, slot.records, slot.kind);
    let end = EndEntry {
        stream: slot.stream,
        sequence: Sequence::new(41),
        totals,
        last: true,
        ..EndEntry::default()
    };
    let number = NumberEntry {
        stream: slot.stream,
        number: 42,
        ..NumberEntry::default()
    };
    let release = ReleaseEntry {
        stream: slot.stream,
        slot: 17,
        ..ReleaseEntry::default()
    };
    let grant = GrantEntry {
        writer: slot.writer(),
        slot: 17,
    };

    let frame = |encode: &dyn Fn(&mut BytesMut)| {
        let mut wire = BytesMut::new();
        encode(&mut wire);
        wire.to_vec()
    };
    let mut frames = vec![
        (
            "control",
            frame(&|out| encode_control(&messages()[0], out).expect("a small message")),
        ),
        ("slots", frame(&|out| encode_slots(&[slot, event], out))),
        (
            "release",
            frame(&|out| encode_releases(&[release, release, release], out)),
        ),
        ("ack", frame(&|out| encode_numbers(FrameKind::Ack, &[number], out))),
        (
            "credit",
            frame(&|out| encode_numbers(FrameKind::Credit, &[number, number], out)),
        ),
        (
            "backlog",
            frame(&|out| encode_numbers(FrameKind::Backlog, &[number], out)),
        ),
        (
            "demand",
            frame(&|out| encode_numbers(FrameKind::Demand, &[number], out)),
        ),
        ("grant", frame(&|out| encode_grants(&[grant, grant], out))),
        ("end", frame(&|out| encode_ends(&[end], out))),
        (
            "ping",
            frame(&|out| encode_ping(FrameKind::Ping, 0x0123_4567_89AB_CDEF, out)),
        ),
        ("pong", frame(&|out| encode_ping(FrameKind::Pong, u64::MAX, out))),
    ]
    .into_iter()
    .map(|(name, wire)| (name, wire.clone(), wire.len()))
    .collect::<Vec<_>>();

    let second = SlotEntry {
        sequence: Sequence::new(41),
        length: 24,
        ..event
    };
    let mut data = frame(&|out| {
        encode_data_head(slot.stream, slot.sequence, &[slot, second], out);
    });
    let checked = data.len();
    data.resize(checked + 1024, 0xA5);
    frames.push(("data", data, checked));
    frames
}

/// A header with anything in it and a checksum that fits.
pub(crate) fn header(kind: FrameKind, length: u32, count: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[4] = WIRE_VERSION;
    header[5] = kind as u8;
    header[8..12].copy_from_slice(&length.to_le_bytes());
    header[12..16].copy_from_slice(&count.to_le_bytes());
    seal(&mut header);
    header
}

/// Makes the checksum of a header fit.
pub(crate) fn seal(header: &mut [u8]) {
    let checksum = crc32fast::hash(&header[..36]);
    header[36..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
}

/// Makes both checksums of a frame with so many bytes of entries fit.
pub(crate) fn seal_frame(wire: &mut [u8], entries: usize) {
    let checksum = crc32fast::hash(&wire[HEADER_BYTES..HEADER_BYTES + entries]);
    wire[32..36].copy_from_slice(&checksum.to_le_bytes());
    seal(wire);
}

/// Control messages of every kind that holds more than a number.
pub(crate) fn messages() -> Vec<Message> {
    let id = PartitionId {
        result: ResultId::new(7),
        index: 11,
        attempt: 5,
    };
    let partition = Some(control::Partition::from(id));
    let range = Some(control::SubpartitionRange { first: 13, count: 2 });
    let group = Some(control::Group {
        id: 19,
        home: "node-a:7070".to_owned(),
        nodes: vec!["node-a:7070".to_owned(), "[::1]:7071".to_owned()],
    });
    let error = ShuffleError::new(ErrorKind::PartitionFailed, "no more rows")
        .job(JobId::new(3))
        .partition(id)
        .because(ShuffleError::new(ErrorKind::ExecutorDied, "signal 9").path("/run/x"));
    let error = Some(control::Error::from(&error));
    let later = error.clone();
    vec![
        Message::Hello(control::Hello {
            version_min: 1,
            version_max: 1,
            role: control::Role::Peer.into(),
            node: "node-a:7070".to_owned(),
            expected_node: "node-b:7070".to_owned(),
            incarnation: 23,
            buffer_bytes: 32 << 10,
            ..control::Hello::default()
        }),
        Message::Hello(control::Hello {
            version_min: 1,
            version_max: 3,
            role: control::Role::Executor.into(),
            job: 3,
            token: vec![1; 49],
            name: "executor 1".to_owned(),
            ..control::Hello::default()
        }),
        Message::Welcome(control::Welcome {
            version: 1,
            node: "node-b:7070".to_owned(),
            incarnation: 29,
            buffer_bytes: 32 << 10,
            keepalive_interval_ms: 5_000,
            dead_peer_after_ms: 15_000,
            arena_buffers: 2048,
            ..control::Welcome::default()
        }),
        Message::Reject(control::Reject { error: error.clone() }),
        Message::CreatePartition(
            control::CreatePartition {
                request: 1,
                writer: 2,
                partition,
                subpartitions: 64,
                min_buffers: 65,
                group: group.clone(),
                broadcast: true,
                consumers: vec![control::Consumers {
                    node: "node-b:7070".to_owned(),
                    count: 16,
                }],
                ..control::CreatePartition::default()
            }
            .with_kind(PartitionKind::PIPELINE),
        ),
        Message::FinishPartition(control::FinishPartition {
            request: 2,
            writer: 2,
            totals: vec![control::SubpartitionTotals::new(
                SubpartitionIndex::new(13),
                &Totals {
                    buffers: 1,
                    records: 2,
                    bytes: 3,
                    ..Totals::default()
                },
            )],
        }),
        Message::OpenGate(control::OpenGate {
            request: 3,
            gate: 1,
            exclusive: 2,
            floating: 8,
            channels: vec![control::ChannelRequest {
                stream: 31,
                node: "node-b:7070".to_owned(),
                partition,
                range,
                broadcast: Some(control::Broadcast { consumers: 16 }),
            }],
            group: group.clone(),
            ..control::OpenGate::default()
        }),
        Message::OpenChannel(control::OpenChannel {
            stream: 31,
            job: 3,
            partition,
            range,
            credit: 4,
            acknowledged: 1,
            received: 2,
            resume: true,
            group: group.clone(),
            broadcast: Some(control::Broadcast { consumers: 16 }),
            moved: Some(control::MovedConsumers {
                stream: 5,
                consumers: 3,
                from: 77,
            }),
            ..control::OpenChannel::default()
        }),
        Message::CloseChannel(control::CloseChannel {
            stream: 31,
            error: error.clone(),
            ..control::CloseChannel::default()
        }),
        Message::ReportMismatch(control::ReportMismatch {
            stream: 31,
            sequence: 40,
            subpartition: 13,
            slot: 17,
            write_arena: true,
            length: 1000,
            expected: 0xDEAD_BEEF,
            got: 1,
            offset: 96,
        }),
        Message::TraceBuffer(control::TraceBuffer {
            stream: 31,
            sequence: 40,
            got: 1,
        }),
        Message::Fence(control::Fence {
            request: 4,
            partition,
            nodes: vec!["node-b:7070".to_owned()],
        }),
        Message::GroupVerdict(control::GroupVerdict {
            job: 3,
            group: group.clone(),
            cause: error.clone(),
        }),
        Message::GroupJoin(control::GroupJoin { job: 3, group }),
        Message::GroupLeave(control::GroupLeave { job: 3, group: 9 }),
        Message::AudienceClosed(control::AudienceClosed { stream: 31 }),
        Message::Refetchable(control::Refetchable { stream: 32 }),
        Message::Reply(control::Reply {
            request: 1,
            error,
            status: Some(control::StatusReport {
                counters: vec![control::Counter {
                    name: "buffers_free".to_owned(),
                    value: 2048,
                }],
            }),
        }),
        Message::Goodbye(control::Goodbye { reason: None }),
        Message::PartitionEvents(control::PartitionEvents {
            number: 5,
            events: vec![
                control::PartitionEvent {
                    partition,
                    phase: control::PartitionPhase::Finished.into(),
                    subpartitions: 3,
                    bytes: vec![0, 70_000, 1],
                    ..control::PartitionEvent::default()
                },
                control::PartitionEvent {
                    partition,
                    phase: control::PartitionPhase::Failed.into(),
                    cause: later,
                    ..control::PartitionEvent::default()
                },
            ],
            snapshot_complete: true,
        }),
    ]
}
