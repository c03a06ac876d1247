//! Where a new file goes, and what becomes of a directory that is full or fails. Pure.
//!
//! ```text
//!            no space                        I/O error, or no answer in time
//!   usable -----------> full                 usable, full --------------------> failing
//!      ^                 |                                                        (for good)
//!      '-- space is back '-- looked at again each second
//! ```

use std::time::{Duration, Instant};

/// How often a full directory is looked at, and how old a measure may be when a new file is placed by it.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// With so many bytes a full directory is used again.
const ENOUGH: u64 = 1 << 20;

/// What can be done with a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// Everything.
    Usable,
    /// What is there can be read; new files go elsewhere until space is back.
    Full,
    /// It is taken out: no new file is made there.
    Failing,
}

/// One directory's bytes.
#[derive(Debug)]
pub(crate) struct Space {
    /// Most bytes of ours; 0: whatever is free.
    limit: u64,
    used: u64,
    /// As measured, less what was written since: an estimate, because others write there too.
    free: u64,
    /// Files that were placed there since the start.
    placed: u64,
    health: Health,
    measured: Option<Instant>,
    /// When it is to be looked at.
    look_at: Option<Instant>,
}

/// Why there is no place for a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The directory with the most room has so many bytes.
    Full(u64),
    /// All are taken out.
    Failing,
}

impl Space {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            used: 0,
            free: 0,
            placed: 0,
            health: Health::Usable,
            measured: None,
            look_at: None,
        }
    }

    pub(crate) fn health(&self) -> Health {
        self.health
    }

    /// Bytes of ours that lie there.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Bytes that can be written.
    pub(crate) fn room(&self) -> u64 {
        match self.limit {
            0 => self.free,
            limit => self.free.min(limit.saturating_sub(self.used)),
        }
    }

    /// So many bytes are going to lie there.
    ///
    /// # Errors
    /// Bytes that the limit leaves, if that is less; the disk itself is asked by writing.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), u64> {
        let left = self.limit.saturating_sub(self.used);
        if self.limit > 0 && bytes > left {
            return Err(left);
        }
        self.enter(bytes);
        self.free = self.free.saturating_sub(bytes);
        Ok(())
    }

    /// So many bytes lie there already.
    pub(crate) fn enter(&mut self, bytes: u64) {
        self.used += bytes;
    }

    /// So many bytes do not lie there any more.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.used = self
            .used
            .checked_sub(bytes)
            .expect("invariant: only what was taken is given back");
        self.free = self.free.saturating_add(bytes);
    }

    /// A new file goes there.
    pub(crate) fn handle_placed(&mut self) {
        self.placed += 1;
    }

    /// The disk has said that it is full. Whether it was not known to be.
    pub(crate) fn handle_full(&mut self, now: Instant) -> bool {
        if self.health == Health::Failing {
            return false;
        }
        self.free = 0;
        self.look_at.get_or_insert(now + LOOK_AGAIN);
        std::mem::replace(&mut self.health, Health::Full) != Health::Full
    }

    /// It is taken out, for good. Whether it was not yet.
    pub(crate) fn handle_failing(&mut self) -> bool {
        self.look_at = None;
        std::mem::replace(&mut self.health, Health::Failing) != Health::Failing
    }

    /// So many bytes are free. Whether it is usable again by that.
    pub(crate) fn handle_measured(&mut self, now: Instant, free: u64) -> bool {
        self.free = free;
        self.measured = Some(now);
        if self.health != Health::Full {
            return false;
        }
        if free < ENOUGH {
            self.look_at = Some(now + LOOK_AGAIN);
            return false;
        }
        self.health = Health::Usable;
        true
    }

    /// A new file is to be placed: an old measure is made anew.
    pub(crate) fn want_look(&mut self, now: Instant) {
        let is_old = self.measured.is_none_or(|at| now >= at + LOOK_AGAIN);
        if self.health == Health::Usable && is_old {
            self.look_at.get_or_insert(now);
        }
    }

    /// When it is to be looked at.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.look_at
    }

    /// Whether it is to be looked at now; then it is said once.
    pub(crate) fn poll_look(&mut self, now: Instant) -> bool {
        self.look_at.take_if(|at| *at <= now).is_some()
    }
}

