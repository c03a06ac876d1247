//! Telling the parent from time to time how far an executor is.

use std::time::{Duration, Instant};

use super::message::{Event, emit};

/// Rows that were written or read so far.
#[derive(Debug)]
pub(super) struct Progress {
    rows: u64,
    bytes: u64,
    told: Instant,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            rows: 0,
            bytes: 0,
            told: Instant::now(),
        }
    }

    /// Counts a row; now and then lets the runtime's other tasks run, and tells the parent.
    pub(super) async fn add(&mut self, row: &[u8]) {
        self.rows += 1;
        self.bytes += u64::try_from(row.len()).expect("invariant: a length fits 64 bits");
        if self.rows.is_multiple_of(ROWS_BETWEEN_LOOKS) {
            tokio::task::yield_now().await;
            if self.told.elapsed() >= INTERVAL {
                self.told = Instant::now();
                emit(&Event::Progress {
                    rows: self.rows,
                    bytes: self.bytes,
                });
            }
        }
    }
}

const ROWS_BETWEEN_LOOKS: u64 = 256;
const INTERVAL: Duration = Duration::from_millis(200);
