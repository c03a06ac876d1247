//! What a seed means: the size of everything, and what may break.

use super::random::Random;
use super::schedule::{MILLIS, Micros, SECONDS};

/// The kind of scenario, which says what is expected of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Nothing breaks: everything must arrive.
    Calm,
    /// Connections between servers break and come back: everything must arrive.
    Cuts,
    /// As [`Scenario::Cuts`], and some readers stop: everything else must arrive meanwhile.
    Stopped,
    /// Anything may break: everything must arrive or fail with a cause that fits.
    Mixed,
}

/// What may break. Each failure that is seen must be excused by one of these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Connections between servers break, also in the middle of a frame, and dials fail.
    pub cuts: bool,
    /// Peers fall silent.
    pub holes: bool,
    /// Servers are killed and started again.
    pub restarts: bool,
    /// Executors die, or lose their session and live on.
    pub deaths: bool,
    /// Executors stop and go on.
    pub stops: bool,
    /// Producers give up, and drivers fail groups.
    pub aborts: bool,
    /// Consumers give channels and gates up.
    pub cancels: bool,
    /// Newer attempts of a partition come, here or there.
    pub fences: bool,
    /// Pools are too small for what is asked of them.
    pub starved: bool,
    /// Channels ask for partitions that nobody registers.
    pub strays: bool,
    /// Producers finish with wrong counts.
    pub liars: bool,
    /// Servers are told to stop.
    pub drains: bool,
    /// Some subpartitions have no reader.
    pub unread: bool,
    /// Operations of disks fail.
    pub disks: bool,
    /// Bits change: on the wire, in memory, on disk.
    pub flips: bool,
}

/// Every number of a simulation, from its seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// What is expected.
    pub scenario: Scenario,
    /// What may break.
    pub faults: Faults,
    /// Servers.
    pub hosts: usize,
    /// Jobs.
    pub jobs: u64,
    /// Connections between two servers.
    pub stripes: u32,
    /// Buffers that move together.
    pub extent_buffers: u32,
    /// Percent of jobs whose members form a group.
    pub grouped: u64,
    /// One-way delay of the network: shortest and longest.
    pub delay: (Micros, Micros),
    /// Longest time until a task that was woken runs.
    pub task_delay: Micros,
    /// Packets that a connection has on its way at most.
    pub window: usize,
    /// Payload of one poll of a link.
    pub byte_budget: u64,
    /// When faults end.
    pub heal_at: Micros,
    /// Mean time between two faults.
    pub fault_gap: Micros,
    /// Longest time until producers and consumers start.
    pub start_within: Micros,
    /// As in the servers' configuration.
    pub request_timeout: Micros,
    /// As in the servers' configuration.
    pub keepalive: Micros,
    /// As in the servers' configuration.
    pub dead_peer: Micros,
    /// As in the servers' configuration.
    pub refused_grace: Micros,
    /// As in the servers' configuration.
    pub verdict_after: Micros,
    /// As in the servers' configuration.
    pub unread_expiry: Micros,
    /// Steps of a core between two checks of all its invariants.
    pub check_every: u64,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let random = &mut Random::new(seed);
        let scenario = match seed % 10 {
            0 => Scenario::Calm,
            1 | 2 => Scenario::Cuts,
            3 => Scenario::Stopped,
            _ => Scenario::Mixed,
        };
        let mut faults = Faults::draw(scenario, random);
        // Drawn apart: a seed without them means what it meant.
        faults.flips = scenario == Scenario::Mixed && Random::new(seed ^ 0xB17).chance(25);
        let fast = random.chance(50);
        let shortest = random.between(20, 200);
        let dead_peer = random.between(4, 15) * SECONDS;
        let keepalive = random.between(dead_peer / 8, dead_peer / 2 - SECONDS);
        let request_timeout = random.between(5, 30) * SECONDS;
        let heal_at = if scenario == Scenario::Stopped {
            // Time enough for everybody else, however slow the network is.
            60 * SECONDS
        } else if random.chance(70) {
            random.between(100, 3000) * MILLIS
        } else {
            random.between(3, 40) * SECONDS
        };
        Self {
            seed,
            scenario,
            faults,
            hosts: 2 + random.index(3),
            jobs: random.between(1, 2),
            stripes: if random.chance(80) { 1 } else { 2 },
            extent_buffers: random.pick(&[1, 2, 4, 8]).unwrap_or(8),
            grouped: random.pick(&[0, 0, 50, 100]).unwrap_or(0),
            delay: (
                shortest,
                shortest + if fast { random.below(500) } else { random.below(20_000) },
            ),
            task_delay: if fast {
                random.between(1, 100)
            } else {
                random.between(1, 5000)
            },
            window: random.pick(&[1, 2, 4, 16, 64]).unwrap_or(16),
            byte_budget: random.pick(&[1, 4096, 16_384, 65_536]).unwrap_or(4096),
            heal_at,
            fault_gap: (heal_at / random.between(2, 24)).max(MILLIS),
            start_within: random.between(0, heal_at.min(request_timeout / 2)),
            request_timeout,
            keepalive,
            dead_peer,
            refused_grace: random.between(1, 3) * SECONDS,
            verdict_after: random.between(1, 3) * SECONDS,
            unread_expiry: random.between(20, 60) * SECONDS,
            check_every: random.pick(&[1, 4, 16]).unwrap_or(4),
        }
    }
}

impl Faults {
    fn draw(scenario: Scenario, random: &mut Random) -> Self {
        let cuts = Self {
            cuts: true,
            ..Self::default()
        };
        match scenario {
            Scenario::Calm => Self::default(),
            Scenario::Cuts | Scenario::Stopped => cuts,
            Scenario::Mixed => {
                // Some seeds break few things often, others many.
                let percent = random.pick(&[15, 15, 30, 50]).unwrap_or(30);
                let mut may = || random.chance(percent);
                Self {
                    cuts: may(),
                    holes: may(),
                    restarts: may(),
                    deaths: may(),
                    stops: may(),
                    aborts: may(),
                    cancels: may(),
                    fences: may(),
                    starved: may(),
                    strays: may(),
                    liars: may(),
                    drains: may(),
                    unread: may(),
                    disks: may(),
                    flips: false,
                }
            }
        }
    }
}
