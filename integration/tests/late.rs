//! F70: who has taken grants or credit, sleeps longer than it may and then speaks again is refused, whatever it repeats is counted
//! once, and at all times every buffer of the pool is in one place.

use std::time::Duration;

use bytes::BytesMut;
use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::Edge;
use integration::node::{Books, NodeOptions};
use integration::raw::{Heard, Raw, executor_hello};
use integration::script::{Channel, Command, Happened};
use integration::stamp::{SOURCE, partition};
use integration::wait::{until, within};
use rustix::process::Signal;
use shuffle_client::Session;
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{CreatePartition, Partition};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::{
    Frame, FrameKind, NumberEntry, SlotEntry, encode_data_head, encode_numbers, encode_ping,
};
use shuffle_protocol::{Sequence, StreamId, SubpartitionIndex};

const LIMIT: Duration = Duration::from_secs(30);
const POOL: u32 = 64;
const WRITER: u32 = 1;
const GRANTS: u64 = 4;

fn short_lived() -> NodeOptions {
    NodeOptions::new()
        .pool(POOL, 4096)
        .flag("keepalive", "300ms")
        .flag("dead-peer-timeout", "1500ms")
        .flag("executor-tcp", true)
}

/// The books, which add up to the pool.
async fn books(session: &Session) -> Books {
    let books = Books::of(&session.status().await.expect("alive"));
    let all = books.held() + books.get("free") + books.get("unassigned");
    assert_eq!(all, u64::from(POOL), "{books:?}");
    books
}

async fn until_books(session: &Session, what: &str, are: impl Fn(&Books) -> bool) {
    until(LIMIT, what, async || are(&books(session).await).then_some(())).await;
}

async fn tcp_executor(cluster: &Cluster) -> Raw {
    let mut raw = Raw::tcp(cluster.node(0).listens_on()).await.expect("the port");
    raw.send_control(&Message::Hello(executor_hello(SOURCE.job))).await;
    let welcome = raw.hear(LIMIT).await;
    assert!(format!("{welcome:?}").contains("Welcome"), "{welcome:?}");
    raw
}

fn create(request: u64) -> Message {
    Message::CreatePartition(CreatePartition {
        request,
        writer: WRITER,
        partition: Some(Partition {
            result: SOURCE.result,
            index: SOURCE.partition,
            attempt: SOURCE.attempt,
        }),
        subpartitions: 1,
        min_buffers: 1,
        max_buffers: 16,
        ..CreatePartition::default()
    })
}

