//! A newer attempt takes the place of an older one, wherever it runs and however that becomes known.

use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::Edge;
use integration::node::{Books, NodeOptions};
use integration::script::{Command, Happened, Then};
use integration::stamp::{Lengths, SOURCE, Source};
use integration::wait::{until, within};
use rustix::process::Signal;
use shuffle_client::{Gate, GateSpec, PartitionSpec, Writer};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{PartitionId, ShuffleError, SubpartitionIndex, SubpartitionRange};

const LIMIT: Duration = Duration::from_secs(30);

/// What a writer is told at last; it is written to until then.
async fn refusal(writer: &mut Writer) -> ShuffleError {
    let write = async {
        loop {
            if let Err(error) = writer.write_to(SubpartitionIndex::new(0), &[1; 1000]).await {
                return error;
            }
            tokio::task::yield_now().await;
        }
    };
    within(LIMIT, "the writer is refused", write).await
}

/// What a gate is told at last; what comes before is read.
async fn verdict(gate: &mut Gate) -> ShuffleError {
    let read = async {
        loop {
            match gate.next_record().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("a fenced attempt has no end"),
                Err(error) => return error,
            }
        }
    };
    within(LIMIT, "the fence", read).await
}

fn is_superseded_by(error: &ShuffleError, attempt: u32) -> bool {
    matches!(error.kind(), ErrorKind::Superseded { by_attempt } if *by_attempt == attempt)
}

