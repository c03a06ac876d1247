//! The known cases of redistribution, against the books without memory.

use std::collections::BTreeMap;

use buffer_pool::{ArenaKind, JobKey, LocalPoolSpec, NetworkPool, NoBacking, PoolConfig, PoolError, PoolId};
use serde::Deserialize;

const JOB: JobKey = JobKey(7);

#[derive(Deserialize)]
struct Vectors {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    total: u32,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    create: Option<String>,
    min: Option<u32>,
    max: Option<u32>,
    destroy: Option<String>,
    take_unpooled: Option<u32>,
    return_unpooled: Option<u32>,
    error: Option<String>,
    sizes: Option<BTreeMap<String, u32>>,
    sum: Option<u32>,
    not_equal: Option<u32>,
}

#[test]
fn known_cases() {
    let vectors: Vectors =
        serde_json::from_str(include_str!("vectors/buffer_pool.json")).expect("the vectors have this shape");
    assert_eq!(vectors.cases.len(), 9);
    for case in vectors.cases {
        println!("case: {}", case.name);
        run(&case);
    }
}

fn run(case: &Case) {
    let config = PoolConfig {
        total_buffers: case.total,
        buffer_bytes: 32 << 10,
        extent_buffers: 1,
        read_reserve_buffers: 0,
    };
    let mut pool = NetworkPool::new(config, NoBacking).expect("a valid configuration");
    pool.add_job(JOB).expect("a new job");
    let mut named: BTreeMap<String, PoolId> = BTreeMap::new();
    for step in &case.steps {
        apply(&mut pool, &mut named, step);
        pool.check_invariants();
        for (name, &size) in step.sizes.iter().flatten() {
            assert_eq!(pool.size(named[name]), size, "size of {name} in \"{}\"", case.name);
        }
        let all: Vec<u32> = named.values().map(|&id| pool.size(id)).collect();
        if let Some(sum) = step.sum {
            assert_eq!(all.iter().sum::<u32>(), sum, "sum in \"{}\"", case.name);
        }
        if let Some(other) = step.not_equal {
            assert!(
                all.iter().all(|&size| size != other),
                "nobody has {other} in \"{}\"",
                case.name
            );
        }
    }
}

fn apply(pool: &mut NetworkPool<NoBacking>, named: &mut BTreeMap<String, PoolId>, step: &Step) {
    if let Some(name) = &step.create {
        let spec = LocalPoolSpec {
            minimum: step.min.expect("a minimum"),
            maximum: step.max,
            weight: 1,
            label: name.clone(),
        };
        match (pool.create_local_pool(JOB, ArenaKind::Write, spec), &step.error) {
            (Ok(id), None) => {
                named.insert(name.clone(), id);
            }
            (Err(PoolError::Insufficient { .. }), Some(error)) => {
                assert_eq!(error, "insufficient buffers")
            }
            (result, expected) => panic!("{name}: {result:?}, expected {expected:?}"),
        }
    } else if let Some(name) = &step.destroy {
        pool.destroy_local_pool(named.remove(name).expect("created before"));
    } else if let Some(buffers) = step.take_unpooled {
        pool.take_unpooled(buffers).expect("so many are undivided");
    } else if let Some(buffers) = step.return_unpooled {
        pool.return_unpooled(buffers);
    } else {
        panic!("a step of an unknown kind");
    }
}
