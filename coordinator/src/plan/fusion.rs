//! Which stateless transforms run in one stage.

use super::pipeline::{Node, Transform};
use crate::ids::number;

/// For each transform the first one of the chain it runs in; itself, if it is not fused.
pub(super) fn chains(nodes: &[Node]) -> Vec<u32> {
    let mut readers = vec![0_u32; nodes.len()];
    for input in nodes.iter().flat_map(|node| &node.inputs) {
        readers[input.flow.node as usize] += 1;
    }
    let mut heads = Vec::with_capacity(nodes.len());
    for (at, node) in nodes.iter().enumerate() {
        let head = match node.inputs.as_slice() {
            [input] if node.transform == Transform::Stateless && input.flow.rebalance.is_none() => {
                let before = &nodes[input.flow.node as usize];
                let alone = readers[input.flow.node as usize] == 1;
                let fuses = before.transform == Transform::Stateless && before.tasks == node.tasks && alone;
                fuses.then(|| heads[input.flow.node as usize])
            }
            _ => None,
        };
        heads.push(head.unwrap_or_else(|| number(at)));
    }
    heads
}
