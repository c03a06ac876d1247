//! In which order one directory's operations are done. Pure.
//!
//! ```text
//!   reads    by (file, place): upwards from where the last one ended, then from the lowest again
//!   others   as they came
//!   removals as they came, each when nothing of its file is being done
//! ```
//!
//! Of any five operations that are taken while both wait, at least one is a read and at least one is not. A read that so many others
//! have passed as [`PATIENCE`] says is next.

use std::collections::{BTreeMap, VecDeque};

use super::StoreNo;

/// So many reads may go before one that has waited longer.
const PATIENCE: u64 = 256;
/// So many reads in a row while others wait.
const READS_IN_A_ROW: u32 = 4;

/// Where a read is on the disk, as far as that can be told: files in the order in which they were made.
type Place = (u64, u64, u64);

/// What one operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Reads from that place of that file on.
    Read {
        /// The serial number of the file.
        file: u64,
        /// From where.
        at: u64,
    },
    /// Writes, gives space back, syncs.
    Other,
    /// Takes the file away.
    Removal,
}

/// The operations of one directory that wait. `T` is the work itself.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    reads: BTreeMap<Place, (StoreNo, T)>,
    /// The same reads by age.
    ages: BTreeMap<u64, Place>,
    others: VecDeque<(StoreNo, T)>,
    removals: VecDeque<(StoreNo, T)>,
    /// Operations that are being done, by file.
    running: BTreeMap<StoreNo, u32>,
    position: Place,
    reads_in_a_row: u32,
    taken: u64,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self {
            reads: BTreeMap::new(),
            ages: BTreeMap::new(),
            others: VecDeque::new(),
            removals: VecDeque::new(),
            running: BTreeMap::new(),
            position: (0, 0, 0),
            reads_in_a_row: 0,
            taken: 0,
        }
    }
}

impl<T> Schedule<T> {
    /// Something is to be done. A removal drops what waits for its file: that is what comes back, to be answered.
    pub(crate) fn push(&mut self, store: StoreNo, class: Class, work: T) -> Vec<T> {
        match class {
            Class::Read { file, at } => {
                // The reads taken so far are its age; a number of its own keeps two reads of one place apart.
                let age = self.taken;
                let unique = self.ages.last_key_value().map_or(age, |(last, _)| age.max(last + 1));
                let place = (file, at, unique);
                self.reads.insert(place, (store, work));
                self.ages.insert(unique, place);
                Vec::new()
            }
            Class::Other => {
                self.others.push_back((store, work));
                Vec::new()
            }
            Class::Removal => {
                let dropped = self.take_waiting(|of| of == store);
                self.removals.push_back((store, work));
                dropped
            }
        }
    }

    /// What is to be done now, if anything can; [`Self::handle_done`] says when it is.
    pub(crate) fn next(&mut self) -> Option<(StoreNo, T)> {
        let others_wait = !self.others.is_empty() || self.removable().is_some();
        let turn_of_others = others_wait && self.reads_in_a_row >= READS_IN_A_ROW;
        let is_read = !self.reads.is_empty() && !turn_of_others;
        self.reads_in_a_row = if is_read && others_wait {
            self.reads_in_a_row + 1
        } else {
            0
        };
        let next = if is_read { self.next_read() } else { self.next_other() }?;
        *self.running.entry(next.0).or_default() += 1;
        Some(next)
    }

    /// An operation that was taken is over.
    pub(crate) fn handle_done(&mut self, store: StoreNo) {
        let running = self.running.get_mut(&store).expect("invariant: what is done was begun");
        *running -= 1;
        if *running == 0 {
            self.running.remove(&store);
        }
    }

    /// Drops all that waits, but for removals: to be answered.
    pub(crate) fn clear(&mut self) -> Vec<T> {
        self.take_waiting(|_| true)
    }

