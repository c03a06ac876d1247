//! F65: a group fails as one, whoever dies and whenever: every other member is told the same first cause within 5 s, and none
//! is told of an end.

use std::time::{Duration, Instant};

use integration::binaries;
use integration::cluster::Cluster;
use integration::executor::Executor;
use integration::node::NodeOptions;
use integration::procfs;
use integration::script::{Channel, Command, Group, Happened, Then};
use integration::stamp::{Lengths, SOURCE, Source};

const LIMIT: Duration = Duration::from_secs(60);
const TOLD_WITHIN: Duration = Duration::from_secs(5);
const HEARD_WITHIN: Duration = Duration::from_secs(20);
const TASK: u32 = 1;
/// Few enough to fit into queues and credits: a producer can finish before its readers read.
const FEW: u64 = 200;

/// Members 0 and 1 produce, 2 and 3 consume. The first node is the group's home.
struct Members {
    round: u64,
    layout: Layout,
    group: Group,
    executors: Vec<Executor>,
}

const ALL: [usize; 4] = [0, 1, 2, 3];

/// Where the members are and what they read.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Layout {
    /// On two nodes; each consumer reads one subpartition of both producers.
    Joined,
    /// Consumer 2 reads producer 0, both on the first node; consumer 3 reads producer 1, on two others.
    Apart,
}

impl Layout {
    fn node_of(self, member: usize) -> usize {
        match self {
            Self::Joined => member % 2,
            Self::Apart => [0, 1, 0, 2][member],
        }
    }
}

impl Members {
    async fn attach(cluster: &mut Cluster, layout: Layout, round: u64) -> Self {
        let last = ALL.map(|member| layout.node_of(member)).into_iter().max().unwrap_or(0);
        let nodes: Vec<String> = (0..=last)
            .map(|node| cluster.node(node).address().to_string())
            .collect();
        let group = Group {
            id: round,
            home: nodes[0].clone(),
            nodes,
        };
        let mut executors = Vec::new();
        for member in ALL {
            executors.push(cluster.executor(layout.node_of(member), SOURCE.job).await);
        }
        Self {
            round,
            layout,
            group,
            executors,
        }
    }

    fn source(&self, producer: usize) -> Source {
        Source {
            result: SOURCE.result + self.round,
            partition: u32::try_from(producer).expect("small"),
            ..SOURCE
        }
    }

    /// Tells a member its part; each producer writes `records` to each subpartition.
    async fn begin(&mut self, member: usize, records: u64, then: Then) {
        let lengths = Lengths::Fixed(1000);
        let group = Some(self.group.clone());
        let command = match member {
            0 | 1 => Command::Produce {
                task: TASK,
                source: self.source(member),
                subpartitions: if self.layout == Layout::Joined { 2 } else { 1 },
                records,
                lengths,
                buffers: None,
                group,
                then,
            },
            _ => Command::Consume {
                task: TASK,
                channels: match self.layout {
                    Layout::Joined => [0, 1].map(|producer| self.channel(producer, member)).to_vec(),
                    Layout::Apart => vec![self.channel(member - 2, 2)],
                },
                records,
                lengths,
                credits: None,
                group,
                stop_after: None,
            },
        };
        self.executors[member].tell(&command).await;
    }

    fn channel(&self, producer: usize, consumer: usize) -> Channel {
        Channel {
            node: Some(self.group.nodes[self.layout.node_of(producer)].clone()),
            source: self.source(producer),
            first: u32::try_from(consumer - 2).expect("small"),
            count: 1,
            told_of: None,
        }
    }

    async fn hear(&mut self, member: usize, wanted: impl FnMut(&Happened) -> bool) {
        self.executors[member].hear_until(LIMIT, wanted).await;
    }

    async fn kill(&mut self, victims: &[usize]) {
        for &victim in victims {
            self.executors[victim].kill().await;
        }
    }

