//! Who gets slots: the whole of a group, or nobody of it.
//!
//! ```text
//!   nodes      [####....]  [######..]  [########]      # taken
//!   group needs 3 tasks of 2 slots:  2 here, 1 there    -> all at once, or it waits
//!                             4 of 2 slots              -> waits: not all of them fit now
//!                            13 of 2 slots              -> refused: never would
//! ```
//!
//! ```text
//! free == total - taken >= 0 on each node
//! ```

use shuffle_protocol::NodeAddress;
use thiserror::Error;

use crate::ids::number;

/// A node by its place among all that ever came. A node that comes back is another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct NodeIndex(pub(crate) u32);

/// The tasks of one stage, to be placed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Need {
    /// How many.
    pub tasks: u32,
    /// Slots that each takes, on one node.
    pub slots_per_task: u32,
}

impl Need {
    /// Slots of all of them.
    pub const fn slots(self) -> u64 {
        self.tasks as u64 * self.slots_per_task as u64
    }
}

/// More than the cluster could ever hold.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("needs {needs} slots, the cluster has {has}{}", too_narrow(*needs, *has))]
pub struct NeverFits {
    /// Slots of all tasks.
    pub needs: u64,
    /// Slots of all nodes.
    pub has: u64,
}

const fn too_narrow(needs: u64, has: u64) -> &'static str {
    if needs <= has {
        ", on nodes too small for its tasks"
    } else {
        ""
    }
}

/// So many tasks in a row on one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) node: NodeIndex,
    pub(crate) tasks: u32,
}

#[derive(Clone, Debug)]
struct Node {
    address: NodeAddress,
    total: u32,
    taken: u32,
    lives: bool,
}

/// The slots of the nodes, and who has them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    nodes: Vec<Node>,
    /// Those that live, by place.
    living: Vec<NodeIndex>,
}

impl Cluster {
    /// Adds a node with so many slots for this job.
    pub(crate) fn join(&mut self, address: NodeAddress, slots: u32) -> NodeIndex {
        let index = NodeIndex(number(self.nodes.len()));
        self.nodes.push(Node {
            address,
            total: slots,
            taken: 0,
            lives: true,
        });
        self.living.push(index);
        index
    }

    /// The node and its slots are gone.
    pub(crate) fn leave(&mut self, node: NodeIndex) {
        self.nodes[node.0 as usize].lives = false;
        self.living.retain(|&one| one != node);
    }

    /// The living node of that address.
    pub(crate) fn find(&self, address: &NodeAddress) -> Option<NodeIndex> {
        let of_address = |node: &&NodeIndex| self.address(**node) == address;
        self.living.iter().find(of_address).copied()
    }

    pub(crate) fn address(&self, node: NodeIndex) -> &NodeAddress {
        &self.nodes[node.0 as usize].address
    }

    pub(crate) fn lives(&self, node: NodeIndex) -> bool {
        self.nodes[node.0 as usize].lives
    }

    pub(crate) fn living(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        self.living.iter().copied()
    }

    /// Slots of all living nodes.
    pub fn total(&self) -> u64 {
        self.living
            .iter()
            .map(|node| u64::from(self.nodes[node.0 as usize].total))
            .sum()
    }

    /// Slots that nobody has.
    pub fn free(&self) -> u64 {
        self.living.iter().map(|&node| u64::from(self.free_on(node))).sum()
    }

    fn free_on(&self, node: NodeIndex) -> u32 {
        let node = &self.nodes[node.0 as usize];
        node.total - node.taken
    }

    /// Whether all of it could be placed if every slot were free.
    ///
    /// # Errors
    /// How much it needs and how much there is.
    pub(crate) fn check_fits(&self, needs: &[Need]) -> Result<(), NeverFits> {
        let mut empty = self.clone();
        for node in &mut empty.nodes {
            node.taken = 0;
        }
        match empty.place_all(needs) {
            Some(_) => Ok(()),
            None => Err(NeverFits {
                needs: needs.iter().map(|need| need.slots()).sum(),
                has: self.total(),
            }),
        }
    }

