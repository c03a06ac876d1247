//! LIFO over small indices, with removal from the middle; all steps O(1), no allocation after `new`.
//!
//! ```text
//!   hot end (taken first)                         cold end (reclaimed first)
//!   newest <-> ... <-> ... <-> ... <-> ... <-> oldest
//! ```
//!
//! The buffer freed last is granted first, so what circulates is small and stays in the caches. Removal from the
//! middle is for extents that leave with all their buffers.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    hotter: u32,
    colder: u32,
    linked: bool,
}

/// A list of distinct indices below a fixed capacity.
#[derive(Debug)]
pub(crate) struct FreeList {
    links: Vec<Link>,
    hot: u32,
    cold: u32,
    len: u32,
}

impl FreeList {
    /// Empty, for indices `0..capacity`.
    pub(crate) fn new(capacity: u32) -> Self {
        let unlinked = Link {
            hotter: NONE,
            colder: NONE,
            linked: false,
        };
        Self {
            links: vec![unlinked; index(capacity)],
            hot: NONE,
            cold: NONE,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn contains(&self, at: u32) -> bool {
        self.links[index(at)].linked
    }

    /// Puts `at` at the hot end.
    pub(crate) fn push(&mut self, at: u32) {
        let hot = self.hot;
        let link = &mut self.links[index(at)];
        assert!(!link.linked, "invariant: {at} is put into a free list once");
        *link = Link {
            hotter: NONE,
            colder: hot,
            linked: true,
        };
        if hot == NONE {
            self.cold = at;
        } else {
            self.links[index(hot)].hotter = at;
        }
        self.hot = at;
        self.len += 1;
    }

    /// Takes the hottest.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let at = self.hot;
        if at == NONE {
            return None;
        }
        self.remove(at);
        Some(at)
    }

    /// The index that has been here longest.
    pub(crate) fn coldest(&self) -> Option<u32> {
        (self.cold != NONE).then_some(self.cold)
    }

    /// Takes `at` out from wherever it is.
    pub(crate) fn remove(&mut self, at: u32) {
        let Link { hotter, colder, linked } = self.links[index(at)];
        assert!(linked, "invariant: {at} is in the free list");
        self.links[index(at)].linked = false;
        if hotter == NONE {
            self.hot = colder;
        } else {
            self.links[index(hotter)].colder = colder;
        }
        if colder == NONE {
            self.cold = hotter;
        } else {
            self.links[index(colder)].hotter = hotter;
        }
        self.len -= 1;
    }

    /// From the hot end to the cold end.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let mut at = self.hot;
        std::iter::from_fn(move || {
            let this = (at != NONE).then_some(at)?;
            at = self.links[index(this)].colder;
            Some(this)
        })
    }
}

fn index(at: u32) -> usize {
    usize::try_from(at).expect("invariant: u32 fits usize")
}

#[cfg(test)]
mod tests {
    use super::FreeList;

    #[test]
    fn freed_last_is_taken_first() {
        let mut list = FreeList::new(4);
        for at in [2, 0, 3] {
            list.push(at);
        }
        assert_eq!(list.coldest(), Some(2));
        assert_eq!(
            [list.pop(), list.pop(), list.pop(), list.pop()],
            [Some(3), Some(0), Some(2), None]
        );
    }

    #[test]
    fn removal_from_each_position_keeps_the_rest_in_order() {
        for gone in 0..4 {
            let mut list = FreeList::new(4);
            (0..4).for_each(|at| list.push(at));
            list.remove(gone);
            assert!(!list.contains(gone));
            let rest: Vec<u32> = list.iter().collect();
            let expected: Vec<u32> = (0..4).rev().filter(|&at| at != gone).collect();
            assert_eq!(rest, expected);
            assert_eq!(list.len(), 3);
            list.push(gone);
            assert_eq!(list.pop(), Some(gone));
        }
    }

    #[test]
    #[should_panic(expected = "once")]
    fn a_double_free_stops_the_process() {
        let mut list = FreeList::new(1);
        list.push(0);
        list.push(0);
    }
}
