//! Any sequence of operations leaves the books balanced, every minimum takeable and nobody waiting in vain.

mod oracle;

use oracle::{Op, World};
use proptest::prelude::*;

fn op() -> impl Strategy<Value = Op> {
    let byte = any::<u8>();
    prop_oneof![
        1 => byte.prop_map(Op::AddJob),
        1 => byte.prop_map(Op::RetireJob),
        4 => (byte, any::<bool>(), 0u32..14, 0u32..20, 1u32..4)
            .prop_map(|(job, write, minimum, more, weight)| Op::Create { job, write, minimum, more, weight }),
        1 => (byte, 0u32..14, 0u32..14).prop_map(|(job, write, read)| Op::CreateBoth { job, write, read }),
        2 => byte.prop_map(Op::Destroy),
        12 => (byte, byte, 1u8..9).prop_map(|(pool, state, times)| Op::Take { pool, state, times }),
        4 => (byte, byte).prop_map(|(slot, state)| Op::Transition { slot, state }),
        12 => (byte, 1u8..6).prop_map(|(slot, times)| Op::Release { slot, times }),
        1 => byte.prop_map(Op::Quarantine),
        2 => byte.prop_map(Op::Pin),
        2 => byte.prop_map(Op::Unpin),
        1 => (0u32..9).prop_map(Op::TakeUnpooled),
        1 => (0u32..9).prop_map(Op::ReturnUnpooled),
        1 => (0u32..3).prop_map(Op::FailMoves),
        2 => Just(Op::ProveMinimums),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn books_balance(extent in 1u32..6, extents in 1u32..16, reserve in 0u32..20, ops in prop::collection::vec(op(), 1..160)) {
        let total = extent * extents;
        let mut world = World::new(total, extent, reserve.min(total));
        for op in &ops {
            world.apply(op);
        }
        world.everything_comes_home();
    }
}
