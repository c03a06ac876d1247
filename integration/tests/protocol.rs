//! Well-formed frames that say what cannot be: the sender is answered or closed, and nobody else is
//! concerned.

use std::time::Duration;

use bytes::BytesMut;
use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::Edge;
use integration::node::{BUFFER_BYTES, NodeOptions};
use integration::raw::{Heard, Raw, executor_hello, peer_hello};
use integration::stamp::{SOURCE, Source, partition};
use integration::wait::within;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{
    CancelChannel, ChannelRequest, CloseChannel, CreatePartition, OpenChannel, OpenGate, Partition, SubpartitionRange,
};
use shuffle_protocol::frame::{Arena, Frame, FrameKind, NumberEntry, ReleaseEntry, encode_numbers, encode_releases};
use shuffle_protocol::{StreamId, SubpartitionIndex};

const LIMIT: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(1);

fn cluster_options() -> NodeOptions {
    NodeOptions::new()
        .flag("dead-peer-timeout", "2s")
        .flag("keepalive", "500ms")
}

/// F100: words about channels that are not there yet, not any more or never are passed over: the connection that says them
/// stays open and does its work, and nobody else is concerned.
#[tokio::test]
async fn words_about_unknown_things_concern_nobody_else() {
    let cluster = Cluster::pair(binaries!()).await;
    let node = cluster.node(0);
    let mut executor = Raw::unix(node.socket()).await.expect("the Unix socket");
    executor.send_control(&Message::Hello(executor_hello(7))).await;
    assert!(matches!(executor.hear(SOON).await, Heard::Frame(_)), "welcome");
    executor
        .send_control(&Message::CancelChannel(CancelChannel { request: 1, stream: 99 }))
        .await;
    let answer = executor.hear(SOON).await;
    assert!(format!("{answer:?}").contains("Reply"), "{answer:?}");
    assert!(executor.is_answered_within(LIMIT, 1).await, "the session goes on");

    let producer = cluster.attach(0, 7).await;
    let edge = Edge::new(None, SOURCE, 3);
    edge.produce(&producer).await.expect("produced");
    let mut peer = Raw::tcp(node.listens_on()).await.expect("the TCP port");
    peer.send_control(&Message::Hello(peer_hello("127.0.0.1:9", node, BUFFER_BYTES)))
        .await;
    assert!(matches!(peer.hear(SOON).await, Heard::Frame(_)), "welcome");
    const CHANNEL: u32 = 1;
    for (nonce, stream) in [(2, 99), (3, CHANNEL), (4, u32::MAX)] {
        say_all(&mut peer, stream).await;
        assert!(peer.is_answered_within(LIMIT, nonce).await, "stream {stream}, not open");
    }
    // What was said about the channel before it was opened counts for nothing: it has the credit it is opened with.
    peer.send_control(&Message::OpenChannel(open_channel(CHANNEL, SOURCE)))
        .await;
    within(LIMIT, "the first buffer", async {
        while !matches!(peer.hear(LIMIT).await, Heard::Data(_)) {}
    })
    .await;
    peer.send_control(&Message::CloseChannel(CloseChannel {
        stream: CHANNEL,
        ..CloseChannel::default()
    }))
    .await;
    say_all(&mut peer, CHANNEL).await;
    assert!(peer.is_answered_within(LIMIT, 5).await, "a channel that was closed");
    cluster.assert_serves(0).await;
    assert!(peer.is_answered_within(LIMIT, 6).await, "still there");
    drop((executor, peer, producer));
    cluster.shut_down().await;
}

/// Credit, acknowledgement and the end of a channel.
async fn say_all(peer: &mut Raw, stream: u32) {
    let mut late = BytesMut::new();
    let number = |number| NumberEntry {
        stream: StreamId::new(stream),
        subpartition: SubpartitionIndex::new(0),
        number,
    };
    encode_numbers(FrameKind::Credit, &[number(1), number(2)], &mut late);
    encode_numbers(FrameKind::Ack, &[number(1)], &mut late);
    peer.send(&late).await;
    peer.send_control(&Message::CloseChannel(CloseChannel {
        stream,
        ..CloseChannel::default()
    }))
    .await;
}

fn open_channel(stream: u32, source: Source) -> OpenChannel {
    OpenChannel {
        stream,
        job: source.job,
        partition: Some(Partition {
            result: source.result,
            index: source.partition,
            attempt: source.attempt,
        }),
        range: Some(SubpartitionRange { first: 0, count: 1 }),
        credit: 1,
        ..OpenChannel::default()
    }
}

