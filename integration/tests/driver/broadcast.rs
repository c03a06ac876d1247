//! Partitions that have one queue and are held on several nodes.

use integration::binaries;
use integration::cluster::Cluster;
use integration::wait::within;
use shuffle_client::{GateSpec, PartitionSpec};
use shuffle_protocol::SubpartitionIndex;
use shuffle_protocol::error::{ErrorKind, ShuffleError};
use shuffle_protocol::notify::{PartitionChange, PartitionState};

use super::{
    JOB, LIMIT, changes_until, connect, is_finished, is_released, options, over_tcp, partition, produce, sizes,
};

/// Whoever holds a copy for its readers has nothing to say of it.
#[tokio::test]
async fn a_broadcast_is_told_of_by_its_producers_node_alone() {
    let cluster = Cluster::start(binaries!(), [options(), options()]).await;
    let (a, b) = (cluster.node(0).address(), cluster.node(1).address());
    let sessions = [
        cluster.attach(0, JOB.value()).await,
        cluster.attach(1, JOB.value()).await,
    ];
    let mut driver = connect(vec![over_tcp(&cluster, 0), over_tcp(&cluster, 1)]).await;
    for (result, ends) in [(1, true), (2, false)] {
        let id = partition(result, 0, 0);
        let spec = PartitionSpec::broadcast(id)
            .consumers(Some(a.clone()), 1)
            .consumers(Some(b.clone()), 2);
        let mut writer = sessions[0].create_partition(spec).await.expect("a writer");
        let told = changes_until(&mut driver, &a, |_| true).await;
        let states = |told: &[PartitionChange]| told.iter().map(|change| change.state.clone()).collect::<Vec<_>>();
        assert_eq!(
            (told[0].partition, states(&told)),
            (id, vec![PartitionState::Registered])
        );

        let mut readers = Vec::new();
        for (node, of) in [(0, 1), (1, 2), (1, 2)] {
            let gate = GateSpec::new().broadcast(Some(a.clone()), id, of);
            let mut gate = sessions[node].open_gate(gate).await.expect("a gate");
            readers.push(tokio::spawn(async move {
                let mut records = 0;
                while gate.next_record().await?.is_some() {
                    records += 1;
                }
                Ok::<u32, ShuffleError>(records)
            }));
        }
        for _ in 0..20 {
            writer
                .write_to(SubpartitionIndex::new(0), &[7; 3000])
                .await
                .expect("room");
        }
        let begun = |change: &PartitionChange| change.state == PartitionState::FirstBuffer;
        changes_until(&mut driver, &a, begun).await;
        if ends {
            let report = writer.finish().await.expect("a partition that ends");
            let told = changes_until(&mut driver, &a, is_released).await;
            assert_eq!(states(&told), [sizes(&report), PartitionState::Released]);
            assert_eq!(report.bytes(), 20 * (4 + 3000), "once, and not for each of three");
        } else {
            let cause = ShuffleError::new(ErrorKind::Io, "the source cannot be read");
            writer.abort(cause.clone()).await.expect("an end");
            let told = changes_until(&mut driver, &a, |_| true).await;
            let [PartitionState::Failed { cause: seen }] = &states(&told)[..] else {
                panic!("{told:?}")
            };
            assert_eq!(seen.first_cause().message(), cause.message());
        }
        for reader in readers {
            let read = within(LIMIT, "a reader", reader).await.expect("no panic");
            assert_eq!(read.is_ok(), ends, "{read:?}");
        }
        // The next thing that the other node says is of a partition of its own.
        let own = partition(result, 1, 0);
        produce(&sessions[1], own).await;
        let told = changes_until(&mut driver, &b, is_finished).await;
        assert!(told.iter().all(|change| change.partition == own), "{told:?}");
    }
    // What nobody has read.
    driver.release_job(&b).await.expect("released");
    drop((driver, sessions));
    cluster.shut_down().await;
}
