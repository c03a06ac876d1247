//! Who gets the next buffer: minimums, order, turns, extents from elsewhere, the read reserve, newcomers.

use std::collections::VecDeque;

use buffer_pool::{
    ArenaKind, Backing, BufferState, JobKey, LocalPoolSpec, NetworkPool, NoBacking, PoolConfig, PoolError, PoolId,
    SlotRef,
};

const JOB: JobKey = JobKey(7);
const OTHER_JOB: JobKey = JobKey(11);

/// `extents` of 4 buffers, two jobs.
fn pool(extents: u32, read_reserve_buffers: u32) -> NetworkPool<NoBacking> {
    let config = PoolConfig {
        total_buffers: extents * 4,
        buffer_bytes: 4096,
        extent_buffers: 4,
        read_reserve_buffers,
    };
    let mut pool = NetworkPool::new(config, NoBacking).expect("a valid configuration");
    pool.add_job(JOB).expect("a new job");
    pool.add_job(OTHER_JOB).expect("a new job");
    pool
}

fn spec(label: &str, minimum: u32) -> LocalPoolSpec {
    LocalPoolSpec {
        minimum,
        maximum: None,
        weight: 1,
        label: label.to_owned(),
    }
}

fn writer(pool: &mut NetworkPool<NoBacking>, job: JobKey, label: &str, minimum: u32) -> PoolId {
    pool.create_local_pool(job, ArenaKind::Write, spec(label, minimum))
        .expect("so much is free")
}

fn take_all<B: Backing>(pool: &mut NetworkPool<B>, id: PoolId) -> Vec<SlotRef> {
    std::iter::from_fn(|| pool.take(id)).collect()
}

fn ready(pool: &mut NetworkPool<NoBacking>) -> Vec<PoolId> {
    std::iter::from_fn(|| pool.poll_ready()).collect()
}

#[test]
fn freed_last_granted_first_and_few_circulate() {
    let mut pool = pool(4, 0);
    let a = writer(&mut pool, JOB, "a", 1);
    let slots: Vec<SlotRef> = (0..3).map(|_| pool.take(a).expect("there is room")).collect();
    pool.release(slots[0], BufferState::Granted);
    pool.release(slots[2], BufferState::Granted);
    assert_eq!((pool.take(a), pool.take(a)), (Some(slots[2]), Some(slots[0])));
    assert_eq!(
        pool.arena_buffers(JOB, ArenaKind::Write),
        4,
        "no second extent while the first has buffers"
    );
    for _ in 0..100 {
        let slot = pool.take(a).expect("there is room");
        pool.release(slot, BufferState::Granted);
    }
    assert_eq!(pool.arena_buffers(JOB, ArenaKind::Write), 4);
}

#[test]
fn a_minimum_is_there_whatever_the_others_took() {
    let mut pool = pool(4, 0);
    let late = writer(&mut pool, JOB, "late", 6);
    let greedy = writer(&mut pool, JOB, "greedy", 0);
    let elsewhere = writer(&mut pool, OTHER_JOB, "elsewhere", 0);
    take_all(&mut pool, greedy);
    take_all(&mut pool, elsewhere);
    assert!((0..6).all(|_| pool.take(late).is_some()));
}

#[test]
fn waiting_writers_are_served_in_order_and_one_buffer_a_turn() {
    let mut pool = pool(1, 0);
    let holder = writer(&mut pool, JOB, "holder", 0);
    let slots = take_all(&mut pool, holder);
    let [a, b] = ["a", "b"].map(|label| writer(&mut pool, JOB, label, 0));
    assert_eq!((pool.take(a), pool.take(b)), (None, None));
    pool.release(slots[0], BufferState::Granted);
    pool.release(slots[1], BufferState::Granted);

    assert_eq!(pool.poll_ready(), Some(a));
    assert_eq!(pool.take(b), None, "it is not b's turn");
    assert!(pool.take(a).is_some());
    assert_eq!(pool.take(a), None, "b waits: a stands behind it");
    assert_eq!(pool.poll_ready(), Some(b));
    assert!(pool.take(b).is_some());
    assert_eq!(pool.poll_ready(), None);
}

