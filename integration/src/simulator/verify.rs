//! A server's driver sums what the core wants summed: the checksum follows from what lies in the simulated memory.

use shuffle_server::node::Node;

use super::data::describe;
use super::world::World;

impl World {
    pub(super) fn drain_verify(&mut self, host: usize) {
        while let Some(verify) = self.hosts[host].node.as_mut().and_then(Node::poll_verify) {
            let content = self.memory(host).read(verify.slot, verify.offset);
            let sum = describe(content, 0, 0).checksum;
            self.core(host, |node, now| node.handle_verified(now, verify.ticket, Ok(sum)));
        }
    }
}
