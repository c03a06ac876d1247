//! Reader and writer give up in every state there is; everything comes home at once.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, read_some, write_range};
use integration::profile::Profile;
use integration::stamp::{Lengths, SOURCE, Source, partition};
use integration::wait::within;
use shuffle_client::Session;

const LIMIT: Duration = Duration::from_secs(60);

/// F71: reader or writer cancels in every state; everything is back each time.
#[tokio::test]
async fn cancelling_in_any_state_brings_everything_back() {
    let cycles = Profile::current().choose(5, 2_000);
    let cluster = Cluster::pair(binaries!()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let mut index = 0;
    for (reader, from) in [(&producer, None), (&consumer, Some(cluster.node(0).address()))] {
        for state in [
            "created",
            "half-filled",
            "queued",
            "in flight",
            "viewed",
            "finished and unread",
        ] {
            for cycle in 0..cycles {
                index += 1;
                let edge = Edge::new(from.clone(), partition(index), 30).lengths(Lengths::Fixed(10_000));
                let work = cancel_at(state, &edge, &producer, reader, cycle % 2 == 0);
                within(LIMIT, state, work).await;
            }
            cluster.assert_base().await;
        }
    }
    let last = Source { result: 1012, ..SOURCE };
    let edge = Edge::new(Some(cluster.node(0).address()), last, 2000);
    edge.run(&producer, &consumer, LIMIT).await;
    drop((producer, consumer));
    cluster.shut_down().await;
}

async fn cancel_at(state: &str, edge: &Edge, producer: &Session, reader: &Session, reader_first: bool) {
    let spec = edge.partition().max_queued(50).buffers(2, None);
    let mut writer = producer.create_partition(spec).await.expect("created");
    let mut gate = reader.open_gate(edge.gate()).await.expect("a gate");
    let lengths = &edge.lengths;
    let mut view = None;
    match state {
        "created" => {}
        "half-filled" => {
            write_range(&mut writer, edge.source, 1, 0..1, lengths)
                .await
                .expect("written");
        }
        "queued" => {
            write_range(&mut writer, edge.source, 1, 0..30, lengths)
                .await
                .expect("written");
        }
        "in flight" | "viewed" => {
            write_range(&mut writer, edge.source, 1, 0..30, lengths)
                .await
                .expect("written");
            view = gate.next_buffer().await.expect("no error");
            if state == "in flight" {
                view = None;
            }
        }
        _ => {
            write_range(&mut writer, edge.source, 1, 0..30, lengths)
                .await
                .expect("written");
            writer.finish().await.expect("finished");
            drop((gate, view));
            return;
        }
    }
    if reader_first {
        drop((gate, view));
        drop(writer);
    } else {
        drop(writer);
        drop((view, gate));
    }
}

/// Polls a future `times` times and drops it; its output if it came before.
async fn poll_and_drop<F: Future>(future: F, times: u32) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    std::future::poll_fn(move |context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        left = left.saturating_sub(1);
        if left == 0 { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// F81: the reader's future is dropped at each of its await points; nothing waits for a timeout.
#[tokio::test]
async fn a_reader_dropped_at_any_await_point_leaves_nothing() {
    let cluster = Cluster::pair(binaries!()).await;
    let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
    let mut dropped = 0;
    for polls in 1..40 {
        let edge = Edge::new(Some(cluster.node(0).address()), partition(polls), 200);
        let spec = edge.partition().max_queued(1000).buffers(1, 16);
        let mut writer = producer.create_partition(spec).await.expect("created");
        let few = Edge {
            records: 60,
            ..edge.clone()
        };
        few.write(&mut writer).await.expect("written");
        writer.flush().await.expect("flushed");
        let read = async {
            let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
            let mut oracle = edge.oracle();
            read_some(&mut gate, &[edge.source], &mut oracle, 60)
                .await
                .expect("in order");
        };
        let done = within(LIMIT, "some polls", poll_and_drop(read, polls)).await;
        dropped += u32::from(done.is_none());
        drop(writer);
    }
    assert!(dropped >= 2, "futures were dropped on the way");
    for node in 0..2 {
        cluster.node(node).assert_base(Duration::from_secs(1)).await;
    }
    drop((producer, consumer));
    cluster.shut_down().await;
}