#[test]
fn nobody_overtakes_who_waits() {
    let mut pool = pool(1, 0);
    let holder = writer(&mut pool, JOB, "holder", 0);
    let slots = take_all(&mut pool, holder);
    let [first, newcomer] = ["first", "newcomer"].map(|label| writer(&mut pool, JOB, label, 0));
    assert_eq!(pool.take(first), None);
    pool.release(slots[0], BufferState::Granted);
    assert_eq!(pool.take(newcomer), None, "the buffer is for who came first");
    assert_eq!(
        ready(&mut pool),
        [first, newcomer],
        "who declines its turn is passed over"
    );
}

#[test]
fn who_came_first_gets_the_extent_whichever_arena_it_waits_in() {
    let mut pool = pool(2, 0);
    let holder = writer(&mut pool, JOB, "holder", 0);
    let slots = take_all(&mut pool, holder);
    let theirs = writer(&mut pool, OTHER_JOB, "theirs", 0);
    let reader = pool
        .create_local_pool(JOB, ArenaKind::Read, spec("reader", 0))
        .expect("nothing is asked for");
    assert_eq!((pool.take(theirs), pool.take(reader)), (None, None));
    pool.destroy_local_pool(holder);
    slots
        .iter()
        .take(3)
        .for_each(|&slot| pool.release(slot, BufferState::Granted));
    assert_eq!(pool.poll_ready(), None, "an extent with one buffer out cannot move");
    pool.release(slots[3], BufferState::Granted);
    assert_eq!(pool.take(reader), None, "the extent is for who came first");
    assert_eq!(pool.poll_ready(), Some(theirs));
    assert_eq!(pool.take(reader), None, "nor is it taken in somebody's turn");
    assert_eq!(pool.take(theirs).map(|slot| slot.job), Some(OTHER_JOB));
    assert_eq!(pool.poll_ready(), None);
}

#[test]
fn a_pool_at_its_size_wakes_by_its_own_buffer_or_by_redistribution() {
    let mut pool = pool(2, 0);
    let [a, b] = ["a", "b"].map(|label| writer(&mut pool, JOB, label, 1));
    assert_eq!((pool.size(a), pool.size(b)), (4, 4));
    let slots = take_all(&mut pool, a);
    assert_eq!(slots.len(), 4);
    assert_eq!(pool.poll_ready(), None, "there is memory, but not for a");
    pool.release(slots[0], BufferState::Granted);
    assert_eq!(ready(&mut pool), [a]);
    assert!(pool.take(a).is_some() && pool.take(a).is_none());
    pool.destroy_local_pool(b);
    assert_eq!(ready(&mut pool), [a]);
    assert_eq!(take_all(&mut pool, a).len(), 4);
}

#[test]
fn below_its_minimum_a_waiter_goes_first() {
    let mut pool = pool(2, 0);
    let a = pool
        .create_local_pool(
            JOB,
            ArenaKind::Write,
            LocalPoolSpec {
                maximum: Some(2),
                ..spec("a", 2)
            },
        )
        .expect("so much is free");
    let b = writer(&mut pool, JOB, "b", 0);
    let slots = take_all(&mut pool, a);
    take_all(&mut pool, b);
    pool.release(slots[1], BufferState::Granted);
    assert_eq!(pool.take(b), None, "the buffer is a's minimum");
    assert_eq!(pool.poll_ready(), Some(a));
    assert_eq!(pool.take(a), Some(slots[1]));
}

#[test]
fn writers_leave_the_read_reserve_to_gates() {
    let mut pool = pool(4, 4);
    let w = writer(&mut pool, JOB, "w", 1);
    assert_eq!((pool.size(w), take_all(&mut pool, w).len()), (12, 12));
    let error = pool
        .create_local_pool(OTHER_JOB, ArenaKind::Write, spec("x", 1))
        .expect_err("the rest is reserved");
    assert!(
        matches!(
            error,
            PoolError::Insufficient {
                need: 1,
                available: 0,
                total: 12,
                ..
            }
        ),
        "{error}"
    );
    let gate = pool
        .create_local_pool(JOB, ArenaKind::Read, spec("gate", 4))
        .expect("the reserve is for gates");
    assert_eq!(take_all(&mut pool, gate).len(), 4);
}

