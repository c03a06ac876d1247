//! Who does what in a run.

use std::path::PathBuf;
use std::time::Duration;

use super::feed::Feed;
use super::pool::{Guarantees, PoolSize};
use crate::cli::CommonArgs;
use crate::error::BenchError;
use crate::executor::Source;

/// A run of a shuffle. Producer and consumer `i` live on node `i % nodes`.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) pool: PoolSize,
    pub(super) subpartitions: u32,
    /// One for each producer.
    pub(super) sources: Vec<Source>,
    /// One for each consumer.
    pub(super) consumers: Vec<ConsumerPlan>,
    /// Text that is sent to the producers.
    pub(super) feed: Option<Feed>,
    pub(super) stall_timeout: Duration,
    pub(super) verbose: bool,
    /// How much there is, in the unit of `unit`, if it is known.
    pub(super) total: Option<Total>,
}

/// How much a run is about to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Total {
    Rows(u64),
    Bytes(u64),
}

/// One consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConsumerPlan {
    pub(super) first: u32,
    pub(super) count: u32,
    /// A file for each subpartition, or none at all.
    pub(super) files: Vec<PathBuf>,
}

impl Plan {
    /// A plan whose pools are chosen for it.
    ///
    /// # Errors
    /// The pool that was asked for cannot guarantee what the executors need.
    pub(super) fn new(
        nodes: u16,
        sources: Vec<Source>,
        consumers: Vec<ConsumerPlan>,
        common: &CommonArgs,
    ) -> Result<Self, BenchError> {
        let nodes = usize::from(nodes);
        let subpartitions = consumers.iter().map(|consumer| consumer.count).sum();
        let guarantees: Vec<Guarantees> = (0..nodes)
            .map(|node| {
                let writers = on_node(sources.len(), nodes, node);
                Guarantees {
                    writers,
                    buffers_per_writer: subpartitions,
                    gates: on_node(consumers.len(), nodes, node),
                    buffers_per_gate: EXCLUSIVE * (on_node(sources.len(), 1, 0) - writers),
                }
            })
            .collect();
        Ok(Self {
            nodes,
            pool: PoolSize::choose(common, &guarantees)?,
            subpartitions,
            sources,
            consumers,
            feed: None,
            stall_timeout: Duration::from_secs(common.output.stall_timeout),
            verbose: common.output.verbose,
            total: None,
        })
    }
}

/// How many of `count` executors live on a node.
fn on_node(count: usize, nodes: usize, node: usize) -> u32 {
    let here = (0..count).filter(|executor| executor % nodes == node).count();
    u32::try_from(here).expect("invariant: executors are counted in 16 bits")
}

/// Divides subpartitions over consumers, evenly and in order.
pub(super) fn divide(subpartitions: u32, consumers: u32) -> Vec<(u32, u32)> {
    let (each, more) = (subpartitions / consumers, subpartitions % consumers);
    let mut first = 0;
    (0..consumers)
        .map(|consumer| {
            let count = each + u32::from(consumer < more);
            let range = (first, count);
            first += count;
            range
        })
        .collect()
}

/// Credits of each channel, and of each gate beside them.
pub(super) const EXCLUSIVE: u32 = 2;
pub(super) const FLOATING: u32 = 8;

#[cfg(test)]
mod tests {
    use super::{divide, on_node};

    #[test]
    fn executors_alternate_between_nodes() {
        assert_eq!((on_node(5, 2, 0), on_node(5, 2, 1)), (3, 2));
        assert_eq!(on_node(5, 1, 0), 5);
    }

    #[test]
    fn subpartitions_are_divided_evenly() {
        assert_eq!(divide(4, 4), [(0, 1), (1, 1), (2, 1), (3, 1)]);
        assert_eq!(divide(7, 3), [(0, 3), (3, 2), (5, 2)]);
    }
}
