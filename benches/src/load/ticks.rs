//! Records at a steady rate, each with the moment at which it should have left.
//!
//! The moments are fixed at the start: a sender that is late sends all that is overdue, each with its own
//! moment, so that a stall counts for every record that waited (no coordinated omission).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};
use rustix::io::{Errno, read};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::pattern::Totals;
use super::worker::Stopwatch;
use crate::clock::Moment;
use crate::executor::ExecutorError;
use crate::load::Done;

/// How many records, how often, how large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rhythm {
    pub(crate) records: u64,
    /// The first of them, which are not counted.
    pub(crate) warm_up: u64,
    pub(crate) per_second: u32,
    /// At least 8.
    pub(crate) record_bytes: usize,
}

/// A timer of the kernel that goes off once for each record.
#[derive(Debug)]
pub(crate) struct Ticks {
    timer: OwnedFd,
    start: Moment,
    period: Duration,
    /// Records whose moment has come, and records that were given out.
    due: u64,
    given: u64,
    records: u64,
    record: Vec<u8>,
}

impl Ticks {
    /// A timer whose first tick is a moment from now.
    pub(crate) fn start(rhythm: Rhythm, blocking: bool) -> io::Result<Self> {
        let flags = if blocking {
            TimerfdFlags::CLOEXEC
        } else {
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK
        };
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let start = Moment::now().later(LEAD);
        let period = Duration::from_secs(1) / rhythm.per_second;
        let times = Itimerspec {
            it_interval: timespec(period)?,
            it_value: timespec(Duration::from_nanos(start.nanoseconds()))?,
        };
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &times)?;
        Ok(Self {
            timer,
            start,
            period,
            due: 0,
            given: 0,
            records: rhythm.records,
            record: vec![0; rhythm.record_bytes],
        })
    }

    /// The next record whose moment has come.
    pub(crate) fn poll(&mut self) -> Option<&[u8]> {
        if self.given == self.due.min(self.records) {
            return None;
        }
        let since = u64::try_from(self.period.as_nanos())
            .unwrap_or(u64::MAX)
            .saturating_mul(self.given);
        let stamp = self.start.later(Duration::from_nanos(since)).nanoseconds();
        self.given += 1;
        self.record[..8].copy_from_slice(&stamp.to_le_bytes());
        Some(&self.record)
    }

    /// Whether all were given out.
    pub(crate) fn is_over(&self) -> bool {
        self.given == self.records
    }

    /// Waits on this thread for the next tick.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        self.due += expirations(&self.timer)?.unwrap_or(0);
        Ok(())
    }

    /// Waits in the runtime for the next tick; `readiness` is of [`Ticks::readiness`].
    pub(crate) async fn wait_in_runtime(&mut self, readiness: &AsyncFd<OwnedFd>) -> io::Result<()> {
        loop {
            let mut guard = readiness.readable().await?;
            if let Some(count) = expirations(readiness.get_ref())? {
                self.due += count;
                return Ok(());
            }
            guard.clear_ready();
        }
    }

    /// The timer as the runtime waits for it.
    #[expect(
        deprecated,
        reason = "the new name of this is unsafe; the descriptor is owned and never replaced"
    )]
    pub(crate) fn readiness(&self) -> io::Result<AsyncFd<OwnedFd>> {
        AsyncFd::with_interest(self.timer.as_fd().try_clone_to_owned()?, Interest::READABLE)
    }

    /// What was sent.
    pub(crate) fn done(&self, watch: Stopwatch) -> Done {
        let bytes = self.given * u64::try_from(self.record.len()).unwrap_or(u64::MAX);
        watch.stop(Totals { bytes, sum: 0 })
    }
}

fn expirations(timer: &OwnedFd) -> io::Result<Option<u64>> {
    let mut count = [0; 8];
    match read(timer, &mut count) {
        Ok(_) => Ok(Some(u64::from_ne_bytes(count))),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn timespec(duration: Duration) -> io::Result<Timespec> {
    Timespec::try_from(duration).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// How late records came.
#[derive(Debug)]
pub(crate) struct Ear {
    latencies: Histogram<u64>,
    heard: u64,
    bytes: u64,
    warm_up: u64,
}

impl Ear {
    pub(crate) fn new(rhythm: Rhythm) -> Result<Self, ExecutorError> {
        let latencies = empty_latencies().map_err(|error| ExecutorError::Other(error.to_string()))?;
        Ok(Self {
            latencies,
            heard: 0,
            bytes: 0,
            warm_up: rhythm.warm_up,
        })
    }

    /// Takes a record that has just come.
    pub(crate) fn hear(&mut self, record: &[u8]) -> Result<(), ExecutorError> {
        let now = Moment::now().nanoseconds();
        let stamp = record.first_chunk().map(|stamp| u64::from_le_bytes(*stamp));
        let stamp = stamp.ok_or_else(|| ExecutorError::Other("a record without a moment".to_owned()))?;
        self.heard += 1;
        self.bytes += u64::try_from(record.len()).unwrap_or(u64::MAX);
        if self.heard > self.warm_up {
            self.latencies.saturating_record(now.saturating_sub(stamp));
        }
        Ok(())
    }

    /// What was heard.
    pub(crate) fn done(&self, watch: Stopwatch) -> Done {
        let bytes = self.bytes;
        let counted = self.latencies.iter_recorded();
        Done {
            latencies: counted
                .map(|value| (value.value_iterated_to(), value.count_at_value()))
                .collect(),
            ..watch.stop(Totals { bytes, sum: 0 })
        }
    }
}

/// No latencies yet: nanoseconds to three digits, up to a minute; what is above counts as a minute.
pub(crate) fn empty_latencies() -> Result<Histogram<u64>, CreationError> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3)
}

const LEAD: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::{Ear, Rhythm, Ticks};
    use crate::load::worker::Stopwatch;

    const RHYTHM: Rhythm = Rhythm {
        records: 5,
        warm_up: 1,
        per_second: 2_000,
        record_bytes: 16,
    };

    #[test]
    fn overdue_records_keep_their_own_moments() {
        let mut ticks = Ticks::start(RHYTHM, true).expect("a timer");
        let mut ear = Ear::new(RHYTHM).expect("an ear");
        let mut stamps = Vec::new();
        while !ticks.is_over() {
            ticks.wait().expect("a tick");
            while let Some(record) = ticks.poll() {
                ear.hear(record).expect("a moment");
                stamps.push(u64::from_le_bytes(record[..8].try_into().expect("8 bytes")));
            }
        }
        assert!(stamps.windows(2).all(|pair| pair[1] - pair[0] == 500_000), "{stamps:?}");
        ear.hear(&[0; 8]).expect("the start of the machine");
        let done = ear.done(Stopwatch::start());
        assert!(
            done.latencies.last().is_some_and(|(value, _)| *value >= 50_000_000_000),
            "{done:?}"
        );
        assert_eq!(done.totals.bytes, 88);
        assert_eq!(done.latencies.iter().map(|(_, count)| count).sum::<u64>(), 5);
        assert!(ear.hear(&[1, 2]).is_err());
    }
}