    /// The first causes that `members` are told, by kind and in words.
    async fn first_causes(&mut self, members: impl Iterator<Item = usize>, round: &str) -> Vec<(String, String)> {
        let start = Instant::now();
        let mut causes = Vec::new();
        for member in members {
            match self.executors[member].hear_end(TASK, HEARD_WITHIN).await {
                Happened::Failed {
                    first_kind,
                    first_cause,
                    ..
                } => causes.push((first_kind, first_cause)),
                other => panic!("{round}: member {member} was told {other:?}"),
            }
        }
        assert!(start.elapsed() < TOLD_WITHIN, "{round}: {:?}", start.elapsed());
        causes
    }

    async fn end(mut self) {
        for executor in &mut self.executors {
            if procfs::is_alive(executor.pid()) {
                executor.kill().await;
            }
        }
    }
}

/// When the victims die.
#[derive(Debug, Clone, Copy, PartialEq)]
enum When {
    /// They alone have registered, the others come afterwards.
    Registered,
    /// All have registered.
    Opened,
    /// Records flow.
    Middle,
    /// All records have been read, nobody has finished.
    LastBuffer,
    /// Producer 0 has finished, producer 1 has not.
    Finished,
}

fn is_opened(event: &Happened) -> bool {
    matches!(event, Happened::Opened { .. })
}

fn is_progress(event: &Happened) -> bool {
    matches!(event, Happened::Progress { .. })
}

fn is_all(event: &Happened) -> bool {
    matches!(event, Happened::Progress { records, .. } if *records == 2 * FEW)
}

fn is_holding(event: &Happened) -> bool {
    matches!(event, Happened::Holding { .. })
}

fn is_done(event: &Happened) -> bool {
    matches!(event, Happened::Done { .. })
}

/// Brings the members to the moment, kills, and gives those who must be told.
async fn strike(members: &mut Members, when: When, victims: &[usize]) -> Vec<usize> {
    let others: Vec<usize> = ALL.into_iter().filter(|member| !victims.contains(member)).collect();
    match when {
        When::Registered => {
            for &victim in victims {
                members.begin(victim, 1_000_000, Then::Finish).await;
                members.hear(victim, is_opened).await;
            }
            members.kill(victims).await;
            for &other in &others {
                members.begin(other, 1_000_000, Then::Finish).await;
            }
            return others;
        }
        When::Opened | When::Middle => {
            let wanted = if when == When::Opened { is_opened } else { is_progress };
            for member in ALL {
                members.begin(member, 1_000_000, Then::Finish).await;
            }
            for member in ALL {
                members.hear(member, wanted).await;
            }
        }
        When::LastBuffer | When::Finished => {
            for member in ALL {
                let finishes = when == When::Finished && member == 0;
                let then = if finishes { Then::Finish } else { Then::Hold };
                members.begin(member, FEW, then).await;
            }
            for producer in [0, 1] {
                let finishes = when == When::Finished && producer == 0;
                let wanted = if finishes { is_done } else { is_holding };
                members.hear(producer, wanted).await;
            }
            for consumer in [2, 3] {
                members.hear(consumer, is_all).await;
            }
        }
    }
    members.kill(victims).await;
    let ended_well = |member: &usize| when == When::Finished && *member == 0;
    others.into_iter().filter(|member| !ended_well(member)).collect()
}

