//! Connections between nodes break, stall and lie; channels go on at the acknowledgement or fail with
//! a cause, never neither.

use std::time::Duration;

use integration::binaries;
use integration::cluster::{BASE_WITHIN, Cluster};
use integration::flow::{Edge, kinds, read_all, read_some, read_to_error};
use integration::node::NodeOptions;
use integration::profile::Profile;
use integration::proxy::{Action, Direction, HEADER_BYTES, Trigger, kind};
use integration::stamp::{Lengths, SOURCE, partition};
use integration::wait::{timed, until_true, within};
use integration::way::Way;
use shuffle_client::Session;
use shuffle_protocol::ShuffleError;
use shuffle_protocol::error::ErrorKind;
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(60);

fn proxied() -> [NodeOptions; 2] {
    let quick = || {
        NodeOptions::new()
            .flag("dead-peer-timeout", "3s")
            .flag("keepalive", "500ms")
    };
    [quick().behind_proxy(), quick()]
}

/// F07, F46: whatever frame the connection breaks at, in whichever direction, every record arrives
/// once.
#[tokio::test]
async fn a_connection_cut_at_any_frame_resumes_without_loss_or_repeat() {
    for way in Way::of_this_run() {
        let options = proxied().map(|one| one.pool(256, 16 << 10).send(way));
        let cluster = Cluster::start(binaries!(), options).await;
        let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
        for (index, (direction, trigger)) in (0..).zip(cuts()) {
            let edge = Edge::new(Some(cluster.node(0).address()), partition(index), 1000).lengths(Lengths::Fixed(500));
            cut_once(&cluster, &edge, [&producer, &consumer], direction, trigger).await;
        }
        way.assert_was_taken(&producer.status().await.expect("alive"));
        drop((producer, consumer));
        cluster.shut_down().await;
    }
}

fn cuts() -> Vec<(Direction, Trigger)> {
    let header = u64::try_from(HEADER_BYTES).expect("small");
    let mut cuts = Vec::new();
    for nth in [1, 2, 5] {
        for after in [0, 1, header - 1, header, header + 20, header + 48 + 1000] {
            cuts.push((
                Direction::Down,
                Trigger::Frame {
                    kind: kind::DATA,
                    nth,
                    after,
                },
            ));
        }
        for after in [0, header, header + 3] {
            cuts.push((
                Direction::Up,
                Trigger::Frame {
                    kind: kind::CREDIT,
                    nth,
                    after,
                },
            ));
            cuts.push((
                Direction::Up,
                Trigger::Frame {
                    kind: kind::ACK,
                    nth,
                    after,
                },
            ));
        }
    }
    cuts.push((
        Direction::Down,
        Trigger::Frame {
            kind: kind::END,
            nth: 1,
            after: 0,
        },
    ));
    cuts.push((
        Direction::Down,
        Trigger::Frame {
            kind: kind::END,
            nth: 1,
            after: header + 10,
        },
    ));
    cuts
}

async fn cut_once(cluster: &Cluster, edge: &Edge, sessions: [&Session; 2], direction: Direction, trigger: Trigger) {
    let [producer, consumer] = sessions;
    let proxy = cluster.node(0).proxy();
    let before = proxy.fired();
    proxy.inject(direction, trigger, Action::Cut);
    // Few credits, so that each of them travels in a frame of its own.
    let read = async {
        let mut gate = consumer.open_gate(edge.gate().credits(1, 1)).await.expect("a gate");
        read_all(&mut gate, &[edge.source], &mut edge.oracle()).await
    };
    let both = async { tokio::join!(edge.produce(producer), read) };
    let (produced, consumed) = within(LIMIT, "one edge", both).await;
    assert_eq!(produced.expect("produced"), consumed.expect("everything, once"));
    assert_eq!(proxy.fired(), before + 1, "the cut {trigger:?} {direction:?} struck");
}

