//! A directed graph in two flat arrays, in which thousands of stages cost a few bytes for each edge.
//!
//! ```text
//!  start   [ 0 | 2 | 2 | 5 ]          node n: pairs start[n] .. start[n + 1]
//!  pairs   [ (edge, node) (edge, node) | (edge, node) ... ]
//! ```

use std::collections::VecDeque;

use crate::ids::number;

/// For each node the edges that leave it, with the node at their other end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Adjacency {
    start: Vec<u32>,
    pairs: Vec<(u32, u32)>,
}

impl Adjacency {
    /// From `(from, to)` pairs; the number of an edge is its place among them.
    pub(crate) fn new(nodes: usize, edges: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let mut start = vec![0_u32; nodes + 1];
        for (from, _) in edges.clone() {
            start[from as usize + 1] += 1;
        }
        for node in 0..nodes {
            start[node + 1] += start[node];
        }
        let mut next = start.clone();
        let mut pairs = vec![(0, 0); start[nodes] as usize];
        for (edge, (from, to)) in edges.enumerate() {
            let at = &mut next[from as usize];
            pairs[*at as usize] = (number(edge), to);
            *at += 1;
        }
        Self { start, pairs }
    }

    /// `(edge, other end)` of each edge of the node, in the order in which the edges were given.
    pub(crate) fn of(&self, node: u32) -> &[(u32, u32)] {
        let from = self.start[node as usize] as usize;
        let to = self.start[node as usize + 1] as usize;
        &self.pairs[from..to]
    }

    pub(crate) fn nodes(&self) -> usize {
        self.start.len() - 1
    }

    /// Every node after all those from which an edge leads to it, the lowest number first where that leaves a choice open.
    ///
    /// # Errors
    /// The nodes of one cycle, in the order of its edges.
    pub(crate) fn topological_order(&self) -> Result<Vec<u32>, Vec<u32>> {
        let mut missing = vec![0_u32; self.nodes()];
        for &(_, to) in &self.pairs {
            missing[to as usize] += 1;
        }
        let mut free: VecDeque<u32> = (0..number(self.nodes()))
            .filter(|&node| missing[node as usize] == 0)
            .collect();
        let mut order = Vec::with_capacity(self.nodes());
        while let Some(node) = free.pop_front() {
            order.push(node);
            for &(_, to) in self.of(node) {
                let left = &mut missing[to as usize];
                *left -= 1;
                if *left == 0 {
                    free.push_back(to);
                }
            }
        }
        if order.len() == self.nodes() {
            Ok(order)
        } else {
            Err(self.cycle_among(&missing))
        }
    }

    /// What is left over by the sort lies on a cycle or behind one, so each has a predecessor among the rest: going back from
    /// any of them comes round.
    fn cycle_among(&self, missing: &[u32]) -> Vec<u32> {
        let left = |node: u32| missing[node as usize] > 0;
        let mut before = vec![None; self.nodes()];
        for node in (0..number(self.nodes())).filter(|&node| left(node)) {
            for &(_, to) in self.of(node).iter().filter(|(_, to)| left(*to)) {
                before[to as usize].get_or_insert(node);
            }
        }
        let mut seen = vec![false; self.nodes()];
        let mut at = (0..number(self.nodes()))
            .find(|&node| left(node))
            .expect("invariant: the sort left something over");
        while !seen[at as usize] {
            seen[at as usize] = true;
            at = before[at as usize].expect("invariant: what is left over has a predecessor among the rest");
        }
        let mut cycle = vec![at];
        let mut back = before[at as usize].expect("invariant: it lies on the cycle");
        while back != at {
            cycle.push(back);
            back = before[back as usize].expect("invariant: it lies on the cycle");
        }
        cycle.reverse();
        cycle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_is_named_in_the_order_of_its_edges() {
        // 0 -> 1 -> 2 -> 3 -> 1, and 3 -> 4 behind it.
        let edges = [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)];
        let mut cycle = Adjacency::new(5, edges.into_iter()).topological_order().unwrap_err();
        let first = cycle.iter().position(|&node| node == 1).unwrap();
        cycle.rotate_left(first);
        assert_eq!(cycle, [1, 2, 3]);
    }

    #[test]
    fn order_puts_every_node_behind_its_inputs() {
        let edges = [(3, 1), (1, 0), (3, 0), (2, 0)];
        let order = Adjacency::new(4, edges.into_iter()).topological_order().unwrap();
        let place = |node: u32| order.iter().position(|&one| one == node).unwrap();
        assert!(edges.iter().all(|&(from, to)| place(from) < place(to)));
    }
}
