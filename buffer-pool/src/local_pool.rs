//! One writer's or one reader's share of the network pool.
//!
//! ```text
//! 0 <= minimum <= size <= maximum        held <= size, but for what was out when the size shrank
//! ```
//!
//! A destroyed pool leaves redistribution at once and stays as *leaving* until its last buffer is home.

use crate::ids::{PoolId, to_u32, to_usize};

/// What a local pool asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPoolSpec {
    /// Buffers it can always take without waiting.
    pub minimum: u32,
    /// Buffers it can use at most; `None`: as many as there are.
    pub maximum: Option<u32>,
    /// Its part of what is left after all minimums; at least 1.
    pub weight: u32,
    /// How errors name it as a holder.
    pub label: String,
}

/// What a pool waits for, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    No,
    /// Its own size: for a buffer of its own to come home, or for more from redistribution.
    Size,
    /// Memory: it stands in one of the queues of `Waiters`.
    Queue,
}

#[derive(Debug)]
pub(crate) struct LocalPool {
    pub(crate) arena: u32,
    pub(crate) minimum: u32,
    pub(crate) maximum: u32,
    pub(crate) weight: u32,
    pub(crate) label: String,
    pub(crate) size: u32,
    pub(crate) held: u32,
    pub(crate) wait: Wait,
    pub(crate) leaving: bool,
}

impl LocalPool {
    /// Buffers of its minimum that it has not taken yet.
    pub(crate) fn unmet(&self) -> u32 {
        self.minimum.saturating_sub(self.held)
    }
}

#[derive(Debug)]
struct Place {
    generation: u32,
    pool: Option<LocalPool>,
}

/// All local pools, by index; an index is reused under another generation.
#[derive(Debug, Default)]
pub(crate) struct LocalPools {
    places: Vec<Place>,
    vacant: Vec<u32>,
}

impl LocalPools {
    /// Indices are below this.
    pub(crate) fn capacity(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn insert(&mut self, pool: LocalPool) -> PoolId {
        if let Some(index) = self.vacant.pop() {
            let place = &mut self.places[to_usize(index)];
            place.generation = place.generation.wrapping_add(1);
            place.pool = Some(pool);
            return PoolId::new(index, place.generation);
        }
        self.places.push(Place {
            generation: 0,
            pool: Some(pool),
        });
        PoolId::new(to_u32(self.places.len() - 1), 0)
    }

    pub(crate) fn remove(&mut self, index: u32) {
        let gone = self.places[to_usize(index)].pool.take();
        assert!(gone.is_some(), "invariant: a pool is removed once");
        self.vacant.push(index);
    }

    pub(crate) fn id(&self, index: u32) -> PoolId {
        PoolId::new(index, self.places[to_usize(index)].generation)
    }

    /// `None` once the pool is destroyed and its last buffer is home.
    pub(crate) fn find(&self, id: PoolId) -> Option<&LocalPool> {
        let place = self.places.get(to_usize(id.index()))?;
        if place.generation != id.generation() {
            return None;
        }
        place.pool.as_ref()
    }

    /// # Panics
    /// If there is no pool at `index`.
    pub(crate) fn at(&self, index: u32) -> &LocalPool {
        self.places[to_usize(index)]
            .pool
            .as_ref()
            .expect("invariant: a local pool is there")
    }

    /// # Panics
    /// If there is no pool at `index`.
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut LocalPool {
        self.places[to_usize(index)]
            .pool
            .as_mut()
            .expect("invariant: a local pool is there")
    }

    /// Those that take part in redistribution and those that are leaving, in index order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &LocalPool)> {
        self.places
            .iter()
            .enumerate()
            .filter_map(|(at, place)| place.pool.as_ref().map(|pool| (to_u32(at), pool)))
    }
}