    /// Places all tasks of all stages, for each stage in runs of neighbouring tasks, and takes their slots; or changes nothing.
    /// The widest tasks are placed first, those of one stage in proportion to the room there is.
    pub(crate) fn place_all(&mut self, needs: &[Need]) -> Option<Vec<Vec<Run>>> {
        let mut order: Vec<usize> = (0..needs.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(needs[at].slots_per_task));
        let mut placed: Vec<Vec<Run>> = vec![Vec::new(); needs.len()];
        for at in order {
            match self.place(needs[at]) {
                Some(runs) => placed[at] = runs,
                None => {
                    for (runs, need) in placed.iter().zip(needs) {
                        for run in runs {
                            self.give_back(run.node, run.tasks * need.slots_per_task);
                        }
                    }
                    return None;
                }
            }
        }
        Some(placed)
    }

    /// A slot set for one task: on the preferred node if that has room, else where there is most.
    pub(crate) fn take_one(&mut self, slots: u32, preferred: Option<NodeIndex>) -> Option<NodeIndex> {
        let fits = |node: NodeIndex| self.lives(node) && self.free_on(node) >= slots;
        let most = || {
            self.living
                .iter()
                .copied()
                .max_by_key(|&node| (self.free_on(node), std::cmp::Reverse(node)))
        };
        let node = preferred
            .filter(|&node| fits(node))
            .or_else(|| most().filter(|&node| fits(node)))?;
        self.nodes[node.0 as usize].taken += slots;
        Some(node)
    }

    /// Slots come back. Those of a node that is gone are gone with it.
    ///
    /// # Panics
    /// If more come back than were taken.
    pub(crate) fn give_back(&mut self, node: NodeIndex, slots: u32) {
        let node = &mut self.nodes[node.0 as usize];
        assert!(node.taken >= slots, "invariant: only slots that were taken come back");
        node.taken -= slots;
    }

    /// How many such tasks have room now.
    pub(crate) fn room(&self, slots_per_task: u32) -> u64 {
        let on = |&node: &NodeIndex| u64::from(self.free_on(node) / slots_per_task);
        self.living.iter().map(on).sum()
    }

    /// Places the tasks of one stage in proportion to the room there is, in runs of neighbours.
    pub(crate) fn place(&mut self, need: Need) -> Option<Vec<Run>> {
        let room = |node: NodeIndex| self.free_on(node) / need.slots_per_task;
        let rooms: Vec<(NodeIndex, u32)> = self.living.iter().map(|&node| (node, room(node))).collect();
        let all: u64 = rooms.iter().map(|(_, room)| u64::from(*room)).sum();
        let mut left = need.tasks;
        if all < u64::from(left) {
            return None;
        }
        let part = |room: u32| {
            let exact = u64::from(need.tasks) * u64::from(room) / all.max(1);
            u32::try_from(exact).expect("invariant: a part is at most the tasks")
        };
        let mut runs: Vec<Run> = Vec::with_capacity(rooms.len());
        for &(node, room) in &rooms {
            runs.push(Run {
                node,
                tasks: part(room),
            });
            left -= part(room);
        }
        for (run, (_, room)) in runs.iter_mut().zip(&rooms) {
            let more = left.min(room - run.tasks).min(1);
            run.tasks += more;
            left -= more;
        }
        assert_eq!(
            left, 0,
            "invariant: rounding leaves less than one task for each node with room"
        );
        runs.retain(|run| run.tasks > 0);
        for run in &runs {
            self.nodes[run.node.0 as usize].taken += run.tasks * need.slots_per_task;
        }
        Some(runs)
    }

    /// Panics unless the books balance.
    pub(crate) fn check_invariants(&self) {
        for node in &self.nodes {
            assert!(
                node.taken <= node.total,
                "invariant: no slot is taken twice on {}",
                node.address
            );
        }
    }

    /// Slots taken on living nodes.
    pub(crate) fn taken(&self) -> u64 {
        self.total() - self.free()
    }
}
