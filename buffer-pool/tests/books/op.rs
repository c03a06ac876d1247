//! What can be done to a network pool, and how often the test does it.

use proptest::prelude::*;

/// Numbers choose among what is there, modulo how many there are.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    AddJob(u8),
    RetireJob(u8),
    Create {
        job: u8,
        write: bool,
        minimum: u32,
        more: u32,
        weight: u32,
    },
    CreateBoth {
        job: u8,
        write: u32,
        read: u32,
    },
    Destroy(u8),
    Take {
        pool: u8,
        state: u8,
        times: u8,
    },
    Transition {
        slot: u8,
        state: u8,
    },
    Release {
        slot: u8,
        times: u8,
    },
    Quarantine(u8),
    Pin(u8),
    Unpin(u8),
    TakeUnpooled(u32),
    ReturnUnpooled(u32),
    Want {
        write: u32,
        read: u32,
    },
    FailMoves(u32),
    ProveMinimums,
}

/// Any operation, the frequent ones more often.
pub(crate) fn any_op() -> impl Strategy<Value = Op> {
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
        1 => prop_oneof![Just((0, 0)), (0u32..9, 0u32..9)].prop_map(|(write, read)| Op::Want { write, read }),
        1 => (0u32..3).prop_map(Op::FailMoves),
        2 => Just(Op::ProveMinimums),
    ]
}