/// F24: an old attempt that was stopped and wakes up again reaches nobody.
#[tokio::test]
async fn a_stale_attempt_that_wakes_up_is_fenced() {
    let mut cluster = Cluster::pair(binaries!()).await;
    let mut old = cluster.executor(0, 7).await;
    let mut new = cluster.executor(0, 7).await;
    let consumer = cluster.attach(1, 7).await;
    let from = Some(cluster.node(0).address());
    let attempt = |attempt| Source { attempt, ..SOURCE };
    let produce = |task, source, then| Command::Produce {
        task,
        source,
        subpartitions: 1,
        records: 2000,
        lengths: Lengths::Fixed(1000),
        buffers: None,
        group: None,
        then,
    };

    let stale = Edge::new(from.clone(), attempt(0), 2000);
    let mut stale_gate = consumer.open_gate(stale.gate()).await.expect("a gate");
    old.tell(&produce(1, attempt(0), Then::Finish)).await;
    old.hear_until(LIMIT, |event| matches!(event, Happened::Progress { .. }))
        .await;
    old.stop();

    new.tell(&produce(1, attempt(1), Then::Finish)).await;
    new.hear_until(LIMIT, |event| matches!(event, Happened::Opened { .. }))
        .await;
    old.go_on();

    let fresh = Edge::new(from, attempt(1), 2000);
    let counts = within(LIMIT, "the new attempt", fresh.consume(&consumer)).await;
    assert_eq!(counts.expect("only the new attempt").records, 2000);
    assert!(matches!(new.hear_end(1, LIMIT).await, Happened::Done { .. }));
    match old.hear_end(1, LIMIT).await {
        Happened::Failed { kind, text, .. } => assert_eq!(kind, "Superseded", "{text}"),
        other => panic!("the old attempt must be refused, not {other:?}"),
    }
    let error = loop {
        match within(LIMIT, "the fence", stale_gate.next_record()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a fenced attempt has no end"),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error.kind(), ErrorKind::Superseded { by_attempt: 1 }),
        "{error}"
    );
    drop((stale_gate, consumer));
    old.kill().await;
    new.kill().await;
    cluster.shut_down().await;
}

/// The newer attempt runs on another node, and the driver says so.
#[tokio::test]
async fn the_drivers_fence_reaches_the_older_attempt_on_another_node() {
    let cluster = Cluster::pair(binaries!()).await;
    let (old, new) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let there = cluster.node(0).address();
    let stale = Edge::new(Some(there.clone()), Source { attempt: 0, ..SOURCE }, 10);
    let mut writer = old.create_partition(stale.partition()).await.expect("created");
    let mut near = old.open_gate(stale.gate()).await.expect("a gate");
    stale.write(&mut writer).await.expect("written");

    let fresh = Edge::new(Some(cluster.node(1).address()), Source { attempt: 1, ..SOURCE }, 100);
    new.fence(fresh.source.partition_id(), std::slice::from_ref(&there))
        .await
        .expect("told");
    let error = refusal(&mut writer).await;
    assert!(is_superseded_by(&error, 1), "{error}");
    let error = verdict(&mut near).await;
    assert!(is_superseded_by(&error, 1), "{error}");
    let again = old
        .create_partition(stale.partition())
        .await
        .expect_err("attempt 0 is over");
    assert!(is_superseded_by(&again, 1), "{again}");
    fresh.run(&new, &old, LIMIT).await;
    drop((writer, near, old, new));
    cluster.shut_down().await;
}

/// A consumer that asks for the newer attempt says with it that the older one is over.
#[tokio::test]
async fn a_request_that_names_a_newer_attempt_fences_the_older() {
    let cluster = Cluster::pair(binaries!()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let there = cluster.node(0).address();
    let stale = Edge::new(Some(there.clone()), Source { attempt: 0, ..SOURCE }, 10);
    let fresh = Edge::new(Some(there), Source { attempt: 1, ..SOURCE }, 100);
    let mut writer = producer.create_partition(stale.partition()).await.expect("created");
    stale.write(&mut writer).await.expect("written");
    let late = async {
        let error = refusal(&mut writer).await;
        assert!(is_superseded_by(&error, 1), "{error}");
        fresh.produce(&producer).await.expect("the newer attempt")
    };
    let both = async { tokio::join!(fresh.consume(&consumer), late) };
    let (consumed, produced) = within(LIMIT, "the newer attempt", both).await;
    assert_eq!(consumed.expect("only the newer attempt"), produced);
    drop((writer, producer, consumer));
    cluster.shut_down().await;
}

/// F24, F72: an executor that gave its silent server up still looks at its buffers, so nobody else gets them.
#[tokio::test]
async fn who_gives_a_silent_server_up_keeps_what_it_looks_at() {
    const RECORD: usize = 20 << 10;
    let options = NodeOptions::new()
        .flag("buffers", "32")
        .flag("keepalive", "300ms")
        .flag("dead-peer-timeout", "1s");
    let cluster = Cluster::start(binaries!(), [options]).await;
    let early = cluster.attach(0, 7).await;
    let partition = SOURCE.partition_id();
    let mut writer = early
        .create_partition(PartitionSpec::new(partition, 1))
        .await
        .expect("created");
    let gate_over = |partition| GateSpec::new().channel(None, partition, SubpartitionRange { first: 0, count: 1 });
    let mut gate = early.open_gate(gate_over(partition)).await.expect("opened");
    let mut held = Vec::new();
    for _ in 0..4 {
        writer
            .write_to(SubpartitionIndex::new(0), &[0x11; RECORD])
            .await
            .expect("written");
        writer.flush().await.expect("flushed");
        let record = within(LIMIT, "a record", gate.next_record()).await.expect("alive");
        held.push(record.expect("not the end").bytes);
    }
    let reserved = writer.reserve(SubpartitionIndex::new(0)).await.expect("reserved");

    let server = cluster.node(0).process();
    server.signal(Signal::STOP);
    let given_up = within(LIMIT, "the server is given up", gate.next_record()).await;
    server.signal(Signal::CONT);
    let error = given_up.expect_err("it is silent");
    assert!(matches!(error.kind(), ErrorKind::PeerLost { .. }), "{error}");

    let late = cluster.attach(0, 7).await;
    let partition = PartitionId { index: 1, ..partition };
    let mut writer = late
        .create_partition(PartitionSpec::new(partition, 1))
        .await
        .expect("created");
    let mut gate = late.open_gate(gate_over(partition)).await.expect("opened");
    let write = async {
        for _ in 0..200 {
            writer.write_to(SubpartitionIndex::new(0), &[0x22; RECORD]).await?;
        }
        writer.finish().await
    };
    let read = async {
        let mut records = 0;
        while let Some(record) = gate.next_record().await? {
            assert!(record.bytes.iter().all(|byte| *byte == 0x22));
            records += 1;
        }
        Ok::<_, ShuffleError>(records)
    };
    let (written, records) = within(LIMIT, "the exchange", async { tokio::join!(write, read) }).await;
    written.expect("written");
    assert_eq!(records.expect("read"), 200);

    for record in &held {
        assert!(
            record.iter().all(|byte| *byte == 0x11),
            "a view that came out stays valid"
        );
    }
    // Once the server has seen that the process lives on without its session.
    let quarantined = async || Books::of(&late.status().await.expect("alive")).get("quarantined");
    until(LIMIT, "4 views and a reserved buffer kept apart", async || {
        (quarantined().await >= 5).then_some(())
    })
    .await;
    drop(reserved);
}