    /// Operations that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.reads.len() + self.others.len() + self.removals.len()
    }

    fn take_waiting(&mut self, of: impl Fn(StoreNo) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for (place, (store, work)) in std::mem::take(&mut self.reads) {
            if of(store) {
                self.ages.remove(&place.2);
                taken.push(work);
            } else {
                self.reads.insert(place, (store, work));
            }
        }
        for (store, work) in std::mem::take(&mut self.others) {
            if of(store) {
                taken.push(work);
            } else {
                self.others.push_back((store, work));
            }
        }
        taken
    }

    fn next_read(&mut self) -> Option<(StoreNo, T)> {
        let oldest = self.ages.first_key_value().map(|(age, place)| (*age, *place));
        let upwards = || {
            self.reads
                .range(self.position..)
                .next()
                .or_else(|| self.reads.first_key_value())
        };
        let place = match oldest {
            Some((age, place)) if age + PATIENCE <= self.taken => place,
            _ => *upwards()?.0,
        };
        self.taken += 1;
        self.position = place;
        self.ages.remove(&place.2);
        self.reads.remove(&place)
    }

    fn next_other(&mut self) -> Option<(StoreNo, T)> {
        // Removals first: they make room.
        match self.removable() {
            Some(place) => self.removals.remove(place),
            None => self.others.pop_front(),
        }
    }

    fn removable(&self) -> Option<usize> {
        self.removals
            .iter()
            .position(|(store, _)| !self.running.contains_key(store))
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, PATIENCE, Schedule};
    use crate::spill::StoreNo;
    use proptest::prelude::*;

    fn read(file: u64, at: u64) -> Class {
        Class::Read { file, at }
    }

    fn take<T>(schedule: &mut Schedule<T>) -> Option<T> {
        let (store, work) = schedule.next()?;
        schedule.handle_done(store);
        Some(work)
    }

    #[test]
    fn reads_of_all_readers_go_upwards_and_begin_anew() {
        let mut schedule = Schedule::default();
        for (file, at) in [(2, 0), (1, 50), (1, 10), (3, 7), (1, 30)] {
            schedule.push(StoreNo(file), read(file, at), (file, at));
        }
        let mut order = vec![take(&mut schedule), take(&mut schedule)];
        // Behind the head: in the next round. Before it: in this one.
        schedule.push(StoreNo(1), read(1, 20), (1, 20));
        schedule.push(StoreNo(1), read(1, 40), (1, 40));
        order.extend((0..5).map(|_| take(&mut schedule)));
        let order: Vec<_> = order.into_iter().flatten().collect();
        assert_eq!(order, [(1, 10), (1, 30), (1, 40), (1, 50), (2, 0), (3, 7), (1, 20)]);
        assert_eq!((take(&mut schedule), schedule.waiting()), (None, 0));
    }

    #[test]
    fn neither_side_starves() {
        let mut schedule = Schedule::default();
        for n in 0..40 {
            schedule.push(StoreNo(1), read(1, n), 'r');
            schedule.push(StoreNo(1), Class::Other, 'w');
        }
        let order: Vec<char> = std::iter::from_fn(|| take(&mut schedule)).collect();
        assert_eq!(order.len(), 80);
        let both_wait = &order[..50];
        assert!(
            both_wait
                .windows(5)
                .all(|five| five.contains(&'r') && five.contains(&'w')),
            "{order:?}"
        );
    }

    #[test]
    fn a_read_is_passed_by_so_many_and_no_more() {
        let mut schedule = Schedule::default();
        schedule.push(StoreNo(9), read(9, 0), u64::MAX);
        schedule.push(StoreNo(1), read(1, 0), 0);
        let mut passed = 0;
        // A file that grows as fast as it is read.
        for at in 1..10 * PATIENCE {
            schedule.push(StoreNo(1), read(1, at), at);
            if take(&mut schedule) == Some(u64::MAX) {
                break;
            }
            passed += 1;
        }
        assert_eq!(passed, PATIENCE);
    }

    #[test]
    fn a_removal_waits_for_what_is_being_done_and_drops_what_waits() {
        let mut schedule = Schedule::default();
        schedule.push(StoreNo(1), Class::Other, "first");
        let (store, work) = schedule.next().expect("a write");
        assert_eq!(work, "first");
        schedule.push(StoreNo(1), Class::Other, "second");
        schedule.push(StoreNo(1), read(1, 5), "third");
        schedule.push(StoreNo(2), read(2, 5), "of another file");
        let mut dropped = schedule.push(StoreNo(1), Class::Removal, "gone");
        dropped.sort_unstable();
        assert_eq!(dropped, ["second", "third"]);
        assert_eq!(take(&mut schedule), Some("of another file"));
        assert_eq!(take(&mut schedule), None, "the first one is not over");
        schedule.handle_done(store);
        assert_eq!(take(&mut schedule), Some("gone"));
        assert_eq!(schedule.waiting(), 0);
    }

    #[test]
    fn what_is_dropped_at_once_is_all_but_removals() {
        let mut schedule = Schedule::default();
        schedule.push(StoreNo(1), Class::Other, 1);
        schedule.push(StoreNo(1), read(1, 1), 2);
        schedule.push(StoreNo(2), Class::Removal, 3);
        assert_eq!(schedule.clear(), [2, 1]);
        assert_eq!((take(&mut schedule), take(&mut schedule)), (Some(3), None));
    }

    proptest! {
        #[test]
        fn each_operation_is_given_out_once(steps in prop::collection::vec((0..4u8, 0..3u64, 0..5u64), 0..80)) {
            let mut schedule = Schedule::default();
            let mut all = Vec::new();
            let mut seen = Vec::new();
            let mut begun = Vec::new();
            for (number, (what, store, at)) in steps.into_iter().enumerate() {
                let class = match what {
                    0 => read(store, at),
                    1 => Class::Other,
                    2 if at == 0 => Class::Removal,
                    2 => {
                        if let Some(store) = begun.pop() {
                            schedule.handle_done(store);
                        }
                        continue;
                    }
                    _ => {
                        if let Some((store, work)) = schedule.next() {
                            begun.push(store);
                            seen.push(work);
                        }
                        continue;
                    }
                };
                all.push(number);
                seen.extend(schedule.push(StoreNo(store), class, number));
            }
            begun.into_iter().for_each(|store| schedule.handle_done(store));
            seen.extend(std::iter::from_fn(|| take(&mut schedule)));
            seen.sort_unstable();
            prop_assert_eq!(seen, all);
            prop_assert!(schedule.ages.is_empty() && schedule.running.is_empty());
        }
    }
}