/// Where a new file goes that begins with so many bytes: files are spread over the usable directories in proportion to their
/// room, which is the one where files per byte of room are the fewest with this one.
///
/// # Errors
/// [`NoPlace`].
pub(crate) fn choose<'a>(spaces: impl Iterator<Item = &'a Space>, bytes: u64) -> Result<usize, NoPlace> {
    let alive: Vec<(usize, &Space)> = spaces
        .enumerate()
        .filter(|(_, space)| space.health != Health::Failing)
        .collect();
    let usable = || alive.iter().filter(|(_, space)| space.health == Health::Usable);
    // a / room(a) < b / room(b), without a division.
    let load = |space: &Space, other: &Space| u128::from(space.placed + 1) * u128::from(other.room());
    let best = usable()
        .filter(|(_, space)| space.room() >= bytes)
        .min_by(|(_, a), (_, b)| load(a, b).cmp(&load(b, a)));
    match best {
        Some((number, _)) => Ok(*number),
        None if alive.is_empty() => Err(NoPlace::Failing),
        None => Err(NoPlace::Full(
            usable().map(|(_, space)| space.room()).max().unwrap_or(0),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{ENOUGH, Health, LOOK_AGAIN, NoPlace, Space, choose};

    fn space(limit: u64, free: u64) -> Space {
        let mut space = Space::new(limit);
        space.handle_measured(Instant::now(), free);
        space
    }

    #[test]
    fn the_one_with_the_most_room_within_its_limit_is_chosen() {
        let spaces = [space(0, 100), space(0, 300), space(200, 1000)];
        assert_eq!(choose(spaces.iter(), 10), Ok(1));
        assert_eq!(choose(spaces.iter(), 301), Err(NoPlace::Full(300)));
    }

    #[test]
    fn files_are_spread_in_proportion_to_room() {
        let mut spaces = [space(0, 1000), space(0, 3001), space(0, 2)];
        let mut placed = [0; 3];
        for _ in 0..400 {
            let chosen = choose(spaces.iter(), 1).expect("a place");
            spaces[chosen].handle_placed();
            placed[chosen] += 1;
        }
        assert_eq!(placed, [100, 300, 0]);
    }

    #[test]
    fn what_is_written_counts_before_it_is_measured() {
        let mut spaces = [space(0, 300), space(0, 250)];
        assert_eq!(choose(spaces.iter(), 1), Ok(0));
        assert_eq!(spaces[0].take(100), Ok(()));
        assert_eq!(choose(spaces.iter(), 1), Ok(1));
        spaces[0].give_back(100);
        assert_eq!(choose(spaces.iter(), 1), Ok(0));
        assert_eq!(spaces[0].used(), 0);
    }

    #[test]
    fn a_limit_is_kept_and_what_is_given_back_can_be_taken_again() {
        let mut space = space(100, 1000);
        assert_eq!(space.take(60), Ok(()));
        assert_eq!(space.take(41), Err(40));
        assert_eq!(space.take(40), Ok(()));
        space.give_back(60);
        assert_eq!((space.take(60), space.health()), (Ok(()), Health::Usable));
    }

    #[test]
    fn a_full_one_is_looked_at_until_space_is_back() {
        let now = Instant::now();
        let mut full = space(0, 1 << 30);
        assert!(full.handle_full(now));
        assert!(!full.handle_full(now), "said once");
        assert_eq!(choose([&full].into_iter(), 1), Err(NoPlace::Full(0)));
        assert!(!full.poll_look(now));
        let later = now + LOOK_AGAIN;
        assert_eq!(
            (full.next_look(), full.poll_look(later), full.poll_look(later)),
            (Some(later), true, false)
        );
        assert!(!full.handle_measured(later, ENOUGH - 1));
        assert!(full.poll_look(later + LOOK_AGAIN));
        assert!(full.handle_measured(later + LOOK_AGAIN, ENOUGH));
        assert_eq!((choose([&full].into_iter(), 1), full.next_look()), (Ok(0), None));
    }

    #[test]
    fn a_failing_one_is_out_for_good() {
        let now = Instant::now();
        let mut spaces = [space(0, 1000), space(0, 10)];
        assert!(spaces[0].handle_failing());
        assert!(!spaces[0].handle_failing() && !spaces[0].handle_full(now));
        assert!(!spaces[0].handle_measured(now, 1 << 40));
        assert_eq!(choose(spaces.iter(), 1), Ok(1));
        spaces[1].handle_failing();
        assert_eq!(choose(spaces.iter(), 1), Err(NoPlace::Failing));
    }

    #[test]
    fn old_measures_are_made_anew() {
        let now = Instant::now();
        let mut space = Space::new(0);
        space.handle_measured(now, 5);
        space.want_look(now + LOOK_AGAIN - Duration::from_millis(1));
        assert_eq!(space.next_look(), None);
        space.want_look(now + LOOK_AGAIN);
        assert!(space.poll_look(now + LOOK_AGAIN));
    }
}
