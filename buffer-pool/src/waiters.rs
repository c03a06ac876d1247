//! Who waits for memory, in the order in which they came.
//!
//! ```text
//!   certain   p7 -> p2              below their minimum again: always served, before all others
//!   arena 0   p1 -> p9 -> p4        all wait for the same thing: a spare buffer, or an extent
//!   arena 1   p3                    tickets say which arena's head came first
//! ```
//!
//! A pool waits in one queue at most. The links live in one vector indexed by pool, so waiting allocates nothing and
//! leaving from the middle is O(1).

const NONE: u32 = u32::MAX;

/// Where a pool waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// It is below its minimum and was waiting: the next take succeeds.
    Certain,
    /// For a spare buffer of this arena (index into the pool's arenas).
    Arena(u32),
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    behind: u32,
    ticket: u64,
    queue: Option<Queue>,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends {
    first: NONE,
    last: NONE,
};

/// FIFO queues of pool indices.
#[derive(Debug)]
pub(crate) struct Waiters {
    links: Vec<Link>,
    certain: Ends,
    arenas: Vec<Ends>,
    len: u32,
    next_ticket: u64,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Self {
            links: Vec::new(),
            certain: EMPTY,
            arenas: Vec::new(),
            len: 0,
            next_ticket: 0,
        }
    }

    /// Makes room for pool indices below `pools` and arena indices below `arenas`.
    pub(crate) fn reserve(&mut self, pools: usize, arenas: usize) {
        if self.links.len() < pools {
            self.links.resize(
                pools,
                Link {
                    before: NONE,
                    behind: NONE,
                    ticket: 0,
                    queue: None,
                },
            );
        }
        if self.arenas.len() < arenas {
            self.arenas.resize(arenas, EMPTY);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn queue_of(&self, pool: u32) -> Option<Queue> {
        self.links[index(pool)].queue
    }

    /// The first of a queue.
    pub(crate) fn first(&self, queue: Queue) -> Option<u32> {
        let first = self.ends(queue).first;
        (first != NONE).then_some(first)
    }

    /// When the first of an arena's queue came; lower is earlier.
    pub(crate) fn ticket_of_first(&self, arena: u32) -> Option<u64> {
        self.first(Queue::Arena(arena))
            .map(|pool| self.links[index(pool)].ticket)
    }

    /// Puts a pool that waits nowhere at the end of a queue.
    pub(crate) fn push(&mut self, queue: Queue, pool: u32) {
        assert!(self.queue_of(pool).is_none(), "invariant: a pool waits in one queue");
        let last = self.ends(queue).last;
        self.links[index(pool)] = Link {
            before: last,
            behind: NONE,
            ticket: self.next_ticket,
            queue: Some(queue),
        };
        self.next_ticket += 1;
        self.len += 1;
        if last == NONE {
            self.ends_mut(queue).first = pool;
        } else {
            self.links[index(last)].behind = pool;
        }
        self.ends_mut(queue).last = pool;
    }

    /// Takes a pool out of its queue, if it waits.
    pub(crate) fn remove(&mut self, pool: u32) -> bool {
        let Link {
            before, behind, queue, ..
        } = self.links[index(pool)];
        let Some(queue) = queue else { return false };
        self.links[index(pool)].queue = None;
        self.len -= 1;
        if before == NONE {
            self.ends_mut(queue).first = behind;
        } else {
            self.links[index(before)].behind = behind;
        }
        if behind == NONE {
            self.ends_mut(queue).last = before;
        } else {
            self.links[index(behind)].before = before;
        }
        true
    }

    /// From the first to the last of a queue.
    pub(crate) fn iter(&self, queue: Queue) -> impl Iterator<Item = u32> {
        let mut at = self.ends(queue).first;
        std::iter::from_fn(move || {
            let this = (at != NONE).then_some(at)?;
            at = self.links[index(this)].behind;
            Some(this)
        })
    }

    fn ends(&self, queue: Queue) -> &Ends {
        match queue {
            Queue::Certain => &self.certain,
            Queue::Arena(arena) => &self.arenas[index(arena)],
        }
    }

    fn ends_mut(&mut self, queue: Queue) -> &mut Ends {
        match queue {
            Queue::Certain => &mut self.certain,
            Queue::Arena(arena) => &mut self.arenas[index(arena)],
        }
    }
}

fn index(at: u32) -> usize {
    usize::try_from(at).expect("invariant: u32 fits usize")
}

#[cfg(test)]
mod tests {
    use super::{Queue, Waiters};

    fn waiters() -> Waiters {
        let mut waiters = Waiters::new();
        waiters.reserve(8, 2);
        waiters
    }

    #[test]
    fn first_come_first_out() {
        let mut waiters = waiters();
        for pool in [5, 1, 3] {
            waiters.push(Queue::Arena(0), pool);
        }
        waiters.push(Queue::Arena(1), 2);
        assert!(waiters.ticket_of_first(0) < waiters.ticket_of_first(1));
        assert!(waiters.remove(1));
        assert!(!waiters.remove(1));
        assert_eq!(waiters.iter(Queue::Arena(0)).collect::<Vec<_>>(), [5, 3]);
        assert!(waiters.remove(5));
        assert!(waiters.ticket_of_first(0) < waiters.ticket_of_first(1));
        assert!(waiters.remove(3) && waiters.remove(2));
        assert!(waiters.is_empty());
    }

    #[test]
    #[should_panic(expected = "one queue")]
    fn a_pool_waits_once() {
        let mut waiters = waiters();
        waiters.push(Queue::Arena(0), 5);
        waiters.push(Queue::Certain, 5);
    }
}