/// F99: credit that wraps, acknowledges what was never sent, or gives back what was never held: the
/// connection that says so is closed with a protocol error.
#[tokio::test]
async fn impossible_credit_acknowledgement_and_release_close_the_connection() {
    let cluster = Cluster::start(binaries!(), [cluster_options(), cluster_options()]).await;
    let node = cluster.node(0);
    let producer = cluster.attach(0, 7).await;
    for (round, (kind, number)) in [
        (FrameKind::Credit, u64::MAX),
        (FrameKind::Ack, u64::MAX),
        (FrameKind::Ack, 1 << 40),
    ]
    .into_iter()
    .enumerate()
    {
        let index = u32::try_from(round).expect("small");
        let source = partition(index);
        let edge = Edge::new(None, source, 3);
        edge.produce(&producer).await.expect("produced");
        let address = format!("127.0.0.1:{}", 9 + round);
        let mut peer = Raw::tcp(node.listens_on()).await.expect("the TCP port");
        peer.send_control(&Message::Hello(peer_hello(&address, node, BUFFER_BYTES)))
            .await;
        assert!(matches!(peer.hear(SOON).await, Heard::Frame(_)), "welcome");
        peer.send_control(&Message::OpenChannel(open_channel(1, source))).await;
        within(LIMIT, "the first buffer", async {
            while !matches!(peer.hear(LIMIT).await, Heard::Data(_)) {}
        })
        .await;
        let mut bad = BytesMut::new();
        encode_numbers(
            kind,
            &[NumberEntry {
                stream: StreamId::new(1),
                subpartition: SubpartitionIndex::new(0),
                number,
            }],
            &mut bad,
        );
        peer.send(&bad).await;
        assert!(peer.is_closed_within(SOON).await, "{kind:?} {number}");
        producer
            .release_partition(source.partition_id())
            .await
            .expect("nobody will read it");
    }

    let mut executor = Raw::unix(node.socket()).await.expect("the Unix socket");
    executor.send_control(&Message::Hello(executor_hello(7))).await;
    assert!(matches!(executor.hear(SOON).await, Heard::Frame(_)), "welcome");
    let mut bad = BytesMut::new();
    encode_releases(
        &[ReleaseEntry {
            stream: StreamId::new(1),
            slot: u32::MAX,
            arena: Arena::Read,
        }],
        &mut bad,
    );
    executor.send(&bad).await;
    assert!(
        executor.is_closed_within(SOON).await,
        "a release of what was never held"
    );
    drop(producer);
    cluster.assert_serves(9).await;
    cluster.shut_down().await;
}

/// F101, F52: requests that make no sense are answered, each with what is wrong.
#[tokio::test]
async fn senseless_requests_are_answered_one_by_one() {
    let cluster = Cluster::start(binaries!(), [cluster_options(), cluster_options()]).await;
    let node = cluster.node(0);
    let mut executor = Raw::unix(node.socket()).await.expect("the Unix socket");
    executor.send_control(&Message::Hello(executor_hello(7))).await;
    assert!(matches!(executor.hear(SOON).await, Heard::Frame(_)), "welcome");
    let partition = Some(Partition {
        result: 1,
        index: 1,
        attempt: 0,
    });
    let create = |request| CreatePartition {
        request,
        writer: u32::try_from(request).expect("small"),
        partition,
        subpartitions: 1,
        min_buffers: 1,
        ..CreatePartition::default()
    };
    let channel = |first, count| ChannelRequest {
        stream: 1,
        partition,
        range: Some(SubpartitionRange { first, count }),
        ..ChannelRequest::default()
    };
    let gate = |request, channel| OpenGate {
        request,
        gate: 1,
        exclusive: 2,
        channels: vec![channel],
        ..OpenGate::default()
    };
    let requests = vec![
        Message::CreatePartition(CreatePartition {
            partition: None,
            ..create(1)
        }),
        Message::CreatePartition(CreatePartition {
            min_buffers: 3,
            max_buffers: 2,
            ..create(2)
        }),
        Message::CreatePartition(CreatePartition {
            subpartitions: u32::MAX,
            ..create(3)
        }),
        Message::CreatePartition(CreatePartition {
            readiness: 1,
            ..create(4)
        }),
        Message::CreatePartition(CreatePartition {
            lifetime: 55,
            ..create(5)
        }),
        Message::OpenGate(gate(
            6,
            ChannelRequest {
                range: None,
                ..channel(0, 1)
            },
        )),
        Message::OpenGate(gate(7, channel(0, 0))),
        Message::OpenGate(gate(8, channel(u32::MAX, 2))),
        Message::OpenGate(gate(
            9,
            ChannelRequest {
                node: "nonsense".to_owned(),
                ..channel(0, 1)
            },
        )),
    ];
    for (index, request) in requests.iter().enumerate() {
        executor.send_control(request).await;
        let Heard::Frame(Frame::Control(answer)) = executor.hear(SOON).await else {
            panic!("request {} is answered", index + 1);
        };
        let Message::Reply(reply) = *answer else {
            panic!("{answer:?} to {request:?}")
        };
        assert_eq!(reply.request, u64::try_from(index).expect("small") + 1);
        assert!(reply.error.is_some(), "{request:?} makes no sense");
    }
    drop(executor);
    cluster.assert_serves(0).await;
    cluster.shut_down().await;
}
