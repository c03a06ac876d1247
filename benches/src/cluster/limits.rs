//! What this process and all that it starts may use: processor cores and open files.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Attempt, BenchError};

/// Binds this thread to some cores, and with it every process that it starts from now on.
///
/// # Errors
/// There is none, or one of them is not there for this process.
pub(crate) fn bind_to(cores: &[usize]) -> Result<(), BenchError> {
    let allowed = sched_getaffinity(None)
        .map_err(io::Error::from)
        .attempt(|| "cannot ask for the cores of this process".to_owned())?;
    let wanted = choose(cores, &allowed)?;
    sched_setaffinity(None, &wanted)
        .map_err(io::Error::from)
        .attempt(|| format!("cannot bind to the cores {cores:?} (--cores)"))
}

fn choose(cores: &[usize], allowed: &CpuSet) -> Result<CpuSet, BenchError> {
    let has = |core: usize| core < CpuSet::MAX_CPU && allowed.is_set(core);
    if let Some(wrong) = cores.iter().find(|core| !has(**core)) {
        let all: Vec<String> = (0..CpuSet::MAX_CPU)
            .filter(|core| has(*core))
            .map(|core| core.to_string())
            .collect();
        return Err(BenchError::Usage(format!(
            "core {wrong} is not one of those that this process may use: {} (--cores)",
            all.join(", ")
        )));
    }
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    Ok(set)
}

/// Lets this process, and every process that it starts, open as many files as it may at most. A run with thousands of workers
/// needs three pipes for each.
pub(crate) fn raise_open_files() -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return Ok(());
    }
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, getrlimit};
    use rustix::thread::CpuSet;

    use super::{choose, raise_open_files};

    #[test]
    fn only_cores_that_are_there_are_chosen() {
        let mut allowed = CpuSet::new();
        [0, 2, 5].into_iter().for_each(|core| allowed.set(core));
        let set = choose(&[5, 0], &allowed).expect("both are there");
        assert!(set.is_set(0) && set.is_set(5) && set.count() == 2);
        for wrong in [1, 100_000] {
            let error = choose(&[0, wrong], &allowed).expect_err("not there").to_string();
            assert!(
                error.contains(&format!("core {wrong} ")) && error.contains("0, 2, 5"),
                "{error}"
            );
        }
    }

    #[test]
    fn files_are_raised_to_the_hard_limit() {
        raise_open_files().expect("raised");
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