/// F07: tiny records, and the connection is reset again and again, also while the producer finishes. Between two resets some
/// data goes by, however busy or fast the machine is.
#[tokio::test]
async fn tiny_records_survive_a_reset_every_few_buffers() {
    const BETWEEN: u64 = 64 << 10;
    let (records, least) = Profile::current().choose((60_000, 3), (2_000_000, 100));
    let options = proxied().map(|one| one.flag("dead-peer-timeout", "15s"));
    let cluster = Cluster::start(binaries!(), options).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let proxy = cluster.node(0).proxy();
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, records / 4)
        .subpartitions(4)
        .lengths(Lengths::Spread { least: 0, most: 60 });
    let (mut resets, mut next) = (0, BETWEEN);
    let limit = Profile::current().choose(LIMIT, Duration::from_secs(1200));
    let (produced, consumed) = {
        let both = async { tokio::join!(edge.produce(&producer), edge.consume(&consumer)) };
        let mut transfer = std::pin::pin!(within(limit, "the records", both));
        loop {
            tokio::select! {
                done = &mut transfer => break done,
                () = tokio::time::sleep(Duration::from_millis(1)) => if proxy.bytes(Direction::Down) >= next {
                    resets += proxy.cut_all();
                    next = proxy.bytes(Direction::Down) + BETWEEN;
                },
            }
        }
    };
    assert_eq!(produced.expect("produced"), consumed.expect("everything, once"));
    assert!(resets >= least, "only {resets} connections were reset");
    drop((producer, consumer));
    cluster.shut_down().await;
}

/// F51: a peer that vanishes without a word, while a reader (a) waits for data, (b) is in the middle
/// of it, (c) holds all credits. The kernel still accepts our bytes.
#[tokio::test]
async fn a_silent_peer_is_noticed_within_the_dead_peer_time() {
    for state in ["idle", "streaming", "without credit"] {
        let cluster = Cluster::start(binaries!(), proxied()).await;
        let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
        let proxy = cluster.node(0).proxy();
        let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 100_000);
        let mut writer = producer.create_partition(edge.partition()).await.expect("created");
        let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
        let mut writing = JoinSet::new();
        let first = if state == "idle" { 10 } else { edge.records };
        let some = Edge {
            records: first,
            ..edge.clone()
        };
        writing.spawn(async move {
            some.write(&mut writer).await.expect("written");
            writer.flush().await.expect("flushed");
            std::future::pending::<()>().await;
        });
        let mut oracle = edge.oracle();
        read_some(&mut gate, &[SOURCE], &mut oracle, 10)
            .await
            .expect("the first records");
        let mut held = Vec::new();
        if state == "without credit" {
            // A record is a view of its buffer: who keeps records keeps credits.
            let quiet = Duration::from_millis(300);
            while let Ok(record) = tokio::time::timeout(quiet, gate.next_record()).await {
                held.push(record.expect("no error"));
            }
        }
        proxy.black_hole(true);
        let (error, took) = timed(within(LIMIT, "the verdict", read_to_error(&mut gate))).await;
        assert!(
            matches!(error.first_cause().kind(), ErrorKind::PeerLost { .. }),
            "{state}: {error}"
        );
        assert!(
            error.to_string().contains(&cluster.node(0).address().to_string()),
            "{state}: {error}"
        );
        assert!(
            took < Duration::from_secs(5),
            "{state}: the dead-peer time is 3 s, it took {took:?}"
        );
        drop((held, gate, consumer));
        cluster.node(1).assert_base(BASE_WITHIN).await;
        writing.abort_all();
        while writing.join_next().await.is_some() {}
        drop(producer);
        cluster.shut_down().await;
    }
}

