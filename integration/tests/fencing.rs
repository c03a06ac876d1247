//! A newer attempt takes the place of an older one, wherever it runs and however that becomes known.

use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::Edge;
use integration::script::{Command, Happened, Then};
use integration::stamp::{Lengths, Source};
use integration::wait::within;
use shuffle_client::{Gate, Writer};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{ShuffleError, SubpartitionIndex};

const LIMIT: Duration = Duration::from_secs(30);
const SOURCE: Source = Source {
    job: 7,
    result: 1011,
    partition: 13,
    attempt: 5,
};

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