/// Slots that are granted, until what was said before is answered; and the replies that were errors.
async fn granted(raw: &mut Raw, nonce: u64) -> (Vec<u32>, usize) {
    let mut ping = BytesMut::new();
    encode_ping(FrameKind::Ping, nonce, &mut ping);
    assert!(raw.send(&ping).await);
    let (mut slots, mut errors) = (Vec::new(), 0);
    loop {
        match raw.hear(LIMIT).await {
            Heard::Frame(Frame::Pong(heard)) if heard == nonce => return (slots, errors),
            Heard::Frame(Frame::Grant(batch)) => slots.extend(batch.iter().map(|grant| grant.slot)),
            Heard::Frame(Frame::Control(message)) => {
                errors += usize::from(matches!(*message, Message::Reply(reply) if reply.error.is_some()));
            }
            Heard::Frame(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A full buffer of the writer, with its payload.
fn late_data(slot: u32) -> BytesMut {
    let entry = SlotEntry {
        stream: StreamId::new(WRITER),
        slot,
        length: 4096,
        records: 1,
        ..SlotEntry::default()
    };
    let mut out = BytesMut::new();
    encode_data_head(StreamId::new(WRITER), Sequence::new(0), &[entry], &mut out);
    out.extend_from_slice(&[7; 4096]);
    out
}

#[tokio::test]
async fn an_executor_that_sleeps_past_its_time_keeps_no_grant_and_sends_nothing_late() {
    let cluster = Cluster::start(binaries!(), [short_lived(), short_lived()]).await;
    let watch = cluster.attach(0, 8).await;
    let mut asleep = tcp_executor(&cluster).await;
    let mut demand = BytesMut::new();
    let wanted = NumberEntry {
        stream: StreamId::new(WRITER),
        subpartition: SubpartitionIndex::new(0),
        number: GRANTS,
    };
    encode_numbers(FrameKind::Demand, &[wanted; 50], &mut demand);
    asleep.send_control(&create(1)).await;
    let (mut slots, errors) = granted(&mut asleep, 1).await;
    assert_eq!(errors, 0, "created");
    // Asked for again and again, in one frame and in many, it is the same demand.
    for nonce in 2..20 {
        asleep.send(&demand).await;
        asleep.send_control(&create(nonce)).await;
        let (more, errors) = granted(&mut asleep, nonce).await;
        assert_eq!(errors, 1, "a writer is created once");
        slots.extend(more);
        assert_eq!(books(&watch).await.get("granted"), GRANTS);
    }
    assert_eq!(u64::try_from(slots.len()), Ok(GRANTS), "{slots:?}");

    // It answers no ping any more. What it held comes home, and what it says then is too late.
    until_books(&watch, "it is given up", |books| books.get("granted") == 0).await;
    let refused = watch.status().await.expect("alive")["refused"];
    assert!(asleep.is_closed_within(LIMIT).await);
    asleep.send(&late_data(slots[0])).await;
    assert_eq!(books(&watch).await.held(), 0);

    // Nor does it get anywhere with its old slots on a new connection.
    for (attempt, slot) in (1..).zip(&slots) {
        let mut again = tcp_executor(&cluster).await;
        again.send(&late_data(*slot)).await;
        assert!(again.is_closed_within(LIMIT).await, "not its slot");
        assert_eq!(watch.status().await.expect("alive")["refused"], refused + attempt);
        assert_eq!(books(&watch).await.held(), 0);
    }
    cluster.assert_serves(0).await;
    drop(watch);
    cluster.shut_down().await;
}

#[tokio::test]
async fn a_server_that_sleeps_past_its_time_with_credit_wedges_nobody() {
    let mut cluster = Cluster::start(binaries!(), [short_lived(), short_lived()]).await;
    let producer = cluster.attach(0, 7).await;
    for round in 0..2 {
        let edge = Edge::new(Some(cluster.node(0).address()), partition(round), 100_000);
        let mut reader = cluster.executor(1, 7).await;
        let channel = Channel {
            node: Some(cluster.node(0).address().to_string()),
            source: edge.source,
            first: 0,
            count: 1,
            told_of: None,
        };
        let consume = Command::Consume {
            task: round,
            channels: vec![channel],
            records: edge.records,
            lengths: edge.lengths.clone(),
            credits: Some((8, 8)),
            group: None,
            stop_after: None,
        };
        reader.tell(&consume).await;
        let produce = {
            let (edge, session) = (edge.clone(), producer.clone());
            tokio::spawn(async move { edge.produce(&session).await })
        };
        let reads = |happened: &Happened| matches!(happened, Happened::Progress { .. });
        reader.hear_until(LIMIT, reads).await;

        let lost = producer.status().await.expect("alive")["peers_lost"];
        cluster.node(1).process().signal(Signal::STOP);
        until(LIMIT, "it is given up", async || {
            books(&producer).await;
            let status = producer.status().await.expect("alive");
            (status["peers_lost"] > lost).then_some(())
        })
        .await;
        cluster.node(1).process().signal(Signal::CONT);
        // Its credit, acknowledgements and requests of before come now. What nobody reads any more is thrown away: the writer
        // gets to its end, or is told.
        let watch = cluster.attach(1, 8).await;
        let told = async {
            let ends = reader.hear_end(round, LIMIT);
            tokio::pin!(ends);
            loop {
                books(&producer).await;
                books(&watch).await;
                if let Ok(end) = tokio::time::timeout(Duration::from_millis(1), &mut ends).await {
                    return end;
                }
            }
        };
        let told = within(LIMIT, "what the reader is told", told).await;
        assert!(matches!(told, Happened::Failed { .. }), "{told:?}");
        let end = within(LIMIT, "the writer's end", produce).await;
        let _ = end.expect("no panic");
        reader.kill().await;
        for session in [&producer, &watch] {
            until_books(session, "everything is home", |books| books.held() == 0).await;
        }
        drop(watch);
        until_trusted(&cluster, round * 1000).await;
        cluster.assert_serves(round).await;
    }
    drop(producer);
    cluster.shut_down().await;
}

/// Whoever slept may have given the other one up as well, for which it heard nothing of: whoever asks is then refused at once,
/// and makes it dial. Tries partitions from `first` on.
async fn until_trusted(cluster: &Cluster, first: u32) {
    let (producer, consumer) = (cluster.attach(0, SOURCE.job).await, cluster.attach(1, SOURCE.job).await);
    let tries = std::sync::atomic::AtomicU32::new(2000 + first);
    until(LIMIT, "the two are connected again", async || {
        let next = partition(tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let edge = Edge::new(Some(cluster.node(0).address()), next, 50);
        match edge.try_run(&producer, &consumer, LIMIT).await {
            Ok(_) => Some(()),
            Err(error) => match error.into_service() {
                error if matches!(error.kind(), ErrorKind::PeerLost { .. }) => None,
                error => panic!("{error}"),
            },
        }
    })
    .await;
}