/// F54: a server dies with many requests in flight; each is answered once, and soon.
#[tokio::test]
async fn a_killed_server_fails_every_request_in_flight_once() {
    let requests: u32 = Profile::current().choose(200, 1000);
    // Each gate is guaranteed a buffer.
    let options = proxied().map(|one| one.pool(2048, 4 << 10).flag("request-timeout", "5m"));
    let mut cluster = Cluster::start(binaries!(), options).await;
    let consumer = cluster.attach(1, 7).await;
    let from = cluster.node(0).address();
    let mut readers = JoinSet::new();
    for index in 0..requests {
        let (session, edge) = (consumer.clone(), Edge::new(Some(from.clone()), partition(index), 1));
        readers.spawn(async move {
            let mut gate = session.open_gate(edge.gate().credits(0, 1)).await?;
            gate.next_record().await.map(drop)
        });
    }
    let asked = || cluster.node(0).proxy().frames(Direction::Up, kind::CONTROL) > u64::from(requests) / 2;
    until_true(LIMIT, "the requests are in flight", asked).await;
    cluster.node_mut(0).process_mut().kill().await;
    let (answers, took) = timed(within(LIMIT, "all answers", readers.join_all())).await;
    assert_eq!(answers.len(), usize::try_from(requests).expect("small"));
    for answer in answers {
        let error: ShuffleError = answer.expect_err("the server is dead");
        assert!(!matches!(error.kind(), ErrorKind::NotRegistered { .. }), "{error}");
    }
    assert!(took < Duration::from_secs(8), "{took:?}");
    cluster.node(1).assert_base(BASE_WITHIN).await;
    let status = consumer.status().await.expect("alive");
    assert_eq!((status["channels_fetching"], status["gates"]), (0, 0));
    drop(consumer);
    cluster.shut_down().await;
}

/// A server that comes back is another incarnation: what it held is gone, and its readers are told so.
#[tokio::test]
async fn a_restarted_server_is_not_taken_for_the_old_one() {
    let mut cluster = Cluster::start(binaries!(), proxied()).await;
    let consumer = cluster.attach(1, 7).await;
    let mut producer = cluster.executor(0, 7).await;
    let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 10);
    producer
        .tell(&integration::script::Command::Produce {
            task: 1,
            source: SOURCE,
            subpartitions: 1,
            records: 10,
            lengths: edge.lengths.clone(),
            buffers: None,
            group: None,
            then: integration::script::Then::Hold,
        })
        .await;
    let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
    let mut oracle = edge.oracle();
    within(LIMIT, "ten records", read_some(&mut gate, &[SOURCE], &mut oracle, 10))
        .await
        .expect("read");
    cluster.node_mut(0).process_mut().kill().await;
    cluster.node_mut(0).restart().await;
    let error = within(LIMIT, "the verdict", gate.next_record())
        .await
        .expect_err("its data is gone");
    let told = kinds(&error);
    let right = told
        .iter()
        .any(|kind| kind == "PeerRestarted" || kind == "ConnectionLost" || kind == "NodeUnreachable");
    assert!(right, "{error}");
    let again = Edge::new(Some(cluster.node(0).address()), partition(50), 100);
    let session = cluster.attach(0, 7).await;
    again.run(&session, &consumer, LIMIT).await;
    producer.kill().await;
    drop((gate, session, consumer));
    cluster.shut_down().await;
}

/// F76: a buffer of which only a part has arrived when everything ends comes home.
#[tokio::test]
async fn a_half_received_buffer_comes_home() {
    for way in Way::of_this_run() {
        half_receive(way).await;
    }
}

async fn half_receive(way: Way) {
    let cluster = Cluster::start(binaries!(), proxied().map(|one| one.send(way))).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let proxy = cluster.node(0).proxy();
    for index in 0..10 {
        let edge = Edge::new(Some(cluster.node(0).address()), partition(index), 100).lengths(Lengths::Fixed(20_000));
        let header = u64::try_from(HEADER_BYTES).expect("small");
        let trigger = Trigger::Frame {
            kind: kind::DATA,
            nth: 2,
            after: header + 48 + 5000,
        };
        let before = proxy.fired();
        proxy.inject(Direction::Down, trigger, Action::Cut);
        let mut writer = producer
            .create_partition(edge.partition().max_queued(200))
            .await
            .expect("created");
        let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
        edge.write(&mut writer).await.expect("written");
        until_true(LIMIT, "the cut", || proxy.fired() > before).await;
        drop(gate.next_buffer().await);
        drop((gate, writer));
        cluster.assert_base().await;
    }
    let edge = Edge::new(Some(cluster.node(0).address()), partition(99), 500);
    edge.run(&producer, &consumer, LIMIT).await;
    way.assert_was_taken(&producer.status().await.expect("alive"));
    drop((producer, consumer));
    cluster.shut_down().await;
}