#[test]
fn an_idle_arena_gives_its_empty_extents_but_not_what_it_guarantees() {
    let mut pool = pool(4, 0);
    let a = writer(&mut pool, JOB, "a", 5);
    let slots = take_all(&mut pool, a);
    assert_eq!(slots.len(), 16);
    slots.iter().for_each(|&slot| pool.release(slot, BufferState::Granted));
    assert_eq!(
        pool.arena_buffers(JOB, ArenaKind::Write),
        16,
        "nothing goes back before somebody needs it"
    );
    let b = writer(&mut pool, OTHER_JOB, "b", 8);
    assert_eq!(take_all(&mut pool, b).len(), 8);
    assert_eq!(
        pool.arena_buffers(JOB, ArenaKind::Write),
        8,
        "5 buffers are two extents"
    );
}

/// A writer that always takes again what comes home, its buffers scattered over all extents: the newcomer still gets its
/// minimum, in the same arena or in another.
#[test]
fn a_busy_pool_makes_room_for_who_waits_to_be_created() {
    for (job, kind) in [
        (JOB, ArenaKind::Write),
        (JOB, ArenaKind::Read),
        (OTHER_JOB, ArenaKind::Write),
    ] {
        let mut pool = pool(16, 0);
        let busy = writer(&mut pool, JOB, "busy", 6);
        let mut queue: VecDeque<SlotRef> = take_all(&mut pool, busy).into();
        assert_eq!(queue.len(), 64);
        let mut rounds = 0;
        let newcomer = loop {
            match pool.create_local_pool(job, kind, spec("newcomer", 10)) {
                Ok(id) => break id,
                Err(PoolError::Insufficient { need, .. }) => match kind {
                    ArenaKind::Write => pool.set_wanted(need.into(), 0),
                    ArenaKind::Read => pool.set_wanted(0, need.into()),
                },
                Err(other) => panic!("{other}"),
            }
            // Not the oldest: consumers differ in speed, and one never gives its buffer back.
            let at = 1 + rounds * 7 % (queue.len() - 1);
            pool.release(queue.remove(at).expect("it is that long"), BufferState::Granted);
            while let Some(id) = pool.poll_ready() {
                assert_eq!(id, busy);
                queue.extend(pool.take(id));
            }
            queue.extend(pool.take(busy));
            rounds += 1;
            assert!(rounds < 256, "the newcomer is never created");
        };
        println!("{kind} of {job}: after {rounds} buffers came home");
        pool.set_wanted(0, 0);
        assert!((0..10).all(|_| pool.take(newcomer).is_some()));
        assert!(queue.len() >= 6 && pool.size(busy) >= 6);
        pool.check_invariants();
    }
}

/// However much waits: sizes shrink to the minimums and no further, and grow back when nobody waits.
#[test]
fn more_may_be_wanted_than_32_bits_hold() {
    let mut pool = pool(16, 0);
    let busy = writer(&mut pool, JOB, "busy", 6);
    let size = pool.size(busy);
    let much = u64::from(u32::MAX) * 3;
    pool.set_wanted(much, much);
    assert_eq!(pool.size(busy), 6);
    pool.check_invariants();
    pool.set_wanted(0, 0);
    assert_eq!(pool.size(busy), size);
}

#[test]
fn what_could_be_guaranteed_is_told_before_it_is_tried() {
    let mut pool = pool(16, 16);
    for (kind, most) in [(ArenaKind::Write, 48), (ArenaKind::Read, 64)] {
        assert_eq!((pool.most(kind), pool.available(JOB, kind)), (most, most));
    }
    writer(&mut pool, JOB, "first", 10);
    let available = pool.available(OTHER_JOB, ArenaKind::Write);
    for (minimum, fits) in [(available + 1, false), (available, true)] {
        let made = pool.create_local_pool(OTHER_JOB, ArenaKind::Write, spec("second", minimum));
        assert_eq!(made.is_ok(), fits, "{minimum} of {available}: {made:?}");
    }
    assert_eq!(pool.available(JobKey(99), ArenaKind::Write), 0, "no such job");
}
