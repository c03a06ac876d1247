//! Well-formed frames that say what cannot be: the sender is answered or closed, and nobody else is
//! concerned.

use std::time::Duration;

use bytes::BytesMut;
use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::Edge;
use integration::node::NodeOptions;
use integration::raw::{Heard, Raw, executor_hello, peer_hello};
use integration::stamp::Source;
use integration::wait::within;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{
    CancelChannel, ChannelRequest, CloseChannel, CreatePartition, OpenChannel, OpenGate, Partition, SubpartitionRange,
};
use shuffle_protocol::frame::{Arena, Frame, FrameKind, NumberEntry, ReleaseEntry, encode_numbers, encode_releases};
use shuffle_protocol::{StreamId, SubpartitionIndex};

const LIMIT: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(1);
const SOURCE: Source = Source {
    job: 7,
    result: 1011,
    partition: 13,
    attempt: 5,
};
const BUFFER: u32 = 32 << 10;

fn cluster_options() -> NodeOptions {
    NodeOptions::new()
        .flag("dead-peer-timeout", "2s")
        .flag("keepalive", "500ms")
}

async fn alive_and_well(cluster: &Cluster, round: u32) {
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let source = Source {
        partition: 1000 + round,
        ..SOURCE
    };
    Edge::new(Some(cluster.node(0).address()), source, 50)
        .run(&producer, &consumer, LIMIT)
        .await;
}

/// F100: late or early words about things that are not there are ignored or refused precisely; only
/// who says them is concerned.
#[tokio::test]
async fn words_about_unknown_things_concern_nobody_else() {
    let cluster = Cluster::start(binaries!(), [cluster_options(), cluster_options()]).await;
    let node = cluster.node(0);
    let mut executor = Raw::unix(node.socket()).await.expect("the Unix socket");
    executor.send_control(&Message::Hello(executor_hello(7))).await;
    assert!(matches!(executor.hear(SOON).await, Heard::Frame(_)), "welcome");
    executor
        .send_control(&Message::CancelChannel(CancelChannel { request: 1, stream: 99 }))
        .await;
    let answer = executor.hear(SOON).await;
    assert!(format!("{answer:?}").contains("Reply"), "{answer:?}");

    let mut peer = Raw::tcp(node.listens_on()).await.expect("the TCP port");
    peer.send_control(&Message::Hello(peer_hello("127.0.0.1:9", node, BUFFER)))
        .await;
    assert!(matches!(peer.hear(SOON).await, Heard::Frame(_)), "welcome");
    let mut late = BytesMut::new();
    let number = |stream: u32| NumberEntry {
        stream: StreamId::new(stream),
        subpartition: SubpartitionIndex::new(0),
        number: 1,
    };
    encode_numbers(FrameKind::Credit, &[number(1), number(2)], &mut late);
    encode_numbers(FrameKind::Ack, &[number(1)], &mut late);
    peer.send(&late).await;
    peer.send_control(&Message::CloseChannel(CloseChannel {
        stream: 5,
        ..CloseChannel::default()
    }))
    .await;
    alive_and_well(&cluster, 0).await;
    drop((executor, peer));
    cluster.shut_down().await;
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
        let source = Source {
            partition: index,
            ..SOURCE
        };
        let edge = Edge::new(None, source, 3);
        edge.produce(&producer).await.expect("produced");
        let address = format!("127.0.0.1:{}", 9 + round);
        let mut peer = Raw::tcp(node.listens_on()).await.expect("the TCP port");
        peer.send_control(&Message::Hello(peer_hello(&address, node, BUFFER)))
            .await;
        assert!(matches!(peer.hear(SOON).await, Heard::Frame(_)), "welcome");
        let open = OpenChannel {
            stream: 1,
            job: 7,
            partition: Some(Partition {
                result: source.result,
                index,
                attempt: source.attempt,
            }),
            range: Some(SubpartitionRange { first: 0, count: 1 }),
            credit: 1,
            ..OpenChannel::default()
        };
        peer.send_control(&Message::OpenChannel(open)).await;
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
    alive_and_well(&cluster, 9).await;
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
            subpartitions: 0,
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
    alive_and_well(&cluster, 0).await;
    cluster.shut_down().await;
}
