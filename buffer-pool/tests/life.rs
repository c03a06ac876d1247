//! How pools, jobs and buffers come and go: refusals, groups, quarantine, pins, retirement.

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

#[test]
fn the_fifth_of_eight_writers_is_refused_with_numbers() {
    let mut pool = pool(4, 0);
    for label in ["w0", "w1", "w2", "w3"] {
        writer(&mut pool, JOB, label, 4);
    }
    let error = pool
        .create_local_pool(JOB, ArenaKind::Write, spec("w4", 4))
        .expect_err("nothing is left");
    assert_eq!(
        error.to_string(),
        "need 4 buffers, 0 of 16 available, held by w0 (holds 0, guaranteed 4), w1 (holds 0, guaranteed 4), \
         w2 (holds 0, guaranteed 4), w3 (holds 0, guaranteed 4)"
    );
}

#[test]
fn a_destroyed_pool_is_a_holder_until_its_last_buffer_is_home() {
    let mut pool = pool(2, 0);
    let a = writer(&mut pool, JOB, "fenced attempt", 5);
    let slots = take_all(&mut pool, a);
    pool.destroy_local_pool(a);
    slots.iter().take(2).for_each(|&slot| pool.quarantine(slot));
    slots
        .iter()
        .skip(2)
        .for_each(|&slot| pool.release(slot, BufferState::Granted));
    let error = pool
        .create_local_pool(JOB, ArenaKind::Write, spec("successor", 8))
        .expect_err("two are quarantined");
    assert_eq!(
        error.to_string(),
        "need 8 buffers, 6 of 8 available, held by fenced attempt (holds 2, guaranteed 0)"
    );
    let successor = writer(&mut pool, JOB, "successor", 6);
    let theirs = take_all(&mut pool, successor);
    assert_eq!(theirs.len(), 6);
    assert!(
        theirs.iter().all(|slot| !slots[..2].contains(slot)),
        "a quarantined buffer is granted to nobody"
    );
    assert_eq!((pool.books().quarantined, pool.held(a)), (2, 2));
    slots
        .iter()
        .take(2)
        .for_each(|&slot| pool.release(slot, BufferState::Quarantined));
    assert_eq!((pool.held(a), pool.poll_ready()), (0, Some(successor)));
}

#[test]
fn a_pinned_buffer_comes_home_at_its_last_unpin() {
    let mut pool = pool(1, 0);
    let a = writer(&mut pool, JOB, "a", 1);
    let slot = pool.take(a).expect("its minimum");
    pool.transition(slot, BufferState::Granted, BufferState::Queued);
    pool.pin(slot);
    pool.pin(slot);
    pool.unpin(slot);
    pool.release(slot, BufferState::Queued);
    assert_eq!((pool.books().kernel, pool.state(slot)), (1, Some(BufferState::Kernel)));
    pool.unpin(slot);
    assert_eq!((pool.books().free, pool.held(a)), (4, 0));
}

#[test]
#[should_panic(expected = "is Granted, not Queued")]
fn a_release_from_the_wrong_state_stops_the_process() {
    let mut pool = pool(1, 0);
    let a = writer(&mut pool, JOB, "a", 1);
    let slot = pool.take(a).expect("its minimum");
    pool.release(slot, BufferState::Queued);
}

#[test]
#[should_panic(expected = "is out")]
fn a_double_release_stops_the_process() {
    let mut pool = pool(1, 0);
    let a = writer(&mut pool, JOB, "a", 1);
    let slot = pool.take(a).expect("its minimum");
    pool.release(slot, BufferState::Granted);
    pool.release(slot, BufferState::Granted);
}

#[test]
fn a_job_goes_with_its_last_buffer() {
    let mut pool = pool(2, 0);
    let a = writer(&mut pool, JOB, "a", 5);
    let slots = take_all(&mut pool, a);
    assert!(matches!(
        pool.remove_job(JOB),
        Err(PoolError::JobBusy { job: JOB, out: 8 })
    ));
    assert!(!pool.retire_job(JOB).expect("it is here"));
    assert!(matches!(
        pool.create_local_pool(JOB, ArenaKind::Read, spec("b", 0)),
        Err(PoolError::JobUnknown(JOB))
    ));
    slots.iter().for_each(|&slot| pool.release(slot, BufferState::Granted));
    assert!(matches!(pool.remove_job(JOB), Err(PoolError::JobUnknown(JOB))));
    assert_eq!((pool.books().unassigned, pool.state(slots[0])), (8, None));
}

#[test]
fn a_group_gets_all_its_minimums_or_none() {
    let mut pool = pool(4, 4);
    let group = |write, read| {
        [
            (JOB, ArenaKind::Write, spec("w", write)),
            (JOB, ArenaKind::Read, spec("r", read)),
        ]
    };
    assert!(matches!(
        pool.create_local_pools(group(8, 9)),
        Err(PoolError::Insufficient {
            need: 9,
            available: 8,
            ..
        })
    ));
    assert!(pool.holders().is_empty());
    assert_eq!(pool.create_local_pools(group(8, 8)).expect("they fit").len(), 2);
}

#[test]
fn specifications_that_contradict_themselves_are_refused() {
    let mut pool = pool(1, 0);
    for bad in [
        LocalPoolSpec {
            weight: 0,
            ..spec("a", 1)
        },
        LocalPoolSpec {
            maximum: Some(0),
            ..spec("a", 1)
        },
    ] {
        assert!(matches!(
            pool.create_local_pool(JOB, ArenaKind::Read, bad),
            Err(PoolError::InvalidSpec { .. })
        ));
    }
    let config = PoolConfig {
        total_buffers: 10,
        buffer_bytes: 4096,
        extent_buffers: 4,
        read_reserve_buffers: 0,
    };
    let error = NetworkPool::new(config, NoBacking).expect_err("10 is no multiple of 4");
    assert!(error.to_string().contains("multiple of extent_buffers (4)"), "{error}");
}
