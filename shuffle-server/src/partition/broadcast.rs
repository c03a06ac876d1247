//! Who reads a broadcast queue, and how far all of them have come.
//!
//! ```text
//!   declared:  node -> consumers     each stands at 0 until it comes, moves with its reader, and is off the list once it has
//!                                    read everything, was cancelled or has died
//!   passed  =  the least of all that are on the list: everything below is needed no more
//! ```
//!
//! On the producer's node a reader is an executor's channel (one consumer) or another node's (all that were declared for it);
//! at the relay on a consuming node it is an executor's channel.

use std::collections::BTreeMap;

use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{NodeAddress, ShuffleError};

use super::OutletNo;

/// The readers of one queue.
#[derive(Debug, Default)]
pub(crate) struct Audience {
    nodes: BTreeMap<NodeAddress, Declared>,
    /// Nobody was declared: whoever comes counts while it is there.
    is_open: bool,
    /// Who has not come by now was given up.
    is_closed: bool,
    readers: BTreeMap<OutletNo, Reader>,
    /// How many consumers have passed how much; those who have not come stand at 0.
    positions: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Declared {
    consumers: u32,
    /// Those that have not come yet.
    absent: u32,
}

#[derive(Debug)]
struct Reader {
    node: NodeAddress,
    consumers: u32,
    passed: u64,
}

impl Audience {
    /// Consumers by node. None: whoever comes.
    pub(crate) fn new(declared: impl IntoIterator<Item = (NodeAddress, u32)>) -> Self {
        let mut audience = Self::default();
        for (node, consumers) in declared {
            let of = audience.nodes.entry(node).or_insert(Declared {
                consumers: 0,
                absent: 0,
            });
            of.consumers = of.consumers.saturating_add(consumers);
            of.absent = of.consumers;
            audience.stand(0, u64::from(consumers));
        }
        audience.is_open = audience.nodes.is_empty();
        audience
    }

    /// For one reader that is on its way from another place. As many were declared for its node there (0: nobody was): all of
    /// them have come.
    pub(crate) fn of_one(node: &NodeAddress, declared: u32) -> Self {
        let mut audience = Self {
            is_open: declared == 0,
            ..Self::default()
        };
        if declared > 0 {
            let of = Declared {
                consumers: declared,
                absent: 0,
            };
            audience.nodes.insert(node.clone(), of);
        }
        audience
    }

    /// For those of a node that have not come, of all that were declared for it.
    pub(crate) fn of_absent(node: &NodeAddress, declared: u32, absent: u32) -> Self {
        let mut audience = Self::of_one(node, declared);
        if let Some(of) = audience.nodes.get_mut(node) {
            of.absent = absent;
            audience.stand(0, absent.into());
        }
        audience
    }

    /// A reader has come that speaks for `consumers` of a node, of `declared` as its side was told (0: not told).
    ///
    /// # Errors
    /// `InvalidRequest`: the two sides were not told the same, or more come than were declared. `Released`: it comes too late, or
    /// again.
    pub(crate) fn attach(
        &mut self,
        reader: OutletNo,
        node: &NodeAddress,
        declared: u32,
        consumers: u32,
    ) -> Result<(), ShuffleError> {
        if self.is_closed {
            let message = "nobody new may read it: its consumers that had not come were given up";
            return Err(ShuffleError::new(ErrorKind::Released, message));
        }
        if !self.is_open {
            let of = self.nodes.get_mut(node);
            let there = of.as_ref().map_or(0, |of| of.consumers);
            if declared != there {
                return Err(invalid(format!(
                    "a consumer on {node} was told of {declared} consumers there, the broadcast was declared with {there}"
                )));
            }
            if there == 0 {
                return Err(invalid(format!(
                    "no consumer on {node} was declared for this broadcast"
                )));
            }
            let absent = of.as_ref().map_or(0, |of| of.absent);
            let left = absent.checked_sub(consumers);
            let (Some(of), Some(left)) = (of, left) else {
                return Err(if self.readers.values().any(|reader| reader.node == *node) {
                    invalid(format!("all {there} consumers declared for {node} have come already"))
                } else {
                    let message = format!("all {there} consumers declared for {node} have read it, or are gone");
                    ShuffleError::new(ErrorKind::Released, message)
                });
            };
            of.absent = left;
            self.leave(0, consumers.into());
        }
        self.adopt(reader, node.clone(), consumers, 0);
        Ok(())
    }

    /// A reader has come that takes so many consumers over from another, from this buffer on.
    ///
    /// # Errors
    /// `Released`: the other is gone. `InvalidRequest`: it has passed that.
    pub(crate) fn take_over(
        &mut self,
        reader: OutletNo,
        of: Option<OutletNo>,
        consumers: u32,
        from: u64,
    ) -> Result<(), ShuffleError> {
        let Some(before) = of.and_then(|of| self.readers.get_mut(&of)) else {
            let message = "the channel whose consumers it takes over has ended";
            return Err(ShuffleError::new(ErrorKind::Released, message));
        };
        if from < before.passed {
            return Err(invalid(format!(
                "a channel that begins with buffer {from} takes over from one that has passed {}",
                before.passed
            )));
        }
        let (node, passed, spoke_for) = (before.node.clone(), before.passed, before.consumers);
        // Somebody is left of whom the other side speaks.
        before.consumers = spoke_for.saturating_sub(consumers).max(1);
        let left = before.consumers;
        self.leave(passed, spoke_for.into());
        self.stand(passed, left.into());
        self.adopt(reader, node, consumers.max(1), from);
        Ok(())
    }

