//! Any sequence of operations leaves the books balanced, every minimum takeable and nobody waiting in vain.

mod op;
mod oracle;

use oracle::World;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn books_balance(extent in 1u32..6, extents in 1u32..16, reserve in 0u32..20, ops in prop::collection::vec(op::any_op(), 1..160)) {
        let total = extent * extents;
        let mut world = World::new(total, extent, reserve.min(total));
        for op in &ops {
            world.apply(op);
        }
        world.everything_comes_home();
    }
}
