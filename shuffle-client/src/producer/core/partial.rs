//! Buffers that leave before they are full.

use std::time::{Duration, Instant};

use shuffle_protocol::error::Result;

use super::state::{Core, Need, Open, Space};

impl<B: Space> Core<B> {
    /// Lets every open buffer leave, as far as limits allow. `Need::Limit`: some are still here.
    pub(crate) fn flush_step(&mut self) -> Result<Need> {
        self.check_alive()?;
        let need = self.drain();
        self.hand_over_where(|_| true);
        if need != Need::Nothing {
            return Ok(need);
        }
        Ok(if self.open.is_empty() {
            Need::Nothing
        } else {
            Need::Limit
        })
    }

    /// Lets buffers leave that were opened `interval` ago, and says when to call again; `None`: when one is opened.
    pub(crate) fn handle_timeout(&mut self, now: Instant, interval: Duration) -> Option<Instant> {
        let staged = self.handle_staged_timeout(now, interval);
        self.hand_over_where(|open| now.saturating_duration_since(open.opened_at) >= interval);
        self.open
            .iter()
            .filter(|open| !open.due)
            .filter_map(|open| open.opened_at.checked_add(interval))
            .chain(staged)
            .min()
    }

    /// The producer has to wait for a buffer. If little of what was granted is on its way to readers, waiting would not
    /// help: then the fuller half of the open buffers leaves, and comes back once consumed.
    pub(crate) fn handle_starved(&mut self, waited_long: bool) {
        self.raise_prefetch();
        if waited_long {
            self.handle_staging_starved();
        }
        let wanted = (self.open.len() / 2).max(1);
        if !waited_long && self.in_flight >= wanted.try_into().unwrap_or(u64::MAX) {
            return;
        }
        let mut fullest: Vec<(usize, u32)> = self
            .open
            .iter()
            .filter(|open| self.has_limit(open.subpartition))
            .map(|open| (open.used, open.subpartition))
            .collect();
        fullest.sort_unstable_by(|a, b| b.cmp(a));
        for (_, subpartition) in fullest.into_iter().take(wanted) {
            self.hand_over_open(subpartition);
        }
    }

    fn hand_over_where(&mut self, chosen: impl Fn(&Open<B>) -> bool) {
        let mut place = 0;
        while let Some(open) = self.open.get_mut(place) {
            if chosen(open) {
                open.due = true;
                let subpartition = open.subpartition;
                if self.hand_over_open(subpartition) {
                    // The last one took its place.
                    continue;
                }
            }
            place += 1;
        }
    }
}
