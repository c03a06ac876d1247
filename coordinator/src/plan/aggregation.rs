//! Into how many stages an aggregation is cut.
//!
//! ```text
//!  global           source --as asked--> accumulate (n tasks) --one key--> combine (1 task)
//!  by key           source --local-----> accumulate (n tasks) --key------> combine (n tasks)
//!  rebalanced       source --key-------> aggregate  (n tasks)
//! ```

use super::pipeline::{Key, Node};

/// How an aggregation runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Aggregation {
    /// Everything in one stage, each input by its grouping key.
    SingleStage,
    /// Accumulation where the records are, combination by the key, or in one task without one.
    TwoStages { key: Option<Key> },
}

/// By key: single-stage as soon as any input is rebalanced, because its records cross the network anyway.
pub(super) fn of(node: &Node) -> Aggregation {
    let key = node.inputs.iter().find_map(|input| input.key.clone());
    let rebalanced = node.inputs.iter().any(|input| input.flow.rebalance.is_some());
    if key.is_some() && rebalanced {
        Aggregation::SingleStage
    } else {
        Aggregation::TwoStages { key }
    }
}
