//! The same in a broadcast: its one copy on each node has several readers.

use integration::binaries;
use integration::cluster::Cluster;
use integration::flip::flip_in_arena;
use integration::flow::{Edge, ReadError, read_all};
use integration::proxy::{Action, Direction, Trigger, kind};
use integration::stamp::Place;
use integration::wait::within;
use shuffle_client::{GateSpec, GateStats, PartitionSpec, Session};
use shuffle_protocol::NodeAddress;
use shuffle_protocol::error::Verdict;

use crate::parts::{
    BUFFERS, Chance, LIMIT, RECORD_BYTES, RECORDS, assert_verdict, counter, edge, finish, first_of, flips, in_payload,
    options, source,
};

/// What each of two consumers there reads of a broadcast; both gates are open before either is read.
async fn read_twice(edge: &Edge, there: &NodeAddress, reader: &Session) -> Vec<(Result<(), ReadError>, GateStats)> {
    let spec = |_| GateSpec::new().broadcast(edge.from.clone(), edge.source.partition_id(), 2);
    let mut gates = Vec::new();
    for gate in [0, 1].map(spec) {
        let opened = within(LIMIT, "a gate", reader.open_gate(gate)).await;
        gates.push(opened.unwrap_or_else(|error| panic!("{there}: {error}")));
    }
    let mut outcomes = Vec::new();
    for mut gate in gates {
        let mut oracle = edge.oracle();
        let read = within(LIMIT, "reading", read_all(&mut gate, &[edge.source], &mut oracle)).await;
        outcomes.push((read.map(drop), gate.stats()));
    }
    outcomes
}

/// A broadcast: what its producer changes fails the consumers of both nodes; what the wire changes is fetched once more, by the
/// relay and for both of its consumers.
#[tokio::test]
async fn a_bit_that_changes_in_a_broadcast_is_found_by_each_consumer() {
    const JOB: u64 = 11;
    let cluster = Cluster::start(binaries!(), [options().behind_proxy(), options()]).await;
    let producer = cluster.attach(0, JOB).await;
    let proxy = cluster.node(0).proxy();
    let [here, there] = [0, 1].map(|node| cluster.node(node).address());
    let readers = [cluster.attach(0, JOB).await, cluster.attach(1, JOB).await];
    let (mut chance, rounds) = (Chance::new(), flips());
    for (path, (node, reader)) in [(&here, &readers[0]), (&there, &readers[1])].into_iter().enumerate() {
        for round in 0..rounds {
            let source = source(JOB, round, path);
            let edge = edge(source, Some(here.clone()));
            let spec = PartitionSpec::broadcast(source.partition_id()).consumers(Some(node.clone()), 2);
            finish(&edge, spec, &producer).await;
            let place = Place {
                sequence: chance.below(RECORDS),
                ..first_of(source)
            };
            let bit = chance.bit(u64::try_from(RECORD_BYTES).expect("small"));
            flip_in_arena(place, RECORD_BYTES, bit).expect("a bit that is there");
            let buffer = place.sequence / (RECORDS / BUFFERS);
            for (outcome, stats) in read_twice(&edge, node, reader).await {
                let error = outcome.expect_err("a changed bit").into_service();
                // Consumers of a relay fail with it, also where they are.
                let at = (node == &here).then_some(buffer);
                assert_verdict(&error, Verdict::ProducerMemory, source, &here, at);
                assert!(stats.buffers <= buffer && stats.refetched_buffers == 0);
            }
        }
        println!("broadcast, producer's memory, consumers on node {path}: {rounds} of {rounds} found, by both");
    }
    for round in 0..rounds {
        let source = source(JOB, round, 2);
        let edge = edge(source, Some(here.clone()));
        let spec = PartitionSpec::broadcast(source.partition_id()).consumers(Some(there.clone()), 2);
        finish(&edge, spec, &producer).await;
        let trigger = Trigger::Frame {
            kind: kind::DATA,
            nth: 1 + chance.below(BUFFERS),
            after: in_payload(&mut chance),
        };
        let fired = proxy.fired();
        proxy.inject(Direction::Down, trigger, Action::Flip);
        let outcomes = read_twice(&edge, &there, &readers[1]).await;
        assert_eq!(proxy.fired() - fired, 1, "the bit was changed");
        let refetched: u64 = outcomes.iter().map(|(_, stats)| stats.refetched_buffers).sum();
        assert_eq!(refetched, 1, "the second consumer found it repaired");
        for (outcome, stats) in outcomes {
            outcome.expect("every record, as it was written");
            assert_eq!(stats.buffers, BUFFERS);
        }
    }
    println!("broadcast, wire: {rounds} of {rounds} found and fetched once more");
    assert_eq!(counter(&readers[1], "buffers_refetched").await, u64::from(rounds));
    drop((producer, readers));
    cluster.shut_down().await;
}
