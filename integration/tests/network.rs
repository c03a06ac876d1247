//! Two nodes in network namespaces of their own, and a peer that vanishes from the network without a
//! word. Needs root.

use std::process::Command;
use std::time::Duration;

use integration::binaries;
use integration::cluster::Cluster;
use integration::flow::{Edge, read_some, read_to_error};
use integration::node::NodeOptions;
use integration::profile::may_run_as_root;
use integration::stamp::SOURCE;
use integration::wait::{timed, within};
use shuffle_protocol::error::ErrorKind;

const LIMIT: Duration = Duration::from_secs(60);

fn ip(arguments: &str) -> bool {
    let status = Command::new("ip").args(arguments.split_whitespace()).status();
    status.is_ok_and(|status| status.success())
}

/// Two namespaces joined by a veth pair; gone when dropped.
struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    fn create() -> Self {
        let names = [0, 1].map(|side| format!("shuffle-{}-{side}", std::process::id()));
        let this = Self { names };
        let [a, b] = &this.names;
        let (left, right) = (
            format!("sva{}", std::process::id()),
            format!("svb{}", std::process::id()),
        );
        assert!(
            ip(&format!("netns add {a}")) && ip(&format!("netns add {b}")),
            "namespaces can be made"
        );
        assert!(
            ip(&format!("link add {left} type veth peer name {right}")),
            "a veth pair"
        );
        for (link, name, address) in [(&left, a, "10.213.7.1/24"), (&right, b, "10.213.7.2/24")] {
            assert!(ip(&format!("link set {link} netns {name}")));
            assert!(ip(&format!("-n {name} link set {link} name eth0")));
            assert!(ip(&format!("-n {name} address add {address} dev eth0")));
            assert!(ip(&format!("-n {name} link set eth0 up")) && ip(&format!("-n {name} link set lo up")));
        }
        this
    }

    /// From now on what side `from` sends to `address` reaches nobody.
    fn silence(&self, from: usize, address: &str) -> bool {
        let name = &self.names[from];
        ip(&format!(
            "-n {name} neigh replace {address} lladdr 02:00:00:00:00:99 dev eth0 nud permanent"
        ))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

/// F51: the peer's frames go to nobody in both directions; idle and in the middle of data.
#[tokio::test]
async fn a_peer_that_vanishes_from_the_network_is_noticed() {
    if !may_run_as_root("a_peer_that_vanishes_from_the_network_is_noticed") {
        return;
    }
    for idle in [true, false] {
        let namespaces = Namespaces::create();
        let options = |side: usize, address: &str| {
            NodeOptions::new()
                .under(&["ip", "netns", "exec", &namespaces.names[side]])
                .flag("listen", format!("{address}:0"))
                .flag("dead-peer-timeout", "3s")
                .flag("keepalive", "1s")
        };
        let cluster = Cluster::start(binaries!(), [options(0, "10.213.7.1"), options(1, "10.213.7.2")]).await;
        let (producer, consumer) = (cluster.attach(0, 7).await, cluster.attach(1, 7).await);
        let edge = Edge::new(Some(cluster.node(0).address()), SOURCE, 1_000_000);
        let mut writer = producer.create_partition(edge.partition()).await.expect("created");
        let mut gate = consumer.open_gate(edge.gate()).await.expect("a gate");
        let few = Edge {
            records: 10,
            ..edge.clone()
        };
        few.write(&mut writer).await.expect("written");
        writer.flush().await.expect("flushed");
        let mut oracle = edge.oracle();
        read_some(&mut gate, &[SOURCE], &mut oracle, 10)
            .await
            .expect("the first records");
        let writing = (!idle).then(|| tokio::spawn(async move { edge.write(&mut writer).await }));

        assert!(
            namespaces.silence(0, "10.213.7.2") && namespaces.silence(1, "10.213.7.1"),
            "silenced"
        );
        let (error, took) = timed(within(LIMIT, "the verdict", read_to_error(&mut gate))).await;
        assert!(
            matches!(error.first_cause().kind(), ErrorKind::PeerLost { .. }),
            "{error}"
        );
        assert!(
            took < Duration::from_secs(5),
            "the dead-peer time is 3 s, it took {took:?}"
        );
        if let Some(writing) = writing {
            writing.abort();
        }
        drop((gate, consumer));
        drop(producer);
        cluster.shut_down().await;
    }
}