#[tokio::test]
async fn a_group_fails_as_one_whoever_dies_and_whenever() {
    let rounds: [(Layout, When, &[usize]); 17] = [
        (Layout::Joined, When::Registered, &[1]),
        (Layout::Joined, When::Registered, &[2]),
        (Layout::Joined, When::Opened, &[0]),
        (Layout::Joined, When::Opened, &[3]),
        (Layout::Joined, When::Middle, &[0]),
        (Layout::Joined, When::Middle, &[1]),
        (Layout::Joined, When::Middle, &[2]),
        (Layout::Joined, When::Middle, &[3]),
        (Layout::Joined, When::Middle, &[0, 1]),
        (Layout::Joined, When::Middle, &[2, 3]),
        (Layout::Joined, When::LastBuffer, &[1]),
        (Layout::Joined, When::LastBuffer, &[2]),
        (Layout::Joined, When::Finished, &[1]),
        (Layout::Joined, When::Finished, &[3]),
        (Layout::Apart, When::Registered, &[3]),
        (Layout::Apart, When::Middle, &[0]),
        (Layout::Apart, When::Middle, &[1]),
    ];
    let mut cluster = Cluster::start(binaries!(), [(); 3].map(|()| NodeOptions::new())).await;
    for (round, (layout, when, victims)) in (1..).zip(rounds) {
        let what = format!("{layout:?}, {when:?}, {victims:?} killed");
        let mut members = Members::attach(&mut cluster, layout, round).await;
        let told = strike(&mut members, when, victims).await;
        let causes = members.first_causes(told.into_iter(), &what).await;
        assert!(
            causes.iter().all(|(kind, _)| kind == "ExecutorDied"),
            "{what}: {causes:?}"
        );
        assert!(causes.windows(2).all(|pair| pair[0] == pair[1]), "{what}: {causes:?}");
        members.end().await;
        cluster.assert_base().await;
    }
    cluster.shut_down().await;
}

/// The home server of the group is the one that dies, and with it the decision which failure was first. Who is attached to it
/// loses his own server; all others are told the same, which names that server.
#[tokio::test]
async fn a_group_whose_home_server_dies_fails_as_one() {
    let options = || {
        NodeOptions::new()
            .flag("dead-peer-timeout", "2s")
            .flag("keepalive", "500ms")
            .flag("refused-grace", "1s")
            .flag("group-verdict-timeout", "1s")
    };
    for layout in [Layout::Joined, Layout::Apart] {
        for (when, wanted) in [("opened", is_opened as fn(&Happened) -> bool), ("middle", is_progress)] {
            let what = format!("{layout:?}, {when}");
            let mut cluster = Cluster::start(binaries!(), [options(), options(), options()]).await;
            let home = cluster.node(0).address().to_string();
            let mut members = Members::attach(&mut cluster, layout, 1).await;
            for member in ALL {
                members.begin(member, 1_000_000, Then::Finish).await;
            }
            for member in ALL {
                members.hear(member, wanted).await;
            }
            cluster.node_mut(0).process_mut().kill().await;
            let own = members.first_causes([0, 2].into_iter(), &what).await;
            let causes = members.first_causes([1, 3].into_iter(), &what).await;
            assert!(own.iter().all(|(kind, _)| kind == "ConnectionLost"), "{what}: {own:?}");
            assert!(
                causes.iter().all(|(_, text)| text.contains(&home)),
                "{what}: {causes:?}"
            );
            assert!(causes.windows(2).all(|pair| pair[0] == pair[1]), "{what}: {causes:?}");
            members.end().await;
            cluster.shut_down().await;
        }
    }
}

/// Who has ended well is no member any more: its death concerns nobody.
#[tokio::test]
async fn who_dies_after_it_has_ended_well_fails_nobody() {
    let mut cluster = Cluster::pair(binaries!()).await;
    let mut members = Members::attach(&mut cluster, Layout::Joined, 1).await;
    members.begin(3, FEW, Then::Finish).await;
    members.hear(3, is_opened).await;
    members.executors[3].stop();
    for member in [0, 1, 2] {
        members.begin(member, FEW, Then::Finish).await;
    }
    for member in [0, 1, 2] {
        members.hear(member, is_done).await;
    }
    members.kill(&[0, 1, 2]).await;
    members.executors[3].go_on();
    let end = members.executors[3].hear_end(TASK, LIMIT).await;
    assert!(
        matches!(end, Happened::Done { records, .. } if records == 2 * FEW),
        "{end:?}"
    );
    members.end().await;
    cluster.shut_down().await;
}