    /// A reader comes from another place, where it had passed so much.
    pub(crate) fn adopt(&mut self, reader: OutletNo, node: NodeAddress, consumers: u32, passed: u64) {
        self.stand(passed, consumers.into());
        let new = Reader {
            node,
            consumers,
            passed,
        };
        let before = self.readers.insert(reader, new);
        assert!(before.is_none(), "a reader came twice");
    }

    /// A reader has passed everything below, and for its last buffer is done with that too.
    pub(crate) fn handle_passed(&mut self, reader: OutletNo, buffers: u64) {
        let Some(of) = self.readers.get_mut(&reader) else {
            return;
        };
        let (from, consumers) = (of.passed, u64::from(of.consumers));
        of.passed += buffers;
        let to = of.passed;
        self.leave(from, consumers);
        self.stand(to, consumers);
    }

    /// A reader has read everything, or is gone: it does not count any more.
    pub(crate) fn detach(&mut self, reader: OutletNo) {
        let of = self.readers.remove(&reader).expect("invariant: a reader leaves once");
        self.leave(of.passed, of.consumers.into());
    }

    /// Whoever has not come is not waited for. Anybody may still come.
    pub(crate) fn open(&mut self) {
        let absent: u64 = self.nodes.values().map(|of| u64::from(of.absent)).sum();
        self.nodes.clear();
        self.leave(0, absent);
        self.is_open = true;
    }

    /// Whoever has not come from that node will not come any more. False: nobody was awaited from there.
    pub(crate) fn give_up_node(&mut self, node: &NodeAddress) -> bool {
        let absent = self.nodes.get_mut(node).map_or(0, |of| std::mem::take(&mut of.absent));
        self.leave(0, absent.into());
        absent > 0
    }

    /// Whoever has not come will not come any more.
    pub(crate) fn give_up_absent(&mut self) {
        let absent: u64 = self.nodes.values().map(|of| u64::from(of.absent)).sum();
        for of in self.nodes.values_mut() {
            of.absent = 0;
        }
        self.leave(0, absent);
        self.is_closed = true;
    }

    /// How many buffers everybody has passed. `None`: nobody reads, or will read.
    pub(crate) fn passed(&self) -> Option<u64> {
        self.positions.keys().next().copied()
    }

    /// How many buffers the first of all has passed.
    pub(crate) fn furthest(&self) -> Option<u64> {
        self.positions.keys().next_back().copied()
    }

    /// A reader that stands there.
    pub(crate) fn reader_at(&self, passed: u64) -> Option<OutletNo> {
        let there = self.readers.iter().find(|(_, reader)| reader.passed == passed);
        there.map(|(no, _)| *no)
    }

    /// How many buffers this reader has passed.
    pub(crate) fn passed_by(&self, reader: OutletNo) -> Option<u64> {
        self.readers.get(&reader).map(|reader| reader.passed)
    }

    /// Nodes with declared consumers.
    pub(crate) fn nodes(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// Consumers that were declared and have not come.
    pub(crate) fn absent(&self) -> u32 {
        self.nodes.values().map(|of| of.absent).sum()
    }

    /// Those who have not come do so elsewhere.
    pub(crate) fn give_absent_away(&mut self) {
        let absent = self.absent();
        for of in self.nodes.values_mut() {
            of.absent = 0;
        }
        self.leave(0, absent.into());
    }

    /// Whether who comes now would find its place.
    pub(crate) fn has_room(&self) -> bool {
        self.is_open || self.absent() > 0
    }

    /// Nobody reads it, and nobody who was declared will.
    pub(crate) fn is_over(&self) -> bool {
        self.positions.is_empty()
    }

    pub(crate) fn readers(&self) -> impl Iterator<Item = OutletNo> {
        self.readers.keys().copied()
    }

    fn stand(&mut self, at: u64, consumers: u64) {
        if consumers > 0 {
            *self.positions.entry(at).or_default() += consumers;
        }
    }

    fn leave(&mut self, at: u64, consumers: u64) {
        if consumers == 0 {
            return;
        }
        let there = self
            .positions
            .get_mut(&at)
            .expect("invariant: a consumer stands where it is");
        *there = there
            .checked_sub(consumers)
            .expect("invariant: consumers are counted once");
        if *there == 0 {
            self.positions.remove(&at);
        }
    }

    pub(crate) fn check_invariants(&self) {
        let absent: u64 = self.nodes.values().map(|of| u64::from(of.absent)).sum();
        let mut positions: BTreeMap<u64, u64> = BTreeMap::new();
        if absent > 0 {
            positions.insert(0, absent);
        }
        for reader in self.readers.values() {
            *positions.entry(reader.passed).or_default() += u64::from(reader.consumers);
        }
        assert_eq!(positions, self.positions, "where the consumers of a broadcast stand");
    }
}

fn invalid(message: String) -> ShuffleError {
    ShuffleError::new(ErrorKind::InvalidRequest, message)
}
