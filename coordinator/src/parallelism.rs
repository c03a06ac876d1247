//! How many tasks, from the bytes that they will read.
//!
//! ```text
//!   sizes reported by finished partitions
//!        |-- power of two:  totals  -> ceil(n / (V - b)), clamped, rounded -> ranges evenly
//!        |-- by volume:     bytes of each subpartition -> ranges that hold about V
//!   a source has no input: the configured default, or its own estimate
//! ```
//!
//! Both are rules of Apache Flink's adaptive batch scheduler (FLIP-187; `DefaultVertexParallelismDecider` of 1.15 and
//! `DefaultVertexParallelismAndInputInfosDecider` of 1.17 and later).

use thiserror::Error;

/// Fewest and most tasks of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limits {
    /// Not fewer; at least 1.
    pub min: u32,
    /// Not more; at least `min`.
    pub max: u32,
}

impl Limits {
    /// Exactly so many.
    pub const fn exactly(tasks: u32) -> Self {
        Self { min: tasks, max: tasks }
    }

    /// Whether so many tasks are allowed.
    pub const fn allows(self, tasks: u32) -> bool {
        self.min <= tasks && tasks <= self.max
    }

    /// Powers of two only: the minimum goes up to one, the maximum down. `None` if there is none between the two.
    pub const fn to_powers_of_two(self) -> Option<Self> {
        let max = 1 << self.max.ilog2();
        match self.min.checked_next_power_of_two() {
            Some(min) if min <= max => Some(Self { min, max }),
            _ => None,
        }
    }

    fn clamp(self, tasks: u128) -> u32 {
        let tasks = tasks.clamp(u128::from(self.min), u128::from(self.max));
        u32::try_from(tasks).expect("invariant: limits are 32 bits")
    }
}

/// Which rule decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    /// From the totals, to a power of two, with ranges of equally many subpartitions.
    PowerOfTwo {
        /// The most of a task's volume that broadcast inputs may take, in per cent; below 100.
        max_broadcast_percent: u32,
    },
    /// From the bytes of each subpartition, with ranges of about equally many bytes.
    ByVolume {
        /// Split a subpartition of a splittable input that holds so many times the median of that input. `None`: never.
        skew_factor: Option<u32>,
    },
}

/// How adaptive stages come to their tasks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Adaptive {
    /// Which rule decides.
    pub rule: Rule,
    /// Bytes that one task shall read; at least 1.
    pub bytes_per_task: u64,
    /// Tasks of a source that does not estimate itself; at least 1.
    pub default_source: u32,
}

/// A setting that cannot be.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{setting} is {value}: {allowed}")]
pub struct ConfigError {
    /// Which setting.
    pub setting: &'static str,
    /// What it was.
    pub value: u64,
    /// What it may be.
    pub allowed: &'static str,
}

/// Bytes of one input, over all its partitions and subpartitions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InputVolume {
    /// Whether every task reads all of it.
    pub broadcast: bool,
    /// Bytes.
    pub bytes: u128,
}

impl Default for Adaptive {
    /// By volume, 1 GiB for each task, skew from five times the median, one task for a source.
    fn default() -> Self {
        Self {
            rule: Rule::ByVolume { skew_factor: Some(5) },
            bytes_per_task: 1 << 30,
            default_source: 1,
        }
    }
}

impl Adaptive {
    /// Whether the settings make sense.
    ///
    /// # Errors
    /// The first that does not.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |setting, value, allowed| {
            Err(ConfigError {
                setting,
                value,
                allowed,
            })
        };
        if self.bytes_per_task == 0 {
            return refuse("bytes_per_task", 0, "at least 1");
        }
        if self.default_source == 0 {
            return refuse("default_source", 0, "at least 1");
        }
        match self.rule {
            Rule::PowerOfTwo { max_broadcast_percent } if max_broadcast_percent >= 100 => {
                refuse("max_broadcast_percent", max_broadcast_percent.into(), "below 100")
            }
            Rule::ByVolume { skew_factor: Some(0) } => refuse("skew_factor", 0, "at least 1, or none"),
            _ => Ok(()),
        }
    }

    /// Tasks of a source: its estimate, else the default, within its limits.
    pub fn source(&self, limits: Limits, estimate: Option<u32>) -> u32 {
        estimate.unwrap_or(self.default_source).clamp(limits.min, limits.max)
    }

    /// `ceil(n / (V - min(b, ceil(ratio * V))))`, with n the bytes that are divided, b the broadcast bytes and V the bytes of a
    /// task; clamped to the limits, made powers of two, then the nearest power of two, the higher one on a tie. Without a power
    /// of two within the limits it is only clamped.
    pub fn power_of_two(&self, inputs: &[InputVolume], limits: Limits, max_broadcast_percent: u32) -> u32 {
        let (divided, broadcast) = totals(inputs);
        let volume = u128::from(self.bytes_per_task);
        let most_broadcast = (volume * u128::from(max_broadcast_percent)).div_ceil(100);
        let left = (volume - broadcast.min(most_broadcast).min(volume)).max(1);
        let tasks = divided.div_ceil(left);
        match limits.to_powers_of_two() {
            Some(powers) => nearest_power_of_two(powers.clamp(tasks)),
            None => limits.clamp(tasks),
        }
    }

    /// `ceil(n / V)`, clamped to the limits: for inputs of which only the totals count.
    pub fn by_total(&self, inputs: &[InputVolume], limits: Limits) -> u32 {
        let (divided, _) = totals(inputs);
        limits.clamp(divided.div_ceil(u128::from(self.bytes_per_task)))
    }
}

fn totals(inputs: &[InputVolume]) -> (u128, u128) {
    let sum = |broadcast| {
        let of_kind = inputs.iter().filter(|input| input.broadcast == broadcast);
        of_kind.map(|input| input.bytes).sum()
    };
    (sum(false), sum(true))
}

fn nearest_power_of_two(tasks: u32) -> u32 {
    let below = 1 << tasks.ilog2();
    match tasks.checked_next_power_of_two() {
        Some(above) if above - tasks <= tasks - below => above,
        _ => below,
    }
}
