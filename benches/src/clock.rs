//! The clock that all processes of a run share: `CLOCK_MONOTONIC` is one for the whole machine, so
//! that what one process reads can be compared with what another read.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment on the machine's monotonic clock, in nanoseconds since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(u64);

impl Moment {
    /// The present.
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let nanoseconds = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
        Self(u64::try_from(nanoseconds).expect("invariant: the clock started at zero"))
    }

    /// Nanoseconds since the machine started.
    pub fn nanoseconds(self) -> u64 {
        self.0
    }

    /// The moment that comes after this one by so much.
    #[must_use]
    pub fn later(self, by: std::time::Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Seconds from an earlier moment to this one, 0 if that one is later.
    pub fn seconds_since(self, earlier: Self) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 / 1e9
    }

    /// Milliseconds from an earlier moment to this one, 0 if that one is later.
    pub fn milliseconds_since(self, earlier: Self) -> f64 {
        self.seconds_since(earlier) * 1e3
    }
}

/// Processor time of this process so far, all threads, in seconds.
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::Moment;

    #[test]
    fn time_goes_on_and_differences_are_in_the_right_unit() {
        let (earlier, later) = (Moment(1_000_000_000), Moment(3_500_000_000));
        assert!((later.seconds_since(earlier) - 2.5).abs() < 1e-9);
        assert!((later.milliseconds_since(earlier) - 2_500.0).abs() < 1e-6);
        assert!(earlier.seconds_since(later).abs() < 1e-9);
        assert!(Moment::now() <= Moment::now());
    }
}
